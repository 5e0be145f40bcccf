import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.errors import OffsetOutOfRange, OptionError
from sluiceway.kafka.consumer import Watermarks
from sluiceway.spark.offsets import (
    AtTime,
    Bound,
    Earliest,
    Latest,
    OffsetRange,
    Offsets,
    parse_offsets,
    resolve,
)

EARLIEST, LATEST = Earliest(), Latest()
MARKS = {0: Watermarks(begin=5, end=10), 1: Watermarks(begin=0, end=0)}


def ranges(
    starting: Bound = EARLIEST, ending: Bound = LATEST, **at: dict[int, int]
) -> list[tuple[int, int, int]]:
    found = resolve(
        starting=starting,
        ending=ending,
        watermarks=MARKS,
        starting_at_time=at.get("starts", {}),
        ending_at_time=at.get("ends", {}),
    )
    return [(each.partition, each.start, each.end) for each in found]


def test_by_default_everything_that_kafka_holds_is_read() -> None:
    assert ranges() == [(0, 5, 10)]


def test_from_the_latest_nothing_is_read() -> None:
    assert ranges(Latest()) == []


def test_offsets_are_taken_as_they_are_and_minus_two_and_one_stand_for_the_ends() -> None:
    assert ranges(Offsets(by_partition={0: 7, 1: -2})) == [(0, 7, 10)]
    assert ranges(ending=Offsets(by_partition={0: 7, 1: -1})) == [(0, 5, 7)]
    assert ranges(Offsets(by_partition={0: -2, 1: 0}), Offsets(by_partition={0: -1, 1: 0})) == [
        (0, 5, 10)
    ]


def test_times_come_to_offsets_and_never_leave_the_watermarks() -> None:
    at = AtTime(timestamp_ms=1)
    assert ranges(at, starts={0: 8, 1: 0}) == [(0, 8, 10)]
    # A message arrived after the watermarks were asked for.
    assert ranges(ending=at, ends={0: 12, 1: 3}) == [(0, 5, 10)]


def test_a_start_time_after_the_end_time_reads_nothing() -> None:
    at = AtTime(timestamp_ms=1)
    assert ranges(at, at, starts={0: 9, 1: 0}, ends={0: 6, 1: 0}) == []


@pytest.mark.parametrize("offset", [4, 11])
def test_an_offset_that_kafka_does_not_hold_is_an_error_that_names_the_range(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match=f"partition 0 has no offset {offset}.*5 to 10"):
        ranges(Offsets(by_partition={0: offset, 1: 0}))


def test_offsets_for_too_few_partitions_are_an_error() -> None:
    with pytest.raises(OptionError, match="startingOffsets says nothing about partition 1"):
        ranges(Offsets(by_partition={0: 5}))


def test_offsets_for_a_partition_that_is_not_there_are_an_error() -> None:
    with pytest.raises(OptionError, match="endingOffsets names partition 2"):
        ranges(ending=Offsets(by_partition={0: 5, 1: 0, 2: 0}))


def test_an_end_before_its_start_is_an_error() -> None:
    with pytest.raises(OptionError, match="partition 0 would be read from offset 8 to 6"):
        ranges(Offsets(by_partition={0: 8, 1: 0}), Offsets(by_partition={0: 6, 1: 0}))


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Earliest()),
        (" Latest ", Latest()),
        ('{"0": 5, "1": -2}', Offsets(by_partition={0: 5, 1: -2})),
        ('{"flights": {"0": 5}}', Offsets(by_partition={0: 5})),
    ],
)
def test_offsets_are_read_in_the_forms_that_kafka_users_know(text: str, bound: Bound) -> None:
    assert parse_offsets("startingOffsets", text, "flights") == bound


@pytest.mark.parametrize(
    "text",
    [
        *("", "first", "5", "[]", "{}", '{"0": "5"}', '{"0": -3}', '{"0": 1.5}', '{"0": true}'),
        *('{"-1": 5}', '{"0": 9223372036854775808}', '{"other": {"0": 5}}', '{"٣": 5}'),
    ],
)
def test_nonsense_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(OptionError, match="endingOffsets"):
        parse_offsets("endingOffsets", text, "flights")


@given(st.dictionaries(st.integers(0, 5000), st.integers(-2, 2**63 - 1), min_size=1))
def test_every_choice_of_offsets_survives_json(offsets: dict[int, int]) -> None:
    text = json.dumps({str(key): value for key, value in offsets.items()})
    assert parse_offsets("startingOffsets", text, "c") == Offsets(by_partition=offsets)


def test_a_range_knows_how_many_offsets_it_spans() -> None:
    assert OffsetRange(partition=0, start=3, end=10).messages == 7
