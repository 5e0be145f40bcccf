"""Storage of ledgers: ends by partition, visible runs, snapshots and repairs.

A change of a ledger first locks its row, then reads everything else, so decisions are serialized.
Every UPDATE names the expected values, and the number of affected rows is checked.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, or_, select, update

from sluiceway_gateway.channels.model import READABLE, Channel, TopicRef
from sluiceway_gateway.channels.store import in_phases
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ChangeKind, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import PreparedDml, by_dialect, upsert
from sluiceway_gateway.core.errors import ConcurrentChange
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger.model import Ledger, Runs, clip, snapshot_runs, without_runs
from sluiceway_gateway.ledger.tables import (
    batch_runs,
    ledger_partitions,
    ledger_snapshots,
    ledgers,
    visible_runs,
)

# The rows refer to the channel's row, so a deletion of the channel waits for the transaction, or
# the transaction sees it.
_SHARE_CHANNELS = (
    select(channels.c.uid)
    .where(channels.c.uid.in_(bindparam("uids", expanding=True)))
    .order_by(channels.c.uid)
    .with_for_update(read=True, key_share=True)
)
_CREATE = by_dialect(lambda insert: insert(ledgers).on_conflict_do_nothing())
_FIND = select(ledgers).where(ledgers.c.channel_uid == bindparam("uid"))
_HOLD = _FIND.with_for_update()
_PARTITIONS = select(ledger_partitions).where(ledger_partitions.c.channel_uid == bindparam("uid"))
_SAVE = (
    update(ledgers)
    .where(
        ledgers.c.channel_uid == bindparam("uid"),
        ledgers.c.number == bindparam("was_number"),
        or_(ledgers.c.halted.is_(None), ledgers.c.halted == bindparam("new_halted")),
        ledgers.c.partitions <= bindparam("new_partitions"),
    )
    .values(
        number=bindparam("new_number"),
        halted=bindparam("new_halted"),
        partitions=bindparam("new_partitions"),
    )
)


# Prepared, like the statements of runs: commits run them.
_RAISE_ENDS = PreparedDml(
    upsert(
        ledger_partitions,
        ("channel_uid", "partition"),
        where=lambda new: (
            (ledger_partitions.c.visible_end <= new.visible_end)
            & (ledger_partitions.c.stable <= new.stable)
            # Only a repair forgets that records are lost.
            & (
                ledger_partitions.c.lost_from.is_(None)
                | (new.lost_from <= ledger_partitions.c.lost_from)
            )
        ),
    ),
    columns=ledger_partitions.c.keys(),
)


def share_channels(tx: WriteTransaction, uids: Iterable[str]) -> set[str]:
    """Keep channels from being deleted until `tx` ends; return the uids found."""
    return set(tx.execute(_SHARE_CHANNELS, {"uids": sorted(uids)}).scalars())


def hold(tx: WriteTransaction, channel: Channel) -> Ledger:
    """Return the channel's ledger, locked until `tx` ends; it begins with the first batch."""
    assert channel.topic.id is not None  # noqa: S101 - the channel is usable
    row = tx.execute(_HOLD, {"uid": channel.uid}).one_or_none()
    if row is None:
        new = new_ledger(channel)
        values: dict[str, Any] = {"channel_uid": new.channel_uid, "topic_id": new.topic_id}
        values |= {"partitions": new.partitions, "number": 0, "halted": None}
        tx.execute(_CREATE[tx.dialect], values)
        row = tx.execute(_HOLD, {"uid": channel.uid}).one()
    return _ledger_of(tx, row)


def hold_existing(tx: WriteTransaction, uid: str) -> Ledger | None:
    """Return a ledger, locked until `tx` ends; None if its channel is gone."""
    share_channels(tx, [uid])
    row = tx.execute(_HOLD, {"uid": uid}).one_or_none()
    return None if row is None else _ledger_of(tx, row)


def find(tx: ReadTransaction, uid: str) -> Ledger | None:
    """Return a channel's ledger, None before its first batch."""
    row = tx.execute(_FIND, {"uid": uid}).one_or_none()
    return None if row is None else _ledger_of(tx, row)


