"""Access problems between client and gateway, and between gateway and Kafka, are reported."""

import itertools
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from faults import at_call
from processes import restored_logging
from relay import Relay
from secured import Authority, Certificate, SecuredGateway, SecuredKafka
from sluiceway import Gateway
from sluiceway.errors import GatewayAccessFailed, GatewayUnavailable
from sluiceway_gateway.cli import main
from sluiceway_gateway.core.errors import AccessFailure, AccessProblem, KafkaUnavailable
from sluiceway_gateway.core.kafka import client
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from waiting import until

PROMPT_S, TIMEOUT_S = 100.0, 300.0


@contextmanager
def tls_server(certificate: Certificate | None) -> Iterator[str]:
    """Serve with a certificate, or without TLS; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.file, certificate.key_file)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("expired", "has expired; renew it"),
        ("foreign", r"not signed by a trusted authority; .*SLUICEWAY_CA_FILE"),
        ("elsewhere", "is for another host"),
        ("clear", r"TLS handshake failed .*http://"),
    ],
)
def test_an_untrusted_gateway_certificate_is_reported_at_once(
    tmp_path: Path, fault: str, words: str
) -> None:
    ours = Authority(tmp_path / "ours")
    foreign = Authority(tmp_path / "other")
    certificate = {
        "expired": lambda: ours.issue("server", expired=True),
        "foreign": lambda: foreign.issue("server"),
        "elsewhere": lambda: ours.issue("server", host="elsewhere.example"),
        "clear": lambda: None,
    }[fault]()
    began_s = time.monotonic()
    with tls_server(certificate) as address:
        gateway = Gateway(f"https://{address}", ca=str(ours.file), timeout_s=TIMEOUT_S)
        with gateway, pytest.raises(GatewayAccessFailed, match=words) as raised:
            gateway.channel("flights")
    assert time.monotonic() - began_s < PROMPT_S
    assert not raised.value.retriable


def test_http_to_an_https_gateway_is_reported_at_once(secured_service: SecuredGateway) -> None:
    url = secured_service.url.replace("https://", "http://")
    with Gateway(url, timeout_s=60) as gateway:

        def refusal() -> str | None:
            began_s = time.monotonic()
            try:
                gateway.channel("flights")
            except GatewayAccessFailed as error:
                assert time.monotonic() - began_s < 50
                return str(error)
            except GatewayUnavailable:
                # A busy gateway may take longer than the probe of TLS waits.
                return None
            return pytest.fail("a gateway with TLS answered without")

        assert "it uses TLS; use https://" in until(refusal)


@pytest.mark.long
def test_the_last_diagnosis_is_kept_while_the_broker_is_slow(secured: SecuredKafka) -> None:
    properties = dict(secured.tls("FOREIGN"))
    port = int(properties.pop("bootstrap.servers").rpartition(":")[2])
    with closing(Relay(port)) as relay:
        kafka = KafkaAdmin(relay.address, properties, timeout_s=1)

        def access_failure() -> AccessFailure | None:
            with pytest.raises(KafkaUnavailable) as raised:
                kafka.describe_cluster()
            return raised.value.access_failure

        # A busy broker may take longer than the diagnosis waits.
        first = until(access_failure)
        assert first.problem is AccessProblem.CERTIFICATE
        with relay.stalled():
            assert access_failure() == first
        relay.cut()
        assert access_failure() is None, "an unreachable broker is no access failure"
        relay.restore()
        assert until(access_failure) == first


def test_a_refusal_during_a_probe_is_reported(secured: SecuredKafka) -> None:
    properties = dict(secured.scram(sasl_password="wrong"))
    port = int(properties.pop("bootstrap.servers").rpartition(":")[2])
    with closing(Relay(port)) as relay, ExitStack() as stall:
        stall.enter_context(relay.stalled())
        kafka = client.Client(relay.address, properties)
        probes = itertools.count()

        def refuse(*_: object, **__: object) -> None:
            if next(probes) == 0:
                stall.close()
                until(lambda: kafka.unavailable("").access_failure)

        # No other probe lasts until Kafka has refused the credentials.
        with (
            at_call(client, "diagnosis", refuse),
            pytest.raises(KafkaUnavailable, match="refuses the gateway") as raised,
        ):
            kafka.describe_cluster(timeout_s=1)
        assert next(probes)
    assert raised.value.access_failure is not None
    assert raised.value.access_failure.problem is AccessProblem.CREDENTIALS


def test_serving_https_needs_a_certificate_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = Authority(tmp_path)
    monkeypatch.setenv("SLUICEWAY_DATABASE_URL", f"sqlite:///{tmp_path / 'gateway.db'}")
    monkeypatch.setenv("SLUICEWAY_TLS_CERTIFICATE_FILE", str(ours.issue("one").file))
    monkeypatch.setenv("SLUICEWAY_TLS_KEY_FILE", str(ours.issue("two").key_file))
    with restored_logging():
        assert main(["migrate"]) == 0
        assert main(["serve", "--port", "0"]) == 1
    assert "cannot serve HTTPS with the certificate" in capsys.readouterr().err
