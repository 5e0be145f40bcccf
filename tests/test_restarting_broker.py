"""Kafka clients that librdkafka leaves without brokers, as one shuts down, are replaced."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Self

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from sluiceway.errors import KafkaFailure
from sluiceway.kafka.consumer import MessageStream
from sluiceway.kafka.io_thread import SHARED_CONSUMERS
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.client import Client
from sluiceway_gateway.core.kafka.model import Cause
from topics import connection_to
from waiting import until

_API_VERSIONS, _METADATA, _CREATE_TOPICS = 18, 3, 19


_ACCEPTED = (
    (_API_VERSIONS, 0, 0),
    (_METADATA, 0, 1),
    (0, 3, 5),
    (1, 4, 6),
    (2, 1, 3),
    (_CREATE_TOPICS, 0, 0),
)


_UNSUPPORTED_VERSION, _NO_LEADER, _TOPIC_EXISTS = 35, 5, 36


class RestartingBroker:
    """Has each topic, with one partition, and refuses to create it again.

    The formats are those of Metadata v1 and CreateTopics v0 in https://kafka.apache.org/protocol.html.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self._alone = self._unreachable = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A thread that accepts holds the socket.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def leave(self) -> None:
        """Answer without brokers, and close the connection after each answer."""
        self._alone = True

    def end(self) -> None:
        """Close new connections."""
        self._unreachable = True

    def start(self) -> None:
        """Answer as before."""
        self._alone = self._unreachable = False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError), client.makefile("rb") as requests:
            while not self._unreachable and (size := requests.read(4)):
                request = requests.read(*struct.unpack(">i", size))
                api, version, correlation, name = struct.unpack(">hhih", request[:10])
                alone = self._alone
                if api == _API_VERSIONS:
                    body = _api_versions(version)
                elif api == _METADATA:
                    body = self._metadata(request[10 + max(0, name) :], alone=alone)
                elif api == _CREATE_TOPICS:
                    (size,) = struct.unpack(">h", request[14 + name : 16 + name])
                    topic = request[14 + name : 16 + name + size]
                    body = struct.pack(">i", 1) + topic + struct.pack(">h", _TOPIC_EXISTS)
                else:
                    # Without an answer. The end of the connection would end other requests, too.
                    continue
                response = struct.pack(">i", correlation) + body
                client.sendall(struct.pack(">i", len(response)) + response)
                if alone and api == _METADATA:
                    return

    def _metadata(self, request: bytes, *, alone: bool) -> bytes:
        (count,), topics, at = struct.unpack(">i", request[:4]), b"", 4
        for _ in range(max(0, count)):
            (size,) = struct.unpack(">h", request[at : at + 2])
            name = request[at : at + 2 + size]
            at += len(name)
            error, leader, replicas = (_NO_LEADER, -1, 0) if alone else (0, 1, 1)
            nodes = struct.pack(">i", replicas) + struct.pack(">i", 1) * replicas
            partition = struct.pack(">hii", error, 0, leader) + 2 * nodes
            topics += struct.pack(">h", 0) + name + b"\0" + struct.pack(">i", 1) + partition
        host = b"127.0.0.1"
        broker = struct.pack(">ih", 1, len(host)) + host + struct.pack(">ih", self.port, -1)
        brokers, controller = (0, -1) if alone else (1, 1)
        head = struct.pack(">i", brokers) + broker * brokers + struct.pack(">i", controller)
        return head + struct.pack(">i", max(0, count)) + topics


def _api_versions(version: int) -> bytes:
    head = struct.pack(">hi", _UNSUPPORTED_VERSION if version else 0, len(_ACCEPTED))
    return head + b"".join(struct.pack(">hhh", *range_) for range_ in _ACCEPTED)


def is_stranded(
    broker: RestartingBroker, ask: Callable[[], object], answers: Callable[[], bool]
) -> bool:
    """Restart the broker; return whether librdkafka does not connect to it again."""
    for step in (broker.leave, broker.end):
        step()
        with suppress(KafkaException):
            ask()
    broker.start()
    return not any(answers() for _ in range(6))


@pytest.mark.long
def test_a_client_that_does_not_connect_again_is_replaced() -> None:
    with RestartingBroker() as broker:
        client = Client(broker.bootstrap_servers, {}, replace_after_s=60)

        def ask() -> object:
            return client.admin.list_topics("t", timeout=0.5)

        def answers() -> bool:
            futures = client.admin.create_topics([NewTopic("t", 1, 1)], request_timeout=0.5)
            return client.settled("CreateTopics", futures, 0.5)["t"].cause is not Cause.UNAVAILABLE

        until(answers)
        until(lambda: is_stranded(broker, ask, answers))
        client.replace_after_s = 0
        until(answers)


def is_described(client: Client) -> bool:
    with suppress(KafkaUnavailable):
        return bool(client.describe_cluster(0.5).brokers)
    return False


def refusal_of(client: Client) -> str:
    with pytest.raises(KafkaUnavailable) as caught:
        client.describe_cluster(5)
    return str(caught.value)


def test_brokers_that_shut_down_are_unavailable() -> None:
    with RestartingBroker() as broker:
        client = Client(broker.bootstrap_servers, {})
        (described,) = client.describe_cluster(30).brokers
        assert described.port == broker.port
        broker.leave()
        # The broker also closes the connection, which may be noticed first.
        until(lambda: "no brokers" in refusal_of(client))
        broker.start()
        until(lambda: is_described(client))


@pytest.mark.parametrize("shared", [False, True])
def test_a_consumer_that_does_not_connect_again_is_replaced(shared: bool) -> None:
    with RestartingBroker() as broker:
        connection = connection_to({"bootstrap.servers": broker.bootstrap_servers})
        with closing(
            MessageStream(connection, timeout_s=0.5, consumers=SHARED_CONSUMERS if shared else None)
        ) as stream:

            def answers() -> bool:
                with suppress(KafkaFailure):
                    stream.request_metadata(0.5)
                    return True
                return False

            stream.assign({0: 0})
            assert not stream.renew(timeout_s=30)
            # A matter of timing within librdkafka.
            until(lambda: is_stranded(broker, answers, answers) and stream.renew(timeout_s=0.5))
            stream.assign({0: 0})
            assert not stream.renew(timeout_s=30)
            until(answers)
