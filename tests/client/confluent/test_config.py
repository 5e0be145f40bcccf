"""Configuration of sluiceway.confluent: supported, ignored and refused properties."""

import collections
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from confluent_facade import KafkaError, error_code_of
from scripted_gateway import CHANNEL, Script
from sluiceway.confluent import Consumer, KafkaException, Producer, properties
from sluiceway.confluent.config import (
    ChannelControl,
    Common,
    consumer_settings,
    producer_settings,
)
from sluiceway.errors import ChannelNotFound
from sluiceway.kafka.config import MaskedProperties

NOBODY = {"bootstrap.servers": "http://127.0.0.1:1"}
GROUP = {**NOBODY, "group.id": "g"}


@pytest.mark.parametrize(
    "config",
    [
        {"auto.offset.reset": "smallest"},
        {"auto.offset.reset": "Earliest", "group.id": 7},
        {"default.topic.config": {"auto.offset.reset": "beginning"}},
        {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "max.poll.interval.ms": 9000},
        {"partition.assignment.strategy": "cooperative-sticky", "group.instance.id": "me"},
        {"enable.auto.commit": "false", "auto.commit.interval.ms": "1000"},
        {"fetch.min.bytes": 1, "client.id": "mine", "socket.timeout.ms": 1000},
        {"error_cb": print, "stats_cb": print, "statistics.interval.ms": 1000},
    ],
    ids=str,
)
def test_common_consumer_properties_are_accepted(config: dict[str, Any]) -> None:
    Consumer({**GROUP, **config}).close()
    Consumer(**{**GROUP, **config}).close()


@pytest.mark.parametrize(
    "config",
    [
        {"acks": "all", "enable.idempotence": True, "retries": 5},
        {"request.required.acks": -1, "message.timeout.ms": 5000},
        {"linger.ms": 5, "batch.size": 1000, "compression.type": "zstd"},
        {"delivery.report.only.error": True, "on_delivery": print},
    ],
    ids=str,
)
def test_common_producer_properties_are_accepted(config: dict[str, Any]) -> None:
    Producer({**NOBODY, **config}).close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"bootstrap.servers": "localhost:9092"},
        {"auto.offset.reset": "sometimes"},
        {"enable.auto.commit": "perhaps"},
        {"auto.commit.interval.ms": "soon"},
        {"sluiceway.behaves.like": "kafka-python"},
        {"default.topic.config": 3},
        {"plugin.library.paths": "evil.so"},
        {"sasl.kerberos.kinit.cmd": "rm"},
        {"fetch.min.byte": 1},
        {"fetch.min.bytes": "many"},
    ],
    ids=str,
)
def test_unsupported_consumer_properties_are_refused_by_name(wrong: dict[str, Any]) -> None:
    assert error_code_of(Consumer, {**GROUP, **wrong}) == KafkaError._INVALID_ARG


@pytest.mark.parametrize(
    "wrong", [{"acks": 1}, {"enable.idempotence": False}, {"transactional.id": "t" * 201}], ids=str
)
def test_unsupported_producer_properties_are_refused_by_name(wrong: dict[str, Any]) -> None:
    assert error_code_of(Producer, {**NOBODY, **wrong}) == KafkaError._INVALID_ARG


def test_missing_values_and_wrong_types_raise() -> None:
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        Consumer(NOBODY)
    with pytest.raises(TypeError, match="dict"):
        Consumer("localhost")
    with pytest.raises(TypeError, match="expected configuration dict"):
        Consumer()
    with pytest.raises(TypeError, match="on_commit"):
        Consumer({**GROUP, "on_commit": 1})
    with pytest.raises(TypeError, match="on_delivery"):
        Producer({**NOBODY, "on_delivery": 1})


def test_no_secret_is_shown() -> None:
    secret = "slw_0123456789abcdef_" + "f" * 64
    consumer = Consumer({**GROUP, "sluiceway.token": secret, "sasl.password": "hush"})
    shown = repr(consumer) + repr(vars(consumer))
    assert secret not in shown
    assert "hush" not in shown
    consumer.close()


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_URL", "http://127.0.0.1:2")
    consumer = Consumer({"group.id": "g"})
    with pytest.raises(KafkaException, match=r"the gateway at http://127\.0\.0\.1:2 does not"):
        consumer.list_topics(timeout=0.1)
    consumer.close()


