"""Configuration of consumers and producers with librdkafka's names."""

import difflib
import functools
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from sluiceway import Heartbeat
from sluiceway.confluent import properties
from sluiceway.confluent.errors import INVALID_ARG, refused
from sluiceway.errors import ChannelNotFound, Conflict, OptionError
from sluiceway.spi import (
    CONNECTION,
    CONSUMER,
    PRODUCER,
    ChannelResource,
    ChannelSpec,
    Control,
    MaskedProperties,
    Membership,
    Token,
    Transport,
    clear_tracebacks,
    partition_of,
)

LOGGER = logging.getLogger("sluiceway.confluent")

_ADDRESS: Final = ("sluiceway.url", "bootstrap.servers", "metadata.broker.list")
_RESET: Final = {
    **dict.fromkeys(("smallest", "earliest", "beginning"), "earliest"),
    **dict.fromkeys(("largest", "latest", "end"), "latest"),
    **dict.fromkeys(("error", "none"), "error"),
}
_CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb", "log_cb")
_MAX_ID_CHARACTERS: Final = 249
_MIN_PATIENCE_MS: Final = 300
_MAX_INTERVAL_MS: Final = 60_000
_TIMEOUTS: Final = ("delivery.timeout.ms", "message.timeout.ms")
_LINGER: Final = ("linger.ms", "queue.buffering.max.ms")
_LINGER_MS: Final = 10
_QUEUE: Final = ("queue.buffering.max.messages", "queue.buffering.max.kbytes")
_QUEUE_DEFAULTS: Final = (500_000, 1_048_576)
_KEY_PARTITIONERS: Final = {
    **dict.fromkeys(("murmur2", "murmur2_random"), "murmur2"),
    **dict.fromkeys(("consistent", "consistent_random"), "consistent_random"),
    **dict.fromkeys(("fnv1a", "fnv1a_random"), "fnv1a"),
}
"""The partitioner of channels with the same hash of keys, by the name of librdkafka's, which also
places messages without a key."""
DEFAULT_PARTITIONER: Final = "consistent_random"
_MAX_OWNER_CHARACTERS: Final = 200
_UNCHECKED: Final = frozenset({"debug", "log_level", "statistics.interval.ms"})


class ChannelControl(Control):
    """The control plane for facades; with `creates`, a missing channel is created.

    It adopts the topic of the same name, if there is one, and has the given partitioner.
    """

    def __init__(
        self, transport: Transport, *, listener: str | None, creates: bool, partitioner: str
    ) -> None:
        super().__init__(transport, listener=listener)
        self._creates = creates
        self._partitioner = partitioner

    def channel(self, name: str, *, timeout_s: float | None = None) -> ChannelResource:
        """Return a channel; `timeout_s` replaces the transport's timeout. Raises GatewayError."""
        try:
            return super().channel(name, timeout_s=timeout_s)
        except ChannelNotFound as error:
            if not self._creates:
                raise ChannelNotFound(
                    f"{error}, or set allow.auto.create.topics=true for a channel of format bytes "
                    "that adopts the topic of this name, or has a new one with 1 partition",
                    status=404,
                ) from error
        spec = ChannelSpec(format="bytes", topic=name, partitioner=self._partitioner)
        try:
            return self.ensure(name, spec=spec, timeout_s=timeout_s)
        except Conflict as error:
            if error.code != "topic_not_found":
                raise
        return self.ensure(name, spec=replace(spec, topic=None, partitions=1), timeout_s=timeout_s)


