"""Storage of samples.

The last ones stay, and of older ones fewer and fewer: they tell when an offset was written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, insert, literal_column, or_, select, update

from sluiceway_gateway.channels.store import hold_channels
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, samples
from sluiceway_gateway.db.statements import CachedSelect
from sluiceway_gateway.status.lag import GroupLag, LagSummary, OffsetTrack, Sample, outline
from sluiceway_gateway.status.progress import WINDOW, Progress

_PROGRESS = {str(each): each for each in Progress}


@dataclass(frozen=True, kw_only=True)
class KeptSample:
    """A sample as it is kept, with what the status shows by it."""

    number: int
    """Counts the samples of the channel."""
    sample: Sample
    counted: str = ""
    """Tells two states of the endpoints' counters apart."""
    paces: Mapping[str, GroupLag] = field(default_factory=dict)
    """By track."""
    write_rate: float | None = None


def sample_of(row: Row[Any]) -> KeptSample:
    """Return the sample of a row of `samples`."""
    document = row.document
    return KeptSample(
        number=row.number,
        sample=Sample(
            at=row.at,
            starts=document["starts"],
            ends=document["ends"],
            tracks={key: OffsetTrack(**each) for key, each in document["tracks"].items()},
        ),
        counted=document["counted"],
        paces={key: _pace_of(each) for key, each in document["paces"].items()},
        write_rate=document["outline"]["write_rate"],
    )


def values_of(channel_uid: str, kept: KeptSample) -> dict[str, Any]:
    """Return the columns of a sample."""
    sample = kept.sample
    document = {
        "starts": sample.starts,
        "ends": sample.ends,
        # Not by asdict, which copies every number.
        "tracks": {
            key: {"position": t.position, "committed": t.committed, "holder": t.holder}
            for key, t in sample.tracks.items()
        },
        "counted": kept.counted,
        "paces": {key: vars(each) for key, each in kept.paces.items()},
        "outline": asdict(outline(kept.paces.values(), kept.write_rate)),
    }
    return {
        "channel_uid": channel_uid,
        "number": kept.number,
        "at": sample.at,
        "document": document,
    }


def outline_of(document: Mapping[str, Any]) -> LagSummary:
    """Return the line that a document has."""
    progress = document["progress"]
    return LagSummary(
        lag_messages=document["lag_messages"],
        behind_since=document["behind_since"],
        progress=progress and Progress(progress),
        write_rate=document["write_rate"],
    )


def _pace_of(document: Mapping[str, Any]) -> GroupLag:
    return GroupLag(
        lags=document["lags"],
        since=document["since"],
        progress=[_PROGRESS.get(each) for each in document["progress"]],
        lag_messages=document["lag_messages"],
        behind_since=document["behind_since"],
        read_rate=document["read_rate"],
        trend=document["trend"],
        drain_s=document["drain_s"],
    )


#: Every 8th of the last 80 stays, every 64th of the last 640, and so on: with one in five seconds,
#: what was written within the last two days is dated to an eighth of its age.
_STEPS = tuple((8**power, WINDOW * 8**power) for power in range(5))
#: A statement has only so many parameters.
_AT_ONCE = 500

#: Last samples, of as many channels, that are kept in memory as they were seen last.
_MOST_KEPT = 50

_TOUCH = (
    update(samples)
    .where(samples.c.channel_uid == bindparam("whose"), samples.c.number == bindparam("nth"))
    .values(at=bindparam("seen_at"))
)
_NUMBERS = (
    select(samples.c.channel_uid, func.max(samples.c.number).label("number"))
    .where(samples.c.channel_uid.in_(bindparam("uids", expanding=True)))
    .group_by(samples.c.channel_uid)
)
_REVISE = (
    update(channels)
    .where(channels.c.uid.in_(bindparam("uids", expanding=True)))
    .values(samples_revision=channels.c.samples_revision + 1)
)
_THIN = delete(samples).where(
    samples.c.channel_uid == bindparam("whose"),
    ~or_(
        *(
            (samples.c.number % step == 0) & (samples.c.number > bindparam("nth") - reach)
            for step, reach in _STEPS
        )
    ),
)


