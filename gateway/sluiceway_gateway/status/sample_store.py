"""SQL of samples. Of older samples fewer and fewer are kept; they date offsets."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, insert, literal_column, or_, select, update

from sluiceway_gateway.channels.store import hold_channels
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, samples
from sluiceway_gateway.db.statements import CachedSelect
from sluiceway_gateway.status.lag import GroupLag, LagSummary, Sample, summarize
from sluiceway_gateway.status.progress import WINDOW, OffsetTrack, ProgressState

_PROGRESS = {str(each): each for each in ProgressState}


@dataclass(frozen=True, kw_only=True)
class StoredSample:
    """A sample with its evaluation."""

    number: int
    """Counts the samples of the channel."""
    sample: Sample
    endpoints_digest: str = ""
    """Differs between two states of the endpoints and their counters."""
    lags: Mapping[str, GroupLag] = field(default_factory=dict)
    """By key of the track."""
    write_rate: float | None = None


def sample_of(row: Row[Any]) -> StoredSample:
    """Return the sample of a row."""
    document = row.document
    return StoredSample(
        number=row.number,
        sample=Sample(
            at=row.at,
            starts=document["starts"],
            ends=document["ends"],
            tracks={key: OffsetTrack(**each) for key, each in document["tracks"].items()},
        ),
        endpoints_digest=document["endpoints_digest"],
        lags={key: _group_lag_of(each) for key, each in document["lags"].items()},
        write_rate=document["summary"]["write_rate"],
    )


def values_of(channel_uid: str, stored: StoredSample) -> dict[str, Any]:
    """Return the columns of a sample."""
    sample = stored.sample
    document = {
        "starts": sample.starts,
        "ends": sample.ends,
        # asdict would copy every number.
        "tracks": {
            key: {"position": t.position, "committed": t.committed, "holder": t.holder}
            for key, t in sample.tracks.items()
        },
        "endpoints_digest": stored.endpoints_digest,
        "lags": {key: vars(each) for key, each in stored.lags.items()},
        "summary": asdict(summarize(stored.lags.values(), stored.write_rate)),
    }
    return {
        "channel_uid": channel_uid,
        "number": stored.number,
        "at": sample.at,
        "document": document,
    }


def _summary_of(document: Mapping[str, Any]) -> LagSummary:
    progress = _PROGRESS.get(document["progress"])
    return LagSummary(**{**document, "progress": progress})


def _group_lag_of(document: Mapping[str, Any]) -> GroupLag:
    progress = [_PROGRESS.get(each) for each in document["progress"]]
    return GroupLag(**{**document, "progress": progress})


#: Every 8th of the last 80 samples is kept, every 64th of the last 640, and so on. With one sample
#: in five seconds, offsets of the last two days are dated to an eighth of their age.
_STEPS = tuple((8**power, WINDOW * 8**power) for power in range(5))
#: Parameters of one statement.
_CHUNK = 500

#: Channels whose last sample is cached.
_MAX_CACHED = 50

_TOUCH = (
    update(samples)
    .where(samples.c.channel_uid == bindparam("channel"), samples.c.number == bindparam("nth"))
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
    samples.c.channel_uid == bindparam("channel"),
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
    # As literals, because SQLAlchemy would make them parameters.
    .limit(literal_column("1"))
    .offset(literal_column("0")),
    keys="uid",
    make=sample_of,
    max_entries=_MAX_CACHED,
)


def is_kept(number: int, newest: int) -> bool:
    """Whether a sample is kept once the channel has one of the number `newest`."""
    return any(number % step == 0 and number > newest - reach for step, reach in _STEPS)


@dataclass(frozen=True, kw_only=True)
class SampleWrite:
    """A sample to write: a new one, or the last one again with a later time."""

    channel_uid: str
    stored: StoredSample
    is_new: bool
    changes_status: bool


def of_channel(tx: ReadTransaction, channel_uid: str) -> list[StoredSample]:
    """Return all kept samples of a channel, oldest first."""
    statement = select(samples).where(samples.c.channel_uid == channel_uid)
    return [sample_of(row) for row in tx.execute(statement.order_by(samples.c.number))]


def last(tx: ReadTransaction, channel_uid: str) -> StoredSample | None:
    """Return the last sample of a channel."""
    found = tx.look_up(_LAST, [channel_uid])
    return found[0] if found else None


def last_at(tx: ReadTransaction, channel_uid: str) -> datetime | None:
    """Return the time of the last sample of a channel."""
    statement = select(samples.c.at).where(samples.c.channel_uid == channel_uid)
    moment: datetime | None = tx.execute(
        statement.order_by(samples.c.number.desc()).limit(1)
    ).scalar_one_or_none()
    return moment


def last_numbers(tx: ReadTransaction, channel_uids: Sequence[str]) -> dict[str, int]:
    """Return the number of the last sample of each of these channels that has one."""
    found: dict[str, int] = {}
    for start in range(0, len(channel_uids), _CHUNK):
        rows = tx.execute(_NUMBERS, {"uids": channel_uids[start : start + _CHUNK]})
        found |= {row.channel_uid: row.number for row in rows}
    return found


def summaries(
    tx: ReadTransaction, channel_uids: Sequence[str]
) -> dict[str, tuple[datetime, LagSummary]]:
    """Return the time and summary of the last sample of each channel that has one."""
    found: dict[str, tuple[datetime, LagSummary]] = {}
    newest = select(samples.c.channel_uid, func.max(samples.c.number).label("number"))
    for start in range(0, len(channel_uids), _CHUNK):
        chunk = channel_uids[start : start + _CHUNK]
        these = newest.where(samples.c.channel_uid.in_(chunk)).group_by(samples.c.channel_uid)
        latest = these.subquery()
        statement = select(
            samples.c.channel_uid, samples.c.at, samples.c.document["summary"].label("summary")
        ).join(
            latest,
            (samples.c.channel_uid == latest.c.channel_uid) & (samples.c.number == latest.c.number),
        )
        for row in tx.execute(statement):
            found[row.channel_uid] = (row.at, _summary_of(row.summary))
    return found


def write(tx: WriteTransaction, taken: Sequence[SampleWrite]) -> int:
    """Write samples of channels that still exist; return the number of changed statuses.

    While two replicas both believe that they lead, only the first one's samples are written.
    """
    held = hold_channels(tx, [each.channel_uid for each in taken])
    numbers = last_numbers(tx, sorted(held))
    written = [
        each
        for each in taken
        if each.channel_uid in held
        if each.stored.number == numbers.get(each.channel_uid, 0) + each.is_new
    ]
    new = [each for each in written if each.is_new]
    if new:
        tx.execute(insert(samples), [values_of(each.channel_uid, each.stored) for each in new])
        tx.execute(
            _THIN, [{"channel": each.channel_uid, "nth": each.stored.number} for each in new]
        )
    seen_again = [
        {"channel": each.channel_uid, "nth": each.stored.number, "seen_at": each.stored.sample.at}
        for each in written
        if not each.is_new
    ]
    if seen_again:
        tx.execute(_TOUCH, seen_again)
    changed = [each.channel_uid for each in written if each.changes_status]
    if changed:
        tx.execute(_REVISE, {"uids": changed})
    return len(changed)
