"""Records of a completed fetch as instances: an invalid one is named, and can be skipped."""

from typing import Any

import pydantic
import pytest

from sluiceway.api.endpoints import Position
from sluiceway.codecs import Decoded
from sluiceway.errors import ValidationFailed
from sluiceway.kafka.completed_fetch import CompletedFetch
from sluiceway.records import to_batches
from sluiceway.records.instances import Instances
from sluiceway.schema import Schema


class Reading(pydantic.BaseModel):
    id: int = pydantic.Field(ge=0)


SCHEMA = Schema.of(Reading)
#: Two messages of partition 1, then one of partition 0.
CHUNKS = [(1, [7, 9]), (0, [3])]


def fetch(
    ids: list[int], counts: list[int] | None, positions: dict[int, Position] | None = None
) -> CompletedFetch:
    batches = to_batches([{"id": reading_id} for reading_id in ids], SCHEMA)
    decoded = Decoded(batches=batches, counts=counts, corrupt=[])
    instances = Instances(Reading, SCHEMA, "readings")
    return CompletedFetch(CHUNKS, decoded, positions or {}, skip=False, instances=instances)


@pytest.mark.parametrize(
    ("ids", "counts", "place", "following"),
    [
        ([-1, 1, 2], None, (1, 7, 0), Position(offset=8)),
        ([0, 1, -2], None, (0, 3, 0), Position(offset=4)),
        ([0, 1, -2, 3], [2, 1, 1], (1, 9, 0), Position(offset=10)),
        ([0, -1, 2, 3, 4], [3, 1, 1], (1, 7, 1), Position(offset=7, records=2)),
        ([0, 1, -2, 3, 4], [3, 1, 1], (1, 7, 2), Position(offset=8)),
        ([0, 1, 2, 3, -4], [2, 1, 2], (0, 3, 1), Position(offset=4)),
    ],
)
def test_an_invalid_record_is_named_after_those_before_it(
    ids: list[int], counts: list[int] | None, place: tuple[int, int, int], following: Position
) -> None:
    completed = fetch(ids, counts)
    valid = min(ids.index(reading_id) for reading_id in ids if reading_id < 0)
    records: list[Any] = []
    if valid:
        records += completed.records()
    assert records == [Reading(id=reading_id) for reading_id in ids[:valid]]
    for _ in range(2):
        with pytest.raises(ValidationFailed, match="'id' is not valid for Reading") as raised:
            completed.records()
    error = raised.value
    assert (error.partition, error.offset, error.record) == place
    assert (error.channel, error.field, error.following) == ("readings", "id", following)
    assert isinstance(error.__cause__, pydantic.ValidationError)
    assert "Input should be" not in error.summary
    positions: dict[int, Position] = {}
    completed.advance(positions)
    partition, offset, record = place
    assert positions.get(partition, Position(offset=offset)).records == record


def test_a_place_within_a_message_counts_the_records_that_were_read_before() -> None:
    completed = fetch([0, 1, -2, 3, 4], [3, 1, 1], {1: Position(offset=7, records=2)})
    with pytest.raises(ValidationFailed) as raised:
        completed.records()
    assert (raised.value.offset, raised.value.record) == (7, 2)
    assert raised.value.following == Position(offset=8)


def test_batches_are_those_of_arrow_and_not_checked() -> None:
    completed = fetch([-1, 1, 2], None)
    assert completed.batch().column("id").to_pylist() == [-1, 1, 2]
    assert completed.exhausted
