"""Plan: the difference between the desired and the observed topic. Pure.

`plan(desired, observed)` compares; carrying out its actions and planning again on what is then
observed gives no actions. A topic is never deleted or made anew to fit a setting; a topic that is
not the recorded one, and one that was adopted, is never touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluiceway_gateway.kafka.model import DesiredTopic, ObservedTopic
from sluiceway_gateway.provisioning.topic_config import OPERATOR_OVERRIDES


@dataclass(frozen=True, kw_only=True)
class CreateTopic:
    """Make the topic; `replication` None leaves the number of replicas to the broker."""

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
    """Set some overrides, and delete others so that the broker's defaults hold again."""

    name: str
    set: Mapping[str, str]
    delete: frozenset[str]

    @property
    def names(self) -> list[str]:
        """The names of all settings that change, sorted."""
        return sorted({*self.set, *self.delete})


@dataclass(frozen=True, kw_only=True)
class DeleteTopic:
    """Delete the topic and its data."""

    name: str


#: Kafka refuses a request that makes 10,000 partitions; so large a topic grows to its size.
PARTITIONS_AT_CREATION = 5_000

Action = CreateTopic | GrowPartitions | AlterConfig | DeleteTopic


class TopicMatch(StrEnum):
    """How the topic that was observed relates to the one that was recorded."""

    ABSENT = "absent"  # none there, none recorded: it is yet to be made
    FOUND = "found"  # there under the channel's own name, but not recorded: a crash came between
    SAME = "same"  # the recorded one
    VANISHED = "vanished"  # recorded, and no longer there
    REPLACED = "replaced"  # recorded, but now another topic bears the name


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The actions in the order to carry them out.

    `surplus_partitions` is how many partitions the topic has beyond those asked for; they stay.
    """

    standing: TopicMatch
    actions: tuple[Action, ...] = ()
    surplus_partitions: int = 0

    @property
    def lost(self) -> bool:
        """Whether the recorded topic is gone; then there is nothing that may be done."""
        return self.standing in (TopicMatch.VANISHED, TopicMatch.REPLACED)


def standing(desired: DesiredTopic, observed: ObservedTopic | None) -> TopicMatch:
    """Compare identities only."""
    if observed is None:
        return TopicMatch.ABSENT if desired.id is None else TopicMatch.VANISHED
    if desired.id is None:
        return TopicMatch.FOUND
    return TopicMatch.SAME if desired.id == observed.id else TopicMatch.REPLACED


def plan(desired: DesiredTopic, observed: ObservedTopic | None) -> Plan:
    """Compare what is wanted with what is there, None if no topic bears the name."""
    stands = standing(desired, observed)
    if not desired.owned:
        return Plan(standing=stands)
    if not desired.wanted:
        # A topic that took the place of ours is somebody else's data: it is left alone.
        doomed = stands in (TopicMatch.FOUND, TopicMatch.SAME)
        return Plan(standing=stands, actions=(DeleteTopic(name=desired.name),) if doomed else ())
    if observed is None or stands is TopicMatch.REPLACED:
        return Plan(standing=stands, actions=_creation(desired) if desired.id is None else ())
    actions: list[Action] = []
    if observed.partitions < desired.partitions:
        actions.append(GrowPartitions(name=desired.name, partitions=desired.partitions))
    actual = {k: v for k, v in observed.config.items() if k not in OPERATOR_OVERRIDES}
    wrong = {k: v for k, v in desired.config.items() if actual.get(k) != v}
    unasked = frozenset(actual.keys() - desired.config.keys())
    if wrong or unasked:
        actions.append(AlterConfig(name=desired.name, set=wrong, delete=unasked))
    return Plan(
        standing=stands,
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
