"""Writers that are closed while the gateway is silent: their end is reported later."""

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from broker_calls import broker_at, encode, produce_values
from faults import at_call
from relay import Relay
from sluiceway import Channel, Gateway, Heartbeat
from sluiceway.confluent import KafkaException, Producer
from sluiceway.endpoint.attached import EndpointMetrics
from sluiceway.errors import GatewayUnavailable, Unauthenticated
from topics import DEFINITION, readings
from waiting import until

Open = Callable[[Channel, str], Any]


@pytest.fixture
def relay(gateway_url: str) -> Iterator[Relay]:
    """The way of the writers to the gateway; readers have their own."""
    with closing(Relay(httpx.URL(gateway_url).port or 0)) as relay:
        yield relay
        # Endpoints that have not ended are reported.
        relay.restore()


@pytest.fixture
def make(gateway: Gateway) -> Callable[..., Channel]:
    def make(**options: Any) -> Channel:
        heartbeat = Heartbeat(interval_ms=200, timeout_ms=60_000)
        name = f"closing-{uuid.uuid4().hex[:8]}"
        return gateway.channel(name, DEFINITION, **{"heartbeat": heartbeat} | options)

    return make


class Written:
    """A writer of three acknowledged records, of one of the interfaces."""

    def __init__(self, kind: str, url: str, channel: Channel) -> None:
        values = encode(channel, 3)
        self.close: Callable[[], object]
        if kind == "writer":
            with Gateway(url, timeout_s=5, control_grace_s=5) as gateway:
                writer = gateway.channel(channel.name).writer()
            writer.write(readings(3))
            writer.flush()
            self.close = writer.close
        elif kind == "confluent":
            producer = Producer({"bootstrap.servers": url})
            for value in values:
                producer.produce(channel.name, value)
            assert producer.flush(60) == 0
            self.close = lambda: producer.close(2)
        else:
            broker = broker_at(url, socket_timeout_ms=3000)
            assert produce_values(broker, channel, values).err == 0
            self.close = broker.close


KINDS = ("writer", "confluent", "broker")
SILENT = (GatewayUnavailable, KafkaException)


def writer_states(channel: Channel) -> list[tuple[str, str | None]]:
    return [
        (endpoint.state, endpoint.cause)
        for endpoint in channel.endpoints()
        if endpoint.role == "writer"
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_the_end_of_a_writer_that_was_closed_in_an_outage_is_reported_after_it(
    make: Callable[..., Channel], relay: Relay, kind: str, delivery: str
) -> None:
    channel = make(delivery=delivery)
    written = Written(kind, relay.url, channel)
    with relay.stalled(), pytest.raises(SILENT):
        written.close()
    assert list(channel.reader()) == readings(3)
    assert writer_states(channel) == [("closed", None)]
    written.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_writer_that_is_refused_for_a_time_is_reported_after_it(
    make: Callable[..., Channel], relay: Relay, refusing: Any, kind: str
) -> None:
    channel = make()
    written = Written(kind, relay.url, channel)
    with refusing(401, "unauthenticated"), pytest.raises((Unauthenticated, KafkaException)):
        written.close()
    assert list(channel.reader()) == readings(3)
    assert writer_states(channel) == [("closed", None)]
    written.close()


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS)
def test_closing_is_repeated_after_an_outage(
    make: Callable[..., Channel], relay: Relay, kind: str
) -> None:
    channel = make(heartbeat=Heartbeat(interval_ms=20_000, timeout_ms=120_000))
    written = Written(kind, relay.url, channel)
    relay.cut()
    for _ in range(2):
        with pytest.raises(SILENT):
            written.close()
    relay.restore()
    written.close()
    # Not by a heartbeat, which would be much later.
    assert writer_states(channel) == [("closed", None)]
    assert list(channel.reader()) == readings(3)


