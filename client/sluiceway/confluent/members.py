"""Subscription and group membership of a consumer, per channel."""

import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sluiceway.confluent.errors import INVALID_ARG, refused
from sluiceway.confluent.fetcher import WakeupEvent
from sluiceway.endpoint.assignment import PartitionAssignment
from sluiceway.endpoint.committer import OffsetCommitter
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import CommitBeyondRead, GatewayUnavailable, SluicewayError, StaleGeneration
from sluiceway.rest.channels import Control
from sluiceway.rest.endpoint_models import HeartbeatResult, Membership, Position
from sluiceway.rest.models import Connection

_ATTACH_S = 30.0
_CLOSE_S = 30.0


class Reader(ABC):
    """An endpoint of a channel that keeps offsets for a group; see its two kinds."""

    def __init__(self, attachment: EndpointHandle, group: str) -> None:
        self.attachment = attachment
        self.connection: Connection = attachment.attached.connection
        self.held: tuple[int, ...] = ()
        self._group = group
        self._done = 0
        self._begun: dict[int, int] = {}
        self._seen: tuple[int, Mapping[int, Position]] = (0, {})
        attachment.metrics.observe(self.glance)

    @property
    def channel(self) -> str:
        """The channel's name."""
        return self.attachment.channel

    def begin(self, places: Mapping[int, int]) -> None:
        """Note partitions that have come, and where they begin."""
        self.held = tuple(sorted({*self.held, *places}))
        self._begun |= places

    def let_go(self, lost: Collection[int], places: Mapping[int, int]) -> None:
        """Note partitions that are read no more, and where they stood."""
        self._done += sum(
            max(0, at - self._begun.get(p, at)) for p, at in places.items() if p in lost
        )
        self.held = tuple(p for p in self.held if p not in lost)

    def note(self, places: Mapping[int, int]) -> None:
        """Note where it stands: messages before these offsets were handed out.

        librdkafka lets one thread at a time ask a consumer, so it is who reads that tells this.
        """
        self.passing(places)
        passed = sum(max(0, at - self._begun.get(p, at)) for p, at in places.items())
        self._seen = (self._done + passed, positions_at(places))
        if self._seen[0]:
            self.attachment.record_cycle(self._seen[0])

    def glance(self) -> tuple[int, Mapping[int, Position]]:
        """Return how many offsets it had passed when it was noted last, and where that was."""
        return self._seen

    @abstractmethod
    def passing(self, handed_out: Mapping[int, int]) -> None:
        """Note that messages before these offsets were handed out; they may be committed."""

    @abstractmethod
    def commit(self, places: Mapping[int, int]) -> None:
        """Keep these offsets with the gateway, all or none; from any thread, one at a time."""

    @abstractmethod
    def known(self, partition: int) -> Position | None:
        """Return what is known to be committed, without asking."""


class GroupMember(Reader):
    """A member of a dynamic group: the gateway says which partitions are its own.

    `news` is set when a beat has brought something.
    """

    def __init__(self, control: Control, channel: str, group: str, *, news: WakeupEvent) -> None:
        attachment = attached(control, channel, Membership(group=group, index=None, size=None))
        super().__init__(attachment, group)
        try:
            self._commits = OffsetCommitter(attachment, topic_id=self.connection.topic_id)
            self.share = PartitionAssignment(attachment)
            hear = self.share.on_heartbeat

            def heard(word: HeartbeatResult) -> None:
                hear(word)
                news.set()

            attachment.on_result = heard
            self.share.join()
        except BaseException as error:
            attachment.fail(error)
            raise
        self.first_total = self.share.total
        self._known: dict[int, Position] = {}

    def learn(self, committed: Mapping[int, Position]) -> None:
        """Note what the group has committed of partitions that have come."""
        self._known |= committed

    def begin(self, places: Mapping[int, int]) -> None:
        """Note partitions that have come, and where they begin."""
        super().begin(places)
        committed = {p: at for p, at in self._known.items() if p in places}
        self._commits.assign(positions_at(places), committed)

    def let_go(self, lost: Collection[int], places: Mapping[int, int]) -> None:
        """Note partitions that are another's, and where they stood."""
        super().let_go(lost, places)
        self._commits.revoke(lost)
        for partition in lost:
            self._known.pop(partition, None)

    def passing(self, handed_out: Mapping[int, int]) -> None:
        """Note that messages before these offsets were handed out; they may be committed."""
        self._commits.track_consumed(positions_at(handed_out))

    def commit(self, places: Mapping[int, int]) -> None:
        """Keep these offsets with the gateway, all or none."""
        try:
            self._commits.commit(positions_at(places), dict)
        except StaleGeneration:
            self.share.request_rebalance()
            raise
        self._known |= positions_at(places)

    def known(self, partition: int) -> Position | None:
        """Return what is known to be committed, without asking."""
        return self._known.get(partition)


