"""Members without heartbeats for longer than their patience, and their successors."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from confluent_facade import Facade, poll_until
from sluiceway import Channel, Gateway, Heartbeat, InputPort, OutputPort
from sluiceway.confluent import Consumer, KafkaError
from sluiceway.errors import Conflict, OptionError
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]
PATIENT = Heartbeat(interval_ms=200, timeout_ms=3_600_000)

READER = """
    import sys
    from sluiceway import Gateway
    with Gateway(sys.argv[1]) as gateway:
        channel = gateway.channel(sys.argv[2])
        reader = channel.reader(group="g", dynamic=True, until=None, patience_s=0.9)
        reader.read(1, timeout=None)
        print(*reader.partitions, flush=True)
        sys.stdin.read()
"""
CONSUMER = """
    import sys
    from sluiceway.confluent import Consumer
    consumer = Consumer({
        "bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest",
        "group.instance.id": "one",
    })
    consumer.subscribe([sys.argv[2]])
    while consumer.poll(0.1) is None:
        pass
    print(*(each.partition for each in consumer.assignment()), flush=True)
    sys.stdin.read()
"""


@contextmanager
def killed(script: str, *arguments: str) -> Iterator[str]:
    """Run a script until it has its partitions; kill it and yield them."""
    job = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    with job:
        try:
            yield job.stdout.readline()
        finally:
            job.kill()


@pytest.mark.long
def test_a_killed_member_is_replaced_after_its_own_patience(
    new_channel: NewChannel, gateway_url: str
) -> None:
    channel = new_channel(partitions=2, heartbeat=PATIENT)
    with channel.writer() as writer:
        writer.write(readings(10))
    with killed(READER, gateway_url, channel.name) as partitions:
        assert partitions == "0 1\n"
        # A busy machine may delay its heartbeats, after which it joins again.
        (member,) = until(lambda: [e for e in channel.endpoints() if e.role == "reader"])
        assert member.patience_s == 0.9
    began_s = time.monotonic()
    with channel.reader(group="g", dynamic=True) as reader:
        assert len(list(reader)) == 10
    assert time.monotonic() - began_s < 30


def test_writers_readers_and_ports_have_their_own_patience(new_channel: NewChannel) -> None:
    channel = new_channel(heartbeat=PATIENT)
    with (
        channel.writer(patience_s=5),
        channel.reader(patience_s=6.5),
        OutputPort([channel], patience_s=7),
        InputPort(channel, patience_s=8, until="now", group="g"),
        channel.writer(group="usual"),
    ):
        patiences_s = sorted(endpoint.patience_s or 0 for endpoint in channel.endpoints())
        assert patiences_s == [5, 6.5, 7, 8, 3600]


def test_a_patience_outside_the_bounds_is_refused_with_the_bounds(new_channel: NewChannel) -> None:
    channel = new_channel(heartbeat=Heartbeat(interval_ms=1000, timeout_ms=10_000))
    with pytest.raises(Conflict, match=r"above the channel's, which is\s+10000 ms") as caught:
        channel.reader(group="g", patience_s=11)
    assert caught.value.code == "patience_out_of_bounds"
    for wrong in (0.2, -1, "5", float("nan")):
        with pytest.raises(OptionError, match=r"patience_s is .*; it takes seconds from 0\.3"):
            channel.writer(patience_s=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="give a group"):
        channel.reader(until="now", patience_s=5)
    assert channel.endpoints() == ()


@pytest.mark.long
def test_a_killed_consumer_is_replaced_at_once_by_one_with_its_instance_id(
    site: Facade, consumer: Callable[..., Consumer]
) -> None:
    name = site.channel(filled=5, heartbeat=PATIENT)
    earliest = {"auto.offset.reset": "earliest"}
    other = consumer(**earliest, **{"group.instance.id": "two"})
    with killed(CONSUMER, site.url, name) as partitions:
        assert partitions == "0 1\n"
        other.subscribe([name])
        # The script does not poll, so it keeps them for now.
        poll_until(lambda: other.poll(0) is None, other)
    again = consumer(**earliest, **{"group.instance.id": "one"})
    again.subscribe([name])
    began_s = time.monotonic()
    poll_until(lambda: [p.partition for p in again.assignment()] == [0], again, other)
    poll_until(lambda: [p.partition for p in other.assignment()] == [1], again, other)
    assert time.monotonic() - began_s < 30


def test_a_second_consumer_with_an_instance_id_fences_the_first(
    site: Facade, consumer: Callable[..., Consumer]
) -> None:
    name = site.channel(filled=1, heartbeat=PATIENT)
    made = partial(consumer, **{"group.instance.id": "one"})
    first = made()
    first.subscribe([name])
    poll_until(lambda: len(first.assignment()) == 2, first)
    second = made()
    second.subscribe([name])
    poll_until(lambda: len(second.assignment()) == 2, second)
    errors: list[int] = []

    def fenced() -> bool:
        message = first.poll(0.1)
        error = None if message is None else message.error()
        if error is not None:
            errors.append(error.code())
            assert error.fatal()
        return bool(errors)

    until(fenced)
    assert first.assignment() == []
    assert errors == [KafkaError.FENCED_INSTANCE_ID]


def test_session_timeout_and_heartbeat_interval_stay_within_the_channels_bounds(
    site: Facade,
    gateway: Gateway,
    consumer: Callable[..., Consumer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = site.channel(heartbeat=Heartbeat(interval_ms=200, timeout_ms=9000))
    for config, patience_s in (
        ({"session.timeout.ms": 6000, "heartbeat.interval.ms": 3000}, 6),
        ({"session.timeout.ms": 45_000}, 9),
        ({"heartbeat.interval.ms": 60_000}, 9),
        ({}, 9),
    ):
        one = consumer(**config)
        one.subscribe([name])
        poll_until(partial(one.assignment), one)
        (member,) = (endpoint for endpoint in gateway.channel(name).endpoints() if endpoint.lives)
        assert member.patience_s == patience_s
        one.close()
    (warning,) = (record for record in caplog.records if record.name == "sluiceway.confluent")
    assert "session.timeout.ms is 45000, but the channel's limit is 9000" in warning.getMessage()