@pytest.mark.long
def test_records_that_closing_has_lost_in_an_outage_are_an_error_of_each_close(
    make: Callable[..., Channel], relay: Relay
) -> None:
    channel = make(delivery="exactly_once")
    with Gateway(relay.url, timeout_s=5, control_grace_s=5) as gateway:
        writer = gateway.channel(channel.name).writer()
    writer.write(readings(3))
    relay.cut()
    with pytest.raises(GatewayUnavailable):
        writer.close()
    relay.restore()
    for _ in range(2):
        with pytest.raises(GatewayUnavailable):
            writer.close()
    assert list(channel.reader(until="now")) == []


def test_a_writer_whose_closing_was_interrupted_before_its_report_is_closed_by_the_next_call(
    make: Callable[..., Channel],
) -> None:
    channel, heartbeats = make(), 0

    def interrupt(*_: object, final: bool = False) -> None:
        nonlocal heartbeats
        if final:
            raise KeyboardInterrupt
        heartbeats += 1

    writer = channel.writer()
    writer.write(readings(3))
    with at_call(EndpointMetrics, "heartbeat_fields", interrupt):
        with pytest.raises(KeyboardInterrupt):
            writer.close()
        before = heartbeats
        # Heartbeats report what was left.
        until(lambda: heartbeats > before + 3)
    writer.close()
    assert writer_states(channel) == [("closed", None)]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_closed_writer_that_is_garbage_collected_is_reported(
    make: Callable[..., Channel], relay: Relay, kind: str
) -> None:
    channel = make()
    written = Written(kind, relay.url, channel)
    relay.cut()
    with pytest.raises(SILENT):
        written.close()
    del written
    relay.restore()
    until(lambda: writer_states(channel) == [("closed", None)])
    assert list(channel.reader()) == readings(3)


PROGRAM = """
import sys
from sluiceway import Gateway
from sluiceway.errors import GatewayUnavailable
gateway = Gateway(sys.argv[1], timeout_s=5, control_grace_s=5)
writer = gateway.channel(sys.argv[2]).writer()
writer.write([{"id": 0, "station": "station-0", "celsius": 0.0}])
writer.flush()
print("written", flush=True)
sys.stdin.readline()
try:
    writer.close()
except GatewayUnavailable as error:
    print(error.code, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("answers", [True, False], ids=["answers", "silent"])
def test_a_process_that_ends_attempts_to_report_a_last_time(
    make: Callable[..., Channel], relay: Relay, answers: bool
) -> None:
    # No heartbeat reports it before.
    channel = make(heartbeat=Heartbeat(interval_ms=60_000, timeout_ms=180_000))
    command = [sys.executable, "-c", PROGRAM, relay.url, channel.name]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline() == "written\n"
        relay.cut()
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "gateway_unavailable\n"
        if answers:
            relay.restore()
        program.stdin.close()
        assert program.wait(60) == 0
        log = program.stderr.read()
    assert ("does not answer as the process ends" in log) is not answers
    ((state, _),) = writer_states(channel)
    assert (state == "closed") is answers


def test_a_failure_that_is_refused_for_a_time_is_reported_after_it(
    make: Callable[..., Channel], relay: Relay, refusing: Any
) -> None:
    channel = make()
    with Gateway(relay.url, timeout_s=5, control_grace_s=5) as gateway:
        writer = gateway.channel(channel.name).writer()
    with refusing(500, "internal_error"):
        writer.abort(RuntimeError())
    until(lambda: writer_states(channel) == [("error", "RuntimeError")])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["writer", "broker", "reader"])
def test_a_failure_in_an_outage_is_reported_after_it(
    make: Callable[..., Channel], relay: Relay, kind: str
) -> None:
    channel = make()
    with Gateway(relay.url, timeout_s=5, control_grace_s=5) as gateway:
        if kind == "broker":
            endpoint: Any = broker_at(relay.url, socket_timeout_ms=5000)
            assert produce_values(endpoint, channel, encode(channel, 3)).err == 0
        else:
            endpoint = getattr(gateway.channel(channel.name), kind)()

    def fail() -> None:
        with endpoint:
            relay.cut()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    relay.restore()
    until(
        lambda: (
            [(listed.state, listed.cause) for listed in channel.endpoints()]
            == [("error", "RuntimeError")]
        )
    )
