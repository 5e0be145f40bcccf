"""Channel: spec, status, phase; rules for names and labels."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

MAX_PARTITIONS = 10_000
#: Of one channel, and the characters of their definitions: a connection carries all of them.
MAX_SCHEMA_VERSIONS = 1_000
MAX_SCHEMA_CHARACTERS = 16 * 1024 * 1024
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
MIN_HEARTBEAT_MS, MAX_HEARTBEAT_MS = 100, 60_000
MAX_HEARTBEAT_TIMEOUT_MS = 3_600_000
MIN_IDLE_MS, MAX_IDLE_MS = 60_000, 10 * 365 * 86_400_000


class Phase(StrEnum):
    """Where a channel is in its life."""

    PROVISIONING = "provisioning"
    """The row is there, the topic not yet."""
    READY = "ready"
    """The topic that belongs to the channel is there."""
    FAILED = "failed"
    """The topic vanished, or another one has its name."""
    CLOSING = "closing"
    """Nobody may come to write any more; those who do finish, and readers read what is left."""
    CLOSED = "closed"
    """Nobody writes any more; the records are read as before."""
    DELETING = "deleting"
    """On its way out; the row goes when the topic is gone."""


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.PROVISIONING: frozenset({Phase.READY, Phase.FAILED, Phase.DELETING}),
    Phase.READY: frozenset({Phase.CLOSING, Phase.CLOSED, Phase.FAILED, Phase.DELETING}),
    Phase.FAILED: frozenset({Phase.READY, Phase.DELETING}),
    Phase.CLOSING: frozenset({Phase.CLOSED, Phase.DELETING}),
    Phase.CLOSED: frozenset({Phase.DELETING}),
    Phase.DELETING: frozenset(),
}
"""The one transition table. A changed spec leaves the phase: `observed_generation`
and the conditions say how far it is applied."""

READABLE = (Phase.READY, Phase.CLOSING, Phase.CLOSED)
"""The channel has its topic, and its records can be read."""
FINISHING = frozenset({Phase.CLOSING, Phase.CLOSED, Phase.DELETING})
"""Nobody comes to write any more, and those who do are asked to finish."""


def may_become(phase: Phase, following: Phase) -> bool:
    """Whether a channel in `phase` may be in `following` next; staying is always allowed."""
    return phase is following or following in TRANSITIONS[phase]


def sources(following: Phase) -> frozenset[Phase]:
    """Return the phases from which `following` can be entered."""
    return frozenset(phase for phase, targets in TRANSITIONS.items() if following in targets)


class Format(StrEnum):
    """How records lie in messages."""

    AVRO = "avro"
    ARROW = "arrow"
    BYTES = "bytes"
    """A message is one value that its writer made, and nothing else."""


class Compatibility(StrEnum):
    """What a new version of a channel's schema has to be, beside all versions that are kept."""

    NONE = "none"
    """Anything."""
    BACKWARD = "backward"
    """The new one reads what was written with the old ones."""
    FORWARD = "forward"
    """The old ones read what will be written with the new one."""
    FULL = "full"
    """Both."""


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """One of the schemas that a channel has, or had and still keeps."""

    id: int
    """The same for all channels and for good; messages carry it."""
    version: int
    """Counts the channel's schemas, from 1."""
    definition: str
    """Canonical Avro JSON."""
    created_at: datetime
    """When the channel got it."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long records are kept; None leaves it to the broker, -1 is for ever."""

    ms: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """How often endpoints say that they live, and how long the gateway is patient without."""

    interval_ms: int = 2_000
    timeout_ms: int = 120_000


@dataclass(frozen=True, kw_only=True)
class ChannelSpec:
    """What the channel's owner wants."""

    schema: str
    """Canonical Avro JSON."""
    compatibility: Compatibility = Compatibility.BACKWARD
    format: Format = Format.AVRO
    partitions: int = 1
    pinned: bool = False
    """The number of partitions never changes: records are placed by key."""
    replication: int | None = None
    """None takes the broker's default."""
    retention: Retention = field(default_factory=Retention)
    config: Mapping[str, str] = field(default_factory=dict)
    """Further topic settings, by Kafka's names."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    mirrored: bool = False
    """The positions of its groups are told to Kafka's own group coordinator as well."""
    idle_ms: int | None = None
    """After so long without use it is closed, and after as long again removed; None: never."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One statement about the channel, as of its last change."""

    type: str
    """`Ready`; `Synced`, what was observed is what is wanted; `Drained` of one that closes; `Idle`
    of one that is closed when nobody uses it."""
    status: Literal["True", "False", "Unknown"]
    reason: str
    """CamelCase, stable."""
    message: str
    """For people; says what to do where somebody has to do something."""
    last_transition_at: datetime
    """When `status` last changed."""


