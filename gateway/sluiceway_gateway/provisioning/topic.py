"""Topic of a channel: the settings that a spec may set, and the plan that makes Kafka match. Pure.

Planning again after the actions were applied gives no actions. A topic is never deleted or
recreated to fit a setting. An adopted topic, or one other than the recorded one, is never touched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from sluiceway_gateway.core.kafka.model import DesiredTopic, ObservedTopic

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
#: librdkafka's maximum of `message.max.bytes`.
MESSAGE_BYTES_MAX = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A refused setting, with the alternative in the message."""

    name: str
    message: str


Rule = Callable[[str], str]
"""Returns the canonical form of a value; raises ValueError with the expected values."""


def _integer(low: int, high: int) -> Rule:
    def rule(value: str) -> str:
        digits = value.strip().removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= 20
        if not is_number or not low <= int(value) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return str(int(value))

    return rule


def _ratio(value: str) -> str:
    expected = "expected a number from 0 to 1"
    try:
        number = float(value)
    except ValueError:
        raise ValueError(expected) from None
    if not 0.0 <= number <= 1.0:
        raise ValueError(expected)
    return str(number + 0.0)  # -0.0 is 0.0


def _choice(*choices: str) -> Rule:
    def rule(value: str) -> str:
        if value.strip() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return value.strip()

    return rule


def _cleanup_policy(value: str) -> str:
    policies = {part.strip() for part in value.split(",")}
    if not policies <= {"compact", "delete"}:
        raise ValueError("expected delete, compact, or compact,delete")
    return ",".join(sorted(policies))


_DURATION = _integer(0, INT64_MAX)

ALLOWED: Mapping[str, Rule] = {
    "cleanup.policy": _cleanup_policy,
    "compression.type": _choice("producer", "uncompressed", "gzip", "lz4", "snappy", "zstd"),
    "delete.retention.ms": _DURATION,
    "max.compaction.lag.ms": _integer(1, INT64_MAX),
    "max.message.bytes": _integer(1024, MESSAGE_BYTES_MAX),
    "message.timestamp.after.max.ms": _DURATION,
    "message.timestamp.before.max.ms": _DURATION,
    "message.timestamp.type": _choice("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _ratio,
    "min.compaction.lag.ms": _DURATION,
    "min.insync.replicas": _integer(1, 32767),
    # Kafka 4 requires at least one mebibyte.
    "segment.bytes": _integer(1024 * 1024, INT32_MAX),
    "segment.ms": _integer(1, INT64_MAX),
}

_KEPT_FROM_USERS: Mapping[str, str] = {
    "retention.ms": "set spec.retention.ms instead",
    "retention.bytes": "set spec.retention.bytes instead",
    "unclean.leader.election.enable": "it may lose acknowledged records; leave it out",
    "preallocate": "the broker manages it; leave it out",
    "flush.messages": "durability comes from replication; leave it out",
    "flush.ms": "durability comes from replication; leave it out",
    "remote.storage.enable": "the cluster's operator sets up tiered storage; leave it out",
}

#: Longest part of an unknown name in messages.
_NAME_LENGTH = 100

#: Overrides set by Kafka's own tools during reassignments; never treated as drift.
OPERATOR_OVERRIDES = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)


def _refused_name(name: str) -> str:
    if name in _KEPT_FROM_USERS:
        return f"a channel may not set {name}: {_KEPT_FROM_USERS[name]}"
    near = get_close_matches(name, ALLOWED, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(sorted(ALLOWED))}"
    return f"{name!r} is not a topic setting that a channel may set; {hint}"


def refusals(config: Mapping[str, str]) -> tuple[Refusal, ...]:
    """Return all refusals of settings in a channel's `spec.config`, sorted by name."""
    refused: list[Refusal] = []
    for name, value in sorted(config.items()):
        rule = ALLOWED.get(name)
        if rule is None:
            name = name[:_NAME_LENGTH]
            refused.append(Refusal(name=name, message=_refused_name(name)))
            continue
        try:
            rule(value)
        except ValueError as error:
            refused.append(
                Refusal(name=name, message=f"{name} is {value[:_NAME_LENGTH]!r}: {error}")
            )
    return tuple(refused)


def canonical(config: Mapping[str, str]) -> dict[str, str]:
    """Return the values as Kafka returns them, sorted by name.

    The settings must have no refusals; others raise ValueError or KeyError.
    """
    return {name: ALLOWED[name](value) for name, value in sorted(config.items())}


def topic_overrides(
    config: Mapping[str, str], *, retention_ms: int | None, retention_bytes: int | None
) -> dict[str, str]:
    """Return all overrides of a channel's topic: canonical config and retention."""
    overrides = dict(config)
    if retention_ms is not None:
        overrides["retention.ms"] = str(retention_ms)
    if retention_bytes is not None:
        overrides["retention.bytes"] = str(retention_bytes)
    return overrides