PYTHONS_OWN = {"default.topic.config", "logger", "oauth_cb", "on_commit", "on_delivery"}
JAVAS = {"sasl.jaas.config", "ssl.truststore.location", "offset.store.path"}
VALUES = (
    "1000000",
    "100000000",
    "true",
    "1",
    "all",
    "none",
    "lz4",
    "fifo",
    "murmur2",
    "generic",
    "earliest",
)


#: A value that few properties take. It has a letter: of `client.software.name` and `.version`
#: librdkafka removes what precedes the first letter or digit, and without one reads past the end.
UNUSUAL = "a\1"


def librdkafka_accepts(
    name: str, value: object, client: type[Producer | Consumer] = Producer
) -> bool | None:
    """Return whether librdkafka's client accepts a value; None for an unknown property."""
    always = {"log_level": 0, "bootstrap.servers": "127.0.0.1:1"}
    try:
        if client is Producer:
            confluent_kafka.Producer({"enable.idempotence": True, **always, name: value})
        else:
            confluent_kafka.Consumer({"group.id": "g", **always, name: value})
    except confluent_kafka.KafkaException as error:
        return None if "No such configuration property" in str(error) else False
    except (TypeError, ValueError):
        return False
    return True


def librdkafkas_properties() -> list[str]:
    """Return the strings in librdkafka's library that are properties."""
    (library,) = Path(confluent_kafka.__file__).parent.parent.glob(
        "confluent_kafka.libs/librdkafka*"
    )
    texts = re.findall(rb"(?<=\0)[a-z][a-z0-9_]*(?:[._][a-z0-9]+)*(?=\0)", library.read_bytes())
    names = {text.decode() for text in texts}
    return sorted(
        name
        for name in names
        if ("." in name or name in properties.KNOWN)
        and librdkafka_accepts(name, UNUSUAL) is not None
    )


@pytest.mark.long
def test_every_property_of_librdkafka_is_accepted_or_refused_with_a_reason() -> None:
    names = librdkafkas_properties()
    assert len(names) > 170
    outcomes = collections.Counter[str]()
    for name in names:
        for make, usual in ((Producer, NOBODY), (Consumer, GROUP)):
            value = next((v for v in VALUES if librdkafka_accepts(name, v, make)), None)
            config = {**usual, name: value or "1"}
            if properties.refusal_of(name):
                with pytest.raises(KafkaException, match=f"{re.escape(name)} cannot be set: .+"):
                    make(config)
                outcomes["refused"] += 1
            elif name not in (*usual, "metadata.broker.list") and value is not None:
                if name in properties.SETTLED:
                    config[name] = properties.SETTLED[name][0][0]
                if name not in {"auto.offset.reset", "ssl.ca.pem"}:
                    make(config).close()
                    outcomes["accepted"] += 1
    assert [
        name for name in names if not (name in properties.KNOWN or properties.refusal_of(name))
    ] == []
    assert outcomes["accepted"] > 180


def test_the_table_names_no_property_that_librdkafka_does_not_have() -> None:
    own = {name for name in properties.KNOWN if name.startswith("sluiceway.")}
    names = properties.KNOWN - own - PYTHONS_OWN - JAVAS
    assert [name for name in sorted(names) if librdkafka_accepts(name, UNUSUAL) is None] == []


def test_one_configuration_serves_producer_and_consumer(caplog: pytest.LogCaptureFixture) -> None:
    both = {
        **GROUP,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        "max.poll.interval.ms": 9000,
        "acks": "all",
        "linger.ms": 5,
        "message.timeout.ms": 5000,
        "on_commit": print,
        "on_delivery": print,
        "client.id": None,
    }
    with caplog.at_level(logging.WARNING, "sluiceway.confluent"):
        Producer(both).close()
        Consumer(both).close()
    of_producer, of_consumer = (
        record.getMessage() for record in caplog.records if record.name == "sluiceway.confluent"
    )
    assert "auto.offset.reset (for consumers)" in of_producer
    assert "linger.ms" not in of_producer
    assert "linger.ms (for producers)" in of_consumer
    assert "max.poll.interval.ms (the gateway's groups have no coordinator)" in of_consumer
    assert "session.timeout.ms" not in of_consumer
    assert "auto.offset.reset" not in of_consumer


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"partitioner": "murmur"}, 'Invalid value for configuration property "partitioner"'),
        ({"linger.ms": "soon"}, 'Invalid value for configuration property "queue.buff'),
        ({"linger_ms": 5}, 'No such configuration property: "linger_ms"; did you mean .linger.ms'),
        ({"compression.type": "rar"}, 'Invalid value "rar" for'),
        ({"queuing.strategy": "lifo"}, "always fifo, so that messages stay in order"),
        ({"enable.ssl.certificate.verification": False}, "always true"),
    ],
    ids=str,
)
def test_wrong_values_have_librdkafkas_text_or_a_reason(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaException, match=text):
        Producer({**NOBODY, **wrong})


