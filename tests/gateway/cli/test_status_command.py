"""`sluiceway channels status`, with a real gateway and broker."""

import itertools
import json
import signal
from typing import Any

import pytest

from processes import INTERRUPTIBLE, Run, Sluiceway, process
from sluiceway import Channel, Gateway, Heartbeat
from sluiceway.api.status import EndpointCounts
from sluiceway_gateway.cli.status import counts_text, number_text, seconds_text

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
_numbers = itertools.count(1)


def fail(channel: Channel) -> None:
    with channel.writer(group="load") as writer:
        writer.write([{"a": number} for number in range(5)])
        writer.flush()
        raise KeyError("no such carrier")


@pytest.fixture
def name(gateway_url: str) -> Any:
    """A channel with a failed writer, and a reading group."""
    name = f"status-{next(_numbers)}"
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(
            name, SCHEMA, heartbeat=Heartbeat(interval_ms=60_000, timeout_ms=600_000)
        )
        with pytest.raises(KeyError):
            fail(channel)
        with channel.reader(group="delays", until=None) as reader:
            reader.read(3, timeout=None)
            reader.commit()
            groups = (report.groups for report in channel.watch())
            assert next(
                True
                for reported_groups in groups
                if reported_groups and reported_groups[0].lag_messages == 2
            )
            yield name


def run(sluiceway: Sluiceway, gateway_url: str, *arguments: str) -> Run:
    return sluiceway("channels", "status", *arguments, url=gateway_url)


def test_a_channels_status_is_shown_as_tables(
    sluiceway: Sluiceway, gateway_url: str, name: str
) -> None:
    result = run(sluiceway, gateway_url, name)
    assert (result.status, result.errors) == (0, "")
    channel, groups, table = (section.splitlines() for section in result.out.split("\n\n"))
    head, *problems = channel
    assert head.startswith(f"channel {name} is ready, ")
    # The reader, which reads no more, becomes another problem after some seconds.
    failure = "warning: writer load[0] has failed: KeyError (since 20"
    assert any(problem.startswith(failure) for problem in problems)
    heads, group = groups
    assert heads.split()[:3] == ["GROUP", "MEMBERS", "LAG"]
    assert group.split()[:6] == ["delays", "1", "of", "1", "2", "2"]
    writer, reader = (row.split() for row in table[1:])
    assert writer[:5] == ["load[0]", "writer", "error", "healthy", "5"]
    assert writer[5:] == ["KeyError"]
    assert (reader[:2], reader[3]) == (["delays[0]", "reader"], "healthy")
    assert reader[2] in ("opened", "started"), "by its heartbeats, which are rare"


def test_the_status_names_the_batch_that_holds_readers_back(
    sluiceway: Sluiceway, gateway_url: str
) -> None:
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel("status-held-back", SCHEMA, delivery="exactly_once")
        with channel.writer() as slow, slow.batch("monday", owner="nightly"):
            with channel.writer() as writer:
                writer.write([{"a": number} for number in range(5)])
            for report in channel.watch():
                if report.ledger is not None and report.ledger.held_back_by is not None:
                    break
            result = run(sluiceway, gateway_url, channel.name)
    assert report.ledger is not None
    holder = report.ledger.held_back_by
    assert holder is not None
    assert (holder.key, holder.owner, holder.held_messages) == ("monday", "nightly", 5)
    assert (report.partitions[0].stable, report.partitions[0].visible_end) == (0, 5)
    _, commits, held, *_ = result.out.splitlines()
    assert commits == "commit 1, open batches: 1, 0 messages of no commit"
    assert held.startswith(
        "warning: the open batch 'monday' of 'nightly' holds readers back, 5 messages committed "
        "after it (since 20"
    )


def test_the_list_has_a_line_per_channel(sluiceway: Sluiceway, gateway_url: str, name: str) -> None:
    lines = run(sluiceway, gateway_url).out.splitlines()
    assert lines[0].split()[:4] == ["NAME", "PHASE", "WRITERS", "READERS"]
    (line,) = [row.split() for row in lines if row.startswith(f"{name} ")]
    assert line[:6] == [name, "ready", "0,", "1", "failed", "1"]
    assert (lines[0].split()[-1], line[-1]) == ("PROBLEM", "writer_failed")


def test_json_is_the_response_of_the_gateway(
    sluiceway: Sluiceway, gateway_url: str, name: str
) -> None:
    one = json.loads(run(sluiceway, gateway_url, name, "--json").out)
    assert one["groups"][0]["lag_messages"] == 2
    lines = run(sluiceway, gateway_url, "--json").out.splitlines()
    (line,) = [
        line for line in map(json.loads, lines) if line["channel"]["uid"] == one["channel"]["uid"]
    ]
    assert line["lag_messages"] == 2


@pytest.mark.long
def test_watching_shows_each_state_until_it_is_interrupted(gateway_url: str, name: str) -> None:
    arguments = ("channels", "status", name, "--watch", "--json", "--url", gateway_url)
    with process(*arguments, command=INTERRUPTIBLE) as running, Gateway(gateway_url) as gateway:
        before = json.loads(running.line())
        gateway.channel(name).update(labels={"seen": "once"})
        assert json.loads(running.line()) != before
        assert running.end(signal.SIGINT) == 130


def test_a_missing_channel_is_named(sluiceway: Sluiceway, gateway_url: str) -> None:
    run(sluiceway, gateway_url, "nowhere").failed("'nowhere'")


def test_numbers_and_durations_are_formatted() -> None:
    assert [number_text(number) for number in (None, 0, 1234567, 0.25, 2.0)] == [
        *("?", "0", "1,234,567", "0.2", "2.0")
    ]
    assert [seconds_text(seconds) for seconds in (None, 0.0, 59.4, 60, 3_661, 90_000)] == [
        *("?", "0 s", "59 s", "1 min 0 s", "1 h 1 min", "25 h 0 min")
    ]
    bounds = [seconds_text(seconds, at_least=True) for seconds in (0.0, 59.9, 3_661)]
    assert bounds == ["> 0 s", "> 59 s", "> 1 h 1 min"]
    assert seconds_text(None, at_least=False) == "?"
    assert (
        counts_text(EndpointCounts(live=3, lost=1, failed=2, finished=4)) == "3, 1 lost, 2 failed"
    )


def test_text_of_jobs_does_not_control_the_terminal(sluiceway: Sluiceway, gateway_url: str) -> None:
    schema = {**SCHEMA, "fields": [{"name": "a", "type": "string"}]}
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel("status-escapes", schema, delivery="exactly_once")
        with channel.writer() as writer, writer.batch("mon\x1b[31mday"):
            writer.write([{"a": "\x9b31m\x1b[31m"}])
    commits = sluiceway("channels", "commits", "status-escapes", url=gateway_url)
    assert r"mon\u001b[31mday" in commits.out
    tail = sluiceway("tail", "status-escapes", "--no-follow", url=gateway_url)
    assert json.loads(tail.out) == {"a": "\x9b31m\x1b[31m"}
    assert not {"\x1b", "\x9b"} & {*commits.out, *tail.out}
