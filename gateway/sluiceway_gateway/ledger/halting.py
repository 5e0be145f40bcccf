"""Comparison of ledgers with Kafka: those with lost records are halted.

Two signs make a loss suspected: a watermark below committed offsets, and a manifest that lists
offsets of others. A record at a committed offset that Kafka appended after the commit proves it,
and so does a watermark that stays low. Runs below the log start, which retention has removed, are
removed from the ledger.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import structlog

from sluiceway_gateway.channels.model import TopicRef
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.client import log_unavailable
from sluiceway_gateway.core.kafka.model import Interval, ReadMessage, Watermarks
from sluiceway_gateway.core.kafka.window_reader import window_reader
from sluiceway_gateway.core.passes import run_steps
from sluiceway_gateway.ledger import store
from sluiceway_gateway.ledger.model import (
    Ledger,
    clear_low_ends,
    halt,
    lowest_offsets,
    note_low_ends,
    reused_offsets,
)

_log = structlog.get_logger(__name__)

CLOCK_TOLERANCE = timedelta(seconds=2)
"""Time by which the clocks of brokers and of the gateway may differ.

A record that was appended within it after a commit proves nothing.
"""
_PAUSE_S = 10.0
#: Time after which a watermark below committed offsets means lost records; a new leader's watermark
#: may be behind for a moment. After as long without a look, the time begins anew.
_CONFIRM_S = 30.0
#: Time for reading one record.
_READ_S = 5.0


class LossCheck:
    """Decides whether Kafka uses committed offsets again, and halts the ledger if so."""

    def __init__(self, *, database: Database, kafka: KafkaAdmin, clock: Clock) -> None:
        self._database = database
        self._kafka = kafka
        self._clock = clock

    def topic_id(self, topic: TopicRef) -> str | None:
        """Return the id of the topic of this name in Kafka, None without one.

        Another cluster, or a topic that was recreated, says nothing about the ledger's records.
        Raises KafkaUnavailable.
        """
        described = self._kafka.describe_topic(topic.name)
        return None if described is None else described.id

    def note(self, uid: str, topic: TopicRef, partitions: Collection[int]) -> None:
        """Store watermarks of these partitions that are below committed offsets.

        Raises KafkaUnavailable.
        """
        with self._database.read() as tx:
            ledger = store.find(tx, uid)
        if ledger is not None:
            self.store_low_ends(ledger, self.end_offsets(topic, partitions))

    def end_offsets(self, topic: TopicRef, partitions: Collection[int]) -> Mapping[int, int]:
        """Return the watermarks of these partitions, without those of silent leaders.

        Only those that were read after a ledger can be compared with it: a commit between the two
        reads looks like a loss. Raises KafkaUnavailable.
        """
        return self._kafka.end_offsets(topic.name, partitions) if partitions else {}

    def store_low_ends(self, ledger: Ledger, watermarks: Mapping[int, int]) -> None:
        """Store watermarks, read after the ledger, that are below its committed offsets."""
        low_end = reused_offsets(ledger, watermarks)
        if note_low_ends(ledger, low_end) == ledger:
            return
        with self._database.write() as tx:
            was = store.hold_existing(tx, ledger.channel_uid)
            if was is not None:
                store.save(tx, note_low_ends(was, low_end), was=was, now=self._clock())

    def all_reused(
        self, ledger: Ledger, topic: TopicRef, lost_from: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the first lost offsets, also of other partitions, and before the ones given.

        Raises KafkaUnavailable.
        """
        lost = dict(lost_from)
        last = {at: end - 1 for at, end in ledger.visible_end.items() if end}
        # Others may have written below the lowest end before it was seen.
        before = {at: end - 1 for at, end in lost_from.items() if end}
        # Later commits hide a loss that a low watermark still shows.
        for offsets in (last, before, ledger.low_end):
            lost = lowest_offsets(lost, self.reused(ledger, topic, offsets))
        return lost

    def reused(self, ledger: Ledger, topic: TopicRef, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return, by partition, the first offset up to a committed one that Kafka uses again.

        All records up to a committed offset were appended before its commit. Only the time at which
        a broker appended a record counts, not that of its writer. Raises KafkaUnavailable.
        """
        lost: dict[int, int] = {}
        for partition, offset in sorted(offsets.items()):
            with self._database.read() as tx:
                committed_at = store.committed_until(tx, ledger, partition, offset)
            if committed_at is None:
                continue
            after_ms = round((committed_at + CLOCK_TOLERANCE).timestamp() * 1000) + 1
            later = self._kafka.offsets_at(topic.name, [partition], after_ms)
            if partition not in later:
                raise KafkaUnavailable(
                    f"Kafka did not return the offsets of partition {partition} of the topic "
                    f"{topic.name!r}. Repeat the request."
                )
            first = later[partition]
            if not 0 <= first <= offset:
                continue
            record = self._record(topic, partition, first)
            if record is not None and record.timestamp_type == "append":
                lost[partition] = first
        return lost

    def _record(self, topic: TopicRef, partition: int, offset: int) -> ReadMessage | None:
        records: list[ReadMessage] = []
        window = {partition: Interval(offset, offset + 1)}
        with window_reader(self._kafka.client, topic.name) as reader:
            read = reader.read(window, time.monotonic() + _READ_S, records.append)
        if read[partition] <= offset:
            raise KafkaUnavailable(
                f"Kafka did not return the record at offset {offset} of partition {partition} of "
                f"the topic {topic.name!r}. Repeat the request."
            )
        return records[0] if records else None

    def halt(self, ledger: Ledger, topic: TopicRef, lost_from: Mapping[int, int]) -> Ledger | None:
        """Halt a ledger with these losses, and with those that Kafka's records prove beside them.

        None if that changes nothing.
        """
        uid = ledger.channel_uid
        if not reused_offsets(ledger, lost_from):
            return None
        try:
            lost_from = self.all_reused(ledger, topic, lost_from)
        except KafkaUnavailable as error:
            # A repair looks for the others again.
            log_unavailable(_log, error, channel=uid)
        with self._database.write() as tx:
            was = store.hold_existing(tx, uid)
            # Report the lowest offset, even if others have written there since.
            lost = {} if was is None else reused_offsets(was, lost_from)
            if was is None or not lost:
                return None
            halted = halt(was, lost)
            store.save(tx, halted, was=was, now=self._clock())
        _log.error("a ledger is halted", channel=uid, reason=halted.halted, lost_from=lost)
        return halted


@dataclass(frozen=True, kw_only=True)
class ComparisonCounts:
    """Ledgers that one pass compared with Kafka."""

    clipped: int = 0
    """Ledgers with removed runs below the log start."""
    halted: int = 0
    pause_s: float = _PAUSE_S


class _Looks(NamedTuple):
    """The monotonic times of the first and the last look at a watermark that is behind."""

    first_s: float
    last_s: float


class LedgerComparer:
    """Compares ledgers with Kafka's watermarks.

    Runs below the log start are removed; `visible_end` and `stable` stay. If Kafka has lost
    committed records, the ledger is halted, because Kafka would use their offsets again.
    """

    def __init__(
        self, *, database: Database, kafka: KafkaAdmin, clock: Clock, monotonic: Callable[[], float]
    ) -> None:
        self._database = database
        self._kafka = kafka
        self._clock = clock
        self._check = LossCheck(database=database, kafka=kafka, clock=clock)
        self._monotonic = monotonic
        self._behind: dict[tuple[str, int], _Looks] = {}
        """By channel and partition, the looks at a watermark that has been behind since."""

    def run_once(self) -> ComparisonCounts:
        """Compare all ledgers of usable topics. Raises DatabaseUnavailable."""
        with self._database.read() as tx:
            topics = store.topics(tx)
        self._behind = {at: looks for at, looks in self._behind.items() if at[0] in topics}
        try:
            marks = self._kafka.watermarks_of(
                {topic.name: topic.partitions or 0 for topic in topics.values()}
            )
        except KafkaUnavailable as error:
            log_unavailable(_log, error, ledgers=len(topics))
            return ComparisonCounts()
        compared = run_steps(
            partial(self._compare, uid, topic, marks[topic.name]) for uid, topic in topics.items()
        )
        return ComparisonCounts(
            clipped=sum(clipped for clipped, _ in compared),
            halted=sum(halted for _, halted in compared),
        )

    def _compare(
        self, uid: str, topic: TopicRef, marks: Mapping[int, Watermarks | None]
    ) -> tuple[bool, bool]:
        """Compare a ledger; return whether runs were removed, and whether it was halted."""
        answered = {at: mark for at, mark in marks.items() if mark is not None}
        clipped = self._clip(uid, topic, answered)
        try:
            return clipped, self._halt(uid, topic, answered)
        except KafkaUnavailable as error:
            # The next pass decides.
            log_unavailable(_log, error, channel=uid)
            return clipped, False

    def _is_in_kafka(self, topic: TopicRef) -> bool:
        """Whether the topic in Kafka has the id of this one."""
        try:
            return self._check.topic_id(topic) == topic.id
        except KafkaUnavailable as error:
            log_unavailable(_log, error, topic=topic.name)
            return False

    def _clip(self, uid: str, topic: TopicRef, marks: Mapping[int, Watermarks]) -> bool:
        starts = {at: mark.begin_offset for at, mark in marks.items() if mark.begin_offset > 0}
        with self._database.read() as tx:
            if not store.has_runs_below(tx, uid, starts):
                return False
        if not self._is_in_kafka(topic):
            return False
        with self._database.write() as tx:
            ledger = store.hold_existing(tx, uid)
            if ledger is None:
                return False
            store.clip_runs(tx, ledger, starts)
        return True

    def _halt(self, uid: str, topic: TopicRef, marks: Mapping[int, Watermarks]) -> bool:
        """Halt a ledger with a loss that is proven; return whether it was. KafkaUnavailable."""
        ends = {at: mark.end_offset for at, mark in marks.items()}
        with self._database.read() as tx:
            ledger = store.find(tx, uid)
        if ledger is None:
            return False
        low = reused_offsets(ledger, ends)
        ends = {at: end for at, end in ends.items() if at not in low}
        ends |= self._check.end_offsets(topic, low)
        behind = reused_offsets(ledger, ends)
        lasting = self._lasting(uid, behind)
        suspected = {at: end for at, end in ledger.low_end.items() if at in ends.keys() - behind}
        if not (behind or suspected) or not self._is_in_kafka(topic):
            return False
        self._check.store_low_ends(ledger, behind)
        lost = {at: min(end, ledger.low_end.get(at, end)) for at, end in lasting.items()}
        try:
            # Watermarks that have caught up: by late replication, or by other records.
            lost |= self._check.reused(ledger, topic, suspected)
        except KafkaUnavailable as error:
            # The next pass judges them.
            log_unavailable(_log, error, channel=uid)
        else:
            if cleared := suspected.keys() - lost:
                self._clear(uid, {at: suspected[at] for at in cleared})
        if self._check.halt(ledger, topic, lost) is None:
            return False
        for partition in lost:
            # A further loss must be confirmed again.
            self._behind.pop((uid, partition), None)
        return True

    def _clear(self, uid: str, judged: Mapping[int, int]) -> None:
        """Remove low watermarks, unless a lower one was stored meanwhile."""
        with self._database.write() as tx:
            was = store.hold_existing(tx, uid)
            if was is not None:
                same = [at for at, end in judged.items() if was.low_end.get(at) == end]
                store.save(tx, clear_low_ends(was, same), was=was, now=self._clock())
        _log.warning("watermarks trailed committed offsets for a moment", channel=uid, low=judged)

    def _lasting(self, uid: str, behind: Mapping[int, int]) -> Mapping[int, int]:
        """Return the watermarks that have been behind for long, in all looks."""
        now_s = self._monotonic()
        for at in [at for at in self._behind if at[0] == uid and at[1] not in behind]:
            del self._behind[at]
        lasting = {}
        for partition, end in behind.items():
            first_s, last_s = self._behind.get((uid, partition), (now_s, now_s))
            if now_s - last_s > _CONFIRM_S:
                # Kafka, the database or the lease was away, and it may have caught up meanwhile.
                first_s = now_s
            self._behind[uid, partition] = _Looks(first_s, now_s)
            if now_s - first_s >= _CONFIRM_S:
                lasting[partition] = end
        return lasting
