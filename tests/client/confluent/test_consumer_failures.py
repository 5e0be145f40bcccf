"""Failures around sluiceway.confluent.Consumer: callbacks, the gateway, processes."""

import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from confluent_facade import (
    Facade,
    KafkaError,
    at,
    codes,
    error_code_of,
    offsets,
    poll_messages,
    poll_until,
)
from faults import at_call, interrupted_at_call
from relay import Relay
from shared_kafka import SharedKafka
from sluiceway.api.channels import Control
from sluiceway.api.endpoints import EndpointCalls, Position
from sluiceway.api.transport import Transport
from sluiceway.confluent import Consumer, TopicPartition
from sluiceway.confluent.committer import AsyncCommitter
from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import Fenced, GatewayUnavailable, Unauthenticated
from topics import Topics
from waiting import until

EARLIEST = {"auto.offset.reset": "earliest"}
New = Callable[..., Consumer]


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel(filled=10)


def failing(calls: list[str], which: str) -> Callable[[Consumer, list[TopicPartition]], None]:
    def fail(consumer: Consumer, parts: list[TopicPartition]) -> None:
        calls.append(which)
        raise ZeroDivisionError(which)

    return fail


def test_reading_continues_while_the_gateway_is_unavailable(
    site: Facade, name: str, relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"enable.auto.commit": True, "auto.commit.interval.ms": 100}
    with site.consumer(**EARLIEST, **config, **{"bootstrap.servers": relay.url}) as reader:
        # A name that is retried, and a regex.
        reader.subscribe([name, f"{name}-later", f"^{name}$"])
        while not offsets([m for m in poll_messages(reader, 1) if m.error() is None]):
            pass
        relay.cut()
        began_s = time.monotonic()

        def has_read_everything() -> bool:
            idle = reader.poll(0.1) is None and time.monotonic() > began_s + 3
            idle = idle and "heartbeats fail" in caplog.text
            return idle and sum(at.offset for at in reader.position(reader.assignment())) == 20

        until(has_read_everything, seconds=60)
        relay.restore()
        poll_until(lambda: "the gateway accepts heartbeats again" in caplog.text, reader)
    assert sum(at.offset for at in site.gateway.channel(name).committed("g").values()) == 20


def test_a_damaged_batch_is_an_event_again_until_a_seek(
    consumer: New, site: Facade, topics: Topics, kafka: SharedKafka
) -> None:
    name = site.channel(partitions=1)
    with site.producer() as producer:
        for value in (b"0", b"1", b"2"):
            producer.produce(name, value)
            producer.flush()
    topics.damage(kafka.log_dir, site.gateway.channel(name).connection("read").topic_name, 1)
    reader = consumer()
    reader.assign([at(name, 0, 0)])
    first, *events = poll_messages(reader, 3)
    assert first.value() == b"0"
    assert codes(events) == [KafkaError._FAIL] * 2
    (position,) = reader.position([at(name)])
    assert position.offset == 1
    reader.seek(at(name, 0, 2))
    until(lambda: (message := reader.poll(1)) is not None and message.value() == b"2")


@pytest.mark.long
def test_consume_commits_messages_only_after_returning_them(
    consumer: New, site: Facade, name: str
) -> None:
    reader = consumer(**{"enable.auto.commit": True, "auto.commit.interval.ms": 50})
    reader.assign([at(name, 0, 0)])
    # More than exist, so it holds the messages.
    held: list[Any] = []
    holding = threading.Thread(target=lambda: held.extend(reader.consume(11, 300)), daemon=True)
    holding.start()
    until(lambda: reader.position([at(name)])[0].offset == 10)
    channel = site.gateway.channel(name)
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        assert channel.committed("g") == {}
    with site.producer() as producer:
        producer.produce(name, b"x", partition=0)
    holding.join(60)
    assert len(held) == 11


