"""Channel: spec, status, phase."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from sluiceway_gateway.schemas.model import Compatibility, Format

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
MIN_HEARTBEAT_MS, MAX_HEARTBEAT_MS = 100, 60_000
MAX_HEARTBEAT_TIMEOUT_MS = 3_600_000
MIN_IDLE_MS, MAX_IDLE_MS = 60_000, 10 * 365 * 86_400_000


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


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Retention of records; None means the broker's default, -1 unlimited."""

    ms: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Heartbeat interval of endpoints, and the timeout after which one is lost."""

    interval_ms: int = 2_000
    timeout_ms: int = 120_000


@dataclass(frozen=True, kw_only=True)
class ChannelSpec:
    """Desired state of a channel."""

    schema: str
    """Canonical Avro JSON."""
    compatibility: Compatibility = Compatibility.BACKWARD
    format: Format = Format.AVRO
    partitions: int = 1
    pinned: bool = False
    """The number of partitions never changes, because records are partitioned by key."""
    max_partitions: int | None = None
    """The number up to which a group that attaches may grow the channel without `manage`."""
    replication: int | None = None
    """None means the broker's default."""
    retention: Retention = field(default_factory=Retention)
    config: Mapping[str, str] = field(default_factory=dict)
    """Further topic settings by Kafka's names."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    mirrored: bool = False
    """Committed positions are also written to Kafka's consumer groups."""
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    idle_ms: int | None = None
    """Idle time until the channel is closed, and again until it is deleted; None for never."""


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
    spec: ChannelSpec
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
    def max_message_bytes(self) -> int:
        """Maximum message size of the topic."""
        return int(self.spec.config.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
