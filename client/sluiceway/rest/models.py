"""The gateway's answers as values.

Each class has a `parse` that takes an answer's JSON. Fields that this version does not know are
ignored; a missing or mistyped one raises IncompatibleGateway.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sluiceway.answer import Answer
from sluiceway.kafka.masked import MaskedProperties

__all__ = [
    "Beat",
    "ChannelResource",
    "ChannelStatus",
    "Condition",
    "Connection",
    "Retention",
    "SchemaVersion",
    "Topic",
]


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long a channel keeps records; None leaves it to Kafka's own setting."""

    ms: int | None = None
    bytes: int | None = None

    def to_json(self) -> dict[str, int | None]:
        """Return the form that requests carry."""
        return {"ms": self.ms, "bytes": self.bytes}


@dataclass(frozen=True, kw_only=True)
class Beat:
    """How often writers and readers say that they live, and when one that does not is lost."""

    interval_ms: int = 2_000
    patience_ms: int = 120_000

    def to_json(self) -> dict[str, int]:
        """Return the form that requests carry."""
        return {"interval_ms": self.interval_ms, "patience_ms": self.patience_ms}


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
    beat: Beat = Beat()
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
        beat, mirrored = spec.given("beat"), spec.given("mirrored")
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
            beat=Beat()
            if beat is None
            else Beat(
                interval_ms=beat.number("interval_ms"), patience_ms=beat.number("patience_ms")
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
