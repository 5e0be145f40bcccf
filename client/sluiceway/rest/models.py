"""Answers about channels, connections, schemas and the cluster as frozen values.

Each class has a `parse` that takes an answer's JSON. Fields that this version does not know are
ignored; a missing or mistyped one raises IncompatibleGateway.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sluiceway.errors import IncompatibleGateway
from sluiceway.kafka.config import MaskedProperties

_T = TypeVar("_T")


class Answer:
    """Typed access to parsed JSON.

    Each method takes the keys that lead to a value and returns it; where it is missing or of
    another type, IncompatibleGateway names its path.
    """

    def __init__(self, value: object, path: str) -> None:
        self.value = value
        self.path = path

    def at(self, *keys: str) -> "Answer":
        """Return what lies there, whatever it is."""
        # No local of a frame that raises has the value: there may be passwords in it.
        found = self
        for key in keys:
            path = f"{found.path}.{key}"
            if not isinstance(found.value, Mapping) or key not in found.value:
                raise self._wrong(path, "is missing")
            found = Answer(found.value[key], path)
        return found

    def given(self, key: str) -> "Answer | None":
        """Return what lies under `key`, None where an older gateway leaves it out."""
        present = isinstance(self.value, Mapping) and key in self.value
        return self.at(key) if present else None

    def text(self, *keys: str) -> str:
        """Return a string."""
        value: str = self.typed(str, *keys)
        return value

    def number(self, *keys: str) -> int:
        """Return a whole number."""
        value: int = self.typed(int, *keys)
        return value

    def amount(self, *keys: str) -> float:
        """Return a number, whole or not."""
        found = self.at(*keys)
        if type(found.value) is int:
            return float(found.value)
        value: float = found.typed(float)
        return value

    def flag(self, *keys: str) -> bool:
        """Return a boolean."""
        value: bool = self.typed(bool, *keys)
        return value

    def mapping(self, *keys: str) -> Mapping[str, Any]:
        """Return an object."""
        value: dict[str, Any] = self.typed(dict, *keys)
        return value

    def texts(self, *keys: str) -> Mapping[str, str]:
        """Return an object of strings."""
        found = self.at(*keys)
        return {key: found.text(key) for key in found.mapping()}

    def numbers(self, *keys: str) -> Mapping[int, int]:
        """Return an object of whole numbers by partition."""
        found = self.at(*keys)
        for key in found.mapping():
            if not key.isdecimal():
                raise self._wrong(f"{found.path}.{key}", "is no partition")
        return {int(key): found.number(key) for key in found.mapping()}

    def items(self, *keys: str) -> list["Answer"]:
        """Return the items of an array."""
        found = self.at(*keys)
        items: list[object] = found.typed(list)
        return [Answer(item, f"{found.path}[{i}]") for i, item in enumerate(items)]

    def time(self, *keys: str) -> datetime:
        """Return a time of ISO 8601."""
        text = self.text(*keys)
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            raise self._wrong(".".join((self.path, *keys)), f"is no time: {text!r}") from None

    def optional(self, read: Callable[..., _T], *keys: str) -> _T | None:
        """Return None for null, else what `read` finds there."""
        return None if self.at(*keys).value is None else read(*keys)

    def typed(self, kind: type[Any], *keys: str) -> Any:
        """Return a value of exactly that type."""
        found = self.at(*keys)
        if type(found.value) is not kind:
            raise self._wrong(found.path, f"is {type(found.value).__name__}, not {kind.__name__}")
        return found.value

    @staticmethod
    def _wrong(path: str, what: str) -> IncompatibleGateway:
        return IncompatibleGateway(
            f"the gateway's answer does not fit this client: {path} {what}. Use versions of "
            "client and gateway that are at most two minor versions apart"
        )


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long a channel keeps records; None leaves it to Kafka's own setting."""

    ms: int | None = None
    bytes: int | None = None

    def to_json(self) -> dict[str, int | None]:
        """Return the form that requests carry."""
        return {"ms": self.ms, "bytes": self.bytes}


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """How often writers and readers say that they live, and when one that does not is lost."""

    interval_ms: int = 2_000
    timeout_ms: int = 120_000

    def to_json(self) -> dict[str, int]:
        """Return the form that requests carry."""
        return {"interval_ms": self.interval_ms, "timeout_ms": self.timeout_ms}


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One statement of the gateway about a channel, with its reason."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_at: datetime


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A channel's topic as it was last observed; `id` and `partitions` None: not seen yet."""

    name: str
    id: str | None
    partitions: int | None


