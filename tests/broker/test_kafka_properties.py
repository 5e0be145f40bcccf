import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sluiceway_gateway.broker import property_refusals
from sluiceway_gateway.broker.properties import ALLOWED


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plugin.library.paths", "'plugin.library.paths' is not allowed"),
        ("sasl.kerberos.kinit.cmd", "not allowed"),
        ("ssl.engine.location", "not allowed"),
        ("ssl.providers", "not allowed"),
        ("sasl.user", "did you mean sasl.username?"),
        ("bootstrap.servers", "SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS"),
    ],
)
def test_a_property_that_is_not_listed_is_refused_by_name(name: str, words: str) -> None:
    (refusal,) = property_refusals({name: "x", "security.protocol": "ssl"})
    assert words in refusal


def test_the_usual_ways_to_authenticate_pass() -> None:
    assert not property_refusals(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "gateway",
            "sasl.password": "secret",
            "ssl.ca.location": "/etc/ssl/kafka.pem",
        }
    )


def complaint(properties: dict[str, str]) -> str:
    """Return what librdkafka has against the properties, empty if nothing."""
    try:
        AdminClient(properties)
    except KafkaException as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_librdkafka_knows_every_listed_property(name: str) -> None:
    unknown = "No such configuration property"
    assert unknown in complaint({"no.such.property": "1"})
    assert unknown not in complaint({name: "1"})
