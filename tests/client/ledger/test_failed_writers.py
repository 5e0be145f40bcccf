"""Failed writers of exactly-once channels: which ones readers until `finished` ignore."""

from contextlib import suppress
from typing import Any

import pytest

from sluiceway import Channel
from sluiceway.errors import ReplayMismatch, WriterFailed
from sluiceway.ports import InputPort
from topics import readings


@pytest.fixture
def brief(channel: Channel, brief_replacement: None) -> Channel:
    """A channel whose readers wait briefly for a failed writer."""
    del brief_replacement
    return channel


def ids(records: Any) -> list[int]:
    return sorted(record["id"] for record in records)


def run(channel: Channel, *keys: str, fails_in: str | None = None, **place: Any) -> None:
    """Run a job with a batch of 5 records for each key; it may fail in one of them."""
    with suppress(ZeroDivisionError), channel.writer(**place) as writer:
        for number, key in enumerate(keys):
            with writer.batch(key, owner="job"):
                writer.write(readings(5, 5 * number))
                writer.flush()
                if key == fails_in:
                    raise ZeroDivisionError


@pytest.mark.long
def test_a_failed_job_is_ignored_once_its_retry_has_committed_its_keys(brief: Channel) -> None:
    run(brief, "day-1", "day-2", fails_in="day-2")
    run(brief, "day-1", "day-2")
    assert [endpoint.settled for endpoint in brief.endpoints()] == ["all", None]
    assert ids(brief.reader()) == [*range(10)]
    assert ids(brief.reader(group="down")) == [*range(10)]
    with InputPort(brief, sequential=True) as port:
        assert ids(port) == [*range(10)]


@pytest.mark.long
def test_a_reader_that_saw_a_job_fail_ends_after_its_retry(brief: Channel) -> None:
    failing = brief.writer()
    with suppress(ZeroDivisionError), failing, failing.batch("day-1", owner="job"):
        reader = brief.reader()
        assert reader.read(1, timeout=0.3) == []
        raise ZeroDivisionError
    with reader:
        run(brief, "day-1")
        assert ids(reader) == [*range(5)]


@pytest.mark.long
def test_a_key_that_nobody_has_committed_is_a_failure(brief: Channel) -> None:
    run(brief, "day-1", "day-2", fails_in="day-2")
    run(brief, "day-1")
    with brief.reader() as reader:
        assert ids(reader.read(5, timeout=None)) == [*range(5)]
        with pytest.raises(WriterFailed):
            reader.read(1, timeout=60)
        # A retry by a writer of the same group, or of none, settles it.
        run(brief, "day-1", "day-2")
        assert ids(reader) == [*range(5, 10)]


@pytest.mark.long
def test_a_writer_that_failed_before_any_commit_is_none_of_the_expected(brief: Channel) -> None:
    run(brief, "day-1", fails_in="day-1")
    with brief.reader() as reader:
        assert reader.read(1, timeout=1.5) == []
        assert not reader.finished
        run(brief, "other")
        assert ids(reader) == [*range(5)]


@pytest.mark.sample
def test_a_reader_that_saw_a_writer_fail_without_a_commit_raises(brief: Channel) -> None:
    failing = brief.writer()
    with suppress(ZeroDivisionError), failing, failing.batch("day-1", owner="job"):
        reader = brief.reader()
        assert reader.read(1, timeout=0.3) == []
        failing.write(readings(5))
        failing.flush()
        raise ZeroDivisionError
    with reader, pytest.raises(WriterFailed):
        list(reader)


@pytest.mark.sample
def test_a_repeated_job_with_other_records_does_not_spoil_its_channel(brief: Channel) -> None:
    run(brief, "day-1")
    with suppress(ReplayMismatch), brief.writer() as writer, writer.batch("day-1", owner="job"):
        writer.write(readings(3))
    assert [endpoint.state for endpoint in brief.endpoints()] == ["closed", "error"]
    assert ids(brief.reader()) == [*range(5)]


@pytest.mark.long
def test_a_writer_that_failed_after_flushes_is_a_failure(brief: Channel) -> None:
    with suppress(ZeroDivisionError), brief.writer() as writer:
        writer.write(readings(5))
        writer.flush()
        raise ZeroDivisionError
    with brief.reader() as reader:
        assert ids(reader.read(5, timeout=None)) == [*range(5)]
        with pytest.raises(WriterFailed):
            reader.read(1, timeout=60)
