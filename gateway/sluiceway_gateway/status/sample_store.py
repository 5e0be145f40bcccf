"""SQL of the sampler: channels to sample, positions of their readers, and samples.

The density of kept samples decreases with their age; they date offsets.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Integer,
    Row,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from sluiceway_gateway.channels.model import READABLE, Delivery
from sluiceway_gateway.channels.store import hold_channels, in_phases
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ChangeKind, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import CachedSelect, columns_of
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.model import Role, has_failed, outcome
from sluiceway_gateway.endpoints.store import LIVES, share_of
from sluiceway_gateway.endpoints.tables import endpoints, positions
from sluiceway_gateway.status.lag import (
    GroupLag,
    GroupSummary,
    LagSummary,
    LedgerSample,
    OpenBatch,
    Sample,
    summarize,
    summarize_groups,
)
from sluiceway_gateway.status.lag_history import store as history_store
from sluiceway_gateway.status.lag_history.model import point_of
from sluiceway_gateway.status.lag_history.store import PointWrite
from sluiceway_gateway.status.problems import FAILURE_AGE, Coverage, OutOfRange, ranges_of
from sluiceway_gateway.status.reader_progress import (
    WINDOW,
    CommittedOffset,
    OffsetTrack,
    ProgressState,
    ReaderProgress,
)
from sluiceway_gateway.status.tables import samples

_CURRENT = ~endpoints.c.superseded
# Built once, because the leading replica executes them all the time.
_CHANNELS = select(
    channels.c.uid,
    channels.c.topic_name.label("topic"),
    channels.c.topic_id,
    channels.c.topic_partitions.label("partitions"),
    (channels.c.delivery == Delivery.EXACTLY_ONCE).label("exactly_once"),
).where(in_phases(READABLE), channels.c.topic_partitions.is_not(None))
_IN_USE = _CHANNELS.where(channels.c.uid.in_(select(endpoints.c.channel_uid).where(LIVES)))
_BY_UID = _CHANNELS.where(channels.c.uid.in_(bindparam("uids", expanding=True)))
#: Channels of a page, whether somebody uses them or not: the time of its statement is bounded.
_PAGE = 2_000
# EXISTS uses an index per channel. With IN, PostgreSQL scans the list of all uids for each channel
# if it lacks the memory to hash the list.
_USED_PAGE = (
    _CHANNELS.add_columns(
        or_(
            exists().where(endpoints.c.channel_uid == channels.c.uid, _CURRENT),
            exists().where(positions.c.channel_uid == channels.c.uid),
        ).label("used")
    )
    .where(channels.c.uid > bindparam("after"))
    .order_by(channels.c.uid)
    .limit(bindparam("limit", type_=Integer))
)
_ENDPOINTS = (
    select(
        *(endpoints.c.id, endpoints.c.channel_uid, endpoints.c.role, endpoints.c.group_name),
        *(endpoints.c.member_index, endpoints.c.size, endpoints.c.mode, endpoints.c.epoch),
        *(endpoints.c.state, endpoints.c.health, endpoints.c.reached, endpoints.c.counters),
        *(endpoints.c.share_index, endpoints.c.share_size, endpoints.c.generation),
        *(endpoints.c.spark, endpoints.c.changed_at),
    )
    .where(_CURRENT, endpoints.c.channel_uid.in_(bindparam("uids", expanding=True)))
    .order_by(endpoints.c.id)
)
_POSITIONS = select(
    *(positions.c.channel_uid, positions.c.group_name, positions.c.member_index),
    *(positions.c.partition, positions.c.next_offset, positions.c.topic_id),
).where(positions.c.channel_uid.in_(bindparam("uids", expanding=True)))


@dataclass(frozen=True, kw_only=True)
class SampledChannel:
    """A channel to sample."""

    uid: str
    topic: str
    topic_id: str | None
    partitions: int
    exactly_once: bool


@dataclass(frozen=True, kw_only=True)
class ReaderSnapshot:
    """The readers and committed positions of a channel."""

    readers: tuple[ReaderProgress, ...]
    committed: tuple[CommittedOffset, ...]
    endpoints_digest: str
    """Differs between two states of the endpoints and their counters."""


def channels_in_use(tx: ReadTransaction) -> list[SampledChannel]:
    """Return the channels with live endpoints."""
    return _channels(tx.execute(_IN_USE))


def channels_by_uid(tx: ReadTransaction, uids: Sequence[str]) -> list[SampledChannel]:
    """Return the channels of these uids that still exist."""
    return _channels(tx.in_parts(_BY_UID, uids=uids))


@dataclass(frozen=True, kw_only=True)
class SampledPage:
    """Channels with endpoints, live or not, or with positions."""

    channels: list[SampledChannel]
    last: str | None
    """The uid after which the next page begins; None after the last page."""


def page_with_readers(tx: ReadTransaction, *, after: str) -> SampledPage:
    """Return those of the next channels by uid that have endpoints or positions."""
    rows = tx.execute(_USED_PAGE, {"after": after, "limit": _PAGE}).all()
    return SampledPage(
        channels=_channels(row for row in rows if row.used),
        last=rows[-1].uid if len(rows) == _PAGE else None,
    )


def reader_snapshots(
    tx: ReadTransaction, sampled: Sequence[SampledChannel], *, now: datetime
) -> dict[str, ReaderSnapshot]:
    """Return the readers and positions of these channels, by uid.

    Old failures are left out of the digest, so that there is a new status when they expire.
    """
    snapshots: dict[str, ReaderSnapshot] = {}
    uids = [channel.uid for channel in sampled]
    attached = _by_channel(tx.in_parts(_ENDPOINTS, uids=uids))
    stored = _by_channel(tx.in_parts(_POSITIONS, uids=uids))
    groups = groups_store.of_readers(tx, uids)
    for channel in sampled:
        rows = attached[channel.uid]
        counters = [
            [row.id, row.state, row.health, row.counters]
            for row in rows
            if row.changed_at > now - FAILURE_AGE
            or not has_failed(row.state, row.health, row.group_name)
        ]
        text = json.dumps(counters, sort_keys=True)
        snapshots[channel.uid] = ReaderSnapshot(
            readers=tuple(
                reader
                for row in rows
                if row.role == Role.READER
                if (group := groups.get((channel.uid, row.group_name))) is not None
                and group.has_place(row.member_index, row.mode)
                if (reader := reader_progress_of(row)).alive or group.keeps_reports(row.generation)
            ),
            committed=tuple(
                CommittedOffset(
                    group=row.group_name,
                    member=None if row.member_index < 0 else row.member_index,
                    partition=row.partition,
                    offset=row.next_offset,
                )
                for row in stored[channel.uid]
                # Positions in another topic have no meaning in this one.
                if row.topic_id == channel.topic_id
                if (group := groups.get((channel.uid, row.group_name))) is not None
                and group.has_positions(row.member_index)
            ),
            endpoints_digest=hashlib.sha256(text.encode()).hexdigest()[:16],
        )
    return snapshots


def _by_channel(rows: Iterable[Row[Any]]) -> Mapping[str, list[Row[Any]]]:
    by_channel: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        by_channel[row.channel_uid].append(row)
    return by_channel


def reader_progress_of(row: Row[Any]) -> ReaderProgress:
    """Return the progress of a reader's row."""
    return ReaderProgress(
        group=row.group_name,
        index=row.member_index,
        size=row.size,
        mode=row.mode,
        epoch=row.epoch,
        alive=outcome(row.state, row.health) == "live",
        positions={int(p): position[0] for p, position in (row.reached or {}).items()},
        share=share_of(row),
        by_tasks=row.spark is not None,
    )