#: Replicas from which on a topic of committed records survives the loss of one.
SAFE_REPLICATION = 3


def all_overrides(desired: DesiredTopic, replication: int | None) -> dict[str, str]:
    """Return the overrides of a topic with this number of replicas, None for an unknown one.

    On a channel with exactly-once delivery no record may vanish between its acknowledgement and
    its commit: by compaction, by an old event time, or with a broker.
    """
    overrides = dict(desired.config)
    if not desired.exactly_once:
        return overrides
    overrides |= {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    if replication is not None and replication >= SAFE_REPLICATION:
        overrides["unclean.leader.election.enable"] = "false"
        overrides.setdefault("min.insync.replicas", "2")
    return overrides


@dataclass(frozen=True, kw_only=True)
class CreateTopic:
    """Create the topic; `replication` None takes the broker's default."""

    name: str
    partitions: int
    replication: int | None
    config: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GrowPartitions:
    """Raise the number of partitions to `partitions` in total."""

    name: str
    partitions: int


@dataclass(frozen=True, kw_only=True)
class AlterConfig:
    """Set some overrides, and delete others so that the broker's defaults apply."""

    name: str
    set: Mapping[str, str]
    delete: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The sorted names of all settings that change."""
        return sorted({*self.set, *self.delete})


@dataclass(frozen=True, kw_only=True)
class DeleteTopic:
    """Delete the topic and its data."""

    name: str


#: Kafka refuses to create 10,000 partitions at once, so larger topics are created small and grown.
PARTITIONS_AT_CREATION = 5_000

Action = CreateTopic | GrowPartitions | AlterConfig | DeleteTopic


class TopicMatch(StrEnum):
    """Relation of the observed topic to the recorded one."""

    ABSENT = "absent"  # neither observed nor recorded: to be created
    FOUND = "found"  # observed but not recorded, after a crash
    SAME = "same"  # the recorded one
    VANISHED = "vanished"  # recorded but no longer observed
    REPLACED = "replaced"  # recorded, but another topic has the name


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Actions in the order of execution.

    `surplus_partitions` is the number of partitions beyond the desired ones; they stay.
    """

    match: TopicMatch
    actions: tuple[Action, ...] = ()
    surplus_partitions: int = 0

    @property
    def lost(self) -> bool:
        """Whether the recorded topic is gone, so that nothing may be done."""
        return self.match in (TopicMatch.VANISHED, TopicMatch.REPLACED)


def match_topic(desired: DesiredTopic, observed: ObservedTopic | None) -> TopicMatch:
    """Compare the topics' identities."""
    if observed is None:
        return TopicMatch.ABSENT if desired.id is None else TopicMatch.VANISHED
    if desired.id is None:
        return TopicMatch.FOUND
    return TopicMatch.SAME if desired.id == observed.id else TopicMatch.REPLACED


def plan(desired: DesiredTopic, observed: ObservedTopic | None) -> Plan:
    """Return the actions that turn `observed` (None: no such topic) into `desired`."""
    match = match_topic(desired, observed)
    if not desired.owned:
        return Plan(match=match)
    if not desired.wanted:
        # A topic that replaced the recorded one has somebody else's data.
        is_own = match in (TopicMatch.FOUND, TopicMatch.SAME)
        return Plan(match=match, actions=(DeleteTopic(name=desired.name),) if is_own else ())
    if observed is None or match is TopicMatch.REPLACED:
        return Plan(match=match, actions=_creation(desired) if desired.id is None else ())
    actions: list[Action] = []
    if observed.partitions < desired.partitions:
        actions.append(GrowPartitions(name=desired.name, partitions=desired.partitions))
    actual = {k: v for k, v in observed.config.items() if k not in OPERATOR_OVERRIDES}
    wanted = all_overrides(desired, observed.replication)
    wrong = {k: v for k, v in wanted.items() if actual.get(k) != v}
    unasked = frozenset(actual.keys() - wanted.keys())
    if wrong or unasked:
        actions.append(AlterConfig(name=desired.name, set=wrong, delete=unasked))
    return Plan(
        match=match,
        actions=tuple(actions),
        surplus_partitions=max(0, observed.partitions - desired.partitions),
    )


def _creation(desired: DesiredTopic) -> tuple[Action, ...]:
    create = CreateTopic(
        name=desired.name,
        partitions=min(desired.partitions, PARTITIONS_AT_CREATION),
        replication=desired.replication,
        config=all_overrides(desired, desired.replication),
    )
    if create.partitions == desired.partitions:
        return (create,)
    return create, GrowPartitions(name=desired.name, partitions=desired.partitions)
