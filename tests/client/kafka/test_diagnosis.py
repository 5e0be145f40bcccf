"""Diagnosis of Kafka's addresses without a broker; refused access is in `tests/security`."""

import socket
from collections.abc import Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sluiceway import Gateway
from sluiceway.api.kafka_probe import RESPONSE, speaks_kafka
from sluiceway.errors import GatewayAccessFailed
from sluiceway.kafka.diagnosis import unreachable_broker


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def metadata(*ports: int) -> Any:
    brokers = {port: SimpleNamespace(host="127.0.0.1", port=port) for port in ports}
    return SimpleNamespace(list_topics=lambda *_, **__: SimpleNamespace(brokers=brokers))


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_broker_that_cannot_be_reached_is_named(listener: socket.socket) -> None:
    port, gone = listener.getsockname()[1], closed_port()
    servers = f"127.0.0.1:{gone},127.0.0.1:{port}"
    assert unreachable_broker(servers, metadata(port), "t") is None
    broker = unreachable_broker(servers, metadata(port, gone), "t")
    assert broker == f"127.0.0.1:{gone} (Connection refused)"


def test_in_an_outage_of_all_brokers_nothing_is_found(listener: socket.socket) -> None:
    def fail(topic: str, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    silent, port = SimpleNamespace(list_topics=fail), listener.getsockname()[1]
    assert unreachable_broker(f"127.0.0.1:{port}", silent, "t") is None
    gone = closed_port()
    assert unreachable_broker(f"127.0.0.1:{gone}", metadata(gone), "t") is None


def test_kafkas_port_is_recognized_as_no_gateway(listener: socket.socket) -> None:
    """A broker reads a request of HTTP as a request of a gigabyte, and closes the connection."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                request = connection.recv(1000)
                if request[4:6] == b"\0\x11":
                    connection.sendall(RESPONSE.pack(6, int.from_bytes(request[8:12]), 33))

    Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]
    assert speaks_kafka("127.0.0.1", port, 5)
    with (
        Gateway(f"http://127.0.0.1:{port}", timeout_s=2) as gateway,
        pytest.raises(GatewayAccessFailed, match="a Kafka broker answers there"),
    ):
        gateway.report()
