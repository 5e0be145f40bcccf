"""What a consumer is asked: where it stands, where its group does, and what there is to read."""

from collections.abc import Sequence

from confluent_kafka import OFFSET_INVALID, TopicPartition

from sluiceway.confluent.coordinator import Turns, in_turn
from sluiceway.confluent.errors import kafkas_names
from sluiceway.confluent.fetcher import listed, parts_of

__all__ = ["Asking"]


class Asking(Turns):
    """The questions of Consumer, which change nothing."""

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """Return what the group has committed; OFFSET_INVALID where it is nothing."""
        del timeout  # the gateway's own applies
        self._require_open()
        with kafkas_names():
            return listed(self._assignment.committed(parts_of(partitions)))

    @in_turn
    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the offset after the last message handed out.

        Before the first it is OFFSET_INVALID; as HPE has it, 0.
        """
        self._require_open()
        asked = parts_of(partitions)
        found = self._assignment.fetcher.consumed(asked)
        nothing = 0 if self._settings.hpe else OFFSET_INVALID
        return listed({part: found.get(part, nothing) for part in asked})

    def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float = -1,
        cached: bool = False,
    ) -> tuple[int, int] | None:
        """Return the first offset of the partition and the one after its last."""
        self._require_open()
        ((part, _),) = parts_of([partition]).items()
        with kafkas_names():
            self._assignment.look_at(part)
        return self._assignment.fetcher.watermarks(part, timeout, cached=cached)

    def offsets_for_times(
        self, partitions: Sequence[TopicPartition], timeout: float = 30
    ) -> list[TopicPartition]:
        """Return the first offset not older than each `offset`, which is a time in ms."""
        self._require_open()
        asked = parts_of(partitions)
        with kafkas_names():
            for part in asked:
                self._assignment.look_at(part)
        return self._assignment.fetcher.at_times(asked, timeout)

    def memberid(self) -> str | None:
        """Return the id of its endpoint at the first channel, if it has one."""
        self._require_open()
        return next((each.attachment.id for each in self._assignment.readers.values()), None)
