"""Channels, connections, schema versions and the cluster: values of the gateway's API."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from sluiceway.api.arguments import whole_number
from sluiceway.api.parsing import LOCAL, JsonNode, JsonPath, parse
from sluiceway.errors import OptionError, SchemaMismatch
from sluiceway.kafka.config import MaskedProperties
from sluiceway.schema import Schema
from sluiceway.schema.compatibility import incompatibilities, reasons_by_version


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The retention of a channel's records; None means Kafka's own setting."""

    ms: Annotated[int | None, JsonPath("ms", required=True)] = None
    bytes: Annotated[int | None, JsonPath("bytes", required=True)] = None


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The interval of heartbeats, and the time without one after which an endpoint is lost."""

    interval_ms: Annotated[int, JsonPath("interval_ms", required=True)] = 2_000
    timeout_ms: Annotated[int, JsonPath("timeout_ms", required=True)] = 120_000


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A named fact about a channel's state, with its reason."""

    type: str
    status: str
    reason: str
    message: str
    last_transition_at: datetime


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A channel's topic as last observed; `id` and `partitions` are None until then."""

    name: str
    id: str | None
    partitions: int | None


@dataclass(frozen=True, kw_only=True)
class ChannelStatus:
    """The observed state of a channel.

    `phase` is provisioning, ready, failed, closing, closed or deleting.
    """

    phase: str
    observed_generation: int
    conditions: tuple[Condition, ...]
    topic: Topic

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of that type, or None."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def explain(self) -> str:
        """Return the messages of all conditions that are not met, or else the phase."""
        unmet = [condition.message for condition in self.conditions if condition.status != "True"]
        return "; ".join(unmet) or f"its phase is {self.phase}"


@dataclass(frozen=True, kw_only=True)
class ChannelResource:
    """A channel: its metadata, spec and status, with the ETag of the response.

    `document` is the JSON of the response, or of the list's item.
    """

    name: Annotated[str, JsonPath("metadata", "name")]
    uid: Annotated[str, JsonPath("metadata", "uid")]
    generation: Annotated[int, JsonPath("metadata", "generation")]
    created_at: Annotated[datetime, JsonPath("metadata", "created_at")]
    labels: Annotated[Mapping[str, str], JsonPath("metadata", "labels")]
    schema_definition: Annotated[Mapping[str, Any], JsonPath("spec", "schema")]
    format: Annotated[str, JsonPath("spec", "format")]
    partitions: Annotated[int, JsonPath("spec", "partitions")]
    pinned: Annotated[bool, JsonPath("spec", "pinned")]
    replication: Annotated[int | None, JsonPath("spec", "replication")]
    retention: Annotated[Retention, JsonPath("spec", "retention")]
    config: Annotated[Mapping[str, str], JsonPath("spec", "config")]
    status: ChannelStatus
    compatibility: Annotated[str, JsonPath("spec", "compatibility")] = "full"
    adopted_topic: Annotated[str | None, JsonPath("spec", "topic", "name")] = None
    heartbeat: Annotated[Heartbeat, JsonPath("spec", "heartbeat")] = Heartbeat()
    mirrored: Annotated[bool, JsonPath("spec", "mirrored")] = False
    delivery: Annotated[str, JsonPath("spec", "delivery")] = "at_least_once"
    idle: Annotated[timedelta | None, JsonPath("spec", "idle_ms")] = None
    max_partitions: Annotated[int | None, JsonPath("spec", "max_partitions")] = None
    partitioner: Annotated[str, JsonPath("spec", "partitioner")] = "murmur2"
    document: Annotated[Mapping[str, Any], JsonPath()] = field(repr=False, compare=False)
    etag: Annotated[str | None, LOCAL] = field(default=None, compare=False)


_MIN_IDLE, _MAX_IDLE = timedelta(minutes=1), timedelta(days=3650)