def _channels(rows: Iterable[Row[Any]]) -> list[SampledChannel]:
    return [SampledChannel(**columns_of(row, SampledChannel)) for row in rows]


_PROGRESS = {str(state): state for state in ProgressState}


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
    out_of_range: Mapping[str, OutOfRange] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)
    """By group, the number of partitions that nobody reads."""


def sample_of(row: Row[Any]) -> StoredSample:
    """Return the sample of a row."""
    document = row.document
    return StoredSample(
        number=row.number,
        sample=Sample(
            at=row.at,
            starts=document["starts"],
            ends=document["ends"],
            log_ends=document["log_ends"],
            ledger=ledger_of(document["ledger"]),
            tracks={key: OffsetTrack(**track) for key, track in document["tracks"].items()},
        ),
        endpoints_digest=document["endpoints_digest"],
        lags={key: _group_lag_of(lag) for key, lag in document["lags"].items()},
        write_rate=document["summary"]["write_rate"],
        out_of_range=ranges_of(document.get("out_of_range")),
        unread=document.get("unread", {}),
    )


def values_of(channel_uid: str, stored: StoredSample) -> dict[str, Any]:
    """Return the columns of a sample."""
    sample = stored.sample
    document = {
        "starts": sample.starts,
        "ends": sample.ends,
        "log_ends": sample.log_ends,
        "ledger": None if sample.ledger is None else asdict(sample.ledger),
        # asdict would copy every number.
        "tracks": {key: vars(track) for key, track in sample.tracks.items()},
        "endpoints_digest": stored.endpoints_digest,
        "lags": {key: vars(lag) for key, lag in stored.lags.items()},
        "summary": asdict(summarize(stored.lags.values(), stored.write_rate)),
        "groups": {name: vars(summary) for name, summary in summarize_groups(stored.lags).items()},
        "coverage": asdict(Coverage.of(sample.starts)),
        "out_of_range": {name: vars(counts) for name, counts in stored.out_of_range.items()},
        "unread": dict(stored.unread),
    }
    return {
        "channel_uid": channel_uid,
        "number": stored.number,
        "at": sample.at,
        "document": document,
    }


