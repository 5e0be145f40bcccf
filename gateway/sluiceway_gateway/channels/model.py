"""Channel: spec, status, phase."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sluiceway_gateway.channels.topic_config import INT64_MAX
from sluiceway_gateway.core.names import MAX_PARTITIONS, TOPIC_PATTERN, check_topic
from sluiceway_gateway.schemas.model import Compatibility, Format

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
MIN_HEARTBEAT_MS, MAX_HEARTBEAT_MS = 100, 60_000
MAX_HEARTBEAT_TIMEOUT_MS = 3_600_000
MIN_IDLE_MS, MAX_IDLE_MS = 60_000, 10 * 365 * 86_400_000
MAX_SETTINGS = 20
"""Maximum of config entries in a request; more than allowed settings, so that all are named."""


class Phase(StrEnum):
    """Phase of a channel's life."""

    PROVISIONING = "provisioning"
    """The topic is being created."""
    READY = "ready"
    """The channel has its topic."""
    FAILED = "failed"
    """The topic vanished, or another topic has its name."""
    CLOSING = "closing"
    """New writers are refused; current ones finish, and readers read the rest."""
    CLOSED = "closed"
    """Writers are refused; the records stay readable."""
    DELETING = "deleting"
    """Being deleted; the row is deleted after the topic."""


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.PROVISIONING: frozenset({Phase.READY, Phase.FAILED, Phase.DELETING}),
    Phase.READY: frozenset({Phase.CLOSING, Phase.CLOSED, Phase.FAILED, Phase.DELETING}),
    Phase.FAILED: frozenset({Phase.READY, Phase.DELETING}),
    Phase.CLOSING: frozenset({Phase.CLOSED, Phase.DELETING}),
    Phase.CLOSED: frozenset({Phase.DELETING}),
    Phase.DELETING: frozenset(),
}
"""The transition table. A change of the spec keeps the phase; `observed_generation` and the
conditions report its progress."""

READABLE = (Phase.READY, Phase.CLOSING, Phase.CLOSED)
"""The channel has its topic, and its records can be read."""
FINISHING = frozenset({Phase.CLOSING, Phase.CLOSED, Phase.DELETING})
"""New writers are refused, and current ones are asked to finish."""


def may_become(phase: Phase, following: Phase) -> bool:
    """Return whether the transition is allowed; staying always is."""
    return phase is following or following in TRANSITIONS[phase]


def sources(following: Phase) -> frozenset[Phase]:
    """Return the phases from which `following` can be entered."""
    return frozenset(phase for phase, targets in TRANSITIONS.items() if following in targets)


class Delivery(StrEnum):
    """Guarantee for a channel's records; fixed at creation."""

    AT_LEAST_ONCE = "at_least_once"
    """Readers see every record; after failures, some twice."""
    EXACTLY_ONCE = "exactly_once"
    """Readers see the records of committed batches, once."""


class KeyPartitioner(StrEnum):
    """Rule for the partition of a record's key, by librdkafka's names; fixed at creation.

    Records without a key are distributed over all partitions.
    """

    MURMUR2 = "murmur2"
    """The hash of Java's producers."""
    CONSISTENT_RANDOM = "consistent_random"
    """The hash of librdkafka's producers, CRC-32; an empty key counts as none."""
    FNV1A = "fnv1a"
    """The hash of Sarama's producers."""


KEPT_BY_CHANNEL = frozenset({"schema_", "topic"})
"""Fields that the spec of a `Channel` leaves at their defaults: the channel itself has the text of
the schema, which is not parsed on each read, and its topic."""


class SpecModel(BaseModel):
    """Base of a channel's spec and its parts, which are request, stored value and response.

    In a request only the fields that it has count: `model_fields_set`.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, json_schema_serialization_defaults_required=True
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        if handler.mode == "serialization":
            # Responses of later versions may have more fields.
            del handler.resolve_ref_schema(schema)["additionalProperties"]
        return schema

    def fields(self) -> Iterator[tuple[str, Any]]:
        """Yield names and values, those of a part by names such as `retention.ms`.

        Without `KEPT_BY_CHANNEL`.
        """
        for name, value in vars(self).items():
            if isinstance(value, SpecModel):
                yield from ((f"{name}.{field}", part) for field, part in value.fields())
            elif name not in KEPT_BY_CHANNEL:
                yield name, value

    def merged(self, request: Self) -> Self:
        """Return this with the fields of the request, also of a part; without `KEPT_BY_CHANNEL`."""
        values: dict[str, Any] = {}
        for name in request.model_fields_set - KEPT_BY_CHANNEL:
            before, value = getattr(self, name), getattr(request, name)
            values[name] = before.merged(value) if isinstance(before, SpecModel) else value
        return self.model_copy(update=values)


class Retention(SpecModel):
    """Retention of records; null means the broker's default, -1 unlimited."""

    ms: int | None = Field(default=None, ge=-1, le=INT64_MAX)
    bytes: int | None = Field(default=None, ge=-1, le=INT64_MAX, description="Per partition")


class Heartbeat(SpecModel):
    """Heartbeat interval of endpoints, and the timeout: at least three intervals."""

    interval_ms: int = Field(default=2_000, ge=MIN_HEARTBEAT_MS, le=MAX_HEARTBEAT_MS)
    timeout_ms: int = Field(default=120_000, ge=3 * MIN_HEARTBEAT_MS, le=MAX_HEARTBEAT_TIMEOUT_MS)


