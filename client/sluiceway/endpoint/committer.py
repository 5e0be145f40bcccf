"""Offset committers: store positions with the gateway, as a member of a group or without one."""

import threading
from collections.abc import Callable, Collection, Mapping

from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import CommitBeyondRead, Fenced, GatewayError, GatewayUnavailable, OptionError
from sluiceway.rest.endpoints import EndpointCalls, Position
from sluiceway.rest.ledger_models import PositionAdvance

__all__ = ["OffsetCommitter", "StandaloneCommitter"]


class OffsetCommitter:
    """Commits the positions of one reader for its group.

    Commits carry a sequence number, so a delayed commit cannot overwrite a newer one. A commit
    without a response may or may not have been stored; the next one first requests the stored
    positions, because a transaction names those that it replaces.

    For facades: `assign` and `revoke` follow the assignment, `track_consumed` raises the limit
    up to which positions may be committed, `commit` and `committed` need a group.

    Thread-safe. Commits are sent one after the other, because positions must not go back. Nothing
    else waits for a commit: reading continues during an outage of the gateway.
    """

    def __init__(self, handle: EndpointHandle | None, *, topic_id: str | None) -> None:
        self._handle = handle
        self._topic_id = topic_id
        self._sequence = 0
        self.revoked_uncommitted = False
        """True after the removal of a partition with returned records that were not committed.

        Each commit clears it, and so does `rewind`.
        """
        self._committed = {} if handle is None else dict(handle.attached.positions)
        self._consumed: dict[int, Position] = {}
        # By partition, the position of the first record returned since the last commit.
        self._uncommitted_from: dict[int, Position] = {}
        # Partitions with a commit that has no response.
        self._doubtful: set[int] = set()
        self._commit_lock = threading.Lock()
        # Guards the two maps for a few instructions; taken after `_commit_lock`.
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
            self._consumed.update(start)
            self._uncommitted_from.update(start)
            self._committed.update(committed)

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
        consumed: Callable[[], Mapping[int, Position]],
    ) -> None:
        """Commit `positions`, all or none; None commits the positions that `consumed` returns.

        `consumed` is called once earlier commits are done. Raises CommitBeyondRead, Conflict,
        Fenced, StaleGeneration, GatewayUnavailable, and OptionError for a reader without a group.
        """
        handle, group = self._require_group()

        def send(advance: PositionAdvance | None) -> None:
            if advance is None:
                return
            body = {
                "uid": handle.uid,
                "id": handle.id,
                "epoch": advance.epoch,
                "generation": advance.generation,
                "topic_id": self._topic_id,
                "number": advance.number,
            }
            handle.calls.commit(handle.channel, group, body, positions=advance.after)

        self.commit_with(send, consumed, positions)

    def commit_with(
        self,
        send: Callable[[PositionAdvance | None], None],
        consumed: Callable[[], Mapping[int, Position]],
        positions: Mapping[int, Position | int] | None = None,
    ) -> None:
        """Like `commit`, by the caller's `send`, which gets None if nothing moved."""
        handle, group = self._require_group()
        with self._commit_lock:
            if self._doubtful:
                stored = self.committed()
                self.mark_committed({p: stored[p] for p in self._doubtful & stored.keys()})
                self._doubtful.clear()
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
                channel=handle.channel,
                uid=handle.uid,
                topic_id=self._topic_id,
                group=group,
                endpoint=handle.id,
                epoch=handle.attached.epoch,
                generation=handle.attached.generation,
                number=self._sequence,
                before={p: before[p] for p in changed},
                after=changed,
            )
            # Until there is a response: the request may be interrupted after it was sent.
            self._doubtful.update(changed)
            try:
                send(advance)
            except Fenced as error:
                handle.fence(error)
                raise
            self.mark_committed(changed)
            self._doubtful.clear()

    def mark_committed(self, positions: Mapping[int, Position]) -> None:
        """Record positions that the gateway has stored."""
        with self._lock:
            self.revoked_uncommitted = False
            present = {p: at for p, at in positions.items() if p in self._consumed}
            self._committed |= present
            self._uncommitted_from |= present

    def committed(self) -> dict[int, Position]:
        """Request the committed positions of the assigned partitions."""
        handle, group = self._require_group()
        member = handle.membership
        index = member.index if member is not None and member.mode == "broadcast" else None
        found = handle.calls.committed(handle.channel, group, index=index)
        return {p: position for p, position in found.items() if handle.owns(p)}

    def last_known(self, partition: int) -> Position | None:
        """Return a partition's last seen committed position, without a request."""
        return self._committed.get(partition)

    def _require_group(self) -> tuple[EndpointHandle, str]:
        handle = self._handle
        if handle is None or handle.membership is None:
            raise OptionError(
                "a reader without a group commits nothing: open it with channel.reader(group=…), "
                "or store reader.position() with your results and pass it as start"
            )
        handle.check()
        return handle, handle.membership.group

    def _checked(self, positions: Mapping[int, Position | int]) -> dict[int, Position]:
        checked = {}
        for partition, given in positions.items():
            if partition not in self._consumed:
                raise OptionError(
                    f"partition {partition!r} is not assigned to this reader, which has "
                    f"{', '.join(map(str, sorted(self._consumed)))}"
                )
            position = Position.of(given)
            if position > self._consumed[partition]:
                raise CommitBeyondRead(
                    f"partition {partition}: {position} is past the returned records, which end "
                    f"at {self._consumed[partition]}; nothing was committed"
                )
            checked[partition] = position
        return checked


