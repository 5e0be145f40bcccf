"""Programs that exit inside of `with`: `sys.exit(0)` is success, any other exit a failure."""

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from broker_calls import broker_at, encode, produce_values
from sluiceway import Channel, Gateway, Heartbeat, OutputPort
from sluiceway.confluent import Producer
from sluiceway.errors import WriterFailed
from sluiceway.rest.endpoints import AttachResult
from topics import DEFINITION, readings


@pytest.fixture
def make(gateway: Gateway) -> Callable[..., Channel]:
    def make(**options: Any) -> Channel:
        heartbeat = Heartbeat(interval_ms=200, timeout_ms=60_000)
        name = f"exits-{uuid.uuid4().hex[:8]}"
        return gateway.channel(name, DEFINITION, heartbeat=heartbeat, **options)

    return make


def write_and_exit(kind: str, url: str, channel: Channel, code: object) -> None:
    """Write three records without `flush`, and exit inside of `with`."""
    with ExitStack() as block:
        if kind == "writer":
            block.enter_context(channel.writer()).write(readings(3))
        elif kind == "port":
            block.enter_context(OutputPort([channel])).write(readings(3))
        elif kind == "confluent":
            producer = block.enter_context(Producer({"bootstrap.servers": url}))
            for value in encode(channel, 3):
                producer.produce(channel.name, value)
        else:
            broker = block.enter_context(broker_at(url))
            produce_values(broker, channel, encode(channel, 3), required_acks=0)
        sys.exit(code)  # type: ignore[arg-type]


def ends(channel: Channel) -> list[tuple[str, str | None]]:
    return [(each.state, each.cause) for each in channel.endpoints() if each.role == "writer"]


@pytest.mark.parametrize("kind", ["writer", "port", "confluent", "broker"])
@pytest.mark.parametrize("code", [None, 0])
def test_a_successful_exit_closes_what_it_leaves(
    make: Callable[..., Channel], gateway_url: str, kind: str, code: object
) -> None:
    channel = make()
    with pytest.raises(SystemExit):
        write_and_exit(kind, gateway_url, channel, code)
    assert ends(channel) == [("closed", None)]
    assert list(channel.reader()) == readings(3)


@pytest.mark.parametrize("kind", ["writer", "port", "confluent", "broker"])
@pytest.mark.parametrize("code", [1, "a reason"])
def test_any_other_exit_is_a_failure(
    make: Callable[..., Channel], gateway_url: str, kind: str, code: object
) -> None:
    channel = make()
    with pytest.raises(SystemExit):
        write_and_exit(kind, gateway_url, channel, code)
    assert ends(channel) == [("error", "SystemExit")]


def test_a_successful_exit_commits_the_records_of_an_exactly_once_channel(
    make: Callable[..., Channel],
) -> None:
    channel = make(delivery="exactly_once")
    with pytest.raises(SystemExit):
        write_and_exit("writer", "", channel, None)
    assert list(channel.reader()) == readings(3)


@pytest.mark.parametrize("block", ["batch", "transaction"])
def test_an_exit_within_a_batch_aborts_it_and_is_a_failure(
    make: Callable[..., Channel], gateway: Gateway, monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    monkeypatch.setattr(AttachResult, "replacement_timeout_s", 0.0)
    channel, source = make(delivery="exactly_once"), make()

    def run() -> None:
        with source.reader(group="g") as reader, channel.writer() as writer:
            writer.write(readings(3))
            writer.flush()
            with writer.batch("b") if block == "batch" else gateway.transaction(reader, writer):
                writer.write(readings(3, 3))
                sys.exit(0)

    with pytest.raises(SystemExit):
        run()
    assert ends(channel) == [("error", "SystemExit")]
    with channel.reader() as following:
        assert following.read(3, timeout=None) == readings(3)
        with pytest.raises(WriterFailed):
            following.read(1, timeout=None)


def test_a_writer_that_outlives_an_exit_within_a_batch_can_finish(
    make: Callable[..., Channel],
) -> None:
    channel = make(delivery="exactly_once")

    def run() -> None:
        with channel.writer() as writer:
            with pytest.raises(SystemExit), writer.batch("b"):
                sys.exit(0)
            writer.write(readings(3))
            sys.exit(0)

    with pytest.raises(SystemExit):
        run()
    assert list(channel.reader()) == readings(3)


PROGRAM = """
import signal, sys
from sluiceway import Gateway
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with Gateway(sys.argv[1]) as gateway, gateway.channel(sys.argv[2]).writer() as writer:
    writer.write([{"id": n, "station": "s", "celsius": 0.0} for n in range(100)])
    print("written", flush=True)
    signal.pause()
"""


def test_a_program_that_exits_on_sigterm_finishes_its_writers(
    make: Callable[..., Channel], gateway_url: str
) -> None:
    channel = make()
    command = [sys.executable, "-c", PROGRAM, gateway_url, channel.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "written\n"
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    assert len(list(channel.reader())) == 100