def stable_of(tx: ReadTransaction, uid: str) -> Mapping[int, int]:
    """Return `stable` by partition of a channel; nothing before its first batch."""
    ledger = find(tx, uid)
    return {} if ledger is None else ledger.stable


def new_ledger(channel: Channel) -> Ledger:
    """Return the ledger of a channel without batches."""
    topic = channel.topic
    partitions = topic.partitions or channel.spec.partitions
    return Ledger(channel_uid=channel.uid, topic_id=str(topic.id), partitions=partitions)


def _ledger_of(tx: ReadTransaction, row: Row[Any]) -> Ledger:
    # A separate statement, which sees everything committed before the lock was granted.
    ends = tx.execute(_PARTITIONS, {"uid": row.channel_uid}).all()
    return Ledger(
        channel_uid=row.channel_uid,
        topic_id=row.topic_id,
        partitions=row.partitions,
        number=row.number,
        visible_end={end.partition: end.visible_end for end in ends},
        stable={end.partition: end.stable for end in ends},
        halted=row.halted,
        lost_from={end.partition: end.lost_from for end in ends if end.lost_from is not None},
        low_end={end.partition: end.low_end for end in ends if end.low_end is not None},
        repaired=row.repaired,
        removed_after={
            end.partition: end.removed_after for end in ends if end.removed_after is not None
        },
    )


def save(tx: WriteTransaction, ledger: Ledger, *, was: Ledger, now: datetime) -> None:
    """Replace `was`, which is locked, and store a snapshot for each new number.

    Raises ConcurrentChange if any value would decrease.
    """
    if ledger == was:
        return
    saved = tx.execute(
        _SAVE,
        {
            "uid": was.channel_uid,
            "was_number": was.number,
            "new_number": ledger.number,
            "new_halted": ledger.halted,
            "new_partitions": ledger.partitions,
        },
    ).rowcount
    ends = [_ends(ledger, partition) for partition in ledger.visible_end]
    rows = [row for row in ends if row != _ends(was, row["partition"])]
    raised = tx.run_each(_RAISE_ENDS, rows)
    require_held(saved == 1 and raised == len(rows), "ledger")
    if (ledger.number, ledger.halted) != (was.number, was.halted):
        tx.publish(ChangeKind.LEDGER, [was.channel_uid])
    if ledger.number > was.number:
        _keep_missing_runs(tx, ledger, was)
    keep_snapshots(tx, ledger, was=was, now=now)


def _ends(ledger: Ledger, partition: int) -> dict[str, Any]:
    """Return the row of a partition's ends."""
    return {
        "channel_uid": ledger.channel_uid,
        "partition": partition,
        "visible_end": ledger.visible_end.get(partition),
        "stable": ledger.stable.get(partition, 0),
        "lost_from": ledger.lost_from.get(partition),
        "low_end": ledger.low_end.get(partition),
        "removed_after": ledger.removed_after.get(partition),
    }


def keep_snapshots(tx: WriteTransaction, ledger: Ledger, *, was: Ledger, now: datetime) -> None:
    """Store `stable` and `visible_end` under each number since `was`."""
    snapshots = [
        {
            "channel_uid": was.channel_uid,
            "number": number,
            "at": now,
            "stable": ledger.stable,
            "visible_end": None if ledger.visible_end == ledger.stable else ledger.visible_end,
        }
        for number in range(was.number + 1, ledger.number + 1)
    ]
    if snapshots:
        tx.execute(ledger_snapshots.insert(), snapshots)


def numbers_of(document: Mapping[str, int]) -> dict[int, int]:
    """Return numbers by partition from their JSON."""
    return {int(partition): number for partition, number in document.items()}


def require_held(held: bool, what: str) -> None:
    """Raise ConcurrentChange unless a guarded statement changed its row."""
    if not held:
        raise ConcurrentChange(
            f"The channel's {what} was changed at the same time; send the request again."
        )