@pytest.mark.long
def test_consume_loses_no_message_when_a_callback_raises(consumer: New, name: str) -> None:
    raised: list[bool] = []

    def fail(*_: Any) -> None:
        raised.append(True)
        raise ZeroDivisionError

    reader = consumer(on_commit=fail)
    reader.assign([at(name, 0, 0)])
    (first,) = reader.consume(1, 60)
    reader.commit(message=first)
    messages = []

    def is_complete() -> bool:
        with suppress(ZeroDivisionError):
            messages.extend(reader.consume(50, 1))
        return bool(raised) and len(messages) >= 9

    until(is_complete)
    assert offsets(messages) == {0: [*range(1, 10)]}


def test_consume_returns_early_when_its_partitions_are_revoked(consumer: New, name: str) -> None:
    config = {**EARLIEST, "enable.auto.commit": True}
    first = consumer(**config)
    first.subscribe([name])
    poll_until(lambda: len(first.assignment()) == 2, first)
    first.seek(at(name, 0, 0))
    first.seek(at(name, 1, 0))
    held: list[Any] = []
    # Longer than all other timeouts: position() has precedence, and a rebalance ends the poll.
    holding = threading.Thread(target=lambda: held.extend(first.consume(1000, 300)), daemon=True)
    holding.start()
    both = [at(name, 0), at(name, 1)]
    until(lambda: sum(place.offset for place in first.position(both)) == 20)
    second = consumer(**config)
    second.subscribe([name])
    # It returns long before its timeout, because the other consumer waits.
    poll_until(lambda: not holding.is_alive(), second)
    assert sum(map(len, offsets(held).values())) == 20
    assert len(first.assignment()) == 2


def test_a_callback_that_raises_is_called_once_and_does_not_stop_the_rebalance(
    consumer: New, name: str
) -> None:
    calls: list[str] = []
    reader = consumer(**EARLIEST, **{"enable.auto.commit": True})
    reader.subscribe([name], on_assign=failing(calls, "on"), on_revoke=failing(calls, "off"))
    with pytest.raises(ZeroDivisionError, match="on"):
        poll_messages(reader, 1)
    assert len(reader.assignment()) == 2
    assert len(offsets(poll_messages(reader, 20))) == 2
    other = consumer(**EARLIEST)
    other.subscribe([name])
    with pytest.raises(ZeroDivisionError, match="off"):
        poll_until(lambda: False, reader, other)
    poll_until(lambda: bool(other.assignment()), other)
    assert (len(reader.assignment()), calls) == (1, ["on", "off"])
    with pytest.raises(ZeroDivisionError, match="off"):
        reader.close()
    with pytest.raises(RuntimeError, match="closed"):
        reader.poll(0)
    assert [place.offset for place in other.committed([at(name), at(name, 1)])] == [10, 10]
    poll_until(lambda: len(other.assignment()) == 2, other)


def test_on_lost_that_raises_is_called_once(consumer: New, site: Facade, name: str) -> None:
    calls: list[str] = []
    reader = consumer(**EARLIEST)
    reader.subscribe([name], on_lost=failing(calls, "lost"))
    poll_messages(reader, 20)
    site.gateway.channel(name).dismiss(str(reader.memberid()))
    with pytest.raises(ZeroDivisionError):
        poll_messages(reader, 1)
    assert codes(poll_messages(reader, 1)) == [KafkaError.UNKNOWN_MEMBER_ID]
    assert (calls, reader.assignment()) == (["lost"], [])


def test_a_member_that_learns_of_its_dismissal_in_a_rebalance_is_lost(
    consumer: New, name: str
) -> None:
    calls: list[Any] = []
    reader, other = consumer(**EARLIEST), consumer(**EARLIEST)
    reader.subscribe([name], on_lost=lambda _, partitions: calls.append(len(partitions)))
    poll_messages(reader, 20)
    dismissed = Fenced("the reader was dismissed", status=409)
    other.subscribe([name])
    poll_until(lambda: other.memberid() is not None, other)
    # A dismissal between a heartbeat and the request of a rebalance cannot be timed.
    with at_call(EndpointCalls, "sync", Mock(side_effect=dismissed)):
        assert codes(poll_messages(reader, 1)) == [KafkaError.UNKNOWN_MEMBER_ID]
    assert (calls, reader.assignment()) == ([2], [])


