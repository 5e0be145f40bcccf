"""Import of the committed offsets of Kafka's own consumer groups."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluiceway_gateway.channels.model import Channel, Delivery
from sluiceway_gateway.channels.service import find_channel, hold_channel, require_usable
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.errors import (
    Conflict,
    GroupNotFound,
    KafkaUnavailable,
    MembersOpen,
    TopicChanged,
)
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import KafkaGroup, Watermarks
from sluiceway_gateway.endpoints import position_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.change_store import add_events
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.model import Event, Role
from sluiceway_gateway.endpoints.positions import Position, require_topic
from sluiceway_gateway.offsets.service import (
    hold_members,
    position_fields,
    put_positions,
    shared_group,
)

StableOf = Callable[[ReadTransaction, str], Mapping[int, int]]
"""Returns `stable` by partition of the exactly-once channel with this uid."""


class ImportResult(StrEnum):
    """What an import does with the position of a partition."""

    IMPORTED = "imported"
    """It becomes the offset in Kafka."""
    KEPT = "kept"
    """The group has read as far or further here."""
    ABSENT = "absent"
    """Kafka's group has no offset in the partition."""


@dataclass(frozen=True, kw_only=True)
class PartitionImport:
    """The position of a partition before and after an import; None without one."""

    partition: int
    kafka_offset: int | None
    metadata: str | None
    before: Position | None
    watermarks: Watermarks

    @property
    def result(self) -> ImportResult:
        """What the import does."""
        if self.kafka_offset is None:
            return ImportResult.ABSENT
        if self.before is not None and self.before.order >= (self.kafka_offset, 0):
            return ImportResult.KEPT
        return ImportResult.IMPORTED

    @property
    def after(self) -> Position | None:
        """The position after the import."""
        if self.result is not ImportResult.IMPORTED or self.kafka_offset is None:
            return self.before
        return Position(partition=self.partition, offset=self.kafka_offset, metadata=self.metadata)


@dataclass(frozen=True, kw_only=True)
class ImportPlan:
    """What an import does, or why it is refused."""

    channel: str
    topic: str
    group: str
    kafka_group: KafkaGroup
    members: int
    """Live members of the group here."""
    partitions: tuple[PartitionImport, ...]
    stable: Mapping[int, int] | None
    """By partition, up to where readers of an exactly-once channel read; None for others."""

    @property
    def imported(self) -> tuple[Position, ...]:
        """The positions that change."""
        return tuple(
            partition.after
            for partition in self.partitions
            if partition.after is not None and partition.result is ImportResult.IMPORTED
        )

    def refusal(self) -> Conflict | GroupNotFound | None:
        """Return the reason why the import is refused, or None."""
        name = self.kafka_group.name
        if self.kafka_group.active:
            return MembersOpen(
                f"Kafka's group {name!r} has members, which read on and commit there: stop its "
                "consumers, and import again."
            )
        if self.members:
            return MembersOpen(
                f"The group {self.group!r} has {self.members} live members here, which have begun "
                "at other positions: stop them, and import again."
            )
        if all(partition.kafka_offset is None for partition in self.partitions):
            return GroupNotFound(
                f"Kafka's group {name!r} has no committed offset in the topic {self.topic!r}: "
                "check its name. Kafka also forgets the offsets of a group that has had no member "
                "for offsets.retention.minutes, a week by default."
            )
        for partition in self.partitions:
            end, offset = partition.watermarks.end_offset, partition.kafka_offset or 0
            if offset > end:
                return TopicChanged(
                    f"Kafka's group {name!r} has the offset {offset} in partition "
                    f"{partition.partition} of the topic {self.topic!r}, which ends at {end}: the "
                    "offset is of an earlier topic of this name, or the topic has lost messages. "
                    "Set the group's positions with offsets/reset."
                )
            stable = end if self.stable is None else self.stable.get(partition.partition, 0)
            if offset > stable:
                return Conflict(
                    f"The channel {self.channel!r} is exactly_once, and Kafka's group {name!r} has "
                    f"the offset {offset} in partition {partition.partition}, where readers read "
                    f"up to {stable}: records before the offset may still become visible, and "
                    "would not be read. Commit or abort the open batches, and import again, or set "
                    "the group's positions with offsets/reset."
                )
        return None


@dataclass(frozen=True, kw_only=True)
class _Observed:
    """A group and its topic in Kafka."""

    topic_id: str
    group: KafkaGroup
    watermarks: Mapping[int, Watermarks]