@dataclass(frozen=True, kw_only=True)
class TopicRef:
    """The channel's topic, as far as it is known."""

    name: str
    id: str | None = None
    """In Kafka's base64 form; None before the topic was seen."""
    partitions: int | None = None
    """As observed; None before the topic was seen."""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One incarnation of a named channel: `uid` tells it from others of its name."""

    name: str
    uid: str
    """32 hexadecimal digits."""
    labels: Mapping[str, str]
    generation: int
    """Counts the changes of spec and labels, from 1."""
    revision: int
    """Counts every visible change, those of the status too."""
    created_at: datetime
    spec: ChannelSpec
    schema_id: int
    schema_version: int
    phase: Phase
    observed_generation: int
    """The generation that was last applied to Kafka in full; 0 before the first."""
    conditions: tuple[Condition, ...]
    topic: TopicRef
    adopted: bool = False
    """The topic was there before the channel: it is never deleted and never changed, and
    partitions, replication, retention and config of the spec follow it."""
    keep_topic: bool = False
    """Deleting the channel leaves its topic."""

    def condition(self, type_: str) -> Condition | None:
        """Return the condition of this type, if there is one."""
        return next((each for each in self.conditions if each.type == type_), None)

    @property
    def max_message_bytes(self) -> int:
        """The largest message that the topic takes."""
        return int(self.spec.config.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))


def topic_name(prefix: str, name: str, uid: str) -> str:
    """Return the name of the topic that belongs to this incarnation alone."""
    return f"{prefix}{name}-{uid[:8]}"


def with_condition(
    conditions: Collection[Condition], condition: Condition
) -> tuple[Condition, ...]:
    """Return `conditions` with `condition` in the place of the one of its type.

    `last_transition_at` stays as it was where the status did not change.
    """
    previous = next((each for each in conditions if each.type == condition.type), None)
    if previous is not None and previous.status == condition.status:
        condition = Condition(
            type=condition.type,
            status=condition.status,
            reason=condition.reason,
            message=condition.message,
            last_transition_at=previous.last_transition_at,
        )
    others = tuple(each for each in conditions if each.type != condition.type)
    return tuple(sorted((*others, condition), key=lambda each: each.type))


NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
NAME_LENGTH = 200
RESERVED_PREFIX = "sluiceway."

TOPIC_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"

_TOPIC = re.compile(TOPIC_PATTERN.removesuffix("$") + r"\Z")
_NAME = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")


def check_name(name: str) -> str:
    """Return `name` if a channel may have it.

    Raises ValueError saying which rule it breaks.
    """
    if not name:
        raise ValueError("a channel's name cannot be empty")
    if len(name) > NAME_LENGTH:
        raise ValueError(
            f"a channel's name has at most {NAME_LENGTH} characters, this one has {len(name)}"
        )
    if not _NAME.match(name):
        raise ValueError(
            "a channel's name consists of a-z, 0-9, '.', '_' and '-', "
            f"and starts with a letter or a digit: {name!r} does not"
        )
    if name.startswith(RESERVED_PREFIX):
        raise ValueError(
            f"names that start with {RESERVED_PREFIX!r} are reserved: choose another name"
        )
    return name


def check_topic(name: str) -> str:
    """Return `name` if it can be that of a topic to adopt.

    Raises ValueError saying which rule it breaks.
    """
    if not _TOPIC.match(name) or name in (".", ".."):
        raise ValueError(
            "a topic's name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-': "
            f"{name[:250]!r} does not"
        )
    if name.startswith("__"):
        raise ValueError(f"the topic {name!r} is one of Kafka's own: adopt another one")
    return name


MAX_LABELS = 64

_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")


def check_key(key: str) -> str:
    """Return `key` if a label may have it; raises ValueError with the rule it breaks."""
    prefix, slash, word = key.rpartition("/")
    if not _WORD.match(word) or (slash and not _PREFIX.match(prefix)):
        raise ValueError(
            f"{key[:100]!r} is not a label's key: up to 63 letters, digits, '-', '_' and '.', "
            "beginning and ending with a letter or a digit; a prefix like 'example.com/' may be "
            "put before"
        )
    return key


def check_value(value: str) -> str:
    """Return `value` if a label may have it; raises ValueError with the rule it breaks."""
    if value and not _WORD.match(value):
        raise ValueError(
            f"{value[:100]!r} is not a label's value: empty, or up to 63 letters, digits, '-', '_' "
            "and '.', beginning and ending with a letter or a digit"
        )
    return value


def check_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return `labels` if a channel may have them; raises ValueError with the rule they break."""
    if len(labels) > MAX_LABELS:
        raise ValueError(f"a channel has at most {MAX_LABELS} labels, not {len(labels)}")
    for key, value in labels.items():
        check_key(key)
        check_value(value)
    return labels
