"""Status reports of channels, with a real broker."""

from collections.abc import Callable
from typing import Any

import pytest

from scripted_gateway import Script
from sluiceway import Channel, Gateway, StatusReport
from sluiceway.api.status import GroupReport
from sluiceway.errors import Conflict, IncompatibleGateway
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]


def until_report(channel: Channel, holds: Callable[[StatusReport], bool]) -> StatusReport:
    """Wait until the status satisfies a condition."""
    reports: list[StatusReport] = []

    def is_reached() -> bool:
        reports.append(channel.report())
        return holds(reports[-1])

    until(is_reached)
    return reports[-1]


def group_of(report: StatusReport, name: str = "delays") -> GroupReport:
    group = report.group(name)
    assert group is not None
    return group


def test_group_lag_follows_the_returned_records(channel: Channel) -> None:
    with channel.writer() as writer:
        writer.write(readings(100))
    with channel.reader(group="delays", index=0, size=1, until=None) as reader:
        report = until_report(channel, lambda status: group_of(status).lag_messages == 100)
        assert (report.name, report.uid, report.phase) == (channel.name, channel.uid, "ready")
        (listed,) = report.writers
        assert (listed.state, listed.counters["sentRecordCount"]) == ("closed", 100)
        assert sum(partition.end or 0 for partition in report.partitions) == 100
        assert len(reader.read(30, timeout=None)) == 30
        report = until_report(channel, lambda status: group_of(status).lag_messages == 70)
        group = group_of(report)
        assert (group.lag_records, group.members, group.mode, group.size) == (70, 1, "shared", 1)
        assert group.lag_seconds is None or group.lag_seconds >= 0
        assert {partition.committed for partition in group.partitions} == {None}
        reader.commit()
        until_report(
            channel,
            lambda status: (
                sum(partition.committed or 0 for partition in group_of(status).partitions) == 30
            ),
        )
        # Also in the middle of a loop.
        records = iter(reader)
        for _ in range(40):
            next(records)
        until_report(channel, lambda status: group_of(status).lag_messages == 30)
        for _ in range(30):
            next(records)
        report = until_report(channel, lambda status: group_of(status).lag_messages == 0)
        assert group_of(report).progress == "ok"
        assert group_of(report).lag_seconds == 0.0
        (read,) = report.readers
        assert (read.progress, read.lag_messages) == ("ok", 0)
        counted = until_report(
            channel,
            lambda status: status.readers[0].endpoint.counters.get("receivedRecordCount") == 100,
        )
        assert counted.readers[0].endpoint.counters["averageTimePerReadCycleMs"] > 0
    report = until_report(channel, lambda status: status.readers[0].endpoint.state == "closed")
    # Returned but uncommitted records are read again by the next reader.
    report = until_report(channel, lambda status: group_of(status).lag_messages == 70)
    assert group_of(report).members == 0


def test_a_reader_without_a_group_has_a_lag(channel: Channel) -> None:
    with channel.writer() as writer:
        writer.write(readings(10))
        writer.flush()
        with channel.reader() as reader:
            reader.read(5, timeout=None)
            report = until_report(
                channel, lambda status: any(listed.lag_messages == 5 for listed in status.readers)
            )
            assert report.groups == ()


def test_watchers_and_untracked_readers_are_not_reported(
    channel: Channel, gateway_url: str
) -> None:
    with channel.writer() as writer:
        writer.write(readings(10))
    before = channel.report()
    with Gateway(gateway_url) as gateway:
        again = gateway.channel(channel.name)
        assert len(list(again.reader(until="now"))) == 10
        lines = {summary.name: summary for summary in gateway.report()}
    assert lines[channel.name].readers.live == 0
    assert lines[channel.name].writers.finished == 1
    after = channel.report()
    assert (after.readers, after.groups) == ((), ())
    assert after.document["writers"] == before.document["writers"]


