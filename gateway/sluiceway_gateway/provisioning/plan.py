"""Plan: the difference between the desired and the observed topic. Pure.

Planning again after the actions were applied gives no actions. A topic is never deleted or
recreated to fit a setting. An adopted topic, or one other than the recorded one, is never touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluiceway_gateway.kafka.model import DesiredTopic, ObservedTopic
from sluiceway_gateway.provisioning.topic_config import OPERATOR_OVERRIDES


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
        # A topic that replaced the recorded one holds somebody else's data.
        doomed = match in (TopicMatch.FOUND, TopicMatch.SAME)
        return Plan(match=match, actions=(DeleteTopic(name=desired.name),) if doomed else ())
    if observed is None or match is TopicMatch.REPLACED:
        return Plan(match=match, actions=_creation(desired) if desired.id is None else ())
    actions: list[Action] = []
    if observed.partitions < desired.partitions:
        actions.append(GrowPartitions(name=desired.name, partitions=desired.partitions))
    actual = {k: v for k, v in observed.config.items() if k not in OPERATOR_OVERRIDES}
    wrong = {k: v for k, v in desired.config.items() if actual.get(k) != v}
    unasked = frozenset(actual.keys() - desired.config.keys())
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
        config=dict(desired.config),
    )
    if create.partitions == desired.partitions:
        return (create,)
    return create, GrowPartitions(name=desired.name, partitions=desired.partitions)
