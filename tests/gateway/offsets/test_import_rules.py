"""Import of offsets from Kafka: what becomes of each partition, and what refuses it."""

from collections.abc import Mapping

import pytest

from sluiceway_gateway.core.kafka.model import GroupOffset, KafkaGroup, Watermarks
from sluiceway_gateway.endpoints.positions import Position
from sluiceway_gateway.offsets.importing import ImportPlan, ImportResult, PartitionImport


def partition(
    number: int, in_kafka: int | None, before: tuple[int, int] | None = None
) -> PartitionImport:
    """Return a partition with the messages 10 to 99."""
    return PartitionImport(
        partition=number,
        kafka_offset=in_kafka,
        metadata="m",
        before=before and Position(partition=number, offset=before[0], record=before[1]),
        watermarks=Watermarks(begin_offset=10, end_offset=100),
    )


def plan(
    *partitions: PartitionImport,
    active: bool = False,
    members: int = 0,
    stable: Mapping[int, int] | None = None,
) -> ImportPlan:
    offsets = {0: GroupOffset(offset=1, metadata=None)}
    return ImportPlan(
        channel="orders",
        topic="orders.v1",
        group="billing",
        kafka_group=KafkaGroup(name="bills", active=active, offsets=offsets),
        members=members,
        partitions=partitions,
        stable=stable,
    )


@pytest.mark.parametrize(
    ("in_kafka", "before", "result", "after"),
    [
        (40, None, ImportResult.IMPORTED, (40, 0)),
        (40, (39, 7), ImportResult.IMPORTED, (40, 0)),
        (40, (40, 0), ImportResult.KEPT, (40, 0)),
        (40, (40, 3), ImportResult.KEPT, (40, 3)),
        (40, (90, 0), ImportResult.KEPT, (90, 0)),
        (None, (90, 0), ImportResult.ABSENT, (90, 0)),
        (None, None, ImportResult.ABSENT, None),
        # Its messages have expired; the reader's own rule applies, as in Kafka.
        (3, None, ImportResult.IMPORTED, (3, 0)),
        (100, None, ImportResult.IMPORTED, (100, 0)),
    ],
)
def test_a_position_becomes_kafkas_offset_but_never_moves_back(
    in_kafka: int | None,
    before: tuple[int, int] | None,
    result: ImportResult,
    after: tuple[int, int] | None,
) -> None:
    imported = partition(0, in_kafka, before)
    assert imported.result is result
    assert (imported.after and imported.after.order) == after
    assert plan(imported).imported == ((imported.after,) if result == "imported" else ())
    if result == "imported":
        assert imported.after is not None
        assert imported.after.metadata == "m"


@pytest.mark.parametrize(
    ("refused", "code", "reason"),
    [
        (plan(partition(0, 40), active=True), "members_open", "Kafka's group 'bills' has members"),
        (plan(partition(0, 40), members=2), "members_open", "'billing' has 2 live members here"),
        (
            plan(partition(0, None), partition(1, None)),
            "group_not_found",
            "Kafka's group 'bills' has no committed offset in the topic 'orders.v1'",
        ),
        (
            plan(partition(0, 40), partition(1, 101)),
            "topic_changed",
            "the offset 101 in partition 1 of the topic 'orders.v1', which ends at 100",
        ),
        (
            plan(partition(0, 40), partition(1, 41), stable={0: 40, 1: 40}),
            "conflict",
            "the offset 41 in partition 1, where readers read up to 40",
        ),
        (plan(partition(2, 1), stable={}), "conflict", "where readers read up to 0"),
    ],
)
def test_an_import_that_would_skip_or_repeat_records_is_refused(
    refused: ImportPlan, code: str, reason: str
) -> None:
    refusal = refused.refusal()
    assert refusal is not None
    assert refusal.code == code
    assert reason in str(refusal)


def test_other_imports_are_not_refused() -> None:
    partitions = (partition(0, 40), partition(1, None), partition(2, 100, (10, 0)))
    assert plan(*partitions).refusal() is None
    assert plan(*partitions, stable={0: 40, 2: 100}).refusal() is None