def ledger_of(document: Mapping[str, Any] | None) -> LedgerSample | None:
    """Return the ledger of a sample's document."""
    if document is None:
        return None
    return LedgerSample(**{**document, "batches": [OpenBatch(**e) for e in document["batches"]]})


def group_summaries_of(document: Mapping[str, Any]) -> dict[str, GroupSummary]:
    """Return the groups of a sample's document, by name."""
    return {
        name: GroupSummary(**{**summary, "progress": _PROGRESS.get(summary["progress"])})
        for name, summary in document.items()
    }


def _group_lag_of(document: Mapping[str, Any]) -> GroupLag:
    return GroupLag(**{**document, "progress": [_PROGRESS.get(p) for p in document["progress"]]})


#: Every second of the last 20 samples is kept, every fourth of the last 40, and so on, and as long
#: the first one. With one sample in five seconds, offsets of the last two days are dated to a
#: quarter of their age.
_STEPS = tuple((1 << power, WINDOW << power) for power in range(13))
_, _REACH = _STEPS[-1]

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
        ),
        (samples.c.number == 1) & (bindparam("nth") <= _REACH),
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
    if number == 1:
        return newest <= _REACH
    return any(number % step == 0 and number > newest - reach for step, reach in _STEPS)


@dataclass(frozen=True, kw_only=True)
class SampleWrite:
    """A sample to write: a new one, or the last one with a later time."""

    channel_uid: str
    stored: StoredSample
    is_new: bool
    changes_status: bool
    is_recorded: bool = False
    """Whether it is the first one of an interval of the lag history."""
    recorded_s: int | None = None
    """The start of the last interval of the lag history that the sampler wrote."""


def of_channel(tx: ReadTransaction, channel_uid: str) -> list[StoredSample]:
    """Return all kept samples of a channel, oldest first."""
    statement = select(samples).where(samples.c.channel_uid == channel_uid)
    return [sample_of(row) for row in tx.execute(statement.order_by(samples.c.number))]


def last(tx: ReadTransaction, channel_uid: str) -> StoredSample | None:
    """Return the last sample of a channel."""
    stored = tx.look_up(_LAST, [channel_uid])
    return stored[0] if stored else None


