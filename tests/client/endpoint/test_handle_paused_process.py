"""Endpoints of a process that was paused for longer than the heartbeat timeout.

They continue unless another instance took their place; then they are fenced.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from confluent_facade import Facade, KafkaError, at, codes, error_code_of, offsets, poll_messages
from faults import lose, suspended
from relay import Relay
from sluiceway import Channel, ChannelReader, Gateway, InputPort
from sluiceway.api.endpoints import HeartbeatReply, SessionReport
from sluiceway.confluent import Consumer, TopicPartition
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.errors import (
    CommitBeyondRead,
    Fenced,
    GatewayError,
    KafkaUnavailable,
    StaleGeneration,
)
from sluiceway.kafka.consumer import IdleTimeout, MessageStream
from topics import Topics, readings
from waiting import until

NewChannel = Callable[..., Channel]


@pytest.fixture
def elsewhere(gateway_url: str) -> Iterator[Gateway]:
    """A gateway with its own heartbeat session, as in another process."""
    with Gateway(gateway_url, control_grace_s=59) as gateway:
        yield gateway


@pytest.fixture
def channel(new_channel: NewChannel) -> Channel:
    return new_channel(partitions=2)


def write(channel: Channel, count: int, first: int = 0) -> None:
    with channel.writer(batch_records=5) as writer:
        writer.write(readings(count, first))


def health(channel: Channel, id_: str) -> str | None:
    """Return the health of an endpoint; None without a place."""
    return {endpoint.id: endpoint.health for endpoint in channel.endpoints()}.get(id_)


class Pause:
    """A part of each heartbeat, which waits for it."""

    def __init__(self) -> None:
        self.paused, self.proceed = threading.Event(), threading.Event()

    def report(self) -> SessionReport | None:
        self.paused.set()
        assert self.proceed.wait(300)
        return None

    def on_response(self, response: HeartbeatReply) -> None:
        """Do nothing."""

    def on_rejected(self, error: GatewayError) -> None:
        """Do nothing."""


@contextmanager
def lost(channel: Channel, attachment: AttachedEndpoint) -> Iterator[None]:
    """Block heartbeats, as in a stopped process, until the endpoint is lost."""
    pause = Pause()
    attachment.session.add_extension(pause)
    attachment.session.wake()
    try:
        assert pause.paused.wait(60)
        lose(channel, attachment.id)
        yield
    finally:
        attachment.session.remove_extension(pause)
        pause.proceed.set()


def records_of(reader: ChannelReader, count: int) -> list[dict[str, Any]]:
    """Read a number of records, and fail if some are missing."""
    deadline_s = time.monotonic() + 60
    records: list[dict[str, Any]] = []
    while len(records) < count:
        assert time.monotonic() < deadline_s, f"{len(records)} of {count} came"
        records += reader.read(count - len(records), timeout=0.1)
    return records


def ids(records: list[dict[str, Any]]) -> list[int]:
    return sorted(record["id"] for record in records)


@pytest.mark.long
def test_a_paused_dynamic_member_resumes_at_the_committed_position(
    channel: Channel, elsewhere: Gateway
) -> None:
    write(channel, 20)
    mine = elsewhere.channel(channel.name)
    revoked: list[tuple[int, ...]] = []
    options: dict[str, Any] = {"group": "d", "dynamic": True, "until": None}
    with mine.reader(**options, on_revoke=revoked.append) as reader:
        first = records_of(reader, 20)
        half = {p: at.offset // 2 for p, at in reader.position().items()}
        reader.commit(half)
        before = reader.position()
        with lost(channel, reader.handle):
            pass
        with pytest.raises(StaleGeneration, match="not released in time"):
            reader.commit()
        again = records_of(reader, 1)
        assert revoked == [(0, 1)]
        # Records read before the pause are committed only after they are read again.
        with pytest.raises(CommitBeyondRead):
            reader.commit(before)
        again += records_of(reader, 9)
        assert set(ids(again)) < set(ids(first))
        reader.commit()
        assert channel.committed("d") == before


def test_a_late_commit_on_revoke_does_not_end_reading(
    channel: Channel, elsewhere: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    write(channel, 20)
    mine = elsewhere.channel(channel.name)
    options: dict[str, Any] = {"group": "d", "dynamic": True}
    with mine.reader(**options, on_revoke=lambda _: reader.commit()) as reader:
        read_ids = []
        for record in reader:
            read_ids.append(record["id"])
            if len(read_ids) == 5:
                with lost(channel, reader.handle):
                    pass
                # Otherwise it could finish before the next heartbeat, and fail to commit.
                reader.handle.heartbeat_now()
        assert sorted(read_ids[5:]) == list(range(20))
        assert "on_revoke came too late to commit" in caplog.text


def test_records_committed_by_another_member_during_the_pause_are_not_reread(
    channel: Channel, elsewhere: Gateway
) -> None:
    write(channel, 20)
    options: dict[str, Any] = {"group": "d", "dynamic": True, "until": None}
    with elsewhere.channel(channel.name).reader(**options) as reader:
        records_of(reader, 20)
        with lost(channel, reader.handle), channel.reader(**options) as other:
            records_of(other, 20)
            other.commit()
        with pytest.raises(StaleGeneration):
            reader.commit()
        assert reader.read(1, timeout=0.5) == []

        def has_all_partitions() -> bool:
            assert reader.read(1, timeout=0.1) == []
            return set(reader.partitions) == {0, 1}

        until(has_all_partitions)
        assert reader.position() == channel.committed("d")


@pytest.mark.long
def test_a_member_removed_during_the_pause_is_fenced_with_the_reason(
    channel: Channel, elsewhere: Gateway
) -> None:
    reader = elsewhere.channel(channel.name).reader(group="d", dynamic=True, until=None)
    with lost(channel, reader.handle):
        channel.dismiss(str(reader.endpoint_id))
    with pytest.raises(Fenced, match="loopback dismissed it at 20"):
        records_of(reader, 1)
    with pytest.raises(Fenced):
        reader.close()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["shared", "broadcast"])
def test_a_paused_reader_with_an_index_resumes(
    channel: Channel, elsewhere: Gateway, mode: str
) -> None:
    write(channel, 20)
    mine = elsewhere.channel(channel.name)
    with mine.reader(group="g", mode=mode, until=None) as reader:
        first = records_of(reader, 5)
        with lost(channel, reader.handle):
            pass
        reader.commit()
        assert ids(first + records_of(reader, 15)) == list(range(20))
        until(lambda: health(channel, reader.handle.id) == "healthy")


@pytest.mark.long
def test_a_paused_reader_that_was_replaced_is_fenced_with_the_reason(
    channel: Channel, elsewhere: Gateway
) -> None:
    write(channel, 20)
    reader = elsewhere.channel(channel.name).reader(group="g", until=None)
    records_of(reader, 5)
    with lost(channel, reader.handle), channel.reader(group="g", until=None):
        taken_by = "another instance took that place"
        with pytest.raises(Fenced, match=taken_by):
            reader.commit()
    with pytest.raises(Fenced, match=taken_by):
        records_of(reader, 15)
    with pytest.raises(Fenced, match=taken_by):
        reader.close()


@pytest.mark.long
@pytest.mark.parametrize("place", [{}, {"group": "w", "index": 0, "size": 1}], ids=str)
def test_a_paused_writer_resumes(
    channel: Channel, elsewhere: Gateway, place: dict[str, Any]
) -> None:
    with elsewhere.channel(channel.name).writer(**place) as writer:
        writer.write(readings(5))
        with lost(channel, writer.handle):
            pass
        writer.write(readings(5, 5))
    with channel.reader() as reader:
        assert ids(list(reader)) == list(range(10))


@pytest.mark.long
def test_a_paused_writer_that_was_replaced_is_fenced_with_the_reason(
    channel: Channel, elsewhere: Gateway
) -> None:
    place: dict[str, Any] = {"group": "w", "index": 0, "size": 1}
    writer = elsewhere.channel(channel.name).writer(**place)
    with lost(channel, writer.handle), channel.writer(**place):
        taken_by = "another instance took that place"
    with pytest.raises(Fenced, match=taken_by):
        until(writer.handle.check)
    with pytest.raises(Fenced, match=taken_by):
        writer.write(readings(1))
    with pytest.raises(Fenced, match=taken_by):
        writer.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "place", [{"group": "d", "dynamic": True}, {"group": "g"}, {}], ids=["dynamic", "fixed", "none"]
)
def test_a_paused_port_continues_to_wait_for_its_writers(
    channel: Channel, elsewhere: Gateway, place: dict[str, Any]
) -> None:
    with InputPort(elsewhere.channel(channel.name), **place) as port:
        with lost(channel, port.reader.handle):
            pass
        until(lambda: health(channel, port.reader.handle.id) == "healthy")
        write(channel, 10)
        assert ids(list(port)) == list(range(10))


def test_a_paused_port_whose_reader_was_replaced_is_fenced_with_the_reason(
    channel: Channel, elsewhere: Gateway
) -> None:
    port = InputPort(elsewhere.channel(channel.name), group="g")
    with lost(channel, port.reader.handle):
        other = channel.reader(group="g")
    with other, pytest.raises(Fenced, match="another instance took that place"):
        port.wait()


ONE = [[1, offset] for offset in range(5)]


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel(filled=5)


@contextmanager
def lost_behind(relay: Relay, channel: Channel, consumer: Consumer) -> Iterator[None]:
    """Stall the relay, as in a stopped process, until the consumer is lost."""
    with relay.stalled():
        lose(channel, str(consumer.memberid()))
        yield


@pytest.mark.long
@pytest.mark.parametrize("kept", [False, True])
def test_a_paused_consumer_resumes_at_the_committed_offset(
    site: Facade, name: str, relay: Relay, consumer: Callable[..., Consumer], kept: bool
) -> None:
    reported: list[tuple[str, Any]] = []
    reader = consumer(
        **{
            "bootstrap.servers": relay.url,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": kept,
            "auto.commit.interval.ms": 3_600_000,
            "on_commit": lambda error, _: reported.append(("commit", error and error.code())),
        }
    )
    reader.subscribe(
        [name],
        on_assign=lambda _, parts: reported.append(("assign", [part.partition for part in parts])),
        on_revoke=lambda _, parts: reported.append(("revoke", [part.partition for part in parts])),
        on_lost=lambda _, parts: reported.append(("lost", [part.partition for part in parts])),
    )
    poll_messages(reader, 10)
    reader.commit(offsets=[TopicPartition(name, 0, 3)], asynchronous=False)
    member = reader.memberid()
    with lost_behind(relay, site.gateway.channel(name), reader):
        pass
    if not kept:
        assert error_code_of(reader.commit, asynchronous=False) == KafkaError.REBALANCE_IN_PROGRESS
    assert offsets(poll_messages(reader, 7)) == {0: [3, 4], 1: [0, 1, 2, 3, 4]}
    failed = [("commit", KafkaError.REBALANCE_IN_PROGRESS)] if kept else []
    assert sorted(reported, key=str) == sorted(
        [("assign", [0, 1]), *failed, ("lost", [0, 1]), ("assign", [0, 1])], key=str
    )
    assert reader.memberid() == member
    reader.commit(asynchronous=False)
    assert [position.offset for position in reader.committed([at(name), at(name, 1)])] == [5, 5]


@pytest.mark.long
def test_a_consumer_removed_during_the_pause_gets_the_reason(
    site: Facade, name: str, relay: Relay, consumer: Callable[..., Consumer]
) -> None:
    reader = consumer(**{"bootstrap.servers": relay.url, "auto.offset.reset": "earliest"})
    reader.subscribe([name])
    poll_messages(reader, 10)
    channel = site.gateway.channel(name)
    with lost_behind(relay, channel, reader):
        channel.dismiss(str(reader.memberid()))
    (event,) = poll_messages(reader, 1)
    assert codes([event]) == [KafkaError.UNKNOWN_MEMBER_ID]
    assert "loopback dismissed it at 20" in event.error().str()
    assert reader.assignment() == []


@pytest.mark.long
def test_a_stopped_and_continued_process_resumes(
    site: Facade, name: str, new_channel: NewChannel
) -> None:
    channels = {kind: new_channel(partitions=2) for kind in ("dynamic", "fixed")}
    for read_channel in channels.values():
        write(read_channel, 20)
    written = new_channel()
    names = {kind: read_channel.name for kind, read_channel in channels.items()}
    names |= {"confluent": name, "writer": written.name}
    program = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("paused_program.py"), site.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    with program:
        try:
            program.stdin.write(json.dumps(names) + "\n")
            program.stdin.flush()
            ready = json.loads(program.stdout.readline())
            with suspended(psutil.Process(program.pid)):
                for kind, endpoint in ready.items():
                    lose(site.gateway.channel(names[kind]), endpoint)
            program.stdin.write("go\n")
            program.stdin.flush()
            reported = json.loads(program.stdout.readline())
        finally:
            program.kill()
    # Members of dynamic groups reread uncommitted records, and could not commit them.
    assert reported == {
        "confluent": {"commit": KafkaError.REBALANCE_IN_PROGRESS, "read": [[0, 3], [0, 4], *ONE]},
        "dynamic": {"commit": "stale_generation", "read": 20},
        "fixed": {"commit": None, "read": 10},
        "writer": {"written": 10},
    }


@pytest.mark.long
def test_a_pause_of_the_process_is_not_an_idle_timeout(topics: Topics) -> None:
    # Only the system stops a process and not its clock.
    now_s = time.monotonic()
    timeout = IdleTimeout(timeout_s=1, monotonic=lambda: now_s)
    with closing(MessageStream(topics.connect(partitions=1), timeout_s=30)) as stream:
        timeout.probe(stream, awaited=True)
        # Despite the clock, it has waited only briefly; then long enough.
        for passed_s in (0.4, 3600.0, 0.4):
            now_s += passed_s
            timeout.probe(stream, awaited=True)
        now_s += 0.4
        with pytest.raises(KafkaUnavailable, match=r"for 1 s"):
            timeout.probe(stream, awaited=True)
