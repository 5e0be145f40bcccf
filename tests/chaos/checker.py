"""Rules of exactly-once delivery, checked on the history of a chaos run. Pure functions.

A unit is the set of records that one commit makes visible. Each record carries its identity, its
unit, the attempt that wrote it, and its sequence number in that attempt. Jobs write to journals
when they begin a unit, when it may be committed at the earliest, and how it ended.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

Kind = Literal["lost", "duplicated", "reordered", "early", "partial", "stuck", "cut_short"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RUNS = "runs"
"""The at-least-once channel whose writer writes one run after the other."""
REAP_S = 5.0
"""Time after the end of its lease for which a lost driver's batch may hold readers back."""
LEADER_CHANGE_S = 30.0
"""Additional time if the leading gateway changes or the database restarts: writers may renew."""


_ROWS = (8, 40)
Identity = tuple[str, int, int]
"""A job, the number of its batch, and the row in it."""


def rows_of(job: str, batch: int) -> int:
    """Return the number of rows of a batch, the same for each of its attempts."""
    return random.Random(f"{job}-{batch}").randint(*_ROWS)  # noqa: S311 - data of a test


class Record(NamedTuple):
    """A record of a chaos job."""

    job: str
    batch: int
    row: int
    unit: str
    part: int
    """The task that wrote the record, by its number in the unit."""
    attempt: str
    seq: int
    """The record's number in its unit and attempt."""

    @property
    def identity(self) -> Identity:
        return self.job, self.batch, self.row

    def __str__(self) -> str:
        return f"{self.job}/{self.batch}/{self.row} in {self.unit} by {self.attempt}"


class Seen(NamedTuple):
    """A record that a reader returned, and the time."""

    record: Record
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of a journal.

    `begun`: a unit of `rows` records in a channel; a `keyed` one is repeated until committed.
    `ready`: an attempt has written one of `parts` parts of the unit, which may now be committed.
    `committed`, `dropped`: the outcome that the job was told.
    """

    kind: Literal["begun", "ready", "committed", "dropped"]
    unit: str
    at_s: float = 0.0
    channel: str = ""
    job: str = ""
    batch: int = 0
    rows: int = 0
    keyed: bool = True
    part: int = 0
    parts: int = 1
    attempt: str = ""


@dataclass(frozen=True, kw_only=True)
class ChannelHistory:
    """The records that were read from a channel."""

    name: str
    source: str | None = None
    """The channel that jobs copy into this one; None if jobs write their own records."""
    final: Mapping[int, Sequence[Record]] = field(default_factory=dict)
    """By partition, the records that a new reader returned at the end."""
    seen: Mapping[int, Sequence[Seen]] = field(default_factory=dict)
    """By partition, the records that one reader returned during the run."""
    reads: Mapping[str, Sequence[Seen]] = field(default_factory=dict)
    """By reading job, all records that it has read, in any order."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Violations that a job found when it read a whole channel."""

    channel: str
    twice: int
    gone: int
    """Number of records that an earlier read returned and this one did not."""
    partial: int = 0
    """Number of units of which it returned only some records."""


def scan_of(channel: str, records: Sequence[Record], earlier: Iterable[Identity]) -> Scan:
    """Return the violations of a read of a whole channel; `earlier` was read before.

    The batches of a job have their number of rows from `rows_of`.
    """
    identities = [record.identity for record in records]
    rows = Counter((record.unit, record.job, record.batch) for record in records)
    return Scan(
        channel=channel,
        twice=len(identities) - len(set(identities)),
        gone=len(set(earlier) - set(identities)),
        partial=sum(count < rows_of(job, batch) for (_, job, batch), count in rows.items()),
    )


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Time for which a lost driver's batch held readers back."""

    driver: str
    lease_s: float
    held_s: float
    disturbed: bool = False
    """Whether a gateway or the database restarted meanwhile, or another gateway led."""

    @property
    def allowed_s(self) -> float:
        return self.lease_s + REAP_S + self.disturbed * LEADER_CHANGE_S


@dataclass(frozen=True, kw_only=True)
class Run:
    """A process of the writer of runs, whose records name it as their attempt."""

    name: str
    writer: str
    """Id of its endpoint."""
    began_s: float
    """A time after it attached."""
    ended_s: float | None = None
    """The time before it exited with 0; None if it failed."""
    reported: bool = True
    """Whether the process has reported its end, or still could."""


@dataclass(frozen=True, kw_only=True)
class RunRead:
    """A read of runs until their writers have finished."""

    began_s: float
    """A time before the reader attached."""
    ended_s: float = math.inf
    end: str = ""
    """"finished", the code of the error, "left", or empty if the process was killed."""
    endpoints: Sequence[str] = ()
    """Ids of the writers that the error names."""
    records: Sequence[Record] = ()