_RUNS = (
    select(visible_runs.c.first_offset, visible_runs.c.end_offset)
    .where(
        visible_runs.c.channel_uid == bindparam("uid"),
        visible_runs.c.partition == bindparam("partition"),
        visible_runs.c.end_offset >= bindparam("least"),
    )
    .order_by(visible_runs.c.end_offset)
)
_RUNS_BETWEEN = _RUNS.where(visible_runs.c.first_offset < bindparam("end")).limit(bindparam("most"))
_LAST_RUNS_BETWEEN = _RUNS_BETWEEN.order_by(None).order_by(visible_runs.c.end_offset.desc())
_REMOVE_RUN = PreparedDml(
    delete(visible_runs).where(*(column == bindparam(column.name) for column in visible_runs.c))
)
_ADD_RUN = PreparedDml(visible_runs.insert(), columns=visible_runs.c.keys())
_BATCH_RUNS = (
    select(batch_runs.c.first_offset, batch_runs.c.end_offset)
    .where(
        batch_runs.c.channel_uid == bindparam("uid"),
        batch_runs.c.partition == bindparam("partition"),
        batch_runs.c.end_offset >= bindparam("least"),
        batch_runs.c.end_offset <= bindparam("end"),
        batch_runs.c.number <= bindparam("number"),
    )
    .order_by(batch_runs.c.end_offset)
    .limit(bindparam("most"))
)
_ADD_BATCH_RUN = PreparedDml(batch_runs.insert(), columns=batch_runs.c.keys())
_OF_PARTITION = (
    visible_runs.c.channel_uid == bindparam("uid"),
    visible_runs.c.partition == bindparam("of_partition"),
)
_FIRST_RUN = (
    select(visible_runs.c.first_offset)
    .where(*_OF_PARTITION, visible_runs.c.first_offset < bindparam("start"))
    .limit(1)
)
_REMOVE_BELOW = delete(visible_runs).where(
    *_OF_PARTITION, visible_runs.c.end_offset <= bindparam("start")
)
_CUT_BELOW = (
    update(visible_runs)
    .where(*_OF_PARTITION, visible_runs.c.first_offset < bindparam("start"))
    .values(first_offset=bindparam("start"))
)
_REMOVED = (
    update(ledger_partitions)
    .where(
        ledger_partitions.c.channel_uid == bindparam("uid"),
        ledger_partitions.c.partition == bindparam("of_partition"),
    )
    .values(removed_after=bindparam("number"))
)


def runs_from(tx: ReadTransaction, uid: str, starts: Mapping[int, int]) -> Runs:
    """Return the stored runs that end at or above a partition's start."""
    return {
        partition: _intervals(
            tx.execute(_RUNS, {"uid": uid, "partition": partition, "least": least})
        )
        for partition, least in starts.items()
    }


def runs_slice(
    tx: ReadTransaction,
    uid: str,
    starts: Mapping[int, int],
    *,
    ends: Mapping[int, int],
    limit: int,
) -> Runs:
    """Return up to `limit` runs, plus one, between the starts and the ends.

    Of each further partition it returns one run, for the start of the next part.
    """
    runs: dict[int, Sequence[Interval]] = {}
    for partition, start in sorted(starts.items()):
        bounds = {partition: Interval(start, ends.get(partition, 0))}
        runs |= runs_between(tx, uid, bounds, limit=limit + 1)
        limit = max(0, limit - len(runs[partition]))
    return runs


def whole_runs_slice(
    tx: ReadTransaction,
    uid: str,
    starts: Mapping[int, int],
    *,
    number: int,
    snapshot: "Snapshot",
    limit: int,
) -> Runs:
    """Return the same of the batches numbered up to `number`, each wholly."""
    runs: dict[int, Sequence[Interval]] = {}
    for partition, start in sorted(starts.items()):
        stable, end = snapshot.stable.get(partition, 0), snapshot.visible_end.get(partition, 0)
        below = runs_between(tx, uid, {partition: Interval(start, stable)}, limit=limit + 1)
        above = {}
        if max(start, stable) < end:
            values = {"uid": uid, "partition": partition, "least": max(start, stable) + 1}
            values |= {"end": end, "number": number, "most": limit + 1}
            above[partition] = _intervals(tx.execute(_BATCH_RUNS, values))
        runs |= snapshot_runs(below, above, snapshot.stable)
        limit = max(0, limit - len(runs[partition]))
    return runs


