"""Carrying out plans on Kafka, those of many channels with few requests."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluiceway_gateway.broker import Kafka
from sluiceway_gateway.domain.rejection import Cause, Rejection
from sluiceway_gateway.provisioning.plan import (
    Action,
    AlterConfig,
    CreateTopic,
    DeleteTopic,
    GrowPartitions,
)


@dataclass(frozen=True, kw_only=True)
class Done:
    """What came of some actions: the topics that were made, and by topic what was refused."""

    created: frozenset[str] = frozenset()
    grown: frozenset[str] = frozenset()
    configured: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    rejections: Mapping[str, Rejection] = field(default_factory=dict)

    @property
    def topics(self) -> frozenset[str]:
        """All topics that something was done to."""
        return self.created | self.grown | self.configured | self.deleted


def carry_out(kafka: Kafka, actions: Iterable[Action]) -> Done:
    """Do all that Kafka lets us do; one topic's refusal does not keep others from anything.

    Raises KafkaUnavailable where Kafka does not answer; then part may have been done.
    """
    asked = list(actions)
    rejections: dict[str, Rejection] = {}

    def accepted(outcomes: Mapping[str, Rejection | None]) -> frozenset[str]:
        for name, rejection in outcomes.items():
            if rejection is not None:
                rejections.setdefault(name, rejection)
        return frozenset(name for name, rejection in outcomes.items() if rejection is None)

    created = accepted(
        kafka.create_topics([each for each in asked if isinstance(each, CreateTopic)])
    )
    # What could not be made cannot be grown: the first refusal is the one to tell.
    growths = [each for each in asked if isinstance(each, GrowPartitions)]
    grown = accepted(
        kafka.grow_partitions([each for each in growths if each.name not in rejections])
    )
    configured = accepted(
        kafka.alter_configs([each for each in asked if isinstance(each, AlterConfig)])
    )
    deletions = kafka.delete_topics([each.name for each in asked if isinstance(each, DeleteTopic)])
    # What is absent need not be deleted.
    deleted = accepted({name: each for name, each in deletions.items() if not _absent(each)})
    return Done(
        created=created,
        grown=grown,
        configured=configured,
        deleted=deleted,
        rejections=rejections,
    )


def _absent(rejection: Rejection | None) -> bool:
    return rejection is not None and rejection.cause is Cause.TOPIC_ABSENT