@dataclass(frozen=True, kw_only=True)
class Common:
    """Settings of both clients. `hpe`: behave like HPE's client where they differ."""

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

    def heartbeat_in(self, channel: Heartbeat) -> dict[str, Any]:
        """Return patience and interval for a member, in seconds and within a channel's bounds."""
        durations: dict[str, float] = {}
        patience_ms = channel.timeout_ms
        if self.patience_ms is not None:
            patience_ms = min(max(_MIN_PATIENCE_MS, self.patience_ms), channel.timeout_ms)
            if patience_ms < self.patience_ms:
                LOGGER.warning(
                    "session.timeout.ms is %d, but the channel's limit is %d, which is used; "
                    "`sluiceway channels update NAME --patience SECONDS` raises it",
                    *(self.patience_ms, patience_ms),
                )
            durations["patience_s"] = patience_ms / 1000
        if self.interval_ms is not None:
            most_ms = min(patience_ms // 3, _MAX_INTERVAL_MS)
            durations["interval_s"] = (
                min(max(_MIN_PATIENCE_MS // 3, self.interval_ms), most_ms) / 1000
            )
        return durations


@dataclass(frozen=True, kw_only=True)
class ProducerSettings(Common):
    """Settings of a producer; messages not acknowledged within the delivery timeout have failed."""

    delivery_timeout_ms: int
    """0: no limit."""
    max_queue_messages: int
    max_queue_bytes: int
    max_message_bytes: int | None
    partitioner: str | None
    """librdkafka's partitioner; None is that of each channel."""
    on_delivery: Callable[[Any, Any], object] | None
    only_errors: bool
    transactional_id: str | None
    """The owner of the producer's batches, if it has transactions."""

    @property
    def delivery_timeout_s(self) -> float:
        """The delivery timeout, in seconds; it may be inf."""
        return self.delivery_timeout_ms / 1000 if self.delivery_timeout_ms else math.inf

    def partitions_of_keys(
        self, channel: str, partitioner: str, partitions: int
    ) -> Callable[[str | bytes], int]:
        """Return the function for the partition of a key in a channel; -1: librdkafka chooses.

        It hashes over this number of partitions, also after the channel grows, so that each key's
        messages stay in order. Hashing takes longer than sending, so results are cached.
        """
        if self.partitioner is not None:
            own = _KEY_PARTITIONERS.get(self.partitioner)
            if own != partitioner:
                LOGGER.warning(
                    "the property partitioner is %s, but that of the channel %s is %s: this "
                    "producer's keys are in other partitions than those of its other writers. "
                    "Omit the property, unless that is intended",
                    *(self.partitioner, channel, partitioner),
                )
            if own is None:
                return lambda _: -1
            partitioner = own

        @functools.lru_cache(maxsize=4096)
        def partition_of_key(key: str | bytes) -> int:
            content = key.encode() if isinstance(key, str) else key
            partition = partition_of(content, partitions, partitioner)
            return -1 if partition is None else partition

        return partition_of_key


class _Properties(MaskedProperties):
    """Properties that are not read yet; reading one removes it."""

    @classmethod
    def of(cls, configuration: MaskedProperties) -> "_Properties":
        configuration = MaskedProperties(configuration)
        topic = configuration.pop("default.topic.config", {})
        if not isinstance(topic, Mapping):
            raise _wrong("default.topic.config", topic, "a dict")
        merged = MaskedProperties(topic).over(configuration)
        # As in librdkafka, None means the default.
        return cls({name: merged[name] for name in merged if merged[name] is not None})

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.pop(name, default)
        text = str(value).lower()
        if text not in ("true", "false", "1", "0"):
            raise _wrong(name, value, "true or false")
        return text in ("true", "1")

    def number(self, name: str, default: int, *, keep: bool = False) -> int:
        value = self.get(name, default) if keep else self.pop(name, default)
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = -1
        if isinstance(value, bool) or not 0 <= number < 2**31:
            raise _wrong(name, value, "a number that is not negative")
        return number

    def optional_number(self, name: str) -> int | None:
        return self.number(name, 0) if name in self else None

    def text(self, name: str, most: int) -> str | None:
        value = self.pop(name, None)
        if value is not None and (not isinstance(value, str) or len(value) > most):
            raise _wrong(name, value, f"a text of at most {most} characters")
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

    def ignore(self, names: Iterable[str], reason: str = "") -> list[str]:
        """Drop properties; return those that were set, with the reason."""
        ignored = sorted(name for name in names if name in self)
        for name in ignored:
            del self[name]
        return [f"{name} ({reason})" if reason else name for name in ignored]

    def take(self, names: Iterable[str]) -> dict[str, Any]:
        """Return these properties, and remove them."""
        return {name: self.pop(name) for name in names if name in self}


def configuration_of(config: object, named: Mapping[str, Any]) -> MaskedProperties:
    """Return a client's configuration, whose secrets are masked. Raises TypeError."""
    config = {} if config is None and named else config
    if not isinstance(config, Mapping):
        raise TypeError("expected configuration dict")
    return MaskedProperties({**config, **named})


def consumer_settings(config: MaskedProperties) -> ConsumerSettings:
    """Read a consumer's configuration.

    Raises KafkaException _INVALID_ARG, TypeError, and ValueError without a group.
    """
    configuration = _Properties.of(config)
    _refuse(configuration)
    partitioner = configuration.get("partitioner")
    ignored = configuration.ignore(properties.PRODUCER_ONLY, "for producers")
    group = "" if (value := configuration.pop("group.id", None)) is None else str(value)
    if not group:
        raise ValueError("group.id must be set: the name of the group")
    own = {
        "group": group,
        "auto_commit": configuration.flag(
            "enable.auto.commit", default=configuration.flag("auto.commit.enable", default=True)
        ),
        "auto_commit_s": _interval_s(configuration.number("auto.commit.interval.ms", 5000)),
        "auto_store": configuration.flag("enable.auto.offset.store", default=True),
        "reset": configuration.choice("auto.offset.reset", _RESET, "latest"),
        "eof": configuration.flag("enable.partition.eof", default=False),
        "on_commit": configuration.callback("on_commit"),
        "patience_ms": configuration.optional_number("session.timeout.ms"),
        "interval_ms": configuration.optional_number("heartbeat.interval.ms"),
        "instance": configuration.text("group.instance.id", _MAX_ID_CHARACTERS),
    }
    common = _common(
        configuration,
        CONSUMER,
        properties.PASSED,
        ignored,
        Consumer,
        {"group.id": group},
        partitioner=partitioner,
    )
    return ConsumerSettings(**own, **common)


def producer_settings(config: MaskedProperties) -> ProducerSettings:
    """Read a producer's configuration. Raises KafkaException _INVALID_ARG, TypeError."""
    configuration = _Properties.of(config)
    _refuse(configuration)
    ignored = configuration.ignore(properties.CONSUMER_ONLY, "for consumers")
    timeout_ms = 120_000
    for name in _TIMEOUTS:
        timeout_ms = configuration.number(name, timeout_ms)
    if not any(name in configuration for name in _LINGER) and 0 < timeout_ms < 2 * _LINGER_MS:
        # librdkafka requires that messages linger for less than their timeout.
        configuration["linger.ms"] = timeout_ms // 2
    messages, kbytes = (
        configuration.number(name, default, keep=True)
        for name, default in zip(_QUEUE, _QUEUE_DEFAULTS, strict=True)
    )
    most = configuration.number("message.max.bytes", 0)
    partitioner = configuration.get("partitioner")
    own = {
        "delivery_timeout_ms": timeout_ms,
        "max_queue_messages": messages,
        "max_queue_bytes": 1024 * kbytes,
        "max_message_bytes": most or None,
        "partitioner": partitioner,
        "on_delivery": configuration.callback("on_delivery") or configuration.callback("dr_cb"),
        "only_errors": configuration.flag("delivery.report.only.error", default=False),
        "transactional_id": configuration.text("transactional.id", _MAX_OWNER_CHARACTERS),
    }
    common = _common(
        configuration,
        PRODUCER,
        properties.PASSED_BY_PRODUCERS,
        ignored,
        Producer,
        {"enable.idempotence": True, "message.timeout.ms": timeout_ms},
        partitioner=partitioner,
    )
    return ProducerSettings(**own, **common)


def admin_settings(config: MaskedProperties) -> Common:
    """Read an admin client's configuration. Raises KafkaException _INVALID_ARG, TypeError."""
    configuration = _Properties.of(config)
    _refuse(configuration)
    ignored = configuration.ignore(properties.PRODUCER_ONLY, "for producers")
    ignored += configuration.ignore(properties.CONSUMER_ONLY, "for consumers")
    passed = properties.PASSED
    return Common(
        **_common(configuration, frozenset(), passed, ignored, Producer, {}, partitioner=None)
    )


def _refuse(configuration: _Properties) -> None:
    """Raise KafkaException for a property that is refused, unknown, or has a refused value."""
    for name in configuration:
        if reason := properties.refusal_of(str(name)):
            raise refused(INVALID_ARG, f"{name} cannot be set: {reason}")
        if name not in properties.KNOWN:
            close = difflib.get_close_matches(str(name), properties.KNOWN, n=1)
            raise refused(
                INVALID_ARG,
                f'No such configuration property: "{name}"'
                + (f"; did you mean {close[0]!r}?" if close else ""),
            )
    for name, (values, reason) in properties.SETTLED.items():
        value = configuration.pop(name, values[0])
        if str(value).lower() not in values:
            raise refused(
                INVALID_ARG, f"{name} is {value!r}: it is always {values[0]}, {reason}; omit it"
            )


def _common(
    configuration: _Properties,
    listed: frozenset[str],
    passed: frozenset[str],
    ignored: list[str],
    client: Callable[[dict[str, Any]], object],
    fixed: Mapping[str, Any],
    *,
    partitioner: object,
) -> dict[str, Any]:
    for name, reason in properties.IGNORED.items():
        ignored += configuration.ignore((name,), reason)
    like = configuration.choice(
        "sluiceway.behaves.like", {"confluent": "confluent", "hpe": "hpe"}, "confluent"
    )
    callbacks = {name: configuration.callback(name) for name in _CALLBACKS if name in configuration}
    callbacks |= configuration.take(("logger",))
    if "debug" in configuration:
        # Without a logger, librdkafka prints, as in confluent-kafka: ours is silent by default.
        callbacks.setdefault("logger", None)
    try:
        control = _control(configuration, partitioner)
    except OptionError as error:
        raise refused(INVALID_ARG, str(error)) from error
    local = MaskedProperties(configuration.take(passed))
    kafka = MaskedProperties(
        {name: configuration[name] for name in configuration if name in CONNECTION | listed}
    )
    _require_valid(kafka.over(local), client, fixed)
    if ignored:
        LOGGER.warning("these properties have no effect: %s", ", ".join(ignored))
    return {
        "control": control,
        "hpe": like == "hpe",
        "kafka": kafka,
        "callbacks": local.over(callbacks),
    }


def _require_valid(
    configuration: MaskedProperties,
    client: Callable[[dict[str, Any]], object],
    fixed: Mapping[str, Any],
) -> None:
    """Raise KafkaException with librdkafka's own text for values that it refuses.

    With `fixed`, which a channel's `client` has as well: some values exclude others.
    """
    # Credentials are complete only together with the gateway's properties.
    checked = {
        name: configuration[name]
        for name in configuration
        if not name.startswith(("sasl.", "ssl.", "security.")) and name not in _UNCHECKED
    }
    if checked:
        try:
            client({**fixed, **checked, "log_level": 0})
        except KafkaException as error:
            clear_tracebacks(error)
            fault: KafkaError = error.args[0]
            raise KafkaException(KafkaError(fault.code(), fault.str())) from None


def _control(configuration: _Properties, partitioner: object) -> Control:
    url = None
    for name in _ADDRESS:
        value = configuration.pop(name, None)
        url = url or value
        if value is not None and not str(value).startswith(("http://", "https://")):
            raise OptionError(
                f"{name} is {value!r}; it takes the gateway's address, such as http://127.0.0.1:8900."
                " Kafka's address comes from the gateway"
            )
    token, ca = (
        Token.of(configuration.pop("sluiceway.token", None)),
        configuration.pop("sluiceway.ca", None),
    )
    listener = configuration.pop("sluiceway.listener", None) or os.environ.get("SLUICEWAY_LISTENER")
    creates = configuration.flag("allow.auto.create.topics", default=False)
    transport = Transport(url, token=token, ca=ca, timeout_s=30.0)
    return ChannelControl(
        transport,
        listener=listener,
        creates=creates,
        partitioner=_KEY_PARTITIONERS.get(str(partitioner), DEFAULT_PARTITIONER),
    )


def _interval_s(interval_ms: int) -> float:
    """Return the interval of automatic commits; 0 means never, except for revoking and closing."""
    return max(0.05, interval_ms / 1000) if interval_ms else math.inf


def _wrong(name: str, value: object, expected: str) -> KafkaException:
    return refused(INVALID_ARG, f"{name} is {value!r}; it takes {expected}")
