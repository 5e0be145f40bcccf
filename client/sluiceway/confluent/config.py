"""Configuration of consumers and producers by librdkafka's names."""

import logging
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
from sluiceway.rest.endpoint_models import Membership
from sluiceway.rest.models import Heartbeat
from sluiceway.rest.transport import Transport

LOGGER = logging.getLogger("sluiceway.confluent")

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
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
    }
)
"""For Kafka's group coordinator, which the gateway replaces: accepted and ignored."""
_IDLE: Final = frozenset({"api.version.request", "broker.version.fallback", "log.connection.close"})
_SETTLED: Final[Mapping[str, tuple[str, ...]]] = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
}
"""Values that a channel's producers always have; others are refused."""
_RETRIES: Final = frozenset({"retries", "message.send.max.retries", "message.max.bytes"})
_MAX_ID_CHARACTERS: Final = 249
_MIN_PATIENCE_MS: Final = 300
_MAX_INTERVAL_MS: Final = 60_000
_TIMEOUTS: Final = ("delivery.timeout.ms", "message.timeout.ms")


@dataclass(frozen=True, kw_only=True)
class Common:
    """Settings of both. `hpe`: behave like HPE's client where it differs from confluent-kafka."""

    control: Control
    hpe: bool
    kafka: MaskedProperties
    """Properties for librdkafka, from the list of allowed ones."""
    callbacks: Mapping[str, Any]
    """Callables and process-local properties, also for librdkafka."""


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings(Common):
    """Settings of a consumer; `reset` is earliest, latest or error; `auto_commit_s` may be inf."""

    group: str
    auto_commit: bool
    auto_commit_s: float
    auto_store: bool
    reset: str
    eof: bool
    on_commit: Callable[[Any, Any], object] | None
    patience_ms: int | None
    interval_ms: int | None
    instance: str | None
    """`group.instance.id`."""

    @property
    def membership(self) -> Membership:
        """Membership in its group, which is dynamic."""
        return Membership(group=self.group, index=None, size=None, static_id=self.instance)

    def heartbeat_in(self, channel: Heartbeat) -> dict[str, float]:
        """Return patience and interval for a member, in seconds and within a channel's bounds."""
        found: dict[str, float] = {}
        patience_ms = channel.timeout_ms
        if self.patience_ms is not None:
            patience_ms = min(max(_MIN_PATIENCE_MS, self.patience_ms), channel.timeout_ms)
            if patience_ms < self.patience_ms:
                LOGGER.warning(
                    "session.timeout.ms is %d, but the channel allows %d at most, which is taken; "
                    "`sluiceway channels update --patience` raises it",
                    *(self.patience_ms, patience_ms),
                )
            found["patience_s"] = patience_ms / 1000
        if self.interval_ms is not None:
            most_ms = min(patience_ms // 3, _MAX_INTERVAL_MS)
            found["interval_s"] = min(max(_MIN_PATIENCE_MS // 3, self.interval_ms), most_ms) / 1000
        return found


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(Common):
    """Settings of a producer; messages not acknowledged within the delivery timeout have failed."""

    delivery_timeout_ms: int
    on_delivery: Callable[[Any, Any], object] | None
    only_errors: bool


class _Properties(MaskedProperties):
    """The properties that are not read yet; reading one removes it."""

    @classmethod
    def of(cls, config: object, named: Mapping[str, Any]) -> "_Properties":
        if config is not None and not isinstance(config, Mapping):
            raise TypeError("expected configuration dict")
        given = MaskedProperties({**(config or {}), **named})
        topic = given.pop("default.topic.config", {})
        if not isinstance(topic, Mapping):
            raise _wrong("default.topic.config", topic, "a dict")
        return cls(MaskedProperties(topic).over(given))

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.pop(name, default)
        text = str(value).lower()
        if text not in ("true", "false", "1", "0"):
            raise _wrong(name, value, "true or false")
        return text in ("true", "1")

    def number(self, name: str, default: int) -> int:
        value = self.pop(name, default)
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = -1
        if isinstance(value, bool) or not 0 <= number < 2**31:
            raise _wrong(name, value, "a number of milliseconds")
        return number

    def optional_number(self, name: str) -> int | None:
        return self.number(name, 0) if name in self else None

    def text(self, name: str) -> str | None:
        value = self.pop(name, None)
        if value is not None and (not isinstance(value, str) or len(value) > _MAX_ID_CHARACTERS):
            raise _wrong(name, value, f"a text of at most {_MAX_ID_CHARACTERS} characters")
        return value or None

    def callback(self, name: str) -> Any:
        value = self.pop(name, None)
        if value is not None and not callable(value):
            raise TypeError(f"expected {name} property as a callable function")
        return value

    def choice(self, name: str, choices: Mapping[str, str], default: str) -> str:
        value = str(self.pop(name, default)).lower()
        if value not in choices:
            raise _wrong(name, value, ", ".join(choices))
        return choices[value]

    def ignore(self, names: frozenset[str]) -> None:
        for name in names:
            self.pop(name, None)


def consumer_settings(config: object, named: Mapping[str, Any]) -> ConsumerSettings:
    """Read a consumer's configuration.

    Raises KafkaException _INVALID_ARG, TypeError, and ValueError without a group.
    """
    if config is None and not named:
        raise TypeError("expected configuration dict")
    given = _Properties.of(config, named)
    group = "" if (value := given.pop("group.id", None)) is None else str(value)
    if not group:
        raise ValueError("group.id must be set: the name of the group")
    own = {
        "group": group,
        "auto_commit": given.flag("enable.auto.commit", default=True),
        "auto_commit_s": _interval_s(given.number("auto.commit.interval.ms", 5000)),
        "auto_store": given.flag("enable.auto.offset.store", default=True),
        "reset": given.choice("auto.offset.reset", _RESET, "latest"),
        "eof": given.flag("enable.partition.eof", default=False),
        "on_commit": given.callback("on_commit"),
        "patience_ms": given.optional_number("session.timeout.ms"),
        "interval_ms": given.optional_number("heartbeat.interval.ms"),
        "instance": given.text("group.instance.id"),
    }
    given.ignore(_GROUPS)
    return ConsumerSettings(**own, **_common(given, CONSUMER))


def producer_settings(config: object, named: Mapping[str, Any]) -> ProducerSettings:
    """Read a producer's configuration. Raises KafkaException _INVALID_ARG, TypeError."""
    given = _Properties.of(config, named)
    for name, settled in _SETTLED.items():
        value = given.pop(name, settled[0])
        if str(value).lower() not in settled:
            raise refused(
                INVALID_ARG,
                f"{name} is {value!r}: a channel's producers always have {settled[0]}, so that no "
                "message is lost; leave it out",
            )
    timeout_ms = 120_000
    for name in _TIMEOUTS:
        timeout_ms = given.number(name, timeout_ms)
    own = {
        "delivery_timeout_ms": max(1000, timeout_ms),
        "on_delivery": given.callback("on_delivery") or given.callback("dr_cb"),
        "only_errors": given.flag("delivery.report.only.error", default=False),
    }
    given.ignore(_RETRIES)
    return ProducerSettings(**own, **_common(given, PRODUCER))


def _common(given: _Properties, listed: frozenset[str]) -> dict[str, Any]:
    given.ignore(_IDLE)
    like = given.choice(
        "sluiceway.behaves.like", {"confluent": "confluent", "hpe": "hpe"}, "confluent"
    )
    callbacks = {name: given.callback(name) for name in _CALLBACKS if name in given}
    callbacks |= {name: given.pop(name) for name in (*_LOCAL, "logger") if name in given}
    try:
        control = _control(given)
        refuse_unlisted(given, CONNECTION, listed)
    except OptionError as error:
        raise refused(INVALID_ARG, str(error)) from error
    return {"control": control, "hpe": like == "hpe", "kafka": given, "callbacks": callbacks}


def _control(given: _Properties) -> Control:
    url = None
    for name in _ADDRESS:
        value = given.pop(name, None)
        url = url or value
        if value is not None and not str(value).startswith(("http://", "https://")):
            raise OptionError(
                f"{name} is {value!r}; it takes the gateway's address, as http://127.0.0.1:8900. "
                "Kafka's address comes from the gateway"
            )
    token, ca = Token.of(given.pop("sluiceway.token", None)), given.pop("sluiceway.ca", None)
    listener = given.pop("sluiceway.listener", None) or os.environ.get("SLUICEWAY_LISTENER")
    transport = Transport(url, token=token, ca=ca, timeout_s=30.0)
    return Control(transport, listener=listener)


def _interval_s(interval_ms: int) -> float:
    """Return the interval of automatic commits; 0 means never, except for revoking and closing."""
    return max(0.05, interval_ms / 1000) if interval_ms else math.inf


def _wrong(name: str, value: object, expected: str) -> KafkaException:
    return refused(INVALID_ARG, f"{name} is {value!r}; it takes {expected}")
