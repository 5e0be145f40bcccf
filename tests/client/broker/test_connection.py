"""Connections of sluiceway.broker.Broker, and errors without a connection."""

import logging
import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from broker_calls import (
    broker_at,
    commit,
    encode,
    fetch,
    fetch_committed,
    fetch_offset,
    produce_values,
)
from relay import Relay
from scripted_gateway import CHANNEL, Script
from sluiceway import Channel, Gateway
from sluiceway.broker import Broker, BrokerMetadata, OffsetType, SslConfig
from sluiceway.broker.exceptions import (
    ERROR_CODES,
    KafkaException,
    ProtocolClientError,
    SocketDisconnectedError,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from sluiceway.errors import GatewayUnavailable, OptionError, SluicewayError
from topics import readings

NewChannel = Callable[..., Channel]
NOBODY = "http://127.0.0.1:1"


def test_a_broker_has_its_arguments_and_is_connected_from_the_start(gateway_url: str) -> None:
    with broker_at(gateway_url) as broker:
        host, port = gateway_url.removeprefix("http://").split(":")
        assert (broker.id, broker.host, broker.port) == (1, host, int(port))
        assert (broker.connected, broker.offsets_channel_connected) == (True, False)
        assert broker.handler is not None
        assert broker.offsets_channel_handler is None
        broker.connect_offsets_channel()
        assert broker.offsets_channel_connected
        assert broker.offsets_channel_handler is not None
        assert f"host={host}, port={port}, id=1" in repr(broker)
    assert (broker.connected, broker.offsets_channel_connected) == (False, False)


def test_without_a_gateway_the_log_and_the_calls_say_how_to_connect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="sluiceway.broker"):
        broker = broker_at(NOBODY, socket_timeout_ms=200, offsets_channel_socket_timeout_ms=200)
    assert "is not connected: the gateway at" in caplog.text
    assert (broker.connected, broker.handler) == (False, None)
    with pytest.raises(SocketDisconnectedError, match=r"call connect\(\)"):
        broker.fetch_messages([])
    with pytest.raises(SocketDisconnectedError, match="does not answer"):
        broker.connect(attempts=1)
    with pytest.raises(SocketDisconnectedError, match="does not answer"):
        broker.commit_consumer_group_offsets(b"g", -1, b"", [])
    broker.close()


def test_stopping_the_handler_disconnects_and_connect_creates_a_new_one(
    gateway_url: str, new_channel: NewChannel
) -> None:
    channel = new_channel()
    with broker_at(gateway_url) as broker:
        assert broker.handler is not None
        broker.handler.stop()
        assert not broker.connected
        with pytest.raises(SocketDisconnectedError):
            fetch_offset(broker, channel, OffsetType.LATEST)
        broker.connect()
        assert broker.connected
        produce_values(broker, channel, encode(channel, 2))
        broker.connect()
        assert len(fetch(broker, channel).messages) == 2
        assert commit(broker, channel, b"g", 1).err == 0
        assert broker.offsets_channel_handler is not None
        broker.offsets_channel_handler.stop()
        assert fetch_committed(broker, channel, b"g").offset == 1
    assert channel.endpoints()[-1].state == "closed"


def test_a_broker_that_was_closed_in_an_outage_connects_again_and_writes_as_another_writer(
    gateway_url: str, new_channel: NewChannel
) -> None:
    channel = new_channel()
    with closing(Relay(int(gateway_url.rpartition(":")[2]))) as relay:
        broker = broker_at(relay.url, socket_timeout_ms=2_000)
        assert produce_values(broker, channel, encode(channel, 1)).err == 0
        relay.cut()
        with pytest.raises(GatewayUnavailable):
            broker.close()
        relay.restore()
        broker.connect()
        assert produce_values(broker, channel, encode(channel, 1, 1)).err == 0
        broker.close()
    assert [writer.state for writer in channel.endpoints()] == ["closed", "closed"]
    with channel.reader() as reader:
        assert list(reader) == readings(2)


@pytest.mark.long
def test_connected_follows_the_gateways_answers(gateway_url: str) -> None:
    with (
        closing(Relay(int(gateway_url.rpartition(":")[2]))) as relay,
        broker_at(relay.url, socket_timeout_ms=2_000) as broker,
    ):
        assert broker.connected
        relay.cut()
        with pytest.raises(SocketDisconnectedError, match="does not answer"):
            broker.request_metadata([b"nowhere"])
        assert not broker.connected
        relay.restore()
        reported = broker.request_metadata([b"nowhere"])
        assert reported.topics["nowhere"].err == UnknownTopicOrPartition.ERROR_CODE
        assert broker.connected


def test_a_channel_that_is_deleted_while_groups_are_listed_has_none(script: Script) -> None:
    script.response(200, {"items": [], "next_cursor": None})
    broker = Broker(0, "", 0, url=script.url)
    for _ in range(2):
        script.response(200, {"items": [CHANNEL], "next_cursor": None})
        script.problem(404, "channel_not_found")
    assert broker.list_groups().groups == {}
    assert broker.describe_groups([b"billing"]).groups[b"billing"].state == b"Dead"