class AdoptedTopic(SpecModel):
    """A topic that existed before the channel."""

    name: Annotated[str, AfterValidator(check_topic)] = Field(
        description="An existing topic that no channel has",
        json_schema_extra={"pattern": TOPIC_PATTERN},
    )


class Spec(SpecModel):
    """Desired state; fields that a request omits keep their values or get defaults."""

    schema_: dict[str, Any] = Field(
        default_factory=dict,
        alias="schema",
        description="An Avro record schema; required to create a channel",
    )
    # Strict validation would refuse the values of an enum.
    compatibility: Compatibility = Field(
        default=Compatibility.BACKWARD,
        strict=False,
        description="Rule for a new version of the schema and all kept ones",
    )
    format: Format = Field(default=Format.AVRO, strict=False)
    partitions: int = Field(default=1, ge=1, le=MAX_PARTITIONS)
    pinned: bool = False
    """The number of partitions never changes, because records are partitioned by key."""
    max_partitions: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PARTITIONS,
        description="Number up to which a group that attaches may grow the channel without "
        "`manage`; null: never",
    )
    replication: int | None = Field(
        default=None, ge=1, le=32767, description="null means the broker's default"
    )
    retention: Retention = Field(default_factory=Retention)
    config: dict[str, str] = Field(
        default_factory=dict,
        max_length=MAX_SETTINGS,
        description="Further topic settings, by Kafka's names; replaces all",
    )
    heartbeat: Heartbeat = Field(default_factory=Heartbeat)
    mirrored: bool = Field(
        default=False, description="Also write committed positions to Kafka's group offsets"
    )
    delivery: Delivery = Field(
        default=Delivery.AT_LEAST_ONCE,
        strict=False,
        description="exactly_once: readers see committed batches only; fixed at creation",
    )
    partitioner: KeyPartitioner = Field(
        default=KeyPartitioner.MURMUR2,
        strict=False,
        description="The partition of a key, by librdkafka's names; fixed at creation, so that "
        "keys stay in their partitions",
    )
    idle_ms: int | None = Field(
        default=None,
        ge=MIN_IDLE_MS,
        le=MAX_IDLE_MS,
        description="Idle time until the channel is closed, and then until it is deleted with its "
        "records; null: never",
    )
    topic: AdoptedTopic | None = Field(
        default=None,
        description="A topic to adopt at creation, which is never deleted or changed; null creates "
        "a topic",
    )


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition of the channel's status."""

    type: str
    """`Ready`; `Synced`, the topic is as specified; `Drained` of a closing channel; `Idle` of a
    channel with an idle time."""
    status: Literal["True", "False", "Unknown"]
    reason: str
    """Stable, in CamelCase."""
    message: str
    """Explanation for people, with what to do."""
    last_transition_at: datetime
    """Time of the last change of `status`."""


@dataclass(frozen=True, kw_only=True)
class TopicRef:
    """The channel's topic as last observed."""

    name: str
    id: str | None = None
    """In Kafka's base64 form; None before the topic was observed."""
    partitions: int | None = None
    """None before the topic was observed."""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A channel; `uid` distinguishes it from earlier and later channels of the same name."""

    name: str
    uid: str
    """32 hexadecimal digits."""
    labels: Mapping[str, str]
    generation: int
    """Number of the spec and labels, from 1."""
    revision: int
    """Incremented by every visible change, including the status."""
    created_at: datetime
    spec: Spec
    """Without `KEPT_BY_CHANNEL`."""
    schema: str
    """Canonical Avro JSON."""
    schema_id: int
    schema_version: int
    phase: Phase
    observed_generation: int
    """The generation last applied to Kafka in full; 0 before the first."""
    conditions: tuple[Condition, ...]
    topic: TopicRef
    adopted: bool = False
    """The topic existed before the channel. It is never deleted or changed; partitions,
    replication, retention and config of the spec follow it."""
    keep_topic: bool = False
    """The topic stays when the channel is deleted."""

    def condition(self, type_: str) -> Condition | None:
        """Return the condition of this type."""
        return next((condition for condition in self.conditions if condition.type == type_), None)

    def with_condition(
        self, type_: str, status: Literal["True", "False"], reason: str, message: str, now: datetime
    ) -> "Channel":
        """Return the channel with this condition instead of the previous one of the type.

        `last_transition_at` is kept if the status is unchanged.
        """
        before = self.condition(type_)
        if before is not None and before.status == status:
            now = before.last_transition_at
        replacement = Condition(
            type=type_, status=status, reason=str(reason), message=message, last_transition_at=now
        )
        others = [condition for condition in self.conditions if condition.type != type_]
        conditions = sorted((*others, replacement), key=lambda condition: condition.type)
        return replace(self, conditions=tuple(conditions))

    @property
    def compacted(self) -> bool:
        """Whether Kafka keeps the last message of each key, and a null value deletes a key."""
        return "compact" in self.spec.config.get("cleanup.policy", "")

    @property
    def max_message_bytes(self) -> int:
        """Maximum message size of the topic."""
        return int(self.spec.config.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
