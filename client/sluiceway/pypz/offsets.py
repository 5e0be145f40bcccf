"""Offsets as pypz counts them: one number of records."""

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from sluiceway.errors import CommitBeyondRead, Conflict, OptionError
from sluiceway.reader import ChannelReader
from sluiceway.rest.endpoint_models import Position

_LONGEST = 10_000


@dataclass(kw_only=True)
class _Run:
    """From `count` on, `length` records lie one after the other; `before` is where all stood."""

    count: int
    length: int
    partition: int | None
    before: Mapping[int, Position]

    def leads_to(self, partition: int, trail: "OffsetHistory") -> bool:
        return self.partition == partition and self.at(trail.count) == trail.now

    def at(self, count: int) -> Mapping[int, Position]:
        if self.partition is None:
            return self.before
        offset = self.before[self.partition].offset + count - self.count
        return {**self.before, self.partition: Position(offset=offset)}


class OffsetHistory:
    """Remembers where a reader stood when it had read so many records.

    Where it reads one partition without gaps, every count has its position. Where it reads
    several, or one with gaps, only the counts between two calls have; for others it is the last
    position before, so that what is committed was done. Of positions that are not committed it
    keeps so many.
    """

    def __init__(self, count: int, positions: Mapping[int, Position]) -> None:
        self.count = count
        self.now = dict(positions)
        self._runs: deque[_Run] = deque(maxlen=_LONGEST)

    def note(self, records: int, positions: Mapping[int, Position]) -> None:
        """Note that so many records more were read, up to these positions."""
        if not records:
            # Nothing to hand out lay in between.
            self.now = dict(positions)
            return
        moved = [p for p in positions if positions[p] != self.now.get(p)]
        partition = (
            moved[0] if len(moved) == 1 and self._in_a_row(moved[0], records, positions) else None
        )
        last = self._runs[-1] if self._runs else None
        if last is not None and partition is not None and last.leads_to(partition, self):
            last.length += records
        else:
            self._runs.append(
                _Run(count=self.count, length=records, partition=partition, before=self.now)
            )
        self.count += records
        self.now = dict(positions)

    def at(self, count: int) -> Mapping[int, Position] | None:
        """Return the positions after so many records, or the last that are known before."""
        if count >= self.count:
            return self.now
        for run in reversed(self._runs):
            if run.count <= count:
                return run.at(count)
        return None

    def forget(self, count: int) -> None:
        """Forget what lies before a count: it is committed."""
        while self._runs and self._runs[0].count + self._runs[0].length <= count:
            self._runs.popleft()

    def _in_a_row(self, partition: int, records: int, positions: Mapping[int, Position]) -> bool:
        before, after = self.now.get(partition), positions[partition]
        if before is None or before.records or after.records:
            return False
        return after.offset - before.offset == records


