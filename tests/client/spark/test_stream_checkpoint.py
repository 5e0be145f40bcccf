"""Checkpoint offsets of a stream."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.api.ledger import KnownCommit
from sluiceway.api.models import Connection
from sluiceway.errors import CheckpointMismatch
from sluiceway.spark.offsets import StreamOffset

AT = StreamOffset(channel="flights", uid="a" * 32, topic_id="T", next_offsets={0: 5, 1: 0})
CONNECTION = Connection(
    channel_name="flights",
    channel_uid="a" * 32,
    generation=1,
    format="avro",
    schema_id=1,
    schema_definition={},
    schemas=(),
    topic_name="flights-aaaaaaaa",
    topic_id="T",
    partitions=2,
    max_message_bytes=1_000_000,
    kafka={},
)


@given(st.dictionaries(st.integers(0, 10_000), st.integers(0, 2**63 - 1)))
def test_offsets_survive_a_checkpoint(offsets: dict[int, int]) -> None:
    stored = replace(AT, next_offsets=offsets)

    for offset in (stored, stored.as_query_start(), AT.as_end_after(stored.as_query_start())):
        assert StreamOffset.parse(json.loads(json.dumps(offset.to_json()))) == offset


def test_equal_offsets_have_equal_json() -> None:
    """Spark compares the JSON to find new data."""
    other = replace(AT, next_offsets={1: 0, 0: 5})

    assert json.dumps(other.to_json()) == json.dumps(AT.to_json())


def test_offsets_name_version_channel_and_topic() -> None:
    assert AT.to_json() == {
        "version": 1,
        "channel": "flights",
        "uid": "a" * 32,
        "topic_id": "T",
        "offsets": {"0": 5, "1": 0},
    }


def test_only_a_group_set_by_an_option_is_stored() -> None:
    grouped = replace(AT, group="delays")

    assert grouped.to_json() == AT.to_json() | {"group": "delays"}
    assert StreamOffset.parse(grouped.to_json()) == grouped
    assert StreamOffset.parse(AT.to_json()).group is None


def test_an_offset_without_new_records_keeps_the_commit_of_its_start() -> None:
    first, later = (
        replace(AT, commit=KnownCommit(number=number, at=datetime(2026, 1, number, tzinfo=UTC)))
        for number in (1, 2)
    )
    for start in (AT.as_query_start(), first):
        assert later.as_end_after(start).to_json() == start.to_json()
    moved = replace(later, next_offsets={0: 6, 1: 0})
    for start in (AT.as_query_start(), first):
        stored = json.loads(json.dumps(moved.as_end_after(start).to_json()))
        assert StreamOffset.parse(stored).commit == later.commit


def test_the_replay_of_a_first_batch_begins_at_0_in_partitions_that_were_added_during_it() -> None:
    first = replace(AT, next_offsets={0: 10}).as_query_start()
    end = replace(AT, next_offsets={0: 15, 1: 5}).as_end_after(first)
    # `latest` moves until the query is started again.
    restarted = replace(AT, next_offsets={0: 20, 1: 7}).as_query_start()

    assert restarted.starts_until(end) == {0: 10, 1: 0}
    assert first.starts_until(end) == {0: 10}


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (AT.to_json() | {"version": 2}, "version 2, this client reads versions up to 1: inst"),
        (AT.to_json() | {"version": "1"}, "version '1'"),
        ({"flights": {"0": 5}}, "which are not offsets of a channel. Give the query a new check"),
        (AT.to_json() | {"offsets": [5]}, "which are not offsets"),
        (AT.to_json() | {"offsets": {"x": 5}}, "which are not offsets"),
        (AT.to_json() | {"commit": {"number": 1, "at": "now"}}, "which are not offsets"),
        (None, "which are not offsets"),
    ],
)
def test_invalid_checkpoint_offsets_are_an_error(stored: Any, said: str) -> None:
    with pytest.raises(CheckpointMismatch, match=said):
        StreamOffset.parse(stored)


def test_the_checkpoint_of_the_same_topic_is_accepted() -> None:
    AT.require_topic_of(CONNECTION)
    AT.require_topic_of(replace(CONNECTION, partitions=7, topic_id=None))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"channel_uid": "b" * 32}, "'flights' was deleted and recreated since the checkpoint"),
        (
            {"channel_uid": "b" * 32, "channel_name": "trains"},
            r"belongs to the channel 'flights' \(a+\), not to 'trains'",
        ),
        ({"topic_id": "U"}, "the topic of the channel 'flights' was deleted and recreated"),
    ],
)
def test_the_checkpoint_of_another_topic_is_an_error_with_advice(
    changes: dict[str, str], said: str
) -> None:
    with pytest.raises(CheckpointMismatch, match=said) as caught:
        AT.require_topic_of(replace(CONNECTION, **changes))  # type: ignore[arg-type]

    assert "a new checkpointLocation to start over" in str(caught.value)
