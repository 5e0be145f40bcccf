"""Endpoints of a consumer at its channels: members of groups, or with chosen partitions."""

import functools
import logging
import time
from collections.abc import Callable, Collection, Mapping

from sluiceway import Position
from sluiceway.confluent.config import ConsumerSettings
from sluiceway.confluent.waiting import WakeupEvent
from sluiceway.errors import SluicewayError, StaleGeneration, TopicGone
from sluiceway.spi import (
    AttachedEndpoint,
    Background,
    MaskedProperties,
    OffsetCommitter,
    PartitionAssignment,
    PositionAdvance,
    TopicIdentity,
    visibility_of,
)

__all__ = ["ChannelMember"]

LOGGER = logging.getLogger("sluiceway.confluent")

_TIMEOUT_S = 30.0
_TOPIC_CHECK_S = 5.0
"""Time between comparisons of the topic's id with the channel's."""
_ASSIGN_TIMEOUT_S = 10.0
"""Timeout of `assign` while the gateway does not answer."""


class ChannelMember:
    """An endpoint of a channel that commits for a group; `held` are its partitions.

    A member of a dynamic group has a `share`, the partitions that the gateway assigns. Without one,
    the caller assigns the partitions, and the group is not joined.

    Offsets are of whole messages, because librdkafka returns messages, not records.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        channel: str,
        *,
        wakeup: WakeupEvent | None = None,
        continues: bool = True,
    ) -> None:
        """Join the group if there is a `wakeup`, which the response to every heartbeat sets.

        `continues`: it begins at the group's committed positions.
        """
        control, joins = settings.control, wakeup is not None
        resource = control.channel(channel, timeout_s=None if joins else _ASSIGN_TIMEOUT_S)
        self.handle = handle = AttachedEndpoint(
            control,
            channel=channel,
            uid=resource.uid,
            role="reader",
            membership=settings.membership if joins else None,
            close_timeout_s=_TIMEOUT_S,
            **(settings.heartbeat_in(resource.heartbeat) if joins else {}),
        ).attach(_TIMEOUT_S)
        self.connection = handle.attached.connection
        self.share: PartitionAssignment | None = None
        with handle.reporting_failure():
            self.visibility = visibility_of(
                control.ledger, self.connection, grace_s=control.grace_s
            )
            self._commits = OffsetCommitter(
                channel,
                settings.group,
                uid=handle.uid,
                topic_id=self.connection.topic_id,
                member=handle if joins else None,
                calls=handle.calls,
            )
            if wakeup is None:
                committed = self._commits.fetch()
            else:
                self.share = PartitionAssignment(handle, notify=wakeup.set)
                self.share.join()
                committed = self.share.positions
        if continues and resource.adopted_topic is not None and not committed:
            # In the background: nothing waits for Kafka's coordinators.
            Background().run(functools.partial(_warn_of_offsets_in_kafka, settings, channel))
        self.held: tuple[int, ...] = ()
        self.initial_total = 0 if self.share is None else self.share.total
        """The number of partitions when it joined; later ones are read from their beginning."""
        self._identity: TopicIdentity | None = None
        self._gone: TopicGone | None = None
        self._topic_due_s = 0.0
        self._checking = Background()
        self._done = 0
        self._starts: dict[int, int] = {}
        self._progress: tuple[int, Mapping[int, Position]] = (0, {})
        handle.metrics.observe(self.progress)

    @property
    def channel(self) -> str:
        """The channel's name."""
        return self.handle.channel

    def require_topic(self, config: MaskedProperties) -> None:
        """Raise TopicGone if the topic is gone or was created again; no call waits for Kafka.

        `config` has the Kafka properties of the consumer.
        """
        if self._gone is not None:
            raise self._gone
        now_s = time.monotonic()
        if now_s >= self._topic_due_s:
            self._topic_due_s = now_s + _TOPIC_CHECK_S
            self._checking.run(functools.partial(self._check_topic, config))

    def _check_topic(self, config: MaskedProperties) -> None:
        try:
            if self._identity is None:
                self._identity = TopicIdentity(self.connection, config)
            self._identity.verify(timeout_s=_TOPIC_CHECK_S, max_age_s=_TOPIC_CHECK_S / 2)
        except TopicGone as error:
            self._gone = error
        except SluicewayError as error:
            LOGGER.info("the topic of %s is checked later: %s", self.channel, error)

    def learn(self, partitions: Collection[int]) -> None:
        """Take the committed positions of partitions that are assigned anew."""
        if self.share is None:
            self._commits.fetch(partitions)
            return
        self._commits.revoke(partitions)
        committed = {p: at for p, at in self.share.positions.items() if p in partitions}
        self._commits.assign({}, committed)

    def add(self, offsets: Mapping[int, int]) -> None:
        """Add partitions with their start offsets."""
        self.held = tuple(sorted({*self.held, *offsets}))
        self._starts |= offsets
        self._commits.assign(_positions(offsets), {})

    def remove(self, offsets: Mapping[int, int]) -> None:
        """Remove partitions, with the next offset of each."""
        self._done += self._count(offsets)
        self.held = tuple(p for p in self.held if p not in offsets)
        if self.share is not None:
            self._commits.revoke(offsets)

    def record_positions(self, offsets: Mapping[int, int]) -> None:
        """Record the next offset of each partition, for commits and heartbeats.

        librdkafka serves one thread at a time, so heartbeats get the offsets of the last poll.
        """
        positions = _positions(offsets)
        self._commits.track_consumed(positions)
        self._progress = (self._done + self._count(offsets), positions)
        if self._progress[0]:
            self.handle.record_cycle(self._progress[0])

    def progress(self) -> tuple[int, Mapping[int, Position]]:
        """Return the last recorded number of returned messages, and the positions."""
        return self._progress

    def commit(self, positions: Mapping[int, Position]) -> None:
        """Commit positions, all or none; from any thread, one at a time. Raises SluicewayError."""
        self.handle.check()
        try:
            self._commits.commit(positions)
        except StaleGeneration:
            # A poll in another thread may just have taken a new assignment with these partitions.
            if self.share is None or not self.share.has_kept(positions):
                raise
            self._commits.commit(positions)

    def commit_with(
        self, positions: Mapping[int, Position], send: Callable[[PositionAdvance | None], None]
    ) -> None:
        """Commit a group member's positions by the caller's `send`, for transactions."""
        self._commits.commit_with(send, dict, positions)

    def committed(self, partition: int) -> int | None:
        """Return the last seen committed offset, without a request."""
        position = self._commits.cached_position(partition)
        return None if position is None else position.offset

    def _count(self, offsets: Mapping[int, int]) -> int:
        return sum(max(0, at - self._starts.get(p, at)) for p, at in offsets.items())


def _warn_of_offsets_in_kafka(settings: ConsumerSettings, channel: str) -> None:
    """Warn if the group, which has no position here, has committed offsets in Kafka."""
    group = settings.group
    try:
        plan = settings.control.endpoints.plan_import(
            channel, group, kafka_group=None, timeout_s=_TIMEOUT_S
        )
    except SluicewayError as error:
        LOGGER.debug("the offsets of %s in Kafka are not compared: %s", group, error)
        return
    # Other members may have positions that did not come with the assignment.
    if plan.changes and all(partition.before is None for partition in plan.partitions):
        LOGGER.warning(
            "the group %r has committed offsets in Kafka for the topic of the channel %r, but no "
            "position here, so it begins by auto.offset.reset=%s. To continue at its offsets, stop "
            "it and run `sluiceway offsets import --group %s --from-kafka %s`; if it has committed "
            "since, delete these positions before: channel.reset(%r, reason=…)",
            *(group, channel, settings.reset, group, channel, group),
        )


def _positions(offsets: Mapping[int, int]) -> dict[int, Position]:
    return {p: Position(offset=at) for p, at in offsets.items()}