def test_a_report_covers_one_incarnation_of_the_channel(
    new_channel: NewChannel, gateway: Gateway
) -> None:
    old = new_channel()
    old.delete()
    gateway.channel(old.name, schema=old.schema)
    with pytest.raises(Conflict) as raised:
        old.report()
    assert raised.value.code == "uid_mismatch"


def line(**facts: Any) -> dict[str, Any]:
    crew = {"live": 1, "lost": 0, "failed": 0, "finished": 0}
    return {
        "channel": {"name": "a", "uid": "0" * 32, "phase": "ready"},
        "sampled_at": "2030-01-01T00:00:00.000Z",
        "writers": crew,
        "readers": crew,
        "lag_messages": None,
        "lag_seconds": None,
        "progress": None,
        "write_rate": 2,
    } | facts


def problem(code: str, **facts: Any) -> dict[str, Any]:
    return {
        "code": code,
        "severity": "error",
        "since": None,
        "role": None,
        "group": None,
        "index": None,
        "endpoint": None,
        "batch": None,
        "owner": None,
        "held_messages": None,
        "lag_messages": None,
        "reason": None,
    } | facts


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (
            problem("writer_failed", role="writer", group="load", index=0, reason="KeyError:\n'a'"),
            "writer load[0] has failed: KeyError: 'a'",
        ),
        (
            problem("reader_stalled", role="reader", group="{0}", lag_messages=11_900),
            "reader {0} is stalled, it is alive but does not advance, 11,900 messages to read",
        ),
        (
            problem("batch_holds_readers", batch="monday", owner="nightly", held_messages=1),
            "the open batch 'monday' of 'nightly' holds readers back, 1 message committed after it",
        ),
        (
            problem("reader_lost", role="reader", index=3, endpoint=f"91f603d5{0:024x}"),
            "reader 91f603d5 is lost, its heartbeats do not arrive",
        ),
        (
            problem("channel_not_synced", reason="Kafka refuses: no. To do: add brokers."),
            "the topic does not match the channel's spec: Kafka refuses: no. To do: add brokers.",
        ),
        (
            problem("partitions_unavailable", reason="all partitions are affected"),
            "Kafka gives no offsets: all partitions are affected",
        ),
        (
            problem("position_out_of_range", role="reader", group="delays", reason="2 are gone"),
            "reader delays cannot go on at its committed positions, reset them: 2 are gone",
        ),
        (
            problem("partitions_unread", role="reader", group="delays", reason="2 of them"),
            "reader delays does not read all partitions: 2 of them",
        ),
        (problem("later", role="reader", group="delays"), "reader delays: later"),
        (problem("later"), "later"),
    ],
)
def test_a_problem_is_a_sentence(script: Script, document: dict[str, Any], sentence: str) -> None:
    script.response(200, {"items": [line(problems=[document])], "next_cursor": None})
    (summary,) = script.control().statuses()
    assert [str(entry) for entry in summary.problems] == [sentence]


def test_unknown_values_are_none_and_new_fields_are_kept(
    script: Script,
) -> None:
    script.response(200, {"items": [line(later=1)], "next_cursor": "c"})
    script.response(200, {"items": [line(lag_messages=5, progress="dizzy")], "next_cursor": None})
    first, second = script.control().statuses()
    assert (first.lag_messages, first.write_rate, first.document["later"]) == (None, 2.0, 1)
    assert (second.lag_messages, second.progress) == (5, "dizzy")
    assert "cursor=c" in script.requests[1][1]


@pytest.mark.parametrize("facts", [{"lag_messages": "5"}, {"sampled_at": 1}, {"write_rate": True}])
def test_a_malformed_report_is_rejected_with_the_path(
    script: Script, facts: dict[str, Any]
) -> None:
    script.response(200, {"items": [line(**facts)], "next_cursor": None})
    with pytest.raises(IncompatibleGateway, match=next(iter(facts))):
        list(script.control().statuses())


def test_a_gateway_without_status_is_reported_as_older(script: Script) -> None:
    script.problem(404, "not_found")
    with pytest.raises(IncompatibleGateway):
        script.control().status("a")
