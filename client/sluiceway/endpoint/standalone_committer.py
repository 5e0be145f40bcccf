"""Standalone committer: offsets of a group that are committed without being a member of it."""

import threading
from collections.abc import Collection, Mapping

from sluiceway.errors import GatewayUnavailable
from sluiceway.rest.endpoint_models import Position
from sluiceway.rest.endpoints import EndpointCalls

__all__ = ["StandaloneCommitter"]


class StandaloneCommitter:
    """Commits a group's offsets for consumers that assign partitions themselves.

    Each commit names the offsets that it replaces. If two consumers read the same partition by
    mistake, the second one's commit is a Conflict `position_moved` instead of overwriting the
    first. A commit without an answer is doubtful: the next one first asks which of it counts.

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
        """Ask for the committed offsets, and go on from those of `partitions`; None: of all.

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
        """Return the committed offsets as last seen; asks for them if needed."""
        with self._lock:
            if self._known is None:
                self.fetch(calls)
            elif self._doubtful:
                # Only a doubtful commit is looked for: offsets that others moved stay unknown.
                stored = calls.committed(self._channel, self._group, index=None)
                counted = {p: at for p, at in self._doubtful.items() if stored.get(p) == at}
                self._known, self._doubtful = self._known | counted, {}
            return self._known or {}

    def last_known(self, partition: int) -> Position | None:
        """Return a partition's committed offset as last seen, without asking."""
        return (self._known or {}).get(partition)

    def commit(self, calls: EndpointCalls, positions: Mapping[int, Position]) -> None:
        """Commit positions, all or none. Raises GatewayError."""
        with self._lock:
            before = self.known(calls)
            after = {p: at for p, at in positions.items() if before.get(p) != at}
            if not after:
                return
            try:
                calls.advance(
                    self._channel,
                    self._group,
                    self._body,
                    positions=after,
                    before={p: at for p, at in before.items() if p in after},
                )
            except GatewayUnavailable:
                self._doubtful = after
                raise
            self._known = {**before, **after}