def last_at(tx: ReadTransaction, channel_uid: str) -> datetime | None:
    """Return the time of the last sample of a channel."""
    statement = select(samples.c.at).where(samples.c.channel_uid == channel_uid)
    moment: datetime | None = tx.execute(
        statement.order_by(samples.c.number.desc()).limit(1)
    ).scalar_one_or_none()
    return moment


def last_numbers(tx: ReadTransaction, channel_uids: Sequence[str]) -> dict[str, int]:
    """Return the number of the last sample of each of these channels that has one."""
    return {row.channel_uid: row.number for row in tx.in_parts(_NUMBERS, uids=channel_uids)}


_SUMMARY = ("summary", "groups", "ledger", "coverage", "out_of_range", "unread")


@dataclass(frozen=True, kw_only=True)
class SampleSummary:
    """The summary of a sample, without partitions."""

    at: datetime
    lag: LagSummary
    groups: Mapping[str, GroupSummary]
    ledger: LedgerSample | None
    coverage: Coverage | None
    """None in samples of earlier versions."""
    out_of_range: Mapping[str, OutOfRange]
    unread: Mapping[str, int]


def summaries(tx: ReadTransaction, channel_uids: Sequence[str]) -> dict[str, SampleSummary]:
    """Return the summary of the last sample of each channel that has one."""
    latest = _NUMBERS.subquery()
    statement = select(
        *(samples.c.channel_uid, samples.c.at),
        *(samples.c.document[key].label(key) for key in _SUMMARY),
    ).join(
        latest,
        (samples.c.channel_uid == latest.c.channel_uid) & (samples.c.number == latest.c.number),
    )
    return {
        row.channel_uid: SampleSummary(
            at=row.at,
            lag=LagSummary(**row.summary | {"progress": _PROGRESS.get(row.summary["progress"])}),
            groups=group_summaries_of(row.groups or {}),
            ledger=ledger_of(row.ledger),
            coverage=None if row.coverage is None else Coverage(**row.coverage),
            out_of_range=ranges_of(row.out_of_range),
            unread=row.unread or {},
        )
        for row in tx.in_parts(statement, uids=channel_uids)
    }


def _point_write(written: SampleWrite) -> PointWrite:
    stored = written.stored
    groups = summarize_groups(stored.lags)
    point = point_of(stored.sample.at, write_rate=stored.write_rate, groups=groups)
    return PointWrite(channel_uid=written.channel_uid, point=point, previous_s=written.recorded_s)


def write(tx: WriteTransaction, taken: Sequence[SampleWrite]) -> int:
    """Write samples of channels that still exist; return the number of changed statuses.

    If two replicas both believe that they lead, only the first one's samples are written.
    """
    held = hold_channels(tx, [sample.channel_uid for sample in taken])
    numbers = last_numbers(tx, sorted(held))
    written = [
        sample
        for sample in taken
        if sample.channel_uid in held
        if sample.stored.number == numbers.get(sample.channel_uid, 0) + sample.is_new
    ]
    new = [sample for sample in written if sample.is_new]
    if new:
        tx.execute(
            insert(samples), [values_of(sample.channel_uid, sample.stored) for sample in new]
        )
        tx.execute(
            _THIN, [{"channel": sample.channel_uid, "nth": sample.stored.number} for sample in new]
        )
    seen_again = [
        {
            "channel": sample.channel_uid,
            "nth": sample.stored.number,
            "seen_at": sample.stored.sample.at,
        }
        for sample in written
        if not sample.is_new
    ]
    if seen_again:
        tx.execute(_TOUCH, seen_again)
    history_store.write(tx, [_point_write(sample) for sample in written if sample.is_recorded])
    changed = [sample.channel_uid for sample in written if sample.changes_status]
    if changed:
        tx.publish(ChangeKind.SAMPLES, changed)
        tx.execute(_REVISE, {"uids": changed})
    return len(changed)