def test_a_refusal_is_an_answer(script: Script) -> None:
    script.response(200, {"items": [], "next_cursor": None})
    broker = Broker(0, "", 0, url=script.url)
    script.problem(404, "channel_not_found")
    script.problem(403, "forbidden")
    reported = broker.request_metadata([b"flights"])
    assert reported.topics["flights"].err == UnknownTopicOrPartition.ERROR_CODE
    assert broker.connected
    broker.close()


def test_metadata_of_other_clients_has_the_gateways_address(gateway_url: str) -> None:
    host, port = gateway_url.removeprefix("http://").split(":")
    with Broker.from_metadata(BrokerMetadata(5, host, int(port)), None, 20_000, 20_000) as broker:
        assert broker.connected
        assert broker.id == 5


def test_raise_errors_raises_pykafkas_exceptions(gateway_url: str, new_channel: NewChannel) -> None:
    channel = new_channel()
    with broker_at(gateway_url, raise_errors=True) as broker:
        with pytest.raises(UnknownTopicOrPartition, match="no-such-channel: ") as caught:
            broker.request_metadata(["no-such-channel"])
        assert caught.value.ERROR_CODE == 3
        with pytest.raises(UnknownMemberId):
            broker.heartbeat("c", b"g", 1, b"nobody")
        assert fetch_offset(broker, channel, OffsetType.EARLIEST).offset == [0]


def test_every_code_has_an_exception_with_a_unique_code() -> None:
    assert set(ERROR_CODES) == {
        -1,
        *range(1, 8),
        10,
        12,
        *range(14, 18),
        22,
        23,
        25,
        26,
        27,
        29,
        30,
    }
    kinds = [*ERROR_CODES.values(), SocketDisconnectedError, ProtocolClientError, KafkaException]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(issubclass(kind, SluicewayError) for kind in kinds)


def test_client_certificates_and_an_empty_host_are_refused() -> None:
    with pytest.raises(OptionError, match="by tokens"):
        broker_at(NOBODY, ssl_config=SslConfig(certfile="mine.pem"))
    with pytest.raises(OptionError, match="host is ''"):
        Broker(0, "", 8900)


PROGRAM = """
import sys
from broker_calls import broker_at, encode, produce_values
from sluiceway import Gateway
url, name, *failure = sys.argv[1:]
broker = broker_at(url)
with Gateway(url) as gateway:
    channel = gateway.channel(name)
    produce_values(broker, channel, encode(channel, 2))
    if failure:
        raise RuntimeError(*failure)
    # Only the exit waits for these.
    large = encode(channel, 1)[0] + bytes(900_000)
    produce_values(broker, channel, [large] * 20, required_acks=0)
"""


def run_program(*arguments: str) -> int:
    """Run the program, and return its exit code."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        # The program imports the tests' modules.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=480,
    ).returncode


@pytest.mark.long
def test_a_program_that_exits_without_closing_closes_its_writers(
    gateway_url: str, new_channel: NewChannel
) -> None:
    channel = new_channel()
    assert run_program(gateway_url, channel.name) == 0
    (writer,) = channel.endpoints()
    assert (writer.state, writer.ends) == ("closed", {0: 22})


def test_a_program_ended_by_an_exception_fails_its_writers(
    gateway_url: str, new_channel: NewChannel
) -> None:
    channel = new_channel()
    assert run_program(gateway_url, channel.name, "out of paper") == 1
    (writer,) = channel.endpoints()
    assert (writer.state, writer.cause) == ("error", "RuntimeError")


FORKING = """
    import os, sys, traceback, warnings
    from sluiceway.broker import Broker, Message, PartitionFetchRequest, ProduceRequest
    from sluiceway.broker.exceptions import SocketDisconnectedError

    # The process has threads on purpose.
    warnings.simplefilter("ignore", DeprecationWarning)
    host, port, name = sys.argv[1:]
    broker = Broker(1, host, int(port))

    def produce(value):
        request = ProduceRequest(required_acks=-1)
        request.add_message(Message(value), name, 0)
        response = broker.produce_messages(request).topics[name][0]
        assert response.err == 0, response.reason

    def fetched():
        response = broker.fetch_messages([PartitionFetchRequest(name, 0, 0)]).topics[name][0]
        return [each.value for each in response.messages]

    def in_child():
        for refused in (fetched, lambda: produce(b"refused"), broker.request_metadata):
            try:
                refused()
            except SocketDisconnectedError as error:
                assert "call connect()" in str(error)
            else:
                raise AssertionError(refused)
        broker.connect()
        produce(b"child")
        assert fetched() == [b"parent", b"child"]
        broker.close()

    produce(b"parent")
    assert fetched() == [b"parent"]
    for use in (in_child, broker.close):
        child = os.fork()
        if child == 0:
            try:
                use()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    produce(b"again")
    broker.close()
"""


@pytest.mark.long
def test_a_forked_process_connects_again(gateway_url: str, gateway: Gateway) -> None:
    channel = gateway.channel(f"forked-{uuid.uuid4().hex[:8]}", format="bytes")
    address = urlsplit(gateway_url)
    program = [sys.executable, "-c", textwrap.dedent(FORKING)]
    done = subprocess.run(
        [*program, str(address.hostname), str(address.port), channel.name],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {endpoint.state for endpoint in channel.endpoints()} == {"closed"}
