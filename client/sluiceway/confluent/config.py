"""Configuration of consumers and producers by librdkafka's names."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException

from sluiceway.confluent.errors import INVALID_ARG, refused
from sluiceway.errors import OptionError
from sluiceway.kafka.config import CONNECTION, CONSUMER, PRODUCER, MaskedProperties, refuse_unlisted
from sluiceway.rest.auth import Token
from sluiceway.rest.channels import Control
from sluiceway.rest.transport import Transport

_ADDRESS: Final = ("sluiceway.url", "bootstrap.servers", "metadata.broker.list")
_RESET: Final = {
    **dict.fromkeys(("smallest", "earliest", "beginning"), "earliest"),
    **dict.fromkeys(("largest", "latest", "end"), "latest"),
    **dict.fromkeys(("error", "none"), "error"),
}
_CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb", "log_cb")
_LOCAL: Final = ("statistics.interval.ms", "log_level")
_GROUPS: Final = frozenset(
    {
        "coordinator.query.interval.ms",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
    }
)
"""Of Kafka's group coordinator, which the gateway stands for: taken, and without effect."""
_IDLE: Final = frozenset({"api.version.request", "broker.version.fallback", "log.connection.close"})
_SETTLED: Final[Mapping[str, tuple[str, ...]]] = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
}
"""What a channel's producers are in any case; who asks for less is refused."""
_RETRIES: Final = frozenset({"retries", "message.send.max.retries", "message.max.bytes"})
_TIMEOUTS: Final = ("delivery.timeout.ms", "message.timeout.ms")


@dataclass(frozen=True, kw_only=True)
class Common:
    """What both have. `hpe`: where HPE's client differs from confluent-kafka, it is followed."""

    control: Control
    hpe: bool
    kafka: MaskedProperties
    """For librdkafka, listed ones alone."""
    callbacks: Mapping[str, Any]
    """For librdkafka as well: callables, and what only concerns this process."""


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(Common):
    """Of a consumer; `reset` is earliest, latest or error, `auto_commit_s` inf for never."""

    group: str
    auto_commit: bool
    auto_commit_s: float
    auto_store: bool
    reset: str
    eof: bool
    on_commit: Callable[[Any, Any], object] | None


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(Common):
    """Of a producer. A message not acknowledged for `delivery_timeout_ms` has failed."""

    delivery_timeout_ms: int
    on_delivery: Callable[[Any, Any], object] | None
    only_errors: bool


class _Given:
    """The properties that were given; what was taken is not left."""

    def __init__(self, config: object, named: Mapping[str, Any]) -> None:
        if config is not None and not isinstance(config, Mapping):
            raise TypeError("expected configuration dict")
        self.left = MaskedProperties({**(config or {}), **named})
        topic = self.left.pop("default.topic.config", {})
        if not isinstance(topic, Mapping):
            raise _wrong("default.topic.config", topic, "a dict")
        self.left = MaskedProperties(topic).over(self.left)

    def take(self, name: str, default: Any = None) -> Any:
        return self.left.pop(name, default)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.take(name, default)
        text = str(value).lower()
        if text not in ("true", "false", "1", "0"):
            raise _wrong(name, value, "true or false")
        return text in ("true", "1")

    def number(self, name: str, default: int) -> int:
        value = self.take(name, default)
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = -1
        if isinstance(value, bool) or not 0 <= number < 2**31:
            raise _wrong(name, value, "a number of milliseconds")
        return number

    def callback(self, name: str) -> Any:
        value = self.take(name)
        if value is not None and not callable(value):
            raise TypeError(f"expected {name} property as a callable function")
        return value

    def choice(self, name: str, choices: Mapping[str, str], default: str) -> str:
        value = self.take(name, default)
        if value not in choices:
            raise _wrong(name, value, ", ".join(choices))
        return choices[value]

    def skip(self, names: frozenset[str]) -> None:
        for name in names & self.left.keys():
            del self.left[name]


def consumer_settings(config: object, named: Mapping[str, Any]) -> ConsumerSettings:
    """Read a consumer's configuration.

    Raises KafkaException _INVALID_ARG, TypeError, and ValueError without a group.
    """
    given = _Given(config, named)
    group = given.take("group.id")
    if not isinstance(group, str) or not group:
        raise ValueError("group.id must be set: the name of the group")
    own = {
        "group": group,
        "auto_commit": given.flag("enable.auto.commit", default=True),
        "auto_commit_s": _interval_s(given.number("auto.commit.interval.ms", 5000)),
        "auto_store": given.flag("enable.auto.offset.store", default=True),
        "reset": given.choice("auto.offset.reset", _RESET, "latest"),
        "eof": given.flag("enable.partition.eof", default=False),
        "on_commit": given.callback("on_commit"),
    }
    given.skip(_GROUPS)
    return ConsumerSettings(**own, **_common(given, CONSUMER))


def producer_settings(config: object, named: Mapping[str, Any]) -> ProducerSettings:
    """Read a producer's configuration. Raises KafkaException _INVALID_ARG, TypeError."""
    given = _Given(config, named)
    for name, settled in _SETTLED.items():
        value = given.take(name, settled[0])
        if str(value).lower() not in settled:
            raise refused(
                INVALID_ARG,
                f"{name} is {value!r}: a channel's producers are {settled[0]} there, as losing "
                "messages is no option; leave it out",
            )
    timeout_ms = 120_000
    for name in _TIMEOUTS:
        timeout_ms = given.number(name, timeout_ms)
    own = {
        "delivery_timeout_ms": max(1000, timeout_ms),
        "on_delivery": given.callback("on_delivery") or given.callback("dr_cb"),
        "only_errors": given.flag("delivery.report.only.error", default=False),
    }
    given.skip(_RETRIES)
    return ProducerSettings(**own, **_common(given, PRODUCER))


def _common(given: _Given, listed: frozenset[str]) -> dict[str, Any]:
    given.skip(_IDLE)
    like = given.choice(
        "sluiceway.behaves.like", {"confluent": "confluent", "hpe": "hpe"}, "confluent"
    )
    callbacks = {name: given.callback(name) for name in _CALLBACKS if name in given.left}
    callbacks |= {name: given.take(name) for name in _LOCAL if name in given.left}
    if "logger" in given.left:
        callbacks["logger"] = given.take("logger")
    try:
        control = _control(given)
        refuse_unlisted(given.left, CONNECTION, listed)
    except OptionError as error:
        raise refused(INVALID_ARG, str(error)) from error
    return {"control": control, "hpe": like == "hpe", "kafka": given.left, "callbacks": callbacks}


def _control(given: _Given) -> Control:
    url = None
    for name in _ADDRESS:
        value = given.take(name)
        url = url or value
        if value is not None and not str(value).startswith(("http://", "https://")):
            raise OptionError(
                f"{name} is {value!r}: here it is the gateway's address, as http://127.0.0.1:8900; "
                "the gateway says where Kafka is"
            )
    token, ca = Token.of(given.take("sluiceway.token")), given.take("sluiceway.ca")
    listener = given.take("sluiceway.listener") or os.environ.get("SLUICEWAY_LISTENER")
    transport = Transport(url, token=token, ca=ca, timeout_s=30.0)
    return Control(transport, listener=listener)


def _interval_s(interval_ms: int) -> float:
    """Return what librdkafka takes it for: 0 is never, but when partitions go and at the end."""
    return max(0.05, interval_ms / 1000) if interval_ms else math.inf


def _wrong(name: str, value: object, expected: str) -> KafkaException:
    return refused(INVALID_ARG, f"{name} is {value!r}; it takes {expected}")
