"""How a consumer stands at one channel: as a member of its group, or on its own."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from sluiceway.confluent.news import News
from sluiceway.endpoint.assignment import Share
from sluiceway.endpoint.committer import Commits
from sluiceway.endpoint.handle import Attachment
from sluiceway.endpoint.heartbeat import Session
from sluiceway.errors import CommitBeyondRead, GatewayUnavailable, StaleGeneration
from sluiceway.position import Position
from sluiceway.rest.channels import Control
from sluiceway.rest.endpoint_models import Heard, Membership
from sluiceway.rest.models import Connection

__all__ = ["Lone", "Reader", "Sharer", "attached", "committed", "positions_at"]

_ATTACH_S = 30.0
_CLOSE_S = 30.0


class Reader(ABC):
    """An endpoint of a channel that keeps offsets for a group; see its two kinds."""

    def __init__(self, attachment: Attachment, group: str) -> None:
        self.attachment = attachment
        self.connection: Connection = attachment.attached.connection
        self.held: tuple[int, ...] = ()
        self._group = group
        self._done = 0
        self._begun: dict[int, int] = {}
        self._seen: tuple[int, Mapping[int, Position]] = (0, {})
        attachment.movement.follow(self.glance)

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
            self.attachment.start(self._seen[0])

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


class Sharer(Reader):
    """A member of a dynamic group: the gateway says which partitions are its own.

    `news` is set when a beat has brought something.
    """

    def __init__(self, control: Control, channel: str, group: str, *, news: News) -> None:
        attachment = attached(control, channel, Membership(group=group, index=None, size=None))
        super().__init__(attachment, group)
        try:
            self._commits = Commits(attachment, topic_id=self.connection.topic_id)
            self.share = Share(attachment)
            hear = self.share.hear

            def heard(word: Heard) -> None:
                hear(word)
                news.set()

            attachment.on_heard = heard
            self.share.begin()
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
        self._commits.begin(positions_at(places), committed)

    def let_go(self, lost: Collection[int], places: Mapping[int, int]) -> None:
        """Note partitions that are another's, and where they stood."""
        super().let_go(lost, places)
        self._commits.forget(lost)
        for partition in lost:
            self._known.pop(partition, None)

    def passing(self, handed_out: Mapping[int, int]) -> None:
        """Note that messages before these offsets were handed out; they may be committed."""
        self._commits.passing(positions_at(handed_out))

    def commit(self, places: Mapping[int, int]) -> None:
        """Keep these offsets with the gateway, all or none."""
        try:
            self._commits.commit(positions_at(places), dict)
        except StaleGeneration:
            self.share.hurry()
            raise
        self._known |= positions_at(places)

    def known(self, partition: int) -> Position | None:
        """Return what is known to be committed, without asking."""
        return self._known.get(partition)


class Lone(Reader):
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
                places=wanted,
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
) -> Attachment:
    """Attach to a channel that is there. Raises GatewayError."""
    return Attachment.open(
        Session.of(control.endpoints, grace_s=control.grace_s),
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