def test_a_rebalance_that_is_refused_for_a_time_is_repeated(consumer: New, name: str) -> None:
    reader, other = consumer(**EARLIEST), consumer(**EARLIEST)
    reader.subscribe([name])
    poll_messages(reader, 20)
    other.subscribe([name])
    poll_until(lambda: other.memberid() is not None, other)
    refuse = Mock(side_effect=Unauthenticated("its token is replaced", status=401))
    with at_call(EndpointCalls, "sync", refuse):
        poll_until(lambda: refuse.called, reader)
    poll_until(lambda: len(reader.assignment()) == len(other.assignment()) == 1, reader, other)


def test_a_callback_may_seek_and_pause_but_not_close(consumer: New, name: str) -> None:
    reported: list[Any] = []

    def begin(reader: Consumer, parts: list[TopicPartition]) -> None:
        reader.assign([at(name, 0, 7), at(name, 1, 8)])
        reader.assign([at(name, 0, 9), at(name, 1, 8)])
        reader.pause([at(name, 1)])
        reported.extend(sorted(place.partition for place in reader.assignment()))
        reported.extend(error_code_of(call) for call in (reader.close, reader.unsubscribe))

    reader = consumer(**EARLIEST)
    reader.subscribe([name], on_assign=begin)
    assert offsets(poll_messages(reader, 1)) == {0: [9]}
    assert reported == [0, 1, KafkaError._STATE, KafkaError._STATE]
    assert reader.poll(0.2) is None
    reader.resume([at(name, 1)])
    assert offsets(poll_messages(reader, 2)) == {1: [8, 9]}


@pytest.mark.long
def test_a_channel_can_be_subscribed_to_after_a_failed_assign(
    consumer: New, site: Facade, name: str
) -> None:
    reader = consumer(**EARLIEST)
    assert (
        error_code_of(reader.assign, [at(name, 0, 0), at(name, 9)]) == KafkaError._UNKNOWN_PARTITION
    )
    assert not [endpoint for endpoint in site.gateway.channel(name).endpoints() if endpoint.lives]
    reader.subscribe([name])
    assert len(poll_messages(reader, 20)) == 20


def test_a_channel_that_cannot_be_joined_does_not_block_others_of_its_regex(
    consumer: New, site: Facade, name: str
) -> None:
    reader = consumer(**EARLIEST)
    assert error_code_of(reader.subscribe, ["^[", name]) == KafkaError._INVALID_ARG
    other = site.channel(partitions=1, filled=1)
    first, last = sorted((name, other))
    with site.gateway.channel(first).reader(group="g", until=None):
        reader.subscribe([f"^({name}|{other})$"])
        messages = poll_messages(reader, 2)
    events = [message for message in messages if message.error() is not None]
    assert [message.topic() for message in events] == [first]
    assert codes(events) == [KafkaError.INCONSISTENT_GROUP_PROTOCOL]
    assert {message.topic() for message in messages} == {first, last}


def test_assigning_again_starts_at_the_committed_offset(consumer: New, name: str) -> None:
    mine, theirs = consumer(), consumer()
    mine.assign([at(name, 0, 0)])
    theirs.assign([at(name, 0, 0)])
    poll_messages(theirs, 4)
    theirs.commit(asynchronous=False)
    poll_messages(mine, 5)
    assert error_code_of(mine.commit, asynchronous=False) == KafkaError._CONFLICT
    mine.assign([at(name)])
    assert offsets(poll_messages(mine, 6)) == {0: [4, 5, 6, 7, 8, 9]}
    assert [place.offset for place in mine.commit(asynchronous=False)] == [10]


def test_waiting_commits_fail_together_while_the_gateway_is_unavailable() -> None:
    began, calls = threading.Event(), []

    def away(channel: str, places: Any) -> None:
        calls.append(dict(places))
        began.wait(20)
        raise GatewayUnavailable("nobody there")

    reports: list[KafkaError | None] = []
    committer = AsyncCommitter(away, report=lambda error, _: reports.append(error))
    for number in range(100):
        committer.submit({("c", 0): Position(offset=number)})
    began.set()
    committer.flush()
    assert len(calls) <= 2
    assert {error and error.code() for error in reports} == {KafkaError._TRANSPORT}
    assert len(reports) == 100


