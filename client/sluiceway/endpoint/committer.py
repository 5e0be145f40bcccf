"""Offset committer: stores positions with the gateway, as a member of a group or without one."""

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from sluiceway.api.arguments import whole_number
from sluiceway.api.endpoints import AttachResult, EndpointCalls, Position, PositionAdvance
from sluiceway.api.groups import Membership
from sluiceway.concurrency import FairLock
from sluiceway.errors import CommitBeyondRead, Fenced, GatewayError, OptionError

__all__ = ["AttachedMember", "OffsetCommitter"]


class AttachedMember(Protocol):
    """A member of a group: an AttachedEndpoint, or a member whose program sends the heartbeats."""

    id: str
    channel: str
    uid: str
    membership: Membership | None
    attached: AttachResult
    calls: EndpointCalls

    def check(self) -> None:
        """Raise Fenced or EndpointClosed for a member that has to stop."""

    def fence(self, error: Fenced) -> None:
        """Record that another instance has taken its place."""

    def heartbeat_now(self) -> None:
        """Send a heartbeat at once, which revives a lost member."""


class OffsetCommitter:
    """Commits the positions of one consumer for its group, as a member of it or without joining.

    Commits of a member carry a sequence number, so a delayed commit cannot overwrite a newer one.
    Without membership, each commit names the positions that it replaces: if two consumers read the
    same partition by mistake, the second one's commit is a Conflict `position_moved` instead of
    overwriting the first. A commit without a response may or may not have been stored; the next
    one first requests the stored positions.

    For facades: `assign` and `revoke` follow the assignment, `track_consumed` raises the limit
    up to which positions may be committed, `commit` and `committed` need a group. Without
    membership, the committed positions are requested by `fetch`, or by the first commit.

    Thread-safe. Commits are sent one after the other, because positions must not go back. Nothing
    else waits for a commit: reading continues during an outage of the gateway. A signal handler
    that has interrupted a commit of its thread gets OptionError.
    """

    def __init__(
        self,
        channel: str,
        group: str | None,
        *,
        uid: str,
        topic_id: str | None,
        member: AttachedMember | None = None,
        calls: EndpointCalls | None = None,
    ) -> None:
        """Commit as `member`, or else by `calls`, which each call may replace.

        `uid` is the channel's. Without a `group`, commits are refused.
        """
        self._channel, self._group = channel, group
        self._uid, self._topic_id = uid, topic_id
        self._member = member
        self._calls = calls if member is None else member.calls
        self._sequence = 0
        self.revoked_uncommitted = False
        """True after the removal of a partition with returned records that were not committed.

        Each commit clears it, and so does `rewind`.
        """
        self._committed = {} if member is None else dict(member.attached.positions)
        # Without membership, the stored positions are unknown until they are requested.
        self._unseen = member is None
        self._consumed: dict[int, Position] = {}
        # By partition, the position of the first record returned since the last commit.
        self._uncommitted_from: dict[int, Position] = {}
        # The positions of a commit without a response.
        self._doubtful: dict[int, Position] = {}
        self._commit_lock = FairLock()
        # Guards the maps for a few instructions; taken after `_commit_lock`.
        self._lock = threading.RLock()

    def track_consumed(self, positions: Mapping[int, Position]) -> None:
        """Allow commits up to these positions: the records before them were returned."""
        with self._lock:
            for partition, position in positions.items():
                self._consumed[partition] = max(position, self._consumed.get(partition, position))

    def start_at(self, positions: Mapping[int, Position]) -> None:
        """Record the positions at which reading starts, initially or after a seek."""
        with self._lock:
            self._uncommitted_from |= positions

    def rewind(self) -> dict[int, Position]:
        """Return, by partition, the last committed position, or else the start position.

        The caller returns to them, so the records of removed partitions are not in its output.
        """
        with self._lock:
            self.revoked_uncommitted = False
            return dict(self._uncommitted_from)

    def assign(self, start: Mapping[int, Position], committed: Mapping[int, Position]) -> None:
        """Add partitions with their start positions and committed positions."""
        with self._lock:
            self.track_consumed(start)
            self._uncommitted_from |= start
            self._committed |= committed

    def revoke(
        self, partitions: Collection[int], consumed: Mapping[int, Position] | None = None
    ) -> None:
        """Remove partitions.

        `consumed` has the positions after the last returned records, for `revoked_uncommitted`.
        """
        with self._lock:
            for partition in partitions:
                self._consumed.pop(partition, None)
                self._committed.pop(partition, None)
                start = self._uncommitted_from.pop(partition, None)
                at = (consumed or {}).get(partition)
                if start is not None and at is not None and at > start:
                    self.revoked_uncommitted = True

    def commit(
        self,
        positions: Mapping[int, Position | int] | None,
        consumed: Callable[[], Mapping[int, Position]] = dict,
        *,
        calls: EndpointCalls | None = None,
    ) -> None:
        """Commit `positions`, all or none; None commits the positions that `consumed` returns.

        `consumed` is called once earlier commits are done. Raises CommitBeyondRead, Conflict,
        Fenced, StaleGeneration, GatewayUnavailable, and OptionError for a reader without a group.
        """
        used = self._calls_or(calls)

        def send(advance: PositionAdvance | None) -> None:
            if advance is not None:
                used.commit(advance)

        self.commit_with(send, consumed, positions, calls=used)

    def commit_with(
        self,
        send: Callable[[PositionAdvance | None], None],
        consumed: Callable[[], Mapping[int, Position]],
        positions: Mapping[int, Position | int] | None = None,
        *,
        calls: EndpointCalls | None = None,
    ) -> None:
        """Like `commit`, by the caller's `send`, which gets None if nothing moved."""
        group, member = self._require_group(), self._member
        self._commit_lock.require_free("committing")
        with self._commit_lock:
            self._resolve(self._calls_or(calls))
            current = consumed()
            with self._lock:
                self.track_consumed(current)
                wanted = dict(current) if positions is None else self._checked(positions)
                before = {p: self._committed.get(p) for p in wanted}
                changed = {p: at for p, at in wanted.items() if at.replaces(before[p])}
            if not changed:
                send(None)
                self.revoked_uncommitted = False
                return
            self._sequence += 1
            advance = PositionAdvance(
                channel=self._channel,
                uid=self._uid,
                topic_id=self._topic_id,
                group=group,
                endpoint=None if member is None else member.id,
                epoch=0 if member is None else member.attached.epoch,
                generation=0 if member is None else member.attached.generation,
                number=self._sequence,
                before={p: before[p] for p in changed},
                after=changed,
            )
            # Until there is a response: the request may be interrupted after it was sent.
            self._doubtful = changed
            try:
                send(advance)
            except GatewayError as error:
                if error.is_final:
                    self._doubtful = {}
                if isinstance(error, Fenced) and member is not None:
                    member.fence(error)
                raise
            self.mark_committed(changed)
            self._doubtful = {}

    def mark_committed(self, positions: Mapping[int, Position]) -> None:
        """Record positions that the gateway has stored."""
        with self._lock:
            self.revoked_uncommitted = False
            present = {p: at for p, at in positions.items() if p in self._consumed}
            self._committed |= present
            self._uncommitted_from |= present

    def committed(self) -> dict[int, Position]:
        """Request the committed positions of the group."""
        return self._stored(self._calls_or(None))

    def fetch(
        self, partitions: Collection[int] | None = None, *, calls: EndpointCalls | None = None
    ) -> Mapping[int, Position]:
        """Request the committed positions, and continue from those of `partitions` (None: all).

        Raises GatewayError.
        """
        self._commit_lock.require_free("committing")
        with self._commit_lock:
            stored = self._stored(self._calls_or(calls))
            with self._lock:
                if partitions is None or self._unseen:
                    self._committed, self._doubtful, self._unseen = dict(stored), {}, False
                else:
                    others = {p: at for p, at in self._committed.items() if p not in partitions}
                    own = {p: at for p, at in stored.items() if p in partitions}
                    self._committed = others | own
            return stored

    def last_committed(self, *, calls: EndpointCalls | None = None) -> Mapping[int, Position]:
        """Return the last seen committed positions; requests them if needed."""
        self._commit_lock.require_free("committing")
        with self._commit_lock:
            self._resolve(self._calls_or(calls))
            return dict(self._committed)

    def cached_position(self, partition: int) -> Position | None:
        """Return a partition's last seen committed position, without a request."""
        return self._committed.get(partition)

    def _resolve(self, calls: EndpointCalls) -> None:
        """Request the stored positions if they are unknown, or a commit had no response."""
        if self._unseen:
            self._committed, self._unseen = self._stored(calls), False
        elif self._doubtful:
            # Take only positions of the doubtful commit: those that others moved stay unknown.
            stored = self._stored(calls)
            self.mark_committed({p: at for p, at in self._doubtful.items() if stored.get(p) == at})
            self._doubtful = {}

    def _stored(self, calls: EndpointCalls) -> dict[int, Position]:
        group = self._require_group()
        place = None if self._member is None else self._member.membership
        index = place.index if place is not None and place.mode == "broadcast" else None
        return calls.committed(self._channel, group, index=index)

    def _calls_or(self, calls: EndpointCalls | None) -> EndpointCalls:
        self._require_group()
        used = calls or self._calls
        assert used is not None  # noqa: S101 - given here or to the constructor
        return used

    def _require_group(self) -> str:
        if self._group is None:
            raise OptionError(
                "a reader without a group commits nothing: open it with channel.reader(group=…), "
                "or store reader.position() with your results and pass it as start"
            )
        if self._member is not None:
            self._member.check()
        return self._group

    def _checked(self, positions: Mapping[int, Position | int]) -> dict[int, Position]:
        checked = {}
        for key, requested in positions.items():
            partition = whole_number(key)
            if partition is None or partition not in self._consumed:
                raise OptionError(
                    f"partition {key!r} is not assigned to this reader, which has "
                    f"{', '.join(map(str, sorted(self._consumed)))}"
                )
            position = Position.of(requested)
            if position > self._consumed[partition]:
                raise CommitBeyondRead(
                    f"partition {partition}: {_text(position)} is past the returned records, "
                    f"which end at {_text(self._consumed[partition])}; nothing was committed"
                )
            checked[partition] = position
        return checked


def _text(position: Position) -> str:
    record = f", record {position.records}" if position.records else ""
    return f"offset {position.offset}{record}"
