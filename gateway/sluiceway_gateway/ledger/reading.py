"""Reads of a ledger: visible runs, snapshots, the list of commits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.errors import SnapshotNotFound
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger import batch_store, repair_store, store
from sluiceway_gateway.ledger.model import Batch, Ledger, slice_runs
from sluiceway_gateway.ledger.repairing import Repair
from sluiceway_gateway.ledger.service import require_ledger


@dataclass(frozen=True, kw_only=True)
class CommittedQuery:
    """A query for a part of a channel's committed offsets."""

    starts: Mapping[int, int] | None = None
    """By partition, the first offset; None for all offsets."""
    limit: int
    """Maximum number of runs in the result."""
    number: int | None = None
    """The number of an earlier result to continue, or of a snapshot."""
    at: datetime | None = None
    """The time of a snapshot."""
    whole: bool = False
    """Whether it is a snapshot: the runs of whole batches, also those above `stable`."""
    known_number: int | None = None
    """A number whose time the caller compares with the one that it knows."""

    @property
    def is_past(self) -> bool:
        """Whether the result never changes."""
        return self.number is not None or self.at is not None


@dataclass(frozen=True, kw_only=True)
class VisibleOffsets:
    """Committed offsets of a channel, in one consistent state.

    `truncated` has the start of the next part by partition. Missing partitions count as 0.
    """

    uid: str
    topic_id: str
    partitions: int
    number: int
    at: datetime | None
    """The time of the number; None before the first one."""
    known_at: datetime | None
    """The time of the query's `known_number`; None if it is unknown or was pruned."""
    stable: Mapping[int, int]
    visible_end: Mapping[int, int]
    runs: Mapping[int, Sequence[Interval]]
    truncated: Mapping[int, int]
    open: tuple[Batch, ...]
    halted: str | None
    repaired: int | None
    """The number of the last repair, which removed runs."""
    given_up: Mapping[int, Sequence[Interval]]
    """By partition, the offsets that repairs have removed."""
    removed: Sequence[int]
    """Partitions of which retention has removed runs of this state since its number."""

    @property
    def etag(self) -> str:
        """The quoted tag: every change of `stable` changes the number.

        The time tells the number from the same one before a restore of the database.
        """
        at = "" if self.at is None else f".{self.at.timestamp() * 1000:.0f}"
        return f'"{self.uid[:8]}.l{self.number}{"h" if self.halted is not None else ""}{at}"'


@dataclass(frozen=True, kw_only=True)
class CommitList:
    """Ended batches and repairs, newest first; open batches, oldest first."""

    ended: tuple[Batch, ...]
    repairs: tuple[Repair, ...]
    open: tuple[Batch, ...]


class LedgerReads:
    """Reads of one database's ledgers; each is one snapshot of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def committed(self, name: str, query: CommittedQuery, *, uid: str) -> VisibleOffsets:
        """Return committed offsets.

        Raises ChannelNotFound, UidMismatch, NoLedger, and SnapshotNotFound.
        """
        with self._database.read() as tx:
            channel = require_ledger(tx, name, uid)
            ledger = store.find(tx, uid) or store.new_ledger(channel)
            number, ends = _as_of(tx, ledger, query)
            partitions = max(ledger.partitions, channel.topic.partitions or 0)
            starts = dict.fromkeys(range(partitions), 0) if query.starts is None else query.starts
            bounds = ends.visible_end if query.whole else ends.stable
            if query.whole and number != ledger.number:
                runs = store.whole_runs_slice(
                    tx, uid, starts, number=number, snapshot=ends, limit=query.limit
                )
            else:
                runs = store.runs_slice(tx, uid, starts, ends=bounds, limit=query.limit)
            lost = {} if ledger.repaired is None else repair_store.given_up(tx, uid)
            numbers = {number} if query.known_number is None else {number, query.known_number}
            times = store.times_of(tx, uid, numbers)
            open_batches = () if query.is_past else tuple(batch_store.open_batches(tx, uid))
        part = slice_runs(runs, bounds, starts, query.limit)
        return VisibleOffsets(
            uid=uid,
            topic_id=ledger.topic_id,
            partitions=partitions,
            number=number,
            at=times.get(number),
            known_at=None if query.known_number is None else times.get(query.known_number),
            stable=ends.stable,
            visible_end=ends.visible_end,
            runs=part.runs,
            truncated=part.truncated,
            open=open_batches,
            halted=ledger.halted,
            repaired=ledger.repaired,
            given_up=lost,
            removed=[
                partition
                for partition, after in sorted(ledger.removed_after.items())
                if after >= number and bounds.get(partition, 0)
            ],
        )

    def commits(
        self, name: str, *, uid: str | None, before: int | None, limit: int, key: str | None = None
    ) -> CommitList:
        """Return the last ends of batches and repairs, with numbers below `before` if given.

        With a `key`, only its batches.
        """
        with self._database.read() as tx:
            channel = require_ledger(tx, name, uid)
            last = repair_store.AFTER_ALL if before is None else before
            ended = batch_store.ended(tx, channel.uid, before=last, limit=limit, key=key)
            repairs: Sequence[Repair] = ()
            if key is None:
                repairs = repair_store.repairs(tx, channel.uid, before=last, limit=limit)
            still_open = batch_store.open_batches(tx, channel.uid)
        least = ended[-1].number if len(ended) == limit else 0
        return CommitList(
            ended=tuple(ended),
            repairs=tuple(repair for repair in repairs if repair.number >= (least or 0)),
            open=tuple(batch for batch in still_open if key in {None, batch.key}),
        )


def _as_of(
    tx: ReadTransaction, ledger: Ledger, query: CommittedQuery
) -> tuple[int, store.Snapshot]:
    """Return the number of the requested state, and its ends."""
    number = query.number
    if query.at is not None and number is None:
        number = store.number_at(tx, ledger.channel_uid, query.at)
        if number == 0:
            _require_kept(tx, ledger, f"as of {query.at.isoformat()}")
    if number is None or number == ledger.number:
        return ledger.number, store.Snapshot(stable=ledger.stable, visible_end=ledger.visible_end)
    if number == 0:
        return 0, store.Snapshot(stable={}, visible_end={})
    ends = store.snapshot(tx, ledger.channel_uid, number)
    if ends is None:
        if number < ledger.number:
            _require_kept(tx, ledger, f"of commit {number}")
        raise SnapshotNotFound(
            f"The channel has no commit {number}; the last one is {ledger.number}. "
            "`sluiceway channels commits` lists them."
        )
    return number, ends


def _require_kept(tx: ReadTransaction, ledger: Ledger, which: str) -> None:
    """Raise SnapshotNotFound if the first snapshots were pruned."""
    oldest = store.oldest_snapshot(tx, ledger.channel_uid)
    if oldest is not None and oldest[0] > 1:
        raise SnapshotNotFound(
            f"The snapshot {which} was pruned: they are kept for SLUICEWAY_HISTORY_DAYS days. The "
            f"oldest one is that of commit {oldest[0]}, of {oldest[1].isoformat()}."
        )
