"""Comparison of ledgers with Kafka: those with lost records are halted.

Runs below the log start, which retention has removed, are removed from the ledger.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from sluiceway_gateway.channels.model import TopicRef
from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.errors import KafkaUnavailable
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.kafka.client import log_unavailable
from sluiceway_gateway.kafka.model import Watermarks
from sluiceway_gateway.ledger import store
from sluiceway_gateway.ledger.model import halt, reused_offsets

_log = structlog.get_logger(__name__)

_PAUSE_S = 10.0
#: Time after which a watermark below committed offsets means lost records; a new leader's watermark
#: may be behind for a moment.
_CONFIRM_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ComparisonCounts:
    """Ledgers that one pass compared with Kafka."""

    clipped: int = 0
    """Ledgers with removed runs below the log start."""
    halted: int = 0
    pause_s: float = _PAUSE_S


@dataclass(frozen=True, kw_only=True)
class _Behind:
    """A watermark below committed offsets."""

    since_s: float
    lowest: int


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
        self._monotonic = monotonic
        self._behind: dict[tuple[str, int], _Behind] = {}
        """By channel and partition, watermarks that are behind."""

    def run_once(self) -> ComparisonCounts:
        """Compare all ledgers of usable topics. Raises DatabaseUnavailable."""
        with self._database.read() as tx:
            topics = store.topics(tx)
        self._behind = {at: each for at, each in self._behind.items() if at[0] in topics}
        try:
            marks = self._kafka.watermarks_of(
                {each.name: each.partitions or 0 for each in topics.values()}
            )
        except KafkaUnavailable as error:
            log_unavailable(_log, error, ledgers=len(topics))
            return ComparisonCounts()
        clipped = halted = 0
        for uid, topic in topics.items():
            known = {at: each for at, each in marks[topic.name].items() if each is not None}
            clipped += self._clip(uid, topic, known)
            halted += self._halt(uid, topic, known)
        return ComparisonCounts(clipped=clipped, halted=halted)

    def _is_in_kafka(self, topic: TopicRef) -> bool:
        """Whether the topic in Kafka has the id of this one.

        Another cluster, or a topic that was recreated, says nothing about the ledger's records.
        """
        try:
            found = self._kafka.describe_topic(topic.name)
        except KafkaUnavailable:
            return False
        return found is not None and found.id == topic.id

    def _clip(self, uid: str, topic: TopicRef, marks: Mapping[int, Watermarks]) -> bool:
        starts = {at: each.begin_offset for at, each in marks.items() if each.begin_offset > 0}
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
        ends = {at: each.end_offset for at, each in marks.items()}
        with self._database.read() as tx:
            found = store.find(tx, uid)
        if found is None:
            return False
        lost = self._confirmed(uid, reused_offsets(found, ends))
        if not lost or not self._is_in_kafka(topic):
            return False
        with self._database.write() as tx:
            was = store.hold_existing(tx, uid)
            # Report the lowest watermark, even if others have written there since.
            lost = {} if was is None else reused_offsets(was, lost)
            if was is None or not lost:
                return False
            halted = halt(was, lost)
            store.save(tx, halted, was=was, now=self._clock())
        for partition in lost:
            # A further loss must be confirmed again.
            self._behind.pop((uid, partition), None)
        _log.error("a ledger is halted", channel=uid, reason=halted.halted, lost_from=lost)
        return True

    def _confirmed(self, uid: str, behind: Mapping[int, int]) -> Mapping[int, int]:
        """Return the lowest observed watermarks of partitions that have been behind for long."""
        now_s = self._monotonic()
        for known in [at for at in self._behind if at[0] == uid and at[1] not in behind]:
            del self._behind[known]
        confirmed = {}
        for partition, end in behind.items():
            seen = self._behind.get((uid, partition), _Behind(since_s=now_s, lowest=end))
            seen = _Behind(since_s=seen.since_s, lowest=min(seen.lowest, end))
            self._behind[uid, partition] = seen
            if now_s - seen.since_s >= _CONFIRM_S:
                confirmed[partition] = seen.lowest
        return confirmed
