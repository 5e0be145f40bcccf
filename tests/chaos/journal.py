"""What jobs note for the checker, and their records: shared by all processes of a run."""

import json
import os
import random
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from tests.chaos.checker import Entry, Record, Seen

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
_ROWS = (8, 40)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a job's process is told: an argument of its command, as JSON."""

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
        """Whether the job shall end after what it is at."""
        return (Path(self.directory) / "stop" / self.kind).exists()

    def batches(self) -> Iterator[int]:
        """Yield the number of the keyed batch to write next, until the job shall end.

        A batch that is not committed is repeated, also after `stopping`. The journal is read for
        each: another process of the job, paused and resumed, may have begun batches meanwhile.
        """
        while True:
            number = self.journal.next_batch("committed")
            if self.stopping() and number >= self.journal.next_batch("begun"):
                return
            yield number

    def forced(self, fault: str) -> bool:
        """Whether this call, of all processes, gets the fault that was laid out for the job."""
        try:
            (Path(self.directory) / f"force-{fault}-{self.name}").unlink()
        except FileNotFoundError:
            return False
        return True


def force(directory: Path, fault: str, job: str) -> Path:
    """Lay out a fault for the next process of a job that can have it."""
    path = directory / f"force-{fault}-{job}"
    path.touch()
    return path


def attempt_name() -> str:
    """Return a name for one attempt to write."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def rows_of(job: str, batch: int) -> int:
    """Return the number of rows of a batch, the same for each of its attempts."""
    return random.Random(f"{job}-{batch}").randint(*_ROWS)  # noqa: S311 - data of a test


class Journal:
    """The journal of a job. Each line is one write, so what a killed process noted is whole."""

    def __init__(self, directory: Path, job: str) -> None:
        self.path = directory / "journal" / f"{job}.jsonl"

    def note(self, kind: str, unit: str, **fields: Any) -> None:
        """Write a line, with the time."""
        self.write({"kind": kind, "unit": unit, "at_s": time.monotonic(), **fields})

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a line."""
        # Behind a line that was cut off, this one begins anew.
        text = f"\n{json.dumps(line)}\n".encode()
        with self.path.open("ab", buffering=0) as file:
            file.write(text)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Read the lines that are whole."""
        if self.path.exists():
            for line in self.path.read_bytes().split(b"\n"):
                if line.endswith(b"}"):
                    try:
                        yield json.loads(line)
                    except ValueError:
                        continue

    def next_batch(self, done: str) -> int:
        """Return the number after that of the last batch that was `begun`, or `committed`."""
        return max((line["batch"] + 1 for line in self.lines() if line["kind"] == done), default=0)


def entries(directory: Path) -> list[Entry]:
    """Return what all jobs noted about units."""
    found = []
    for path in sorted((directory / "journal").glob("*.jsonl")):
        for line in Journal(directory, path.stem).lines():
            if line["kind"] in ("begun", "ready", "committed", "dropped"):
                found.append(Entry(**line))  # noqa: PERF401 - read line by line
    return found


def record_of(row: Mapping[str, Any]) -> Record:
    return Record(**{name: row[name] for name in Record._fields})


def reads(directory: Path, job: str) -> list[Seen]:
    """Return what a reading job has read."""
    return [
        Seen(Record(*record), line["at_s"])
        for line in Journal(directory, job).lines()
        if line["kind"] == "read"
        for record in line["records"]
    ]
