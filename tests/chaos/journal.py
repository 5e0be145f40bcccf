"""Journals of jobs for the checker, and their records, shared by all processes of a run."""

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from tests.chaos.checker import Entry, Record, Run, RunRead, Scan, Seen

SCHEMA = {
    "type": "record",
    "name": "Chaos",
    "fields": [
        {"name": "job", "type": "string"},
        {"name": "batch", "type": "long"},
        {"name": "row", "type": "long"},
        {"name": "unit", "type": "string"},
        {"name": "part", "type": "int"},
        {"name": "attempt", "type": "string"},
        {"name": "seq", "type": "long"},
    ],
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """The parameters of a job's process: an argument of its command, as JSON."""

    kind: str
    name: str
    url: str
    directory: str
    delivery: str
    channel: str
    source: str = ""
    index: int = 0
    size: int = 1
    master: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self))

    @property
    def exactly_once(self) -> bool:
        return self.delivery == "exactly_once"

    @property
    def journal(self) -> "Journal":
        return Journal(Path(self.directory), self.name)

    def stopping(self) -> bool:
        """Return whether the job should end after the current batch."""
        return (Path(self.directory) / "stop" / self.kind).exists()

    def batches(self) -> Iterator[int]:
        """Yield the number of the keyed batch to write next, until the job should end.

        An uncommitted batch is repeated, even after `stopping`. The journal is read each time,
        because a paused and resumed process of the job may have begun batches meanwhile.
        """
        while True:
            number = self.journal.next_batch("committed")
            if self.stopping() and number >= self.journal.next_batch("begun"):
                return
            yield number

    def forced(self, fault: str) -> bool:
        """Take the fault that `force` armed for the job; return whether this process got it."""
        try:
            (Path(self.directory) / f"force-{fault}-{self.name}").unlink()
        except FileNotFoundError:
            return False
        return True


def force(directory: Path, fault: str, job: str) -> Path:
    """Arm a fault for the next process of a job that takes it."""
    path = directory / f"force-{fault}-{job}"
    path.touch()
    return path


def attempt_name() -> str:
    """Return a unique name of an attempt to write."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


class Journal:
    """The journal of a job. Each line is one write, so a killed process leaves whole lines."""

    def __init__(self, directory: Path, job: str) -> None:
        self.path = directory / "journal" / f"{job}.jsonl"

    def note(self, kind: str, unit: str, **fields: Any) -> None:
        """Write an entry with the current time."""
        self.write({"kind": kind, "unit": unit, "at_s": time.monotonic(), **fields})

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a line."""
        # After a line that was cut off, this one starts on a new line.
        text = f"\n{json.dumps(line)}\n".encode()
        with self.path.open("ab", buffering=0) as file:
            file.write(text)

    def scan(self, scan: Scan) -> None:
        """Write the violations of a read of a whole channel."""
        self.write({"kind": "scan", **asdict(scan)})

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the complete lines."""
        if self.path.exists():
            for line in self.path.read_bytes().split(b"\n"):
                if line.endswith(b"}"):
                    try:
                        yield json.loads(line)
                    except ValueError:
                        continue

    def next_batch(self, kind: str) -> int:
        """Return the number after the last batch with an entry `begun` or `committed`."""
        return max((line["batch"] + 1 for line in self.lines() if line["kind"] == kind), default=0)


def entries(directory: Path) -> list[Entry]:
    """Return the entries about units in all journals."""
    unit_entries = []
    for path in sorted((directory / "journal").glob("*.jsonl")):
        for line in Journal(directory, path.stem).lines():
            if line["kind"] in ("begun", "ready", "committed", "dropped"):
                unit_entries.append(Entry(**line))  # noqa: PERF401 - read line by line
    return unit_entries


def scans(directory: Path, job: str) -> list[Scan]:
    """Return the whole reads of a job."""
    return [
        Scan(**{field.name: line[field.name] for field in fields(Scan)})
        for line in Journal(directory, job).lines()
        if line["kind"] == "scan"
    ]


def runs(directory: Path, job: str) -> list[Run]:
    """Return the runs of a job in the order in which they began."""
    runs: dict[str, Run] = {}
    for line in Journal(directory, job).lines():
        if line["kind"] == "run-began":
            runs[line["unit"]] = Run(name=line["unit"], writer=line["writer"], began_s=line["at_s"])
        elif line["kind"] == "run-ended":
            run = runs[line["unit"]]
            runs[run.name] = replace(run, ended_s=line["at_s"], reported=line["reported"])
    return list(runs.values())


def run_reads(directory: Path, job: str) -> list[RunRead]:
    """Return the reads of a job in their order."""
    reads: list[RunRead] = []
    for line in Journal(directory, job).lines():
        if line["kind"] == "opened":
            reads.append(RunRead(began_s=line["at_s"]))
        elif line["kind"] == "returned":
            records = [*reads[-1].records, *(Record(*record) for record in line["records"])]
            reads[-1] = replace(reads[-1], records=records)
        else:
            end, endpoints = line["kind"], line["endpoints"]
            reads[-1] = replace(reads[-1], ended_s=line["at_s"], end=end, endpoints=endpoints)
    return reads


def record_of(row: Mapping[str, Any]) -> Record:
    return Record(**{name: row[name] for name in Record._fields})


def reads(directory: Path, job: str) -> list[Seen]:
    """Return the records that a reading job has read."""
    return [
        Seen(Record(*record), line["at_s"])
        for line in Journal(directory, job).lines()
        if line["kind"] == "read"
        for record in line["records"]
    ]
