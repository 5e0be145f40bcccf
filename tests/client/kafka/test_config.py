"""Kafka properties of users are on the list of allowed ones, or refused."""

import pytest

from sluiceway.errors import OptionError
from sluiceway.kafka.config import admin_config, consumer_config, producer_config

CONNECTION = {"bootstrap.servers": "127.0.0.1:1"}


def producer(connection: dict[str, str], overrides: dict[str, object] | None = None) -> object:
    return producer_config(
        connection, overrides, delivery_timeout_ms=1000, max_message_bytes=1_000_000
    )


@pytest.mark.parametrize(
    "name",
    [
        "plugin.library.paths",
        "sasl.oauthbearer.config",
        "ssl.ca.location",
        "ssl.engine.location",
        "ssl.keystore.location",
        "sasl.kerberos.kinit.cmd",
        "enable.ssl.certificate.verification",
        "debug",
    ],
)
def test_properties_that_load_or_run_or_read_files_are_refused_by_name(name: str) -> None:
    for refuse in (admin_config, consumer_config, producer):
        with pytest.raises(OptionError, match=name):
            refuse({**CONNECTION, name: "x"})
    for refuse in (consumer_config, producer):
        with pytest.raises(OptionError, match=name):
            refuse(CONNECTION, {name: "x"})


@pytest.mark.parametrize("name", ["acks", "enable.idempotence", "delivery.timeout.ms"])
def test_properties_behind_a_writers_guarantees_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        producer(CONNECTION, {name: "0"})


@pytest.mark.parametrize("name", ["check.crcs", "auto.offset.reset", "group.id"])
def test_properties_behind_a_readers_guarantees_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        consumer_config(CONNECTION, {name: "x"})


def test_a_typing_error_gets_a_suggestion() -> None:
    with pytest.raises(OptionError, match=r"did you mean 'linger.ms'"):
        producer(CONNECTION, {"linger_ms": 5})


def test_a_value_is_a_scalar() -> None:
    with pytest.raises(OptionError, match=r"linger\.ms"):
        producer(CONNECTION, {"linger.ms": [5]})


def test_allowed_properties_are_passed_to_librdkafka() -> None:
    config = producer_config(
        CONNECTION, {"linger.ms": 5}, delivery_timeout_ms=1000, max_message_bytes=2000
    )
    assert config["linger.ms"] == 5
    assert config["bootstrap.servers"] == "127.0.0.1:1"
    assert (config["acks"], config["enable.idempotence"]) == ("all", True)
    assert (config["message.max.bytes"], config["delivery.timeout.ms"]) == (2000, 1000)


def test_messages_before_a_flush_linger_for_longer_but_less_than_their_timeout() -> None:
    lingers = [
        producer_config(
            CONNECTION, delivery_timeout_ms=timeout_ms, max_message_bytes=2000, until_flush=True
        )["linger.ms"]
        for timeout_ms in (120_000, 20)
    ]
    assert lingers == [100, 10]


def test_a_given_linger_is_kept_before_a_flush() -> None:
    config = producer_config(
        CONNECTION,
        {"linger.ms": 5},
        delivery_timeout_ms=1000,
        max_message_bytes=2000,
        until_flush=True,
    )
    assert config["linger.ms"] == 5