@dataclass(frozen=True, kw_only=True)
class ChannelSpec:
    """The fields of a channel's spec to set; None is the gateway's default, or no change.

    `topic` is the name of the topic to adopt. `idle` and `max_partitions` are removed by 0. Raises
    OptionError.
    """

    schema: Annotated[Schema | None, JsonPath("schema", write=lambda schema: schema.definition)] = (
        None
    )
    format: str | None = None
    topic: Annotated[str | None, JsonPath("topic", write=lambda name: {"name": name})] = None
    partitions: int | None = None
    compatibility: str | None = None
    pinned: bool | None = None
    replication: int | None = None
    retention: Retention | None = None
    heartbeat: Heartbeat | None = None
    mirrored: bool | None = None
    delivery: str | None = None
    idle: Annotated[
        timedelta | None,
        JsonPath("idle_ms", write=lambda idle: idle // timedelta(milliseconds=1) or None),
    ] = None
    max_partitions: Annotated[
        int | None, JsonPath("max_partitions", write=lambda limit: limit or None)
    ] = None
    partitioner: str | None = None
    config: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        for name, kind in (("retention", Retention), ("heartbeat", Heartbeat)):
            value = getattr(self, name)
            if not isinstance(value, kind | None):
                raise OptionError(f"{name} is {value!r}; it takes a {kind.__name__}")
        for name in ("partitions", "replication", "max_partitions"):
            # The gateway refuses what is no number.
            if (number := whole_number(getattr(self, name))) is not None:
                object.__setattr__(self, name, number)
        idle = self.idle
        if not isinstance(idle, timedelta | None):
            raise OptionError(
                f"idle is {idle!r}; it takes a timedelta from a minute to ten years, or 0 for never"
            )
        if idle and not _MIN_IDLE <= idle <= _MAX_IDLE:
            raise OptionError(
                f"idle is {idle.total_seconds():,} s; it takes from a minute to ten years, or 0 "
                "for never"
            )


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """One version of a channel's schema.

    `id` is the schema id in messages. `version` counts the channel's schemas from 1. `created_at`
    is None if the response lacks it.
    """

    id: int
    version: int
    definition: Mapping[str, Any]
    created_at: datetime | None = field(default=None, compare=False)


def _versions(node: JsonNode) -> tuple[SchemaVersion, ...]:
    """Return the schema versions of a connection; older gateways send only the one in use."""
    present = node.find("schemas")
    nodes = [node.at("schema")] if present is None else present.items()
    return tuple(parse(SchemaVersion, version_node) for version_node in nodes)


NOT_REGISTERED: Final = 0
"""The schema id of a reader's own schema. No message carries it."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The topic, schemas and Kafka properties with which a reader or writer works.

    `schema_id` and `schema_definition` are the schema in use: of the messages of a writer, or of
    the records of a reader. `schemas` are all schemas that the channel's messages may have, the
    oldest first; by default, only the one in use. `delivery` is `at_least_once` or `exactly_once`.
    `partitioner` is the rule for the partitions of keys: `murmur2`, `consistent_random`, `fnv1a`.
    `compacted`: Kafka keeps the last message of a key, and deletes the key by one without a value.

    A connection is plain data and can be pickled. `kafka` may contain credentials: the `repr`
    omits it, and its own `repr` masks them.
    """

    channel_name: Annotated[str, JsonPath("channel", "name")]
    channel_uid: Annotated[str, JsonPath("channel", "uid")]
    generation: Annotated[int, JsonPath("channel", "generation")]
    format: str
    schema_id: Annotated[int, JsonPath("schema", "id")]
    schema_definition: Annotated[Mapping[str, Any], JsonPath("schema", "definition")]
    topic_name: Annotated[str, JsonPath("topic", "name")]
    topic_id: Annotated[str | None, JsonPath("topic", "id")]
    partitions: Annotated[int, JsonPath("topic", "partitions")]
    max_message_bytes: Annotated[int, JsonPath("topic", "max_message_bytes")]
    kafka: Mapping[str, str] = field(repr=False)
    schemas: Annotated[tuple[SchemaVersion, ...], JsonPath(read=_versions)] = ()
    delivery: str = "at_least_once"
    partitioner: str = "murmur2"
    compacted: Annotated[bool, JsonPath("topic", "compacted")] = False

    def __post_init__(self) -> None:
        if not self.schemas:
            only = SchemaVersion(id=self.schema_id, version=1, definition=self.schema_definition)
            object.__setattr__(self, "schemas", (only,))
        object.__setattr__(self, "kafka", MaskedProperties(self.kafka))

    def for_reading(self, schema: Schema) -> "Connection":
        """Return the connection for a reader of records of `schema`.

        Raises SchemaMismatch if `schema` cannot read the channel's messages.
        """
        require_readable(self.channel_name, schema, self.schemas)
        version = self._version_of(schema)
        if version is None:
            return replace(self, schema_id=NOT_REGISTERED, schema_definition=schema.definition)
        # A schema of a dataclass or dataframe has no aliases: then the channel's are used.
        own = schema.definition if schema.annotated else version.definition
        return replace(self, schema_id=version.id, schema_definition=own)

    def for_writing(self, schema: Schema) -> "Connection":
        """Return the connection for a writer of records of `schema`.

        Raises SchemaMismatch if the channel does not have this schema.
        """
        version = self._version_of(schema)
        if version is None:
            raise SchemaMismatch(
                f"the channel {self.channel_name!r} does not have this schema, so records cannot "
                "be written with it: register it with channel.update(schema=…)"
            )
        return replace(self, schema_id=version.id, schema_definition=version.definition)

    def _version_of(self, schema: Schema) -> SchemaVersion | None:
        same = (version for version in self.schemas if Schema.parse(version.definition) == schema)
        return next(same, None)


def require_readable(channel: str, schema: Schema, versions: Iterable[SchemaVersion]) -> None:
    """Raise SchemaMismatch unless `schema` is one of the versions, or can read all of them."""
    parsed = {
        schema_version.version: Schema.parse(schema_version.definition)
        for schema_version in versions
    }
    if schema in parsed.values():
        return
    reasons = {version: incompatibilities(schema, written) for version, written in parsed.items()}
    broken = [
        f"records of {versions} cannot be read with it: {reason}"
        for versions, reason in reasons_by_version(reasons)
    ]
    if broken:
        raise SchemaMismatch(
            f"the given schema does not fit the channel {channel!r}: {'; '.join(broken)}. "
            "Open the channel without a schema to use its own"
        )


@dataclass(frozen=True, kw_only=True)
class ClusterBroker:
    """A live broker, with its address for the gateway."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The Kafka cluster; `controller_id` is None while there is no controller."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[ClusterBroker, ...]


__all__ = [
    "ChannelResource",
    "ChannelSpec",
    "ChannelStatus",
    "Cluster",
    "ClusterBroker",
    "Condition",
    "Connection",
    "Heartbeat",
    "Retention",
    "SchemaVersion",
    "Topic",
    "require_readable",
]