class StandaloneCommitter:
    """Commits a group's offsets for consumers that assign partitions themselves.

    Each commit names the offsets that it replaces. If two consumers read the same partition by
    mistake, the second one's commit is a Conflict `position_moved` instead of overwriting the
    first. After a commit without a response, the next one first requests the stored offsets.

    Thread-safe; one commit is made at a time.
    """

    def __init__(self, channel: str, group: str, *, uid: str, topic_id: str | None) -> None:
        self._channel = channel
        self._group = group
        self._body = {"uid": uid, "topic_id": topic_id}
        self._lock = threading.RLock()
        self._known: dict[int, Position] | None = None
        self._doubtful: dict[int, Position] = {}

    def fetch(
        self, calls: EndpointCalls, partitions: Collection[int] | None = None
    ) -> Mapping[int, Position]:
        """Request the committed offsets, and continue from those of `partitions` (None: all).

        Raises GatewayError.
        """
        stored = calls.committed(self._channel, self._group, index=None)
        with self._lock:
            if partitions is None or self._known is None:
                self._known, self._doubtful = stored, {}
            else:
                kept = {p: at for p, at in self._known.items() if p not in partitions}
                self._known = kept | {p: at for p, at in stored.items() if p in partitions}
        return stored

    def known(self, calls: EndpointCalls) -> Mapping[int, Position]:
        """Return the last seen committed offsets; requests them if needed."""
        with self._lock:
            if self._known is None:
                self.fetch(calls)
            elif self._doubtful:
                # Take only offsets of the doubtful commit: those that others moved stay unknown.
                stored = calls.committed(self._channel, self._group, index=None)
                counted = {p: at for p, at in self._doubtful.items() if stored.get(p) == at}
                self._known, self._doubtful = self._known | counted, {}
            return self._known or {}

    def last_known(self, partition: int) -> Position | None:
        """Return a partition's last seen committed offset, without a request."""
        return (self._known or {}).get(partition)

    def commit(self, calls: EndpointCalls, positions: Mapping[int, Position]) -> None:
        """Commit positions, all or none. Raises GatewayError."""
        with self._lock:
            before = self.known(calls)
            after = {p: at for p, at in positions.items() if at.replaces(before.get(p))}
            if not after:
                return
            # Until there is a response: the request may be interrupted after it was sent.
            self._doubtful = after
            try:
                calls.advance(
                    self._channel,
                    self._group,
                    self._body,
                    positions=after,
                    before={p: at for p, at in before.items() if p in after},
                )
            except GatewayError as error:
                if not isinstance(error, GatewayUnavailable):
                    self._doubtful = {}
                raise
            self._known, self._doubtful = {**before, **after}, {}
