"""The rules of exactly-once delivery, checked on the history of a chaos run. Pure.

Each record names itself, the unit that it was written in (what one commit makes visible), the
attempt that wrote it, and its place in that attempt. Jobs note in journals which units they begin,
when the commit of a unit may follow at the earliest, and what they were told about it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["lost", "duplicated", "reordered", "early", "stuck"]
KINDS: tuple[Kind, ...] = ("lost", "duplicated", "reordered", "early", "stuck")
REAP_S = 5.0
"""How long after the end of its lease the batch of a vanished driver may hold readers back."""
LEADER_CHANGE_S = 30.0
"""How much longer if gateways or the database restart meanwhile: writers get time to renew."""


class Record(NamedTuple):
    """A record, as it is written and read."""

    job: str
    batch: int
    row: int
    unit: str
    part: int
    """The task of the unit that wrote it."""
    attempt: str
    seq: int
    """Its place among the records of the attempt in the unit."""

    @property
    def identity(self) -> tuple[str, int, int]:
        return self.job, self.batch, self.row

    def __str__(self) -> str:
        return f"{self.job}/{self.batch}/{self.row} in {self.unit} by {self.attempt}"


class Seen(NamedTuple):
    """A record that a reader was given, and when."""

    record: Record
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of a journal.

    `begun`: a unit of `rows` records in a channel; a `keyed` one is repeated until it is committed.
    `ready`: an attempt has written a part of the unit, of `parts`; its commit may follow.
    `committed`, `dropped`: what the job was told about the unit.
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
    """What was read of a channel."""

    name: str
    source: str | None = None
    """The channel whose records it gets, each once; None: it has its jobs' own."""
    final: Mapping[int, Sequence[Record]] = field(default_factory=dict)
    """By partition, what a new reader found at the end."""
    seen: Mapping[int, Sequence[Seen]] = field(default_factory=dict)
    """By partition, what one reader found in the course of the run."""
    reads: Mapping[str, Sequence[Seen]] = field(default_factory=dict)
    """What reading jobs found in all, by their names, in any order."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What a job found wrong in a channel that it read in whole."""

    channel: str
    twice: int
    gone: int
    """Of the records that it had found before."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Time for which the batch of a vanished driver held readers back."""

    driver: str
    lease_s: float
    held_s: float
    disturbed: bool = False
    """Whether gateways or the database restarted meanwhile."""

    @property
    def allowed_s(self) -> float:
        return self.lease_s + REAP_S + self.disturbed * LEADER_CHANGE_S


@dataclass(frozen=True, kw_only=True)
class History:
    """A run: what its jobs noted, what was read, and what did not end."""

    entries: Sequence[Entry] = ()
    channels: Sequence[ChannelHistory] = ()
    scans: Sequence[Scan] = ()
    holds: Sequence[Hold] = ()
    unfinished: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A violation of a rule."""

    kind: Kind
    text: str
    unit: str = ""
    """The unit that it is about, if it is about one."""


def check(history: History) -> list[Finding]:
    """Return every violation."""
    units = _Units(history.entries)
    finals = {each.name: _flat(each.final.values()) for each in history.channels}
    findings: list[Finding] = []
    for each in history.channels:
        name, final = each.name, finals[each.name]
        if each.source is None:
            findings += _lost_of_jobs(name, final, units)
        else:
            findings += _missing(name, finals[each.source], final)
        findings += _duplicated(name, final)
        findings += _dropped(name, final, units)
        for partition, records in each.final.items():
            place = f"{name}[{partition}]"
            findings += _reordered(place, records, own=each.source is None)
            seen = [record for record, _ in each.seen.get(partition, ())]
            findings += _changed(place, seen, records)
        for reader, seen_by in each.reads.items():
            read = [record for record, _ in seen_by]
            findings += _duplicated(f"{name}, read by {reader}", read)
            findings += _missing(f"{name}, read by {reader}", final, read)
            findings += _missing(f"{name}, once read by {reader}", read, final)
        for found in (*each.seen.values(), *each.reads.values()):
            findings += _early(name, found, units)
    for scan in history.scans:
        text = f"{scan.channel}: read by Spark"
        findings += [Finding(kind="duplicated", text=text)] * scan.twice
        findings += [Finding(kind="lost", text=text)] * scan.gone
    return findings + list(_stuck(history))


class _Units:
    """What the journals say about units."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.begun: dict[str, Entry] = {}
        self.committed: set[str] = set()
        self.dropped: set[str] = set()
        self._parts: dict[str, int] = {}
        self._own_s: dict[tuple[str, int, str], float] = {}
        self._first_s: dict[tuple[str, int], float] = {}
        for each in entries:
            if each.kind == "begun":
                self.begun[each.unit] = each
            elif each.kind == "ready":
                own, part = (each.unit, each.part, each.attempt), (each.unit, each.part)
                self._parts[each.unit] = each.parts
                self._own_s[own] = min(each.at_s, self._own_s.get(own, math.inf))
                self._first_s[part] = min(each.at_s, self._first_s.get(part, math.inf))
            elif each.kind == "committed":
                self.committed.add(each.unit)
            else:
                self.dropped.add(each.unit)

    def ready_s(self, record: Record) -> float:
        """Return the time before which the record cannot have been committed."""
        parts = range(self._parts.get(record.unit, 1))
        own_s = self._own_s.get((record.unit, record.part, record.attempt), math.inf)
        return max(own_s, *(self._first_s.get((record.unit, each), math.inf) for each in parts))