class ManualConsumer(Reader):
    """A reader that names its partitions itself, and keeps its place under a group's name.

    Its commits say where they come from, so that of two who read one partition, the second is
    told; and they are refused while the group has members.
    """

    def __init__(self, control: Control, channel: str, group: str) -> None:
        attachment = attached(control, channel, None)
        super().__init__(attachment, group)
        self._furthest: dict[int, int] = {}
        self._doubtful: dict[int, Position] = {}
        try:
            self._before = committed(control, channel, group)
        except BaseException as error:
            attachment.fail(error)
            raise

    def passing(self, handed_out: Mapping[int, int]) -> None:
        """Note that messages before these offsets were handed out; they may be committed."""
        for partition, at in handed_out.items():
            self._furthest[partition] = max(at, self._furthest.get(partition, at))

    def commit(self, places: Mapping[int, int]) -> None:
        """Keep these offsets with the gateway, all or none."""
        self.attachment.check()
        for partition, at in places.items():
            furthest = self._furthest.get(partition, 0)
            if at > furthest:
                raise CommitBeyondRead(
                    f"partition {partition}: offset {at} is past what was handed out, which is up "
                    f"to {furthest}; nothing was committed"
                )
        if self._doubtful:
            self._clear_up()
        wanted = {p: at for p, at in positions_at(places).items() if self._before.get(p) != at}
        if not wanted:
            return
        attachment = self.attachment
        try:
            attachment.session.calls.advance(
                attachment.channel,
                self._group,
                {"uid": attachment.uid, "topic_id": self.connection.topic_id},
                positions=wanted,
                before={p: at for p, at in self._before.items() if p in wanted},
            )
        except GatewayUnavailable:
            self._doubtful = wanted
            raise
        self._before |= wanted

    def learn(self, partitions: Collection[int]) -> None:
        """Ask anew what the group has committed of partitions that are begun with again."""
        kept = {p: at for p, at in self._before.items() if p not in partitions}
        self._before = kept | {p: at for p, at in self._stored().items() if p in partitions}

    def _clear_up(self) -> None:
        """Find out whether a commit counts whose answer did not come."""
        stored = self._stored()
        self._before |= {p: at for p, at in self._doubtful.items() if stored.get(p) == at}
        self._doubtful = {}

    def _stored(self) -> dict[int, Position]:
        attachment = self.attachment
        return attachment.session.calls.committed(attachment.channel, self._group, index=None)

    def known(self, partition: int) -> Position | None:
        """Return what is known to be committed, without asking."""
        return self._before.get(partition)


def committed(control: Control, channel: str, group: str) -> dict[int, Position]:
    """Ask for what a group has committed."""
    return control.endpoints.committed(channel, group, index=None)


def attached(
    control: Control, channel: str, membership: Membership | None, role: Any = "reader"
) -> EndpointHandle:
    """Attach to a channel that is there. Raises GatewayError."""
    return EndpointHandle(
        HeartbeatSession.of(control.endpoints, grace_s=control.grace_s),
        channel=channel,
        uid=control.channel(channel).uid,
        role=role,
        membership=membership,
        timeout_s=_ATTACH_S,
        close_timeout_s=_CLOSE_S,
    )


def positions_at(places: Mapping[int, int]) -> dict[int, Position]:
    """Return offsets as positions: messages are done as a whole, or not at all."""
    return {p: Position(offset=at) for p, at in places.items()}


_AGAIN_S = 2.0
_AWAY_S = 20.0
"""How long a gateway that does not answer is left alone by who has records to read."""
_GLANCE_S = 1.0


class Subscription:
    """Names of channels, and regexes of names, which begin with `^`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._names: tuple[str, ...] = ()
        self._regexes: dict[str, re.Pattern[str]] = {}
        self._tried_s: dict[str, float] = {}
        self._told: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def choose(self, names: Sequence[str]) -> None:
        """Take these in place of those before. Raises KafkaException _INVALID_ARG."""
        try:
            regexes = {name: re.compile(name) for name in names if name.startswith("^")}
        except re.error as error:
            raise refused(INVALID_ARG, f"{error.pattern!r} is no regex: {error}") from error
        self._names, self._regexes = tuple(names), regexes
        self._tried_s, self._told = {}, {}

    def wants(self, channel: str) -> bool:
        """Whether a channel is one of them."""
        found = (each.match(channel) for each in self._regexes.values())
        return channel in self._names or any(found)

    def lose(self, channel: str) -> None:
        """Leave a channel alone until it is subscribed to again."""
        self._tried_s[channel] = math.inf

    def join(
        self, joined: Collection[str], enter: Callable[[str], None], *, reading: bool
    ) -> Iterator[tuple[str, SluicewayError]]:
        """Call `enter` with the channels that are not joined; give those where it failed, once.

        What is no SluicewayError comes out, and the channel is tried again in its time. While
        there are records to read (`reading`), the gateway is not waited for.
        """
        for name in self._names:
            if name in joined or time.monotonic() < self._tried_s.get(name, 0.0):
                continue
            self._tried_s[name] = time.monotonic() + _AGAIN_S
            failed = self._try(name, joined, enter, _GLANCE_S if reading else None)
            if any(isinstance(each, GatewayUnavailable) for each in failed.values()):
                self._tried_s[name] = time.monotonic() + _AWAY_S
            for where, error in failed.items():
                if self._told.get(where) != error.code:
                    self._told[where] = error.code
                    yield where, error

    def _try(
        self,
        name: str,
        joined: Collection[str],
        enter: Callable[[str], None],
        patience_s: float | None,
    ) -> dict[str, SluicewayError]:
        try:
            channels = self._matching(name, patience_s)
        except SluicewayError as error:
            return {name: error}
        self._told.pop(name, None)
        failed: dict[str, SluicewayError] = {}
        for channel in channels:
            if channel in joined or self._tried_s.get(channel) == math.inf:
                continue
            try:
                enter(channel)
            except SluicewayError as error:
                failed[channel] = error
            else:
                self._told.pop(channel, None)
        return failed

    def _matching(self, name: str, patience_s: float | None) -> list[str]:
        regex = self._regexes.get(name)
        if regex is not None:
            found = self._control.channels(timeout_s=patience_s)
            return [each.name for each in found if regex.match(each.name)]
        if patience_s is not None:
            self._control.channel(name, timeout_s=patience_s)
        return [name]


__all__ = [
    "GroupMember",
    "ManualConsumer",
    "Reader",
    "Subscription",
    "attached",
    "committed",
    "positions_at",
]
