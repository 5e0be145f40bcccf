"""Clients refused by Kafka get the reason and advice, at once and before sending."""

import contextlib
import json
import socket
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from relay import Relay
from secured_kafka import REJECTED_PROPERTIES, SecuredKafka, connection
from sluiceway.errors import KafkaAccessFailed, KafkaUnavailable, OptionError
from sluiceway.kafka import diagnosis as diagnosis_module
from sluiceway.kafka.config import admin_config
from sluiceway.kafka.diagnosis import AccessProblem, ConnectionErrors, diagnosis
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter

AT_ONCE_S = 10.0


@pytest.mark.parametrize("misfit", REJECTED_PROPERTIES)
def test_a_client_refused_by_kafka_gets_the_reason(secured: SecuredKafka, misfit: str) -> None:
    properties, words = REJECTED_PROPERTIES[misfit]
    given = properties(secured)
    began_s = time.monotonic()
    with pytest.raises(KafkaAccessFailed, match=words) as raised:
        ChannelWriter(connection(given), timeout_s=60)
    assert time.monotonic() - began_s < AT_ONCE_S
    assert not raised.value.retriable
    assert "SLUICEWAY_KAFKA_CREDENTIALS" in str(raised.value)
    for secret in ("sasl.password", "ssl.key.pem"):
        assert given.get(secret, "absent") not in str(raised.value)


def test_a_reader_refused_by_kafka_gets_the_reason(secured: SecuredKafka) -> None:
    began_s = time.monotonic()
    with pytest.raises(KafkaAccessFailed, match=r"check sasl\.username"):
        ChannelReader(connection(secured.scram(sasl_username="nobody")), until="now", timeout_s=60)
    assert time.monotonic() - began_s < AT_ONCE_S


def test_an_unreachable_broker_is_not_an_access_problem(secured: SecuredKafka) -> None:
    away = secured.scram(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(KafkaUnavailable) as raised:
        ChannelWriter(connection(away), timeout_s=1)
    assert type(raised.value) is KafkaUnavailable


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
                    talk, _ = server.accept()
                except OSError:
                    return
                with talk:
                    talk.recv(1024)
                    talk.sendall(response)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        place = f"127.0.0.1:{server.getsockname()[1]}"
        given = {"bootstrap.servers": place, "security.protocol": protocol}
        began_s = time.monotonic()
        with pytest.raises(KafkaUnavailable, match=words):
            ChannelWriter(connection(given), timeout_s=2)
        assert time.monotonic() - began_s < AT_ONCE_S
        server.shutdown(socket.SHUT_RDWR)
    serving.join(10)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_hanging_servers_are_probed_in_parallel(protocol: str) -> None:
    with contextlib.ExitStack() as stack:
        hung = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        places = [f"127.0.0.1:{each.getsockname()[1]}" for each in hung]
        given = {"bootstrap.servers": ",".join(places), "security.protocol": protocol}
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match=", ".join(places)):
            diagnosis(given, timeout_s=3)
        assert time.monotonic() - began_s < AT_ONCE_S


def test_a_server_after_a_hanging_one_is_diagnosed(secured: SecuredKafka) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung:
        telling = secured.tls("FOREIGN")
        servers = f"127.0.0.1:{hung.getsockname()[1]},{telling['bootstrap.servers']}"
        found = diagnosis({**telling, "bootstrap.servers": servers})
    assert found is not None
    assert found.problem is AccessProblem.CERTIFICATE


def test_a_client_probes_a_slow_broker_again(
    secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = secured.tls("FOREIGN")
    with contextlib.closing(Relay(int(given["bootstrap.servers"].rpartition(":")[2]))) as relay:
        heard = ConnectionErrors({**given, "bootstrap.servers": relay.address})
        heard.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        with relay.stalled(), monkeypatch.context() as patched:
            patched.setattr(diagnosis_module, "diagnosis", partial(diagnosis, timeout_s=0.5))
            heard.raise_refused("looking", "t")
        with pytest.raises(KafkaAccessFailed, match="not signed by a trusted authority"):
            heard.raise_refused("looking", "t")


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
        ChannelWriter(connection(secured.scram() | {name: value}))
    assert "SLUICEWAY_KAFKA_CLIENT_PROPERTIES" in str(raised.value)
    assert secured.scram()["sasl.password"] not in str(raised.value)


def test_properties_of_the_process_override_those_of_the_gateway(
    secured: SecuredKafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"bootstrap.servers": "k:1", "ssl.ca.pem": "theirs", "sasl.mechanisms": "PLAIN"}
    own = {"ssl.ca.location": str(secured.authority.file), "sasl.mechanism": "SCRAM-SHA-512"}
    expected = {"bootstrap.servers": "k:1", **own}
    monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS", json.dumps(own))
    assert expected.items() <= admin_config(given).items()
    assert not {"ssl.ca.pem", "sasl.mechanisms"} & admin_config(given).keys()

    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(own | {"sasl.username": "file"}))
    monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS_FILE", str(path))
    with pytest.raises(OptionError, match="both set"):
        admin_config(given)
    monkeypatch.delenv("SLUICEWAY_KAFKA_CREDENTIALS")
    assert admin_config(given)["sasl.username"] == "file"
    assert admin_config(given, {"sasl.username": "call", "linger.ms": 5})["sasl.username"] == "call"
    assert "linger.ms" not in admin_config(given, {"linger.ms": 5})
    # A file is read again for each client.
    path.write_text(json.dumps({"sasl.username": "rotated"}))
    assert admin_config(given)["sasl.username"] == "rotated"


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