def runs_between(
    tx: ReadTransaction,
    uid: str,
    bounds: Mapping[int, Interval],
    *,
    limit: int,
    newest: bool = False,
) -> dict[int, list[Interval]]:
    """Return the runs that have offsets within the bounds, by partition, the lowest first.

    Of each partition, at most `limit`: the first ones, or the last if `newest`.
    """
    by_partition: dict[int, list[Interval]] = {}
    for partition, (first, end) in bounds.items():
        values = {"uid": uid, "partition": partition, "least": first + 1, "end": end, "most": limit}
        statement = _LAST_RUNS_BETWEEN if newest else _RUNS_BETWEEN
        runs = _intervals(tx.execute(statement, values)) if first < end else []
        by_partition[partition] = runs[::-1] if newest else runs
    return by_partition


def replace_runs(tx: WriteTransaction, uid: str, *, removed: Runs, added: Runs) -> None:
    """Delete runs, and insert their replacements."""
    gone = list(_run_rows(uid, removed))
    require_held(tx.run_each(_REMOVE_RUN, gone) == len(gone), "ledger")
    tx.run_each(_ADD_RUN, list(_run_rows(uid, added)))


def keep_batch_runs(tx: WriteTransaction, ledger: Ledger, runs: Runs) -> None:
    """Store runs of the batch with the ledger's number, which are above its `stable`."""
    rows = [{**row, "number": ledger.number} for row in _run_rows(ledger.channel_uid, runs)]
    tx.run_each(_ADD_BATCH_RUN, rows)


_ENDS_OF_SNAPSHOT = select(ledger_snapshots.c.visible_end).where(
    ledger_snapshots.c.channel_uid == bindparam("uid"),
    ledger_snapshots.c.number == bindparam("number"),
)


def _keep_missing_runs(tx: WriteTransaction, ledger: Ledger, was: Ledger) -> None:
    """Store the runs above `stable` that a gateway of the earlier version has committed.

    It stores neither them nor the ends of its snapshots (migration 0010).
    """
    uid = was.channel_uid
    above = {at: end for at, end in was.visible_end.items() if was.stable.get(at, 0) < end}
    if not above:
        return
    last = tx.execute(_ENDS_OF_SNAPSHOT, {"uid": uid, "number": was.number}).one_or_none()
    if last is None or last.visible_end is not None:
        return
    starts = {at: ledger.stable.get(at, 0) for at in above}
    for at, runs in runs_from(tx, uid, starts).items():
        stored = select(batch_runs.c.first_offset, batch_runs.c.end_offset).where(
            batch_runs.c.channel_uid == uid,
            batch_runs.c.partition == at,
            batch_runs.c.end_offset > starts[at],
        )
        kept = _intervals(tx.execute(stored.order_by(batch_runs.c.end_offset)))
        keep_batch_runs(tx, was, {at: without_runs(clip(runs, starts[at]), kept)})


def has_runs_below(tx: ReadTransaction, uid: str, starts: Mapping[int, int]) -> bool:
    """Return whether a run begins below the log start of its partition."""
    return any(
        tx.execute(_FIRST_RUN, {"uid": uid, "of_partition": partition, "start": start}).first()
        for partition, start in starts.items()
    )


def clip_runs(tx: WriteTransaction, ledger: Ledger, starts: Mapping[int, int]) -> None:
    """Remove the part of the runs below the log start; the ends by partition stay.

    Snapshots up to the ledger's number are incomplete in these partitions.
    """
    for partition, start in starts.items():
        values = {"uid": ledger.channel_uid, "of_partition": partition, "start": start}
        removed, cut = (
            tx.execute(statement, values).rowcount for statement in (_REMOVE_BELOW, _CUT_BELOW)
        )
        if removed or cut:
            tx.execute(_REMOVED, {**values, "number": ledger.number})


def _run_rows(uid: str, runs: Runs) -> Iterable[dict[str, Any]]:
    for partition, intervals in sorted(runs.items()):
        for run in intervals:
            yield {
                "channel_uid": uid,
                "partition": partition,
                "first_offset": run.first,
                "end_offset": run.end,
            }