def _flat(partitions: Iterable[Sequence[Record]]) -> list[Record]:
    return [record for records in partitions for record in records]


def _lost_of_jobs(name: str, final: Sequence[Record], units: _Units) -> Iterator[Finding]:
    """Find what is missing of units that were committed, or are visible in part."""
    rows: dict[str, set[int]] = defaultdict(set)
    for record in final:
        rows[record.unit].add(record.row)
    for unit, begun in units.begun.items():
        due = begun.keyed or unit in units.committed or unit in rows
        if begun.channel == name and due:
            told = "committed" if unit in units.committed else "begun, and never told committed"
            for row in sorted(set(range(begun.rows)) - rows[unit]):
                text = f"{name}: row {row} of {unit}, which was {told}"
                yield Finding(kind="lost", text=text, unit=unit)


def _missing(name: str, expected: Sequence[Record], found: Sequence[Record]) -> Iterator[Finding]:
    there = {record.identity for record in found}
    for record in expected:
        if record.identity not in there:
            yield Finding(kind="lost", text=f"{name}: {record}", unit=record.unit)


def _duplicated(name: str, records: Sequence[Record]) -> Iterator[Finding]:
    copies: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        copies[record.identity].append(record)
    for first, *others in copies.values():
        for other in others:
            text = f"{name}: {first}, and by {other.attempt} in {other.unit}"
            yield Finding(kind="duplicated", text=text, unit=other.unit)


def _dropped(name: str, final: Sequence[Record], units: _Units) -> Iterator[Finding]:
    """Find what is visible although its job was told that it never will be."""
    for record in final:
        if record.unit in units.dropped:
            text = f"{name}: {record}, which was not committed"
            yield Finding(kind="early", text=text, unit=record.unit)


def _reordered(place: str, records: Sequence[Record], *, own: bool) -> Iterator[Finding]:
    """Find records of an attempt, and batches of a job, in another order than they were written."""
    last: dict[tuple[str, str], int] = {}
    batches: dict[str, int] = {}
    for record in records:
        attempt = (record.unit, record.attempt)
        if record.seq <= last.get(attempt, -1):
            yield Finding(kind="reordered", text=f"{place}: {record}", unit=record.unit)
        last[attempt] = record.seq
        if own:
            if record.batch < batches.get(record.job, record.batch):
                text = f"{place}: {record}, after a later batch"
                yield Finding(kind="reordered", text=text, unit=record.unit)
            batches[record.job] = record.batch


def _changed(place: str, seen: Sequence[Record], final: Sequence[Record]) -> Iterator[Finding]:
    """Find what was read in the course of the run, and reads otherwise at its end."""
    if list(final[: len(seen)]) == list(seen):
        return
    more = Counter(seen) - Counter(final)
    for record in more:
        again = record in final
        kind: Kind = "duplicated" if again else "lost"
        text = f"{place}: {record} was read {'twice' if again else 'once'}"
        yield Finding(kind=kind, text=text, unit=record.unit)
    fewer = Counter(final[: len(seen)]) - Counter(seen)
    if not more or fewer:
        at = next(
            (n for n, pair in enumerate(zip(seen, final, strict=False)) if pair[0] != pair[1]), 0
        )
        yield Finding(kind="reordered", text=f"{place}: was read otherwise, from {seen[at]} on")


def _early(name: str, seen: Sequence[Seen], units: _Units) -> Iterator[Finding]:
    for record, at_s in seen:
        ready_s = units.ready_s(record)
        if at_s < ready_s:
            text = f"{name}: {record}, read at {at_s:.3f} s, ready at {ready_s:.3f} s"
            yield Finding(kind="early", text=text, unit=record.unit)


def _stuck(history: History) -> Iterator[Finding]:
    for each in history.unfinished:
        yield Finding(kind="stuck", text=each)
    for hold in history.holds:
        if hold.held_s > hold.allowed_s:
            text = f"{hold.driver} held readers back for {hold.held_s:.1f} s"
            yield Finding(kind="stuck", text=f"{text}; allowed are {hold.allowed_s:.0f}")


def accounts(history: History, findings: Iterable[Finding]) -> dict[str, list[str]]:
    """Return what journals and readers say about the units of findings, by unit."""
    found: dict[str, list[str]] = {each.unit: [] for each in findings if each.unit}
    for entry in sorted(history.entries, key=lambda each: each.at_s):
        if entry.unit in found:
            by = f" by {entry.attempt}" if entry.attempt else ""
            found[entry.unit].append(f"{entry.at_s:.3f} s: {entry.kind}{by}")
    for channel in history.channels:
        for partition, records in channel.final.items():
            rows = Counter(record.unit for record in records)
            for unit in found.keys() & rows.keys():
                found[unit].append(f"at the end: {rows[unit]} in {channel.name}[{partition}]")
    return found