class ChannelOffsets:
    """Counts what is read, and keeps positions with the gateway by that count."""

    NotInitialized = -9999
    """The offset of a reader that was told none."""

    _silent_mode: bool

    def __init__(self) -> None:
        self._reader: ChannelReader | None = None
        self._read_record_count = 0
        self._read_record_offset = self.NotInitialized
        self._initial_input_record_offset = 0
        self._last_offset_committed = 0
        self._trail: OffsetHistory | None = None
        self._begun: dict[int, Position] = {}

    @abstractmethod
    def _opened(self) -> ChannelReader:
        """Return the reader. Raises EndpointClosed."""

    def get_read_record_count(self) -> int:
        """Return how many records were read here."""
        return self._read_record_count

    def get_read_record_offset(self) -> int:
        """Return the offset of the next record, or NotInitialized."""
        return self._read_record_offset

    def set_initial_record_offset(self, initial_record_offset: int) -> None:
        """Go on reading at this offset, and count from there.

        Raises OffsetOutOfRange, and OptionError where the channel has several partitions for this
        reader, so that one number does not say where in them.
        """
        if self._reader is not None:
            self._trail = self._moved(self._reader, initial_record_offset)
        self._initial_input_record_offset = initial_record_offset
        self._last_offset_committed = initial_record_offset
        self._read_record_offset = initial_record_offset

    def set_initial_record_offset_auto(self) -> None:
        """Go on where the group has committed last, or at the first record."""
        self.set_initial_record_offset(self._load_input_record_offset())

    def invoke_commit_offset(
        self, offset: int, compensate_with_initial_offset: bool = True
    ) -> None:
        """Commit that records up to this offset are done: counted from where this reader began.

        Without compensation it is the offset itself. Raises CommitBeyondRead (a ValueError) for
        what was not read, and Conflict `goes_back` for what lies before the last commit.
        """
        reader = self._opened()
        trail = self._know_offset()
        wanted = offset + self._initial_input_record_offset * compensate_with_initial_offset
        if wanted > self._read_record_offset:
            raise CommitBeyondRead(
                f"Offset is out of range: {wanted}; Current read offset? {self._read_record_offset}"
            )
        if wanted == self._last_offset_committed:
            return
        if wanted < self._last_offset_committed:
            raise Conflict(
                f"Offset to commit ({wanted}) is lower than the last committed offset "
                f"({self._last_offset_committed}); nothing was committed. Going back is a reset: "
                "channel.reset(group, …, reason=…)",
                status=409,
                code="goes_back",
            )
        places = trail.at(wanted)
        if places is not None:
            reader.commit(places)
            self._note_committed(wanted)

    def invoke_commit_current_read_offset(self) -> None:
        """Commit all that was read."""
        reader = self._opened()
        self._know_offset()
        reader.commit()
        self._note_committed(self._read_record_offset)

    def _begin(self, reader: ChannelReader) -> None:
        """Take a reader that was opened just now; an offset that was set before holds for it."""
        self._reader = reader
        self._begun = reader.position()
        if self._read_record_offset != self.NotInitialized:
            self._trail = self._moved(reader, self._read_record_offset)

    def _count(self, records: int) -> None:
        """Note that so many records were read."""
        if records:
            self._read_record_count += records
            self._read_record_offset += records
        if self._trail is not None and self._reader is not None:
            self._trail.note(records, self._reader.position())

    def _discover_partitions(self, reader: ChannelReader) -> bool:
        """Read the partitions too that the channel has got since; whether there are such."""
        came = reader.discover_partitions()
        if came:
            self._begun |= {p: Position(offset=0) for p in came}
            self._know_offset().note(0, reader.position())
        return bool(came)

    def _load_input_record_offset(self) -> int:
        """Go to what is committed, else to where this reader began; return the offset."""
        reader = self._opened()
        committed = {} if self._silent_mode else reader.committed()
        places = self._begun | {p: at for p, at in committed.items() if p in self._begun}
        moved = {p: at for p, at in places.items() if reader.position()[p] != at}
        if moved:
            reader.seek(moved)
        return sum(place.offset for place in places.values())

    def _know_offset(self) -> OffsetHistory:
        """Return the trail; where nobody set an offset, it begins at what is committed."""
        if self._trail is None:
            self.set_initial_record_offset_auto()
        assert self._trail is not None  # noqa: S101 - it was set just now
        return self._trail

    def _note_committed(self, offset: int) -> None:
        self._last_offset_committed = offset
        if self._trail is not None:
            self._trail.forget(offset)

    def _moved(self, reader: ChannelReader, offset: int) -> OffsetHistory:
        """Let the reader stand at this offset, and begin a trail there."""
        positions = reader.position()
        if offset != sum(place.offset for place in positions.values()):
            if len(positions) != 1:
                raise OptionError(
                    f"the offset {offset} says no place in {len(positions)} partitions; start "
                    "where the group has committed: set_initial_record_offset_auto()"
                )
            reader.seek(dict.fromkeys(positions, offset))
        return OffsetHistory(offset, reader.position())


__all__ = ["ChannelOffsets", "OffsetHistory"]
