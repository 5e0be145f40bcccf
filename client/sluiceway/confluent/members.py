"""Endpoints of a consumer at its channels: members of groups, manual consumers."""

import functools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping

from sluiceway.confluent.config import ConsumerSettings
from sluiceway.endpoint.assignment import PartitionAssignment
from sluiceway.endpoint.committer import OffsetCommitter, StandaloneCommitter
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import CommitBeyondRead, SluicewayError, StaleGeneration, TopicGone
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.ledger.visibility import visibility_of
from sluiceway.rest.channels import Control
from sluiceway.rest.endpoints import HeartbeatResult, Position
from sluiceway.rest.ledger_models import PositionAdvance
from sluiceway.runtime.threads import Background, Signal

__all__ = ["ChannelMember", "ManualConsumer", "SubscribedConsumer"]

LOGGER = logging.getLogger("sluiceway.confluent")

_TIMEOUT_S = 30.0
_TOPIC_CHECK_S = 5.0
"""Time between comparisons of the topic's id with the channel's."""
_ASSIGN_TIMEOUT_S = 10.0
"""Timeout of `assign` while the gateway does not answer."""


class ChannelMember(ABC):
    """An endpoint of a channel that commits for a group; `held` are its partitions.

    Offsets are of whole messages, because librdkafka returns messages, not records.
    """

    _commits: OffsetCommitter | StandaloneCommitter

    def __init__(
        self,
        control: Control,
        channel: str,
        settings: ConsumerSettings | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        resource = control.channel(channel, timeout_s=timeout_s)
        self.handle = EndpointHandle(
            control,
            channel=channel,
            uid=resource.uid,
            role="reader",
            membership=None if settings is None else settings.membership,
            timeout_s=_TIMEOUT_S,
            close_timeout_s=_TIMEOUT_S,
            **({} if settings is None else settings.heartbeat_in(resource.heartbeat)),
        )
        self.connection = self.handle.attached.connection
        with self.handle.reporting_failure():
            self.visibility = visibility_of(
                control.ledger, self.connection, grace_s=control.grace_s
            )
        self.held: tuple[int, ...] = ()
        self._identity: TopicIdentity | None = None
        self._gone: TopicGone | None = None
        self._topic_due_s = 0.0
        self._checking = Background()
        self._done = 0
        self._starts: dict[int, int] = {}
        self._progress: tuple[int, Mapping[int, Position]] = (0, {})
        self.handle.metrics.observe(self.progress)

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

    def add(self, offsets: Mapping[int, int]) -> None:
        """Add partitions with their start offsets."""
        self.held = tuple(sorted({*self.held, *offsets}))
        self._starts |= offsets

    def remove(self, offsets: Mapping[int, int]) -> None:
        """Remove partitions, with the next offset of each."""
        self._done += self._count(offsets)
        self.held = tuple(p for p in self.held if p not in offsets)

    def record_positions(self, offsets: Mapping[int, int]) -> None:
        """Record the next offset of each partition, for commits and heartbeats.

        librdkafka serves one thread at a time, so heartbeats get the offsets of the last poll.
        """
        self.track_consumed(offsets)
        self._progress = (self._done + self._count(offsets), positions_at(offsets))
        if self._progress[0]:
            self.handle.record_cycle(self._progress[0])

    def progress(self) -> tuple[int, Mapping[int, Position]]:
        """Return the last recorded number of returned messages, and the positions."""
        return self._progress

    def _count(self, offsets: Mapping[int, int]) -> int:
        return sum(max(0, at - self._starts.get(p, at)) for p, at in offsets.items())

    @abstractmethod
    def track_consumed(self, offsets: Mapping[int, int]) -> None:
        """Allow commits up to these offsets: the messages before them were returned."""

    @abstractmethod
    def commit(self, positions: Mapping[int, Position]) -> None:
        """Commit positions, all or none; from any thread, one at a time. Raises SluicewayError."""

    def committed(self, partition: int) -> int | None:
        """Return the last seen committed offset, without a request."""
        found = self._commits.last_known(partition)
        return None if found is None else found.offset


class SubscribedConsumer(ChannelMember):
    """A member of a dynamic group, whose partitions the gateway assigns.

    `wakeup` is set by the response to every heartbeat.
    """

    _commits: OffsetCommitter

    def __init__(self, settings: ConsumerSettings, channel: str, *, wakeup: Signal) -> None:
        super().__init__(settings.control, channel, settings)
        handle = self.handle
        with handle.reporting_failure():
            self._commits = OffsetCommitter(handle, topic_id=self.connection.topic_id)
            self.share = PartitionAssignment(handle)
            update = self.share.on_heartbeat

            def on_heartbeat(result: HeartbeatResult) -> None:
                update(result)
                wakeup.set()

            handle.on_result = on_heartbeat
            self.share.join()
        self.initial_total = self.share.total

    def learn(self, partitions: Collection[int]) -> None:
        """Take the committed positions of new partitions from the assignment."""
        self._commits.revoke(partitions)
        committed = {p: at for p, at in self.share.positions.items() if p in partitions}
        self._commits.assign({}, committed)

    def add(self, offsets: Mapping[int, int]) -> None:
        """Add partitions with their start offsets."""
        super().add(offsets)
        self._commits.assign(positions_at(offsets), {})

    def remove(self, offsets: Mapping[int, int]) -> None:
        """Remove partitions, with the next offset of each."""
        super().remove(offsets)
        self._commits.revoke(offsets)

    def track_consumed(self, offsets: Mapping[int, int]) -> None:
        """Allow commits up to these offsets: the messages before them were returned."""
        self._commits.track_consumed(positions_at(offsets))

    def commit(self, positions: Mapping[int, Position]) -> None:
        """Commit positions, all or none."""
        try:
            self._commits.commit(positions, dict)
        except StaleGeneration:
            self.share.request_rebalance()
            raise

    def commit_with(
        self, positions: Mapping[int, Position], send: Callable[[PositionAdvance | None], None]
    ) -> None:
        """Commit positions by the caller's `send`, for transactions."""
        self._commits.commit_with(send, dict, positions)


class ManualConsumer(ChannelMember):
    """A reader of partitions that the caller assigns, which commits for a group without joining."""

    _commits: StandaloneCommitter

    def __init__(self, control: Control, channel: str, group: str) -> None:
        super().__init__(control, channel, timeout_s=_ASSIGN_TIMEOUT_S)
        self._furthest: dict[int, int] = {}
        self._commits = StandaloneCommitter(
            channel, group, uid=self.handle.uid, topic_id=self.connection.topic_id
        )
        with self.handle.reporting_failure():
            self._commits.fetch(control.endpoints)

    def track_consumed(self, offsets: Mapping[int, int]) -> None:
        """Allow commits up to these offsets: the messages before them were returned."""
        for partition, at in offsets.items():
            self._furthest[partition] = max(at, self._furthest.get(partition, at))

    def commit(self, positions: Mapping[int, Position]) -> None:
        """Commit positions, all or none."""
        self.handle.check()
        for partition, at in positions.items():
            furthest = self._furthest.get(partition, 0)
            if at.offset > furthest:
                raise CommitBeyondRead(
                    f"partition {partition}: offset {at.offset} is past the returned messages, "
                    f"which end at {furthest}; nothing was committed"
                )
        self._commits.commit(self.handle.calls, positions)

    def learn(self, partitions: Collection[int]) -> None:
        """Request the group's committed offsets of partitions that are assigned again."""
        self._commits.fetch(self.handle.calls, partitions)


def positions_at(offsets: Mapping[int, int]) -> dict[int, Position]:
    """Return offsets as positions."""
    return {p: Position(offset=at) for p, at in offsets.items()}