def test_an_unexpected_failure_of_a_commit_is_reported_and_commits_continue() -> None:
    kept: list[Any] = []

    def keep(channel: str, places: Any) -> None:
        kept.append(places)
        if len(kept) == 1:
            raise ZeroDivisionError

    reports: list[KafkaError | None] = []
    committer = AsyncCommitter(keep, report=lambda error, _: reports.append(error))
    for _ in range(2):
        committer.submit({("c", 0): Position(offset=1)})
        until(lambda: committer.idle)
    first, second = reports
    assert (first and first.code(), second) == (KafkaError._FAIL, None)


@pytest.mark.long
def test_an_interval_of_zero_disables_automatic_commits_until_close(
    consumer: New, site: Facade, name: str
) -> None:
    reader = consumer(**{"enable.auto.commit": True, "auto.commit.interval.ms": 0})
    reader.assign([at(name, 0, 0)])
    poll_messages(reader, 10)
    assert reader.poll(1.2) is None
    assert site.gateway.channel(name).committed("g") == {}
    reader.close()
    assert site.gateway.channel(name).committed("g")[0].offset == 10


def test_incremental_assignments_refuse_repeats(consumer: New, name: str) -> None:
    reader = consumer()
    reader.assign([at(name, 0, 0)])
    assert error_code_of(reader.incremental_assign, [at(name, 0, 5)]) == KafkaError._CONFLICT
    assert error_code_of(reader.incremental_unassign, [at(name, 1)]) == KafkaError._INVALID_ARG
    assert offsets(poll_messages(reader, 10)) == {0: [*range(10)]}


@pytest.mark.long
def test_a_consumer_may_be_collected_at_any_call_of_its_session(site: Facade, name: str) -> None:
    control = Control(Transport(site.url))
    session = HeartbeatSession.of(control)

    def abandon() -> None:
        # A cycle: its own callback refers to it.
        own: list[Consumer] = []
        own.append(site.consumer(on_commit=lambda *_: own))
        own[0].assign([at(name, 0, 0)])
        assert own[0].memberid() in session.ids

    def collect() -> None:
        number, called = 1, True
        while called:
            abandon()
            called = interrupted_at_call(number, lambda: session.ids, action=gc.collect)
            number += 1
        assert number > 3

    # `ids` holds the session's lock.
    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    collecting.join(60)
    assert not collecting.is_alive()
    gc.collect()
    control.close()
    channel = site.gateway.channel(name)
    until(lambda: not [endpoint for endpoint in channel.endpoints() if endpoint.lives])


FORKING = """
    import atexit, os, sys, warnings
    from confluent_kafka import KafkaException
    from sluiceway.confluent import Consumer, Producer, TopicPartition

    # The process has threads on purpose.
    warnings.simplefilter("ignore", DeprecationWarning)
    url, name = sys.argv[1:]
    reader = Consumer({"bootstrap.servers": url, "group.id": "forks"})
    producer = Producer({"bootstrap.servers": url})
    reader.assign([TopicPartition(name, 0, 0)])
    while reader.poll(1) is None:
        pass
    producer.produce(name, b"the parent's")
    child = os.fork()
    if child == 0:
        uses = (lambda: reader.commit(), reader.assignment, producer.poll, producer.flush)
        for use in (*uses, lambda: producer.produce(name + "-other", b""), producer.close):
            try:
                use()
            except KafkaException as error:
                assert "was created by the process" in error.args[0].str(), error
            else:
                os._exit(1)
        reader.close()
        # The first part of a normal exit. The second would wait for librdkafka's threads.
        atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    reader.commit(asynchronous=False)
    reader.close()
    producer.close()
"""


def test_a_forked_process_gets_errors_and_closes_nothing(site: Facade, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKING), site.url, name],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    channel = site.gateway.channel(name)
    assert channel.committed("forks")[0].offset == 1
    assert {endpoint.state for endpoint in channel.endpoints()} == {"closed"}
