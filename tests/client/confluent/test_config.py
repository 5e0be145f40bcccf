"""Configuration of sluiceway.confluent: supported, ignored and refused properties."""

from typing import Any

import pytest

from confluent_facade import KafkaError, raised
from sluiceway.confluent import Consumer, Producer

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
        {"transactional.id": "t"},
    ],
    ids=str,
)
def test_unsupported_consumer_properties_are_refused_by_name(wrong: dict[str, Any]) -> None:
    assert raised(Consumer, {**GROUP, **wrong}) == KafkaError._INVALID_ARG


@pytest.mark.parametrize(
    "wrong", [{"acks": 1}, {"enable.idempotence": False}, {"transactional.id": "t"}], ids=str
)
def test_unsupported_producer_properties_are_refused_by_name(wrong: dict[str, Any]) -> None:
    assert raised(Producer, {**NOBODY, **wrong}) == KafkaError._INVALID_ARG


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
    shown = repr(vars(consumer)) + repr(consumer._settings)
    assert secret not in shown
    assert "hush" not in shown
    consumer.close()


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_URL", "http://127.0.0.1:2")
    consumer = Consumer({"group.id": "g"})
    assert consumer._settings.control._transport.url == "http://127.0.0.1:2"
    consumer.close()