@dataclass(frozen=True, kw_only=True)
class ChannelStatus:
    """Where a channel stands.

    `phase` is provisioning, ready, failed, closing, closed or deleting.
    """

    phase: str
    observed_generation: int
    conditions: tuple[Condition, ...]
    topic: Topic

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of that type, or None."""
        return next((each for each in self.conditions if each.type == kind), None)

    def explain(self) -> str:
        """Return what stands between the channel and being ready and in step, for a message."""
        told = [each.message for each in self.conditions if each.status != "True"]
        return "; ".join(told) or f"its phase is {self.phase}"


@dataclass(frozen=True, kw_only=True)
class ChannelResource:
    """A channel as the gateway knows it, with the ETag of that answer."""

    name: str
    uid: str
    generation: int
    created_at: datetime
    labels: Mapping[str, str]
    schema_definition: Mapping[str, Any]
    compatibility: str
    format: str
    partitions: int
    pinned: bool
    replication: int | None
    retention: Retention
    config: Mapping[str, str]
    adopted_topic: str | None
    status: ChannelStatus
    heartbeat: Heartbeat = Heartbeat()
    mirrored: bool = False
    idle: timedelta | None = None
    etag: str | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, answer: object, etag: str | None = None) -> "ChannelResource":
        """Read a channel's JSON."""
        read = Answer(answer, "channel")
        spec, retention = read.at("spec"), read.at("spec", "retention")
        # Older gateways have neither; they take no other schema and adopt nothing.
        compatibility, adopted = spec.given("compatibility"), spec.given("topic")
        heartbeat, mirrored = spec.given("heartbeat"), spec.given("mirrored")
        idle_ms = spec.given("idle_ms")
        return cls(
            name=read.text("metadata", "name"),
            uid=read.text("metadata", "uid"),
            generation=read.number("metadata", "generation"),
            created_at=read.time("metadata", "created_at"),
            labels=read.texts("metadata", "labels"),
            schema_definition=read.mapping("spec", "schema"),
            compatibility="full" if compatibility is None else compatibility.text(),
            format=read.text("spec", "format"),
            partitions=read.number("spec", "partitions"),
            pinned=read.flag("spec", "pinned"),
            replication=read.optional(read.number, "spec", "replication"),
            retention=Retention(
                ms=retention.optional(retention.number, "ms"),
                bytes=retention.optional(retention.number, "bytes"),
            ),
            config=read.texts("spec", "config"),
            adopted_topic=(
                None if adopted is None or adopted.value is None else adopted.text("name")
            ),
            status=_status(read.at("status")),
            heartbeat=Heartbeat()
            if heartbeat is None
            else Heartbeat(
                interval_ms=heartbeat.number("interval_ms"),
                timeout_ms=heartbeat.number("timeout_ms"),
            ),
            mirrored=mirrored is not None and mirrored.flag(),
            idle=(
                None
                if idle_ms is None or idle_ms.value is None
                else timedelta(milliseconds=idle_ms.number())
            ),
            etag=etag,
        )


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """One of the schemas that a channel has, or had and still keeps.

    Messages carry `id`; `version` counts the channel's schemas from 1; `created_at` is when the
    channel got it, None where the answer does not say.
    """

    id: int
    version: int
    definition: Mapping[str, Any]
    created_at: datetime | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, read: Answer) -> "SchemaVersion":
        """Read the JSON of a version."""
        created_at = read.given("created_at")
        return cls(
            id=read.number("id"),
            version=read.number("version"),
            definition=read.mapping("definition"),
            created_at=None if created_at is None else created_at.time(),
        )