@dataclass(frozen=True, kw_only=True)
class History:
    """A run: journals of its jobs, records that were read, and jobs that did not end."""

    entries: Sequence[Entry] = ()
    channels: Sequence[ChannelHistory] = ()
    scans: Sequence[Scan] = ()
    holds: Sequence[Hold] = ()
    unfinished: Sequence[str] = ()
    runs: Sequence[Run] = ()
    run_reads: Sequence[RunRead] = ()
    """In order: all are by one place of a group."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A violation of a rule."""

    kind: Kind
    text: str
    unit: str = ""
    """The unit concerned, or empty."""


def check(history: History) -> list[Finding]:
    """Return every violation."""
    units = _Units(history.entries)
    finals = {channel.name: _flat(channel.final.values()) for channel in history.channels}
    findings: list[Finding] = []
    for channel in history.channels:
        name, final = channel.name, finals[channel.name]
        if channel.source is None:
            findings += _lost_of_jobs(name, final, units)
        else:
            findings += _missing(name, finals[channel.source], final)
        findings += _duplicated(name, final)
        findings += _dropped(name, final, units)
        for partition, records in channel.final.items():
            place = f"{name}[{partition}]"
            findings += _reordered(place, records, by_batch=channel.source is None)
            seen = [record for record, _ in channel.seen.get(partition, ())]
            findings += _changed(place, seen, records)
        for reader, returned in channel.reads.items():
            read = [record for record, _ in returned]
            findings += _duplicated(f"{name}, read by {reader}", read)
            findings += _missing(f"{name}, read by {reader}", final, read)
            findings += _missing(f"{name}, read before by {reader}", read, final)
        for returned in (*channel.seen.values(), *channel.reads.values()):
            findings += _early(name, returned, units)
    for scan in history.scans:
        text = f"{scan.channel}: read as a whole"
        findings += [Finding(kind="duplicated", text=text)] * scan.twice
        findings += [Finding(kind="lost", text=text)] * scan.gone
        findings += [Finding(kind="partial", text=text)] * scan.partial
    findings += _of_runs(history, finals.get(RUNS, ()), units)
    return findings + list(_stuck(history))


