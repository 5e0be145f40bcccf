"""Offset committer: positions of a group, kept by the gateway."""

import threading
from collections.abc import Callable, Collection, Mapping

from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import CommitBeyondRead, Fenced, OptionError
from sluiceway.rest.endpoint_models import Position

__all__ = ["OffsetCommitter"]

Places = Mapping[int, Position | int]


class OffsetCommitter:
    """The commits of one reader, numbered, so that one that is late undoes none that came after.

    A commit that heard no answer may count or not; the next one makes up for it.

    Thread-safe: one commit after the other, as a position that is sent later must not be lower.
    What else there is waits for no commit: reading goes on while the gateway is away.
    """

    def __init__(self, attachment: EndpointHandle | None, *, topic_id: str | None) -> None:
        self._attachment = attachment
        self._topic_id = topic_id
        self._number = 0
        self._known = {} if attachment is None else dict(attachment.attached.positions)
        self._furthest: dict[int, Position] = {}
        self._turn = threading.Lock()
        # Guards the two maps; it is taken after `_turn`, and nobody waits while holding it.
        self._lock = threading.RLock()

    def passing(self, positions: Mapping[int, Position]) -> None:
        """Note that records up to these positions were handed out; they may be committed."""
        with self._lock:
            for partition, position in positions.items():
                self._furthest[partition] = max(position, self._furthest.get(partition, position))

    def begin(self, places: Mapping[int, Position], committed: Mapping[int, Position]) -> None:
        """Note partitions that have come, where they begin, and what is committed of them."""
        with self._lock:
            self._furthest.update(places)
            self._known.update(committed)

    def forget(self, partitions: Collection[int]) -> None:
        """Note that these partitions are another's."""
        with self._lock:
            for partition in partitions:
                self._furthest.pop(partition, None)
                self._known.pop(partition, None)

    def commit(
        self, places: Places | None, handed_out: Callable[[], Mapping[int, Position]]
    ) -> None:
        """Commit `places`, all or none; None: all that was handed out by the commit's turn."""
        attachment, group = self._group()
        with self._turn:
            self._commit(attachment, group, places, handed_out())

    def _commit(
        self,
        attachment: EndpointHandle,
        group: str,
        places: Places | None,
        handed_out: Mapping[int, Position],
    ) -> None:
        with self._lock:
            self.passing(handed_out)
            wanted = dict(handed_out) if places is None else self._checked(places)
            changed = {p: place for p, place in wanted.items() if self._known.get(p) != place}
        if not changed:
            return
        self._number += 1
        body = {
            "uid": attachment.uid,
            "id": attachment.id,
            "epoch": attachment.attached.epoch,
            "generation": attachment.attached.generation,
            "topic_id": self._topic_id,
            "number": self._number,
        }
        try:
            attachment.session.calls.commit(attachment.channel, group, body, positions=changed)
        except Fenced as error:
            attachment.fence(error)
            raise
        with self._lock:
            self._known |= {p: place for p, place in changed.items() if p in self._furthest}

    def committed(self) -> dict[int, Position]:
        """Ask for what is committed, of the partitions assigned."""
        attachment, group = self._group()
        membership = attachment.membership
        broadcast = membership is not None and membership.mode == "broadcast"
        index = membership.index if membership is not None and broadcast else None
        found = attachment.session.calls.committed(attachment.channel, group, index=index)
        return {p: place for p, place in found.items() if attachment.owns(p)}

    def _group(self) -> tuple[EndpointHandle, str]:
        attachment = self._attachment
        if attachment is None or attachment.membership is None:
            raise OptionError(
                "a reader without a group commits nothing: open it with channel.reader(group=…), "
                "or keep reader.position() with your results and give it as start"
            )
        attachment.check()
        return attachment, attachment.membership.group

    def _checked(self, places: Places) -> dict[int, Position]:
        wanted = {}
        for partition, place in places.items():
            if partition not in self._furthest:
                raise OptionError(
                    f"partition {partition!r} is not read here; this reader has "
                    f"{', '.join(map(str, sorted(self._furthest)))}"
                )
            position = place if isinstance(place, Position) else Position(offset=place)
            if position > self._furthest[partition]:
                raise CommitBeyondRead(
                    f"partition {partition}: {position} is past what was handed out, which is up "
                    f"to {self._furthest[partition]}; nothing was committed"
                )
            wanted[partition] = position
        return wanted
