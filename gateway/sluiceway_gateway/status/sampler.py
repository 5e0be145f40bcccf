"""Sampler: watermarks and positions of channels in use, at intervals.

Kafka is asked outside of any transaction. Channels at which somebody lives are looked at in every
pass, and so are those where something changed within the window; the others rarely.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db.engine import Database, ReadTransaction
from sluiceway_gateway.errors import KafkaUnavailable
from sluiceway_gateway.kafka.model import Watermarks
from sluiceway_gateway.status import reading_store, sample_store
from sluiceway_gateway.status.lag import Offsets, Sample, lives, pace, tracks, write_rate
from sluiceway_gateway.status.progress import WINDOW
from sluiceway_gateway.status.reading_store import ReaderSnapshot, Watched
from sluiceway_gateway.status.sample_store import KeptSample, Taken, stays

_log = structlog.get_logger(__name__)

#: How often a channel is looked at where nobody lives.
IDLE_S = 60.0
_CHANNELS_AT_ONCE = 100


class Topics(Protocol):
    """What is asked of Kafka."""

    def watermarks_of(
        self, topics: Mapping[str, int]
    ) -> Mapping[str, Mapping[int, Watermarks | None]]:
        """Return the bounds of topics with so many partitions; raises KafkaUnavailable."""


@dataclass(frozen=True, kw_only=True)
class SampleCounts:
    """What one pass did, in channels."""

    looked_at: int = 0
    changed: int = 0
    """Those whose status shows something else."""
    unknown: int = 0
    """Those whose watermarks Kafka did not give."""


@dataclass(kw_only=True)
class _Memory:
    """What is remembered of a channel, so that it need not be read again."""

    number: int = 0
    window: deque[KeptSample] = field(default_factory=lambda: deque(maxlen=WINDOW))
    history: list[tuple[int, float, Offsets]] = field(default_factory=list)
    """Numbers, times and ends of all samples that are kept."""

    @classmethod
    def of(cls, kept: Sequence[KeptSample]) -> "_Memory":
        """Return what the database has, the oldest first."""
        memory = cls()
        for each in kept:
            memory.add(each)
        return memory

    @property
    def ends(self) -> list[tuple[float, Offsets]]:
        """The topic's ends, by time."""
        return [(at_s, ends) for _, at_s, ends in self.history]

    def is_at_rest(self, sample: Sample, counted: str) -> bool:
        """Whether a whole window, and now this sample, is the same."""
        return len(self.window) == WINDOW and all(
            each.counted == counted
            and each.sample.ends == sample.ends
            and each.sample.starts == sample.starts
            and each.sample.tracks == sample.tracks
            for each in self.window
        )

    def take(self, taken: Taken) -> None:
        """Remember what was written."""
        if taken.is_new:
            self.add(taken.kept)
        else:
            self.window[-1] = taken.kept
            self.history[-1] = (
                taken.kept.number,
                taken.kept.sample.at.timestamp(),
                taken.kept.sample.ends,
            )

    def add(self, kept: KeptSample) -> None:
        """Take the next sample, and forget those that the database forgets."""
        self.number = kept.number
        self.window.append(kept)
        self.history.append((kept.number, kept.sample.at.timestamp(), kept.sample.ends))
        self.history = [each for each in self.history if stays(each[0], kept.number)]