def _intervals(rows: Iterable[Row[Any]]) -> list[Interval]:
    return [Interval(row.first_offset, row.end_offset) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The ends of a ledger's runs as of one number, by partition."""

    stable: Mapping[int, int]
    visible_end: Mapping[int, int]


def snapshot(tx: ReadTransaction, uid: str, number: int) -> Snapshot | None:
    """Return the ends as they were after the end of this number; None if they are not kept."""
    table = ledger_snapshots.c
    statement = select(table.stable, table.visible_end)
    row = tx.execute(
        statement.where(table.channel_uid == uid, table.number == number)
    ).one_or_none()
    if row is None:
        return None
    stable = numbers_of(row.stable)
    ends = stable if row.visible_end is None else numbers_of(row.visible_end)
    return Snapshot(stable=stable, visible_end=ends)


def times_of(tx: ReadTransaction, uid: str, numbers: Collection[int]) -> Mapping[int, datetime]:
    """Return the times of these numbers, without those that are unknown or were pruned."""
    table = ledger_snapshots.c
    rows = tx.execute(
        select(table.number, table.at).where(table.channel_uid == uid, table.number.in_(numbers))
    )
    return {row.number: row.at for row in rows}


def committed_until(
    tx: ReadTransaction, ledger: Ledger, partition: int, offset: int
) -> datetime | None:
    """Return a time by which a committed offset was written and committed, None if unknown.

    It is the time of the first number that is kept with the offset below `visible_end`, or of the
    last number: what is below a committed offset was written before its commit. Offsets that a
    repair may have filled count as written by the last one.
    """
    uid = ledger.channel_uid
    oldest = oldest_snapshot(tx, uid)
    low, high = max(1 if oldest is None else oldest[0], ledger.repaired or 0), ledger.number
    while low < high:
        middle = (low + high) // 2
        ends = snapshot(tx, uid, middle)
        if ends is not None and offset < ends.visible_end.get(partition, 0):
            high = middle
        else:
            low = middle + 1
    return times_of(tx, uid, [low]).get(low)


def oldest_snapshot(tx: ReadTransaction, uid: str) -> tuple[int, datetime] | None:
    """Return the number and the time of the oldest snapshot that is kept."""
    table = ledger_snapshots.c
    statement = select(table.number, table.at).where(table.channel_uid == uid)
    row = tx.execute(statement.order_by(table.number).limit(1)).one_or_none()
    return None if row is None else (row.number, row.at)


_MILLISECOND = timedelta(milliseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC) - _MILLISECOND


def number_at(tx: ReadTransaction, uid: str, at: datetime) -> int:
    """Return the number of the last end up to this time; 0 before the oldest one.

    Compares milliseconds, because clients see times in milliseconds.
    """
    table = ledger_snapshots.c
    until = min(at, _LAST) + _MILLISECOND
    statement = select(func.max(table.number)).where(table.channel_uid == uid, table.at < until)
    return tx.execute(statement).scalar_one() or 0


_STORED = select(ledgers.c.channel_uid).where(
    ledgers.c.channel_uid.in_(bindparam("uids", expanding=True))
)


def stored(tx: ReadTransaction, uids: Sequence[str]) -> list[str]:
    """Return the uids of those of the channels in which a batch was opened, sorted."""
    return sorted(row.channel_uid for row in tx.in_parts(_STORED, uids=uids))


_TOPICS = (
    select(
        ledgers.c.channel_uid,
        channels.c.topic_name,
        channels.c.topic_partitions,
        ledgers.c.topic_id,
    )
    .join(channels, channels.c.uid == ledgers.c.channel_uid)
    .where(in_phases(READABLE), channels.c.topic_id == ledgers.c.topic_id)
    .order_by(ledgers.c.channel_uid)
)


def topics(tx: ReadTransaction) -> dict[str, TopicRef]:
    """Return the topics by the uids of channels with a ledger."""
    return {
        row.channel_uid: TopicRef(
            name=row.topic_name, id=row.topic_id, partitions=row.topic_partitions
        )
        for row in tx.execute(_TOPICS)
    }