class _Units:
    """The units in the journals."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.begun: dict[str, Entry] = {}
        self.committed: set[str] = set()
        self.dropped: set[str] = set()
        self._parts: dict[str, int] = {}
        self._attempt_s: dict[tuple[str, int, str], float] = {}
        self._first_s: dict[tuple[str, int], float] = {}
        for entry in entries:
            if entry.kind == "begun":
                self.begun[entry.unit] = entry
            elif entry.kind == "ready":
                attempt, part = (entry.unit, entry.part, entry.attempt), (entry.unit, entry.part)
                self._parts[entry.unit] = entry.parts
                self._attempt_s[attempt] = min(entry.at_s, self._attempt_s.get(attempt, math.inf))
                self._first_s[part] = min(entry.at_s, self._first_s.get(part, math.inf))
            elif entry.kind == "committed":
                self.committed.add(entry.unit)
            else:
                self.dropped.add(entry.unit)

    def ready_s(self, record: Record) -> float:
        """Return the time before which the record cannot have been committed."""
        parts = range(self._parts.get(record.unit, 1))
        attempt_s = self._attempt_s.get((record.unit, record.part, record.attempt), math.inf)
        return max(attempt_s, *(self._first_s.get((record.unit, part), math.inf) for part in parts))


def _flat(partitions: Iterable[Sequence[Record]]) -> list[Record]:
    return [record for records in partitions for record in records]


def _lost_of_jobs(name: str, final: Sequence[Record], units: _Units) -> Iterator[Finding]:
    """Yield the missing rows of units that were committed or are partly visible."""
    rows: dict[str, set[int]] = defaultdict(set)
    for record in final:
        rows[record.unit].add(record.row)
    for unit, begun in units.begun.items():
        expected = begun.keyed or unit in units.committed or unit in rows
        if begun.channel == name and expected:
            state = "committed" if unit in units.committed else "begun, without a reported commit"
            for row in sorted(set(range(begun.rows)) - rows[unit]):
                text = f"{name}: row {row} of {unit}, which was {state}"
                yield Finding(kind="lost", text=text, unit=unit)


def _missing(name: str, expected: Sequence[Record], actual: Sequence[Record]) -> Iterator[Finding]:
    present = {record.identity for record in actual}
    for record in expected:
        if record.identity not in present:
            yield Finding(kind="lost", text=f"{name}: {record}", unit=record.unit)


def _duplicated(name: str, records: Sequence[Record]) -> Iterator[Finding]:
    copies: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        copies[record.identity].append(record)
    for first, *others in copies.values():
        for other in others:
            text = f"{name}: {first}, and again by {other.attempt} in {other.unit}"
            yield Finding(kind="duplicated", text=text, unit=other.unit)


def _dropped(name: str, final: Sequence[Record], units: _Units) -> Iterator[Finding]:
    """Yield visible records whose job was told that they would never be visible."""
    for record in final:
        if record.unit in units.dropped:
            text = f"{name}: {record}, which was not committed"
            yield Finding(kind="early", text=text, unit=record.unit)


def _reordered(place: str, records: Sequence[Record], *, by_batch: bool) -> Iterator[Finding]:
    """Yield records of an attempt, and batches of a job, that are not in the order of writing."""
    last: dict[tuple[str, str], int] = {}
    batches: dict[str, int] = {}
    for record in records:
        attempt = (record.unit, record.attempt)
        if record.seq <= last.get(attempt, -1):
            yield Finding(kind="reordered", text=f"{place}: {record}", unit=record.unit)
        last[attempt] = record.seq
        if by_batch:
            if record.batch < batches.get(record.job, record.batch):
                text = f"{place}: {record}, after a later batch"
                yield Finding(kind="reordered", text=text, unit=record.unit)
            batches[record.job] = record.batch


def _changed(place: str, seen: Sequence[Record], final: Sequence[Record]) -> Iterator[Finding]:
    """Yield differences between the records read during the run and those at its end."""
    if list(final[: len(seen)]) == list(seen):
        return
    extra = Counter(seen) - Counter(final)
    for record in extra:
        again = record in final
        kind: Kind = "duplicated" if again else "lost"
        text = f"{place}: {record} was read {'twice' if again else 'once'}"
        yield Finding(kind=kind, text=text, unit=record.unit)
    absent = Counter(final[: len(seen)]) - Counter(seen)
    if not extra or absent:
        at = next(
            (n for n, pair in enumerate(zip(seen, final, strict=False)) if pair[0] != pair[1]), 0
        )
        yield Finding(kind="reordered", text=f"{place}: the order changed from {seen[at]} on")


def _early(name: str, seen: Sequence[Seen], units: _Units) -> Iterator[Finding]:
    for record, at_s in seen:
        ready_s = units.ready_s(record)
        if at_s < ready_s:
            text = f"{name}: {record}, read at {at_s:.3f} s, ready at {ready_s:.3f} s"
            yield Finding(kind="early", text=text, unit=record.unit)


def _of_runs(history: History, final: Sequence[Record], units: _Units) -> Iterator[Finding]:
    """Yield lost and repeated records of runs, and reads that ended before the runs they read."""
    returned_by: dict[Identity, RunRead] = {}
    returned: set[str] = set()
    """Names of the runs of which a record was returned."""
    began_s = {run.name: run.began_s for run in history.runs}
    acknowledged = [record for record in final if record.unit in units.committed]
    finished: RunRead | None = None
    for read in history.run_reads:
        text = f"{RUNS}: the read that began at {read.began_s:.3f} s"
        for record in read.records:
            before = returned_by.get(record.identity)
            # A reader that failed or was killed had not committed its position.
            if before is not None and (before is read or before.end == "finished"):
                yield Finding(kind="duplicated", text=f"{text}: {record}", unit=record.unit)
            returned_by[record.identity] = read
            returned.add(record.attempt)
        for run in history.runs:
            ended = run.ended_s is not None and (run.reported or read.end != "writer_lost")
            if ended and run.writer in read.endpoints:
                yield Finding(kind="cut_short", text=f"{text}: {read.end} for {run}")
        if read.end != "finished":
            continue
        for record in acknowledged:
            begun = began_s.get(record.attempt, math.inf) < read.began_s
            if begun and record.identity not in returned_by:
                yield Finding(kind="cut_short", text=f"{text} lacks {record}", unit=record.unit)
        if not read.records and not any(
            finished is None
            or run.name not in returned
            or run.ended_s is None
            or run.ended_s > finished.ended_s
            for run in history.runs
            if (finished is None or run.began_s > finished.began_s) and run.began_s < read.ended_s
        ):
            yield Finding(kind="cut_short", text=f"{text} has ended without a run")
        finished = read
    if history.run_reads:
        read_at_all = [record for read in history.run_reads for record in read.records]
        yield from _missing(f"{RUNS}, read run by run", final, read_at_all)


def _stuck(history: History) -> Iterator[Finding]:
    for description in history.unfinished:
        yield Finding(kind="stuck", text=description)
    for hold in history.holds:
        if hold.held_s > hold.allowed_s:
            text = f"{hold.driver} held readers back for {hold.held_s:.1f} s"
            yield Finding(kind="stuck", text=f"{text}; at most {hold.allowed_s:.0f} s are allowed")


def accounts(history: History, findings: Iterable[Finding]) -> dict[str, list[str]]:
    """Return, by unit with a finding, its events in the journals and its records at the end."""
    lines: dict[str, list[str]] = {finding.unit: [] for finding in findings if finding.unit}
    for entry in sorted(history.entries, key=lambda entry: entry.at_s):
        if entry.unit in lines:
            author = f" by {entry.attempt}" if entry.attempt else ""
            lines[entry.unit].append(f"{entry.at_s:.3f} s: {entry.kind}{author}")
    for channel in history.channels:
        for partition, records in channel.final.items():
            rows = Counter(record.unit for record in records)
            for unit in lines.keys() & rows.keys():
                lines[unit].append(f"at the end: {rows[unit]} in {channel.name}[{partition}]")
    return lines