class Sampler:
    """Takes the samples of one database's channels."""

    def __init__(
        self,
        *,
        database: Database,
        topics: Topics,
        clock: Clock,
        monotonic: Callable[[], float],
    ) -> None:
        """`clock` dates samples; `monotonic` says when idle channels are looked at again."""
        self._database = database
        self._topics = topics
        self._clock = clock
        self._monotonic = monotonic
        self._memories: dict[str, _Memory] = {}
        self._unsettled: set[str] = set()
        self._idle_due_s = float("-inf")

    def run_once(self) -> SampleCounts:
        """Look once at what is due. Raises DatabaseUnavailable."""
        now_s = self._monotonic()
        everything = now_s >= self._idle_due_s
        with self._database.scan() as tx:
            due = reading_store.known(tx) if everything else self._in_use(tx)
        if everything:
            self._idle_due_s = now_s + IDLE_S
            uids = {each.uid for each in due}
            self._memories = {u: memory for u, memory in self._memories.items() if u in uids}
        changed = unknown = 0
        is_away = False
        for start in range(0, len(due), _CHANNELS_AT_ONCE):
            chunk = due[start : start + _CHANNELS_AT_ONCE]
            marks: Mapping[str, Mapping[int, Watermarks | None]] = {}
            if not is_away:
                try:
                    marks = self._topics.watermarks_of({e.topic: e.partitions for e in chunk})
                except KafkaUnavailable as error:
                    is_away = True
                    _log.warning("kafka is away", reason=str(error))
            unknown += sum(_is_unknown(marks.get(each.topic, {})) for each in chunk)
            taken = self._taken(chunk, marks)
            with self._database.write() as tx:
                changed += sample_store.write(tx, taken)
            for each in taken:
                self._memories[each.channel_uid].take(each)
            self._unsettled -= {each.channel_uid for each in taken if not each.is_new}
            self._unsettled |= {each.channel_uid for each in taken if each.is_new}
        return SampleCounts(looked_at=len(due), changed=changed, unknown=unknown)

    def _in_use(self, tx: ReadTransaction) -> list[Watched]:
        due = reading_store.in_use(tx)
        others = self._unsettled - {each.uid for each in due}
        found = reading_store.these(tx, sorted(others))
        self._unsettled -= others - {each.uid for each in found}
        return due + found

    def _taken(
        self, chunk: Sequence[Watched], marks: Mapping[str, Mapping[int, Watermarks | None]]
    ) -> list[Taken]:
        """Return what is to be written of channels, whose readers are looked at now."""
        uids = [each.uid for each in chunk]
        with self._database.scan() as tx:
            standings = reading_store.standings(tx, chunk)
            numbers = sample_store.last_numbers(tx, uids)
            for uid in uids:
                memory = self._memories.get(uid)
                # Another replica may have led meanwhile.
                if memory is None or memory.number != numbers.get(uid, 0):
                    self._memories[uid] = _Memory.of(sample_store.of_channel(tx, uid))
        return [self._next(each, marks.get(each.topic, {}), standings[each.uid]) for each in chunk]

    def _next(
        self, channel: Watched, marks: Mapping[int, Watermarks | None], standing: ReaderSnapshot
    ) -> Taken:
        partitions = channel.partitions
        memory = self._memories[channel.uid]
        known = [marks.get(each) for each in range(partitions)] if not _is_unknown(marks) else []
        sample = Sample(
            at=self._clock(),
            starts=[None if each is None else each.begin_offset for each in known],
            ends=[None if each is None else each.end_offset for each in known],
            tracks=tracks(standing.readers, standing.stored, partitions=partitions),
        )
        if memory.is_at_rest(sample, standing.counted):
            # How old the next record to be read is goes up all the same.
            seen_again = replace(memory.window[-1], sample=sample)
            waits = any(each.lag_messages for each in seen_again.paces.values())
            return Taken(channel_uid=channel.uid, kept=seen_again, is_new=False, changes=waits)
        window = [*(each.sample for each in memory.window), sample][-WINDOW:]
        history = [*memory.ends, (sample.at.timestamp(), sample.ends)]
        read = lives(standing.readers, partitions=partitions)
        kept = KeptSample(
            number=memory.number + 1,
            sample=sample,
            counted=standing.counted,
            paces={key: pace(key, window, history, lives=read[key]) for key in sample.tracks},
            write_rate=write_rate(window),
        )
        return Taken(channel_uid=channel.uid, kept=kept, is_new=True, changes=True)


def _is_unknown(marks: Mapping[int, Watermarks | None]) -> bool:
    return all(each is None for each in marks.values())
