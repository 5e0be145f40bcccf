import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.errors import OffsetOutOfRange, OptionError
from sluiceway.kafka.consumer import Watermarks
from sluiceway.spark.batch_reader import loss_handler
from sluiceway.spark.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    OffsetBound,
    OffsetRange,
    parse_offsets,
    resolve_ranges,
)
from sluiceway.spark.options import ReadOptions

MARKS = {0: Watermarks(begin=5, end=10), 1: Watermarks(begin=0, end=0)}


def raise_loss(error: OffsetOutOfRange) -> None:
    raise error


def ranges(
    starting: OffsetBound = EARLIEST,
    ending: OffsetBound = LATEST,
    at_time: Mapping[int, Mapping[int, int]] | None = None,
    removed: Mapping[int, OffsetOutOfRange] | None = None,
) -> list[tuple[int, int, int]]:
    resolved = resolve_ranges(
        starting, ending, MARKS, (at_time or {}).__getitem__, raise_loss, removed=removed or {}
    )
    return [
        (offset_range.partition, offset_range.start, offset_range.end) for offset_range in resolved
    ]


def test_the_default_bounds_read_all_retained_messages() -> None:
    assert ranges() == [(0, 5, 10)]


def test_a_read_from_the_latest_offsets_is_empty() -> None:
    assert ranges(LATEST) == []


def test_minus_two_is_the_earliest_and_minus_one_the_latest_offset() -> None:
    assert ranges({0: 7, 1: -2}) == [(0, 7, 10)]
    assert ranges(ending={0: 7, 1: -1}) == [(0, 5, 7)]
    assert ranges({0: -2, 1: 0}, {0: -1, 1: 0}) == [(0, 5, 10)]


def test_offsets_by_time_stay_within_the_watermarks() -> None:
    at = AtTime(timestamp_ms=1)
    assert ranges(at, at_time={1: {0: 8, 1: 0}}) == [(0, 8, 10)]
    # A message arrived after the watermarks were taken.
    assert ranges(ending=at, at_time={1: {0: 12, 1: 3}}) == [(0, 5, 10)]


def test_removed_records_of_a_snapshot_need_a_start_after_them() -> None:
    removed = {0: OffsetOutOfRange(partition=0, offset=0, begin=5, end=10)}
    for begin in (EARLIEST, {0: -2, 1: 0}):
        with pytest.raises(OffsetOutOfRange):
            ranges(begin, removed=removed)
    assert ranges({0: 5, 1: -2}, removed=removed) == [(0, 5, 10)]
    assert ranges(LATEST, removed=removed) == []
    at = AtTime(timestamp_ms=1)
    with pytest.raises(OffsetOutOfRange):
        ranges(at, at_time={1: {0: 5, 1: 0}}, removed=removed)
    assert ranges(at, at_time={1: {0: 6, 1: 0}}, removed=removed) == [(0, 6, 10)]


def test_a_start_time_after_the_end_time_reads_nothing() -> None:
    late, early = AtTime(timestamp_ms=2), AtTime(timestamp_ms=1)
    assert ranges(late, early, {2: {0: 9, 1: 0}, 1: {0: 6, 1: 0}}) == []


@pytest.mark.parametrize("offset", [4, 11])
def test_an_offset_out_of_range_is_an_error_with_the_range(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match=f"partition 0 has no offset {offset}.*5 to 10"):
        ranges({0: offset, 1: 0})


def test_offsets_for_too_few_partitions_are_an_error() -> None:
    with pytest.raises(OptionError, match="startingOffsets lacks partition 1"):
        ranges({0: 5})


def test_offsets_for_an_unknown_partition_are_an_error() -> None:
    with pytest.raises(OptionError, match="endingOffsets names partition 2"):
        ranges(ending={0: 5, 1: 0, 2: 0})


def test_an_end_before_its_start_is_an_error() -> None:
    with pytest.raises(OptionError, match="partition 0 has the start 8 after the end 6"):
        ranges({0: 8, 1: 0}, {0: 6, 1: 0})


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", EARLIEST),
        (" Latest ", LATEST),
        ('{"0": 5, "1": -2}', {0: 5, 1: -2}),
        ('{"flights": {"0": 5}}', {0: 5}),
    ],
)
def test_offsets_are_parsed_as_in_sparks_kafka_source(text: str, bound: OffsetBound) -> None:
    assert parse_offsets("startingOffsets", text, "flights") == bound


@pytest.mark.parametrize(
    "text",
    [
        *("", "first", "5", "[]", "{}", '{"0": "5"}', '{"0": -3}', '{"0": 1.5}', '{"0": true}'),
        *('{"-1": 5}', '{"0": 9223372036854775808}', '{"other": {"0": 5}}', '{"٣": 5}'),
    ],
)
def test_an_invalid_offset_is_an_error_that_names_the_option(text: str) -> None:
    with pytest.raises(OptionError, match="endingOffsets"):
        parse_offsets("endingOffsets", text, "flights")


@given(st.dictionaries(st.integers(0, 5000), st.integers(-2, 2**63 - 1), min_size=1))
def test_offsets_survive_json(offsets: dict[int, int]) -> None:
    text = json.dumps({str(key): value for key, value in offsets.items()})
    assert parse_offsets("startingOffsets", text, "c") == offsets


def test_the_length_of_a_range_is_its_number_of_offsets() -> None:
    assert OffsetRange(partition=0, start=3, end=10).messages == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"nope": 5}', "has the key 'nope': not a partition, which is a whole number from 0"),
        ('{"nope": {"0": 5}}', "has the key 'nope': not the channel 'flights'"),
    ],
)
def test_a_key_that_is_no_partition_is_named_with_what_it_must_be(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=f"startingOffsets {said}. It takes earliest, latest"):
        parse_offsets("startingOffsets", text, "flights")


@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_offset_past_the_end_is_not_reported_as_lost(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = ReadOptions.parse({"path": "flights", "failOnDataLoss": fails})
    beyond = OffsetOutOfRange(partition=0, offset=9, begin=2, end=5)
    below = OffsetOutOfRange(partition=0, offset=1, begin=2, end=5)
    reported = []
    for error in (beyond, below):
        caplog.clear()
        try:
            loss_handler(options)(error)
        except OffsetOutOfRange:
            reported.append(" ".join(error.__notes__))
        else:
            reported.append(caplog.text)
    assert "lost" not in reported[0]
    assert ("correct startingOffsets" if fails == "true" else "cut at the end") in reported[0]
    assert "lost" in reported[1]