_LAST = CachedSelect(
    select(samples)
    .where(samples.c.channel_uid.in_(bindparam("uid", expanding=True)))
    .order_by(samples.c.number.desc())
    # Else SQLAlchemy has both as parameters.
    .limit(literal_column("1"))
    .offset(literal_column("0")),
    keys="uid",
    make=sample_of,
    max_entries=_MOST_KEPT,
)


def stays(number: int, newest: int) -> bool:
    """Whether a sample is kept when the channel has a newer one of this number."""
    return any(number % step == 0 and number > newest - reach for step, reach in _STEPS)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A sample to be written: a new one, or the last one, which was seen again."""

    channel_uid: str
    kept: KeptSample
    is_new: bool
    changes: bool
    """Whether the status shows something else by it."""


def of_channel(tx: ReadTransaction, channel_uid: str) -> list[KeptSample]:
    """Return all samples of a channel that are left, the oldest first."""
    statement = select(samples).where(samples.c.channel_uid == channel_uid)
    return [sample_of(row) for row in tx.execute(statement.order_by(samples.c.number))]


def last(tx: ReadTransaction, channel_uid: str) -> KeptSample | None:
    """Return the last sample of a channel."""
    found = tx.look_up(_LAST, [channel_uid])
    return found[0] if found else None


def last_at(tx: ReadTransaction, channel_uid: str) -> datetime | None:
    """Return when a channel was looked at last."""
    statement = select(samples.c.at).where(samples.c.channel_uid == channel_uid)
    moment: datetime | None = tx.execute(
        statement.order_by(samples.c.number.desc()).limit(1)
    ).scalar_one_or_none()
    return moment


def last_numbers(tx: ReadTransaction, channel_uids: Sequence[str]) -> dict[str, int]:
    """Return the number of the last sample of each of these channels that has one."""
    found: dict[str, int] = {}
    for start in range(0, len(channel_uids), _AT_ONCE):
        rows = tx.execute(_NUMBERS, {"uids": channel_uids[start : start + _AT_ONCE]})
        found |= {row.channel_uid: row.number for row in rows}
    return found


def outlines(
    tx: ReadTransaction, channel_uids: Sequence[str]
) -> dict[str, tuple[datetime, LagSummary]]:
    """Return of each channel when it was looked at last, and its line."""
    found: dict[str, tuple[datetime, LagSummary]] = {}
    newest = select(samples.c.channel_uid, func.max(samples.c.number).label("number"))
    for start in range(0, len(channel_uids), _AT_ONCE):
        chunk = channel_uids[start : start + _AT_ONCE]
        these = newest.where(samples.c.channel_uid.in_(chunk)).group_by(samples.c.channel_uid)
        latest = these.subquery()
        statement = select(
            samples.c.channel_uid, samples.c.at, samples.c.document["outline"].label("outline")
        ).join(
            latest,
            (samples.c.channel_uid == latest.c.channel_uid) & (samples.c.number == latest.c.number),
        )
        for row in tx.execute(statement):
            found[row.channel_uid] = (row.at, outline_of(row.outline))
    return found


def write(tx: WriteTransaction, taken: Sequence[Taken]) -> int:
    """Write samples of channels that are still there; return how many statuses changed.

    Of two replicas that both believe they lead, the one that comes later is left out.
    """
    held = hold_channels(tx, [each.channel_uid for each in taken])
    numbers = last_numbers(tx, sorted(held))
    written = [
        each
        for each in taken
        if each.channel_uid in held
        if each.kept.number == numbers.get(each.channel_uid, 0) + each.is_new
    ]
    new = [each for each in written if each.is_new]
    if new:
        tx.execute(insert(samples), [values_of(each.channel_uid, each.kept) for each in new])
        tx.execute(_THIN, [{"whose": each.channel_uid, "nth": each.kept.number} for each in new])
    seen_again = [
        {"whose": each.channel_uid, "nth": each.kept.number, "seen_at": each.kept.sample.at}
        for each in written
        if not each.is_new
    ]
    if seen_again:
        tx.execute(_TOUCH, seen_again)
    changed = [each.channel_uid for each in written if each.changes]
    if changed:
        tx.execute(_REVISE, {"uids": changed})
    return len(changed)