def test_values_that_exclude_others_are_refused_at_once() -> None:
    for config, text in (
        ({"max.in.flight.requests.per.connection": 10}, "must be set <= 5"),
        ({"linger.ms": 5000, "delivery.timeout.ms": 1000}, "must be greater than `linger.ms`"),
    ):
        with pytest.raises(KafkaException, match=text):
            Producer({**NOBODY, **config})
    with pytest.raises(KafkaException, match="must be >="):
        Consumer({**GROUP, "fetch.max.bytes": 1000})


def test_a_message_timeout_shorter_than_the_usual_linger_is_accepted() -> None:
    Producer({**NOBODY, "message.timeout.ms": 10}).close()
    Producer({**NOBODY, "message.timeout.ms": 0}).close()


def test_a_channel_that_can_be_neither_read_nor_created_is_not_found(script: Script) -> None:
    """Such as one that is being deleted."""
    script.problem(404, "channel_not_found")
    script.problem(412, "precondition_failed")
    script.problem(404, "channel_not_found")
    control = ChannelControl(script.transport(), listener=None, creates=True, partitioner="murmur2")
    with pytest.raises(ChannelNotFound):
        control.channel("readings")
    assert [method for method, _, _ in script.requests] == ["GET", "PUT", "GET"]
    assert {path for _, path, _ in script.requests} == {"/v1/channels/readings"}


@pytest.mark.parametrize(
    ("config", "partitioner"),
    [
        ({}, "consistent_random"),
        ({"partitioner": "murmur2_random"}, "murmur2"),
        ({"partitioner": "fnv1a"}, "fnv1a"),
        ({"partitioner": "random"}, "consistent_random"),
    ],
)
@pytest.mark.parametrize("settings_of", [producer_settings, consumer_settings])
def test_a_created_channel_adopts_a_topic_and_has_the_partitioner_of_librdkafka(
    script: Script,
    settings_of: Callable[[MaskedProperties], Common],
    config: dict[str, str],
    partitioner: str,
) -> None:
    script.problem(404, "channel_not_found")
    script.problem(409, "topic_not_found")
    script.response(200, CHANNEL)
    own = {"bootstrap.servers": script.url, "allow.auto.create.topics": True}
    settings = settings_of(MaskedProperties({**GROUP, **config, **own}))
    settings.control.channel("flights")
    specs = [body["spec"] for body in script.bodies if body is not None]
    kind = {"format": "bytes", "partitioner": partitioner}
    assert specs == [{**kind, "topic": {"name": "flights"}}, {**kind, "partitions": 1}]


def test_keys_have_the_partitions_of_the_channel_unless_a_partitioner_is_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def places(of_channel: str, **config: str) -> list[int]:
        settings = producer_settings(MaskedProperties({**NOBODY, **config}))
        partition_of_key = settings.partitions_of_keys("flights", of_channel, 7)
        return [partition_of_key(key) for key in ("a", b"hello", "")]

    # Of librdkafka's own functions; -1: librdkafka chooses.
    assert places("consistent_random") == [4, 2, -1]
    assert places("murmur2") == [5, 4, 2]
    assert places("consistent_random", partitioner="consistent") == [4, 2, -1]
    assert "partitioner" not in caplog.text
    assert places("consistent_random", partitioner="murmur2_random") == [5, 4, 2]
    assert places("murmur2", partitioner="random") == [-1, -1, -1]
    # Other clients of the process may log as well.
    warnings = [message for message in caplog.messages if "partitioner" in message]
    assert [message.partition(": ")[0] for message in warnings] == [
        f"the property partitioner is {own}, but that of the channel flights is {channels}"
        for own, channels in (("murmur2_random", "consistent_random"), ("random", "murmur2"))
    ]
