"""Reading the partitions too that a channel has got since the reader was opened."""

from abc import abstractmethod

from sluiceway.kafka.consumer import MessageStream
from sluiceway.kafka.fetcher import Intake
from sluiceway.position import Position
from sluiceway.presence import Presence

__all__ = ["Growing"]


class Growing(Presence):
    """A reader that may be told to look whether there is more for it to read."""

    _intake: Intake
    _stream: MessageStream

    @abstractmethod
    def _require_open(self) -> None:
        """Raise EndpointClosed, or what the gateway said against it."""

    def meet_new_partitions(self) -> tuple[int, ...]:
        """Read the partitions too that are this reader's and are new, and return them.

        They are read from their beginning. Members of dynamic groups take them with their shares.
        """
        attachment = self._attachment
        member = None if attachment is None else attachment.membership
        if member is not None and member.dynamic:
            return ()
        with self._intake.turn.urgently():
            self._require_open()
            present = self._intake.partitions
            came = tuple(
                p
                for p in range(self._stream.meet_new_partitions())
                if p not in present and (attachment is None or attachment.owns(p))
            )
            if came:
                self._intake.reassign(come={p: Position(offset=0) for p in came})
        return came
