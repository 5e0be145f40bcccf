"""Sampler loop: takes samples of watermarks and positions.

Each pass samples the channels with live endpoints, and those whose samples have changed within
the window. Idle channels are sampled once a minute. Kafka is called outside of transactions.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.db.statements import chunks
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.client import log_unavailable
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.core.passes import run_steps
from sluiceway_gateway.ledger.model import Ledger
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status import store as status_store
from sluiceway_gateway.status.lag import LedgerSample, Sample, group_lag, ledger_sample, write_rate
from sluiceway_gateway.status.lag_history.model import FINEST
from sluiceway_gateway.status.problems import out_of_range, unread_partitions
from sluiceway_gateway.status.reader_progress import WINDOW, Offsets, offset_tracks, partitions_read
from sluiceway_gateway.status.sample_store import (
    ReaderSnapshot,
    SampledChannel,
    SampleWrite,
    StoredSample,
    is_kept,
)

_log = structlog.get_logger(__name__)

#: How often idle channels are sampled.
IDLE_S = 60.0
_CHUNK = 100

TopicWatermarks = Mapping[int, Watermarks | None]
"""Watermarks by partition; None for a partition without a leader."""


@dataclass(frozen=True, kw_only=True)
class SampleCounts:
    """Channels of one pass."""

    sampled: int = 0
    changed: int = 0
    """Channels whose status changed."""
    unknown: int = 0
    """Channels whose watermarks Kafka did not return."""
    pause_s: float = 0.0
    """Time until the next pass."""


@dataclass(kw_only=True)
class _ChannelHistory:
    """The samples of a channel, cached so that a pass need not read them again."""

    number: int = 0
    window: deque[StoredSample] = field(default_factory=lambda: deque(maxlen=WINDOW))
    history: list[tuple[int, float, Offsets]] = field(default_factory=list)
    """Numbers, times and end offsets of all kept samples."""
    recorded_s: int | None = None
    """The start of the last interval in the lag history; None if it is unknown."""

    @property
    def ends(self) -> list[tuple[float, Offsets]]:
        """The end offsets by time."""
        return [(at_s, ends) for _, at_s, ends in self.history]

    def is_unchanged(self, sample: Sample, endpoints_digest: str) -> bool:
        """Whether all samples of a full window equal this one."""
        return len(self.window) == WINDOW and all(
            stored.endpoints_digest == endpoints_digest
            and replace(stored.sample, at=sample.at) == sample
            for stored in self.window
        )

    def replace_last(self, stored: StoredSample) -> None:
        """Replace the last sample by the same one with a later time."""
        self.window[-1] = stored
        self.history[-1] = (stored.number, stored.sample.at.timestamp(), stored.sample.ends)

    def append(self, stored: StoredSample) -> None:
        """Append a sample, and drop those that the database drops."""
        self.number = stored.number
        self.window.append(stored)
        self.history.append((stored.number, stored.sample.at.timestamp(), stored.sample.ends))
        self.history = [entry for entry in self.history if is_kept(entry[0], stored.number)]


class Sampler:
    """Samples the channels of one database."""

    def __init__(
        self,
        *,
        database: Database,
        kafka: KafkaAdmin,
        clock: Clock,
        monotonic: Callable[[], float],
        interval_s: float = 5.0,
    ) -> None:
        """`clock` dates samples; `monotonic` times the sampling of idle channels."""
        self._database = database
        self._kafka = kafka
        self._clock = clock
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._histories: dict[str, _ChannelHistory] = {}
        self._changing: set[str] = set()
        """Channels with different samples within the window."""
        self._idle_due_s = float("-inf")
        self._idle_after: str | None = ""
        """The last uid of the pages of idle channels that were read; None after the last page."""
        self._idle_uids: set[str] = set()
        """Channels of these pages."""
        self._kafka_answers = True
        """In the present pass."""

    def run_once(self) -> SampleCounts:
        """Sample the channels that are due. Raises DatabaseUnavailable.

        After an error of some channels, samples the others.
        """
        counts: list[SampleCounts] = []
        sampled: set[str] = set()
        self._kafka_answers = True

        def take(chunk: Sequence[SampledChannel]) -> None:
            counts.append(self._sample_chunk(chunk))

        def sample(due: Sequence[SampledChannel]) -> None:
            some = [channel for channel in due if channel.uid not in sampled]
            sampled.update(channel.uid for channel in some)
            run_steps(partial(take, chunk) for chunk in chunks(some, _CHUNK))

        run_steps(self._steps(sample))
        return SampleCounts(
            sampled=sum(count.sampled for count in counts),
            changed=sum(count.changed for count in counts),
            unknown=sum(count.unknown for count in counts),
            pause_s=self._interval_s,
        )

    def _steps(
        self, sample: Callable[[Sequence[SampledChannel]], None]
    ) -> Iterator[Callable[[], None]]:
        """Yield the steps of a pass: the channels in use, then idle ones, if they are due.

        Idle channels are read page by page; if that fails, the next pass continues there.
        """

        def sample_active() -> None:
            with self._database.scan() as tx:
                due = self._active_channels(tx)
            sample(due)

        def sample_idle() -> None:
            assert self._idle_after is not None  # noqa: S101 - the loop below checks it
            with self._database.scan() as tx:
                page = sample_store.page_with_readers(tx, after=self._idle_after)
            self._idle_uids |= {channel.uid for channel in page.channels}
            self._idle_after = page.last
            sample(page.channels)

        yield sample_active
        now_s, before = self._monotonic(), None
        if now_s < self._idle_due_s:
            return
        while self._idle_after is not None and self._idle_after != before:
            before = self._idle_after
            yield sample_idle
        if self._idle_after is None:
            kept = self._idle_uids | self._changing
            self._histories = {
                uid: history for uid, history in self._histories.items() if uid in kept
            }
            self._idle_after, self._idle_uids = "", set()
            self._idle_due_s = now_s + IDLE_S

    def _sample_chunk(self, chunk: Sequence[SampledChannel]) -> SampleCounts:
        watermarks: Mapping[str, TopicWatermarks] = {}
        partitions: Mapping[str, int] = {}
        if self._kafka_answers:
            try:
                partitions = self._kafka.partition_counts(channel.topic for channel in chunk)
                watermarks = self._kafka.watermarks_of(
                    {channel.topic: channel.partitions for channel in chunk}
                )
            except KafkaUnavailable as error:
                # The other channels of this pass need not wait for it as well.
                self._kafka_answers = False
                log_unavailable(_log, error)
        samples = self._sample(chunk, watermarks)
        with self._database.write() as tx:
            changed = sample_store.write(tx, samples)
            # The reconciler records the partitions, of which endpoints then learn.
            grown = [
                channel.uid
                for channel in chunk
                if partitions.get(channel.topic, 0) > channel.partitions
            ]
            channels_store.make_due(tx, grown)
        for sample in samples:
            history = self._histories[sample.channel_uid]
            if sample.is_recorded:
                history.recorded_s = FINEST.start(sample.stored.sample.at.timestamp())
            if sample.is_new:
                history.append(sample.stored)
                self._changing.add(sample.channel_uid)
            else:
                history.replace_last(sample.stored)
                self._changing.discard(sample.channel_uid)
        unknown = sum(_is_unknown(watermarks.get(channel.topic, {})) for channel in chunk)
        return SampleCounts(sampled=len(chunk), changed=changed, unknown=unknown)

    def _active_channels(self, tx: ReadTransaction) -> list[SampledChannel]:
        in_use = sample_store.channels_in_use(tx)
        others = self._changing - {channel.uid for channel in in_use}
        changing = sample_store.channels_by_uid(tx, sorted(others))
        self._changing -= others - {channel.uid for channel in changing}
        return in_use + changing

    def _sample(
        self, chunk: Sequence[SampledChannel], watermarks: Mapping[str, TopicWatermarks]
    ) -> list[SampleWrite]:
        """Read the channels' positions and return their samples."""
        uids = [channel.uid for channel in chunk]
        ledgered = [channel.uid for channel in chunk if channel.exactly_once]
        with self._database.scan() as tx:
            snapshots = sample_store.reader_snapshots(tx, chunk, now=self._clock())
            numbers = sample_store.last_numbers(tx, uids)
            for uid in uids:
                # Another replica may have led meanwhile.
                if uid not in self._histories or self._histories[uid].number != numbers.get(uid, 0):
                    self._histories[uid] = _ChannelHistory()
                    for stored in sample_store.of_channel(tx, uid):
                        self._histories[uid].append(stored)
            rows = status_store.ledgers_of(tx, ledgered)
            counts = status_store.committed_messages(tx, rows.keys())
        samples = []
        for channel in chunk:
            ledger = None
            if channel.exactly_once:
                unused = Ledger(
                    channel_uid=channel.uid,
                    topic_id=channel.topic_id or "",
                    partitions=channel.partitions,
                )
                ledger = ledger_sample(
                    *rows.get(channel.uid, (unused, ())),
                    partitions=channel.partitions,
                    committed_messages=counts.get(channel.uid, 0),
                )
            marks = watermarks.get(channel.topic, {})
            samples.append(self._sample_channel(channel, marks, snapshots[channel.uid], ledger))
        return samples

    def _sample_channel(
        self,
        channel: SampledChannel,
        marks: TopicWatermarks,
        snapshot: ReaderSnapshot,
        ledger: LedgerSample | None,
    ) -> SampleWrite:
        partitions = channel.partitions
        history = self._histories[channel.uid]
        watermarks = (
            [marks.get(partition) for partition in range(partitions)]
            if not _is_unknown(marks)
            else []
        )
        ends = log_ends = [None if mark is None else mark.end_offset for mark in watermarks]
        if ledger is not None and watermarks:
            ends = [
                None if mark is None else committed
                for mark, committed in zip(watermarks, ledger.visible_end, strict=True)
            ]
        sample = Sample(
            at=self._clock(),
            starts=[None if mark is None else mark.begin_offset for mark in watermarks],
            ends=ends,
            log_ends=[] if ledger is None else log_ends,
            ledger=ledger,
            tracks=offset_tracks(snapshot.readers, snapshot.committed, partitions=partitions),
        )
        is_new = not history.is_unchanged(sample, snapshot.endpoints_digest)
        if is_new:
            window = [*(earlier.sample for earlier in history.window), sample][-WINDOW:]
            past = [*history.ends, (sample.at.timestamp(), sample.ends)]
            alive = partitions_read(snapshot.readers, partitions=partitions)
            stored = StoredSample(
                number=history.number + 1,
                sample=sample,
                endpoints_digest=snapshot.endpoints_digest,
                lags={key: group_lag(key, window, past, alive=alive[key]) for key in sample.tracks},
                write_rate=write_rate(window),
                out_of_range=out_of_range(window),
                unread=unread_partitions(window, snapshot.readers),
            )
        else:
            stored = replace(history.window[-1], sample=sample)
        return SampleWrite(
            channel_uid=channel.uid,
            stored=stored,
            is_new=is_new,
            # The age of unread messages grows in equal samples too.
            changes_status=is_new or any(lag.lag_messages for lag in stored.lags.values()),
            is_recorded=FINEST.start(sample.at.timestamp()) != history.recorded_s,
            recorded_s=history.recorded_s,
        )


def _is_unknown(marks: TopicWatermarks) -> bool:
    return all(mark is None for mark in marks.values())