@dataclass(frozen=True, kw_only=True)
class Connection:
    """All that a writer or a reader needs to work on a channel without the gateway.

    `schema_id` and `schema_definition` are the schema that this job uses: what it writes, and
    what it is given when it reads. `schemas` are all that the channel's messages may have, the
    oldest first; a connection that is made without them knows that one alone.

    Plain data: it can be pickled and sent to where the work is done. `kafka` may hold
    credentials, so it is left out of `repr`, and masked in its own.
    """

    channel_name: str
    channel_uid: str
    generation: int
    format: str
    schema_id: int
    schema_definition: Mapping[str, Any]
    topic_name: str
    topic_id: str | None
    partitions: int
    max_message_bytes: int
    kafka: Mapping[str, str] = field(repr=False)
    schemas: tuple[SchemaVersion, ...] = ()

    def __post_init__(self) -> None:
        if not self.schemas:
            only = SchemaVersion(id=self.schema_id, version=1, definition=self.schema_definition)
            object.__setattr__(self, "schemas", (only,))
        object.__setattr__(self, "kafka", MaskedProperties(self.kafka))

    @classmethod
    def parse(cls, answer: object) -> "Connection":
        """Read the JSON of a connection; older gateways name one schema alone."""
        read = Answer(answer, "connection")
        del answer  # error reporters render locals, and there may be passwords in it
        used = SchemaVersion.parse(read.at("schema"))
        kept = read.given("schemas")
        return cls(
            channel_name=read.text("channel", "name"),
            channel_uid=read.text("channel", "uid"),
            generation=read.number("channel", "generation"),
            format=read.text("format"),
            schema_id=used.id,
            schema_definition=used.definition,
            schemas=(used,)
            if kept is None
            else tuple(SchemaVersion.parse(each) for each in kept.items()),
            topic_name=read.text("topic", "name"),
            topic_id=read.optional(read.text, "topic", "id"),
            partitions=read.number("topic", "partitions"),
            max_message_bytes=read.number("topic", "max_message_bytes"),
            kafka=read.texts("kafka"),
        )


def _status(read: Answer) -> ChannelStatus:
    return ChannelStatus(
        phase=read.text("phase"),
        observed_generation=read.number("observed_generation"),
        conditions=tuple(
            Condition(
                type=each.text("type"),
                status=each.text("status"),
                reason=each.text("reason"),
                message=each.text("message"),
                last_transition_at=each.time("last_transition_at"),
            )
            for each in read.items("conditions")
        ),
        topic=Topic(
            name=read.text("topic", "name"),
            id=read.optional(read.text, "topic", "id"),
            partitions=read.optional(read.number, "topic", "partitions"),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ClusterBroker:
    """A broker that is alive, as Kafka tells the gateway to reach it."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Who is in the cluster; `controller_id` is None while there is no controller."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[ClusterBroker, ...]

    @classmethod
    def parse(cls, answer: object) -> "Cluster":
        """Read the JSON of the answer; raises IncompatibleGateway."""
        read = Answer(answer, "cluster")
        return cls(
            cluster_id=read.optional(read.text, "cluster_id"),
            controller_id=read.optional(read.number, "controller_id"),
            brokers=tuple(
                ClusterBroker(
                    id=each.number("id"), host=each.text("host"), port=each.number("port")
                )
                for each in read.items("brokers")
            ),
        )


__all__ = [
    "Answer",
    "ChannelResource",
    "ChannelStatus",
    "Cluster",
    "ClusterBroker",
    "Condition",
    "Connection",
    "Heartbeat",
    "Retention",
    "SchemaVersion",
    "Topic",
]
