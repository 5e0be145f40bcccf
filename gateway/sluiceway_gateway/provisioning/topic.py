"""The plan that makes a topic in Kafka match its channel. Pure.

Planning again after the actions were applied gives no actions. A topic is never deleted or
recreated to fit a setting. An adopted topic, or one other than the recorded one, is never touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluiceway_gateway.core.kafka.model import (
    AlterConfig,
    CreateTopic,
    DeleteTopic,
    DesiredTopic,
    GrowPartitions,
    ObservedTopic,
)

#: Overrides set by Kafka's own tools during reassignments; never treated as drift.
OPERATOR_OVERRIDES = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)


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