class OffsetImports:
    """Imports offsets of Kafka's groups into one database."""

    def __init__(
        self,
        database: Database,
        kafka: KafkaAdmin,
        *,
        ownership: Ownership,
        stable_of: StableOf,
        clock: Clock = system_clock,
    ) -> None:
        self._database = database
        self._kafka = kafka
        self._ownership = ownership
        self._stable_of = stable_of
        self._clock = clock

    def plan(self, name: str, group: str, *, kafka_group: str) -> ImportPlan:
        """Return what an import would do; changes nothing.

        Raises ChannelNotFound, ChannelNotReady, TopicChanged for another topic of this name in
        Kafka, and KafkaUnavailable.
        """
        observed = self._observe(name, kafka_group)
        with self._database.read() as tx:
            return self._plan(tx, find_channel(tx, name), group, observed)

    def run(
        self, name: str, group: str, *, kafka_group: str, uid: str, principal: Principal
    ) -> ImportPlan:
        """Store the offsets of Kafka's group as positions of the group, all or none.

        Never moves a position back. A repeat changes nothing. A group that never had a member is
        created. After a change, lost members that return cannot commit, as after a reset. Raises
        the errors of `plan`, its `refusal`, UidMismatch, Forbidden, and GroupMode for a broadcast
        group.
        """
        principal.require(Action.READ, name)
        observed, now = self._observe(name, kafka_group), self._clock()
        with self._database.write() as tx:
            channel = hold_channel(tx, name, uid)
            require_topic(channel.topic.id, observed.topic_id)
            current = shared_group(tx, channel, group, owner=principal.subject)
            self._ownership.require(principal, current.owned(name), "reset")
            groups_store.claim(tx, current, principal, channel=name, now=now)
            # Commits in progress end first.
            hold_members(tx, current)
            plan = self._plan(tx, channel, group, observed)
            refusal = plan.refusal()
            if refusal is not None:
                raise refusal
            if not plan.imported:
                return plan
            before = position_store.of(tx, channel.uid, group, member=-1)
            put_positions(tx, (channel.uid, group, -1), plan.imported, observed.topic_id, now)
            # Lost members that return would read again what the import skips. Those of a dynamic
            # group have no shares any more.
            groups_store.save(tx, current.next_generation(now))
            endpoints_store.revise(tx, [channel.uid])
            reason = f"imported from Kafka's group {kafka_group!r}"
            add_events(
                tx,
                [
                    Event(
                        channel_uid=channel.uid,
                        at=now,
                        group_name=group,
                        cause=reason,
                        by=principal.id,
                    )
                ],
            )
            audit_store.add(
                tx,
                channel,
                AuditedAction.RESET_OFFSETS,
                by=principal,
                at=now,
                target=group,
                reason=reason,
                old=position_fields(before),
                new=position_fields(position_store.of(tx, channel.uid, group, member=-1)),
            )
        return plan

    def _observe(self, name: str, kafka_group: str) -> _Observed:
        """Request group and topic from Kafka, outside of any transaction."""
        with self._database.read() as tx:
            channel = find_channel(tx, name)
        require_usable(channel, writes=False)
        topic = channel.topic.name
        described = self._kafka.describe_topic(topic)
        if described is None or described.id != channel.topic.id:
            raise TopicChanged(
                f"Kafka's topic {topic!r} is not that of the channel {name!r}: it was deleted"
                f"{' and created again' if described else ''}, so its groups' offsets are of other "
                "records. Delete the channel, and create it again."
            )
        partitions = [partition.partition for partition in described.partitions]
        group = self._kafka.consumer_group(kafka_group, topic, partitions)
        watermarks = self._kafka.watermarks(topic, partitions)
        if silent := [partition for partition, marks in watermarks.items() if marks is None]:
            raise KafkaUnavailable(
                f"The leader of partition {silent[0]} of the topic {topic!r} does not answer. "
                "Nothing was lost: send the request again when it does."
            )
        return _Observed(
            topic_id=described.id,
            group=group,
            watermarks={at: marks for at, marks in watermarks.items() if marks is not None},
        )

    def _plan(
        self, tx: ReadTransaction, channel: Channel, group: str, observed: _Observed
    ) -> ImportPlan:
        stored = {
            committed.position.partition: committed.position
            for _, committed in position_store.of(tx, channel.uid, group, member=-1)
            if committed.topic_id == observed.topic_id
        }
        members = endpoints_store.members(tx, channel.uid, Role.READER, group)
        exactly_once = channel.spec.delivery is Delivery.EXACTLY_ONCE
        offsets = observed.group.offsets
        return ImportPlan(
            channel=channel.name,
            topic=channel.topic.name,
            group=group,
            kafka_group=observed.group,
            members=sum(member.lives for member in members),
            partitions=tuple(
                PartitionImport(
                    partition=partition,
                    kafka_offset=offsets[partition].offset if partition in offsets else None,
                    metadata=offsets[partition].metadata if partition in offsets else None,
                    before=stored.get(partition),
                    watermarks=marks,
                )
                for partition, marks in sorted(observed.watermarks.items())
            ),
            stable=self._stable_of(tx, channel.uid) if exactly_once else None,
        )
