import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sluiceway_gateway.core.errors import InvalidSettings
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.client import ALLOWED, refusals


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
    (refusal,) = refusals({name: "x", "security.protocol": "ssl"})
    assert words in refusal


def test_common_authentication_properties_are_accepted() -> None:
    assert not refusals(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "gateway",
            "sasl.password": "secret",
            "ssl.ca.location": "/etc/ssl/kafka.pem",
        }
    )


def test_a_gateway_with_a_refused_property_does_not_start() -> None:
    with pytest.raises(InvalidSettings, match=r"plugin\.library\.paths"):
        KafkaAdmin("127.0.0.1:9092", {"plugin.library.paths": "x"})


def test_a_value_refused_by_librdkafka_is_reported() -> None:
    with pytest.raises(InvalidSettings, match=r"security\.protocol"):
        KafkaAdmin("127.0.0.1:9092", {"security.protocol": "carrier-pigeon"})


def complaint(properties: dict[str, str]) -> str:
    """Return librdkafka's error for the properties, or an empty text."""
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
