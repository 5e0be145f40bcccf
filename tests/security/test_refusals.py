"""Client properties that Kafka refuses: clients and the gateway report the reason and advice."""

import time
from collections.abc import Callable, Mapping

import pytest

from secured import SecuredKafka
from sluiceway.errors import KafkaAccessFailed
from sluiceway.writer import ChannelWriter
from sluiceway_gateway.core.errors import AccessProblem, KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from topics import connection_to
from waiting import until

PROMPT_S, TIMEOUT_S = 100.0, 300.0

#: Client properties that Kafka rejects, and the pattern of the error message.
REJECTED_PROPERTIES: dict[str, tuple[Callable[[SecuredKafka], Mapping[str, str]], str]] = {
    "wrong password": (
        lambda kafka: kafka.scram(sasl_password="wrong"),
        "invalid credentials.*check sasl.username, sasl.password",
    ),
    "unknown mechanism": (
        lambda kafka: kafka.scram(sasl_mechanism="PLAIN"),
        "supported mechanisms: SCRAM-SHA-512.*check .*sasl.mechanism",
    ),
    "expired certificate": (lambda kafka: kafka.tls("EXPIRED"), "has expired; renew it"),
    "certificate of a foreign authority": (
        lambda kafka: kafka.tls("FOREIGN"),
        "not signed by a trusted authority; set ssl.ca.pem",
    ),
    "another authority trusted": (
        lambda kafka: kafka.scram(ssl_ca_pem=kafka.foreign.pem),
        "not signed by a trusted authority",
    ),
    "certificate of another host": (
        lambda kafka: kafka.tls("ELSEWHERE"),
        "is for another host; use a name in it",
    ),
    "no client certificate": (
        lambda kafka: kafka.tls("MUTUAL"),
        "requires a client certificate.*ssl.certificate.pem and ssl.key.pem",
    ),
    "no password": (
        lambda kafka: kafka.tls("SCRAM"),
        "requires a user and a password, but security.protocol is SSL; set it to SASL_SSL",
    ),
    "TLS to a plaintext port": (
        lambda kafka: kafka.tls("SCRAM") | {"bootstrap.servers": kafka.broker.bootstrap_servers},
        "does not use TLS, but security.protocol is SSL; .*set it to PLAINTEXT",
    ),
    "plaintext to a TLS port": (
        lambda kafka: {"bootstrap.servers": kafka.broker.secured["SCRAM"]},
        "uses TLS, but security.protocol is PLAINTEXT; set it to SSL, or to SASL_SSL",
    ),
    "a password in plaintext to a TLS port": (
        lambda kafka: kafka.scram(security_protocol="SASL_PLAINTEXT"),
        "uses TLS, but security.protocol is SASL_PLAINTEXT; set it to SASL_SSL",
    ),
}


@pytest.mark.parametrize("fault", REJECTED_PROPERTIES)
def test_a_client_refused_by_kafka_gets_the_reason(secured: SecuredKafka, fault: str) -> None:
    properties, words = REJECTED_PROPERTIES[fault]
    properties_of_client = properties(secured)
    began_s = time.monotonic()
    with pytest.raises(KafkaAccessFailed, match=words) as raised:
        ChannelWriter(connection_to(properties_of_client), timeout_s=TIMEOUT_S)
    assert time.monotonic() - began_s < PROMPT_S
    assert not raised.value.retriable
    assert "SLUICEWAY_KAFKA_CREDENTIALS" in str(raised.value)
    for secret in ("sasl.password", "ssl.key.pem"):
        assert properties_of_client.get(secret, "absent") not in str(raised.value)


CREDENTIAL_FAULTS = {"wrong password", "unknown mechanism"}


CERTIFICATE_FAULTS = {
    "expired certificate",
    "certificate of a foreign authority",
    "another authority trusted",
    "certificate of another host",
    "no client certificate",
}


def problem_of(fault: str) -> AccessProblem:
    if fault in CREDENTIAL_FAULTS:
        return AccessProblem.CREDENTIALS
    return AccessProblem.CERTIFICATE if fault in CERTIFICATE_FAULTS else AccessProblem.PROTOCOL


ONE_OF_EACH = ("wrong password", "expired certificate", "plaintext to a TLS port")


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    # The test of clients has the diagnosis of all.
    [
        pytest.param(fault, marks=[] if fault in ONE_OF_EACH else [pytest.mark.long])
        for fault in REJECTED_PROPERTIES
    ],
)
def test_a_gateway_refused_by_kafka_reports_the_reason(secured: SecuredKafka, fault: str) -> None:
    properties = dict(REJECTED_PROPERTIES[fault][0](secured))
    servers = properties.pop("bootstrap.servers")
    # A connection that is set up slowly would replace the error of a refused one.
    slow = {"socket.connection.setup.timeout.ms": "60000"}
    kafka = KafkaAdmin(servers, properties | slow, timeout_s=2)

    def failure() -> KafkaUnavailable:
        with pytest.raises(KafkaUnavailable) as raised:
            kafka.describe_cluster()
        return raised.value

    def refusal() -> KafkaUnavailable | None:
        # A busy broker may take more than two seconds to refuse a client.
        error = failure()
        return None if error.access_failure is None else error

    first: KafkaUnavailable = until(refusal)
    again = failure()
    assert "refuses the gateway" in str(first)
    assert first.access_failure is not None
    assert first.access_failure.problem is problem_of(fault)
    assert again.access_failure == first.access_failure, "a repeated failure must be equal"
    assert "SLUICEWAY_KAFKA_PROPERTIES" in str(first)
    assert properties.get("sasl.password", "absent") not in str(first)
