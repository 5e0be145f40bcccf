"""Clients that Kafka refuses get the reason and advice, immediately and before sending."""

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from faults import at_call
from relay import Relay
from secured import SecuredKafka
from sluiceway.errors import KafkaAccessFailed, KafkaUnavailable, OptionError
from sluiceway.kafka.config import admin_config
from sluiceway.kafka.diagnosis import AccessProblem, ConnectionErrors, diagnosis
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import connection_to
from waiting import until

PROMPT_S, TIMEOUT_S = 100.0, 300.0


def test_a_reader_refused_by_kafka_gets_the_reason(secured: SecuredKafka) -> None:
    refused = connection_to(secured.scram(sasl_username="nobody"))
    began_s = time.monotonic()
    with pytest.raises(KafkaAccessFailed, match=r"check sasl\.username"):
        ChannelReader(refused, until="now", timeout_s=TIMEOUT_S)
    assert time.monotonic() - began_s < PROMPT_S


def test_an_unreachable_broker_is_not_an_access_problem(secured: SecuredKafka) -> None:
    unreachable = secured.scram(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(KafkaUnavailable) as raised:
        ChannelWriter(connection_to(unreachable), timeout_s=1)
    assert type(raised.value) is KafkaUnavailable


@pytest.mark.sample
@pytest.mark.parametrize(
    ("response", "protocol", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "PLAINTEXT", "is not Kafka; correct the address"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "SSL", "does not use TLS"),
        (b"", "PLAINTEXT", "Kafka did not answer"),
    ],
)
def test_a_port_of_another_service_is_reported_within_the_timeout(
    response: bytes, protocol: str, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(1024)
                    peer.sendall(response)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        properties = {"bootstrap.servers": address, "security.protocol": protocol}
        began_s = time.monotonic()
        with pytest.raises(KafkaUnavailable, match=words):
            ChannelWriter(connection_to(properties), timeout_s=2)
        assert time.monotonic() - began_s < PROMPT_S
        server.shutdown(socket.SHUT_RDWR)
    serving.join(10)


@pytest.mark.sample
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_hanging_servers_share_the_time(protocol: str) -> None:
    # Limits, because a busy machine exceeds each by an unknown time.
    timeouts_s: list[float] = []
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [server.getsockname()[1] for server in servers]
        addresses = [f"127.0.0.1:{port}" for port in ports]

        def note(address: tuple[str, int], *arguments: Any, **_: object) -> None:
            if address[1] in ports:
                timeouts_s.extend(arguments)

        # How long it would wait for a silent broker.
        stack.enter_context(at_call(socket, "create_connection", note))
        properties = {"bootstrap.servers": ",".join(addresses), "security.protocol": protocol}
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match=", ".join(addresses)):
            diagnosis(properties, timeout_s=3)
        assert time.monotonic() - began_s < PROMPT_S
    # Each connection waits once, because the system accepts it.
    assert len(timeouts_s) >= len(ports)
    assert sum(timeouts_s) < 3.1


def test_a_server_after_a_hanging_one_is_diagnosed(secured: SecuredKafka) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        properties = secured.tls("FOREIGN")
        servers = f"127.0.0.1:{hanging.getsockname()[1]},{properties['bootstrap.servers']}"

        def problem() -> AccessProblem | None:
            # A busy broker may not answer in its part of the time.
            with contextlib.suppress(TimeoutError):
                finding = diagnosis({**properties, "bootstrap.servers": servers})
                assert finding is not None
                return finding.problem
            return None

        assert until(problem) is AccessProblem.CERTIFICATE


@pytest.mark.long
def test_a_client_probes_a_slow_broker_again(secured: SecuredKafka) -> None:
    properties = secured.tls("FOREIGN")
    with contextlib.closing(
        Relay(int(properties["bootstrap.servers"].rpartition(":")[2]))
    ) as relay:
        errors = ConnectionErrors({**properties, "bootstrap.servers": relay.address})
        errors.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        with relay.stalled():
            errors.raise_refused("looking", "t")

        def refusal() -> KafkaAccessFailed | None:
            try:
                errors.raise_refused("looking", "t")
            except KafkaAccessFailed as error:
                return error
            # A busy broker may take longer than the probe waits.
            return None

        assert "not signed by a trusted authority" in str(until(refusal))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ssl.ca.pem", "no certificate", "librdkafka refuses .*ssl.ca.pem"),
        ("security.protocol", "TLS", "librdkafka refuses .*security.protocol"),
        ("sasl.mechanism", "SCRAM", "librdkafka refuses .*SCRAM"),
    ],
)
def test_invalid_properties_are_refused_with_their_source(
    secured: SecuredKafka, name: str, value: str, words: str
) -> None:
    with pytest.raises(OptionError, match=words) as raised:
        ChannelWriter(connection_to(secured.scram() | {name: value}))
    assert "SLUICEWAY_KAFKA_CLIENT_PROPERTIES" in str(raised.value)
    assert secured.scram()["sasl.password"] not in str(raised.value)


def test_properties_of_the_process_override_those_of_the_gateway(
    secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gateway_properties = {
        "bootstrap.servers": "k:1",
        "ssl.ca.pem": "theirs",
        "sasl.mechanisms": "PLAIN",
    }
    own_properties = {
        "ssl.ca.location": str(secured.authority.file),
        "sasl.mechanism": "SCRAM-SHA-512",
    }
    expected = {"bootstrap.servers": "k:1", **own_properties}
    monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS", json.dumps(own_properties))
    assert expected.items() <= admin_config(gateway_properties).items()
    # A request about a topic must not create it.
    assert admin_config(gateway_properties)["allow.auto.create.topics"] is False
    assert not {"ssl.ca.pem", "sasl.mechanisms"} & admin_config(gateway_properties).keys()

    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(own_properties | {"sasl.username": "file"}))
    monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS_FILE", str(path))
    with pytest.raises(OptionError, match="both set"):
        admin_config(gateway_properties)
    monkeypatch.delenv("SLUICEWAY_KAFKA_CREDENTIALS")
    assert admin_config(gateway_properties)["sasl.username"] == "file"
    assert (
        admin_config(gateway_properties, {"sasl.username": "call", "linger.ms": 5})["sasl.username"]
        == "call"
    )
    assert "linger.ms" not in admin_config(gateway_properties, {"linger.ms": 5})
    # Each client reads the file again.
    path.write_text(json.dumps({"sasl.username": "rotated"}))
    assert admin_config(gateway_properties)["sasl.username"] == "rotated"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("geheim", "SLUICEWAY_KAFKA_CREDENTIALS holds no JSON object"),
        ('["geheim"]', "holds no JSON object"),
        ('{"sasl.pasword": "geheim"}', "did you mean 'sasl.password'"),
        ('{"sasl.password": ["geheim"]}', "'sasl.password' is list"),
        ('{"plugin.library.paths": "geheim"}', "plugin.library.paths"),
        ('{"acks": "geheim"}', "'acks'"),
    ],
)
def test_invalid_credentials_are_reported_without_their_values(
    monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS", text)
    with pytest.raises(OptionError, match=words) as raised:
        admin_config({"bootstrap.servers": "k:1"})
    assert "geheim" not in str(raised.value)


def test_a_missing_credentials_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS_FILE", "/nowhere/credentials")
    with pytest.raises(OptionError, match="/nowhere/credentials of SLUICEWAY_KAFKA_CREDENTIALS"):
        admin_config({"bootstrap.servers": "k:1"})
