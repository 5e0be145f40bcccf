"""Writers, pipelines and readers in Python, each a process that may end at any moment.

`python -m tests.chaos.python_jobs TASK`. A job that fails exits; whoever started it starts it
again, and it goes on where its journal, or its group's positions, say.
"""

import contextlib
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from tests.chaos.checker import Record
from tests.chaos.journal import Task, attempt_name, record_of, rows_of

from sluiceway import Channel, ChannelReader, ChannelWriter, Gateway
from sluiceway.errors import CommitUnknown
from sluiceway.rest.endpoint_models import Position

_CHUNK = 8
_PAUSE_S = 0.05
_READ = 40
_GRACE_S = 120.0


def records_of(job: str, batch: int, unit: str, attempt: str) -> list[dict[str, Any]]:
    """Return all records of a batch, as one attempt writes them."""
    return [
        Record(job, batch, row, unit, 0, attempt, row)._asdict()
        for row in range(rows_of(job, batch))
    ]


def write_slowly(writer: ChannelWriter, records: Sequence[dict[str, Any]], *, flush: bool) -> None:
    """Write in portions, with pauses, in which the process may be ended or stopped."""
    for first in range(0, len(records), _CHUNK):
        writer.write(records[first : first + _CHUNK])
        if flush:
            writer.flush()
        time.sleep(_PAUSE_S)


def write_batches(task: Task, channel: Channel) -> None:
    """Write batches by their keys; another process of the job repeats what was not committed."""
    with channel.writer(group=task.name) as writer:
        for number in task.batches():
            unit, attempt = f"{task.name}-{number}", attempt_name()
            records = records_of(task.name, number, unit, attempt)
            where = {"channel": task.channel, "job": task.name, "batch": number}
            task.journal.note("begun", unit, rows=len(records), **where)
            try:
                with writer.batch(unit) if task.exactly_once else contextlib.nullcontext():
                    write_slowly(writer, records, flush=True)
                    task.journal.note("ready", unit, attempt=attempt)
            except CommitUnknown:
                # Written again, or not: in either case it is committed once.
                if not writer.resolve():
                    continue
            task.journal.note("committed", unit, batch=number)


def write_flushes(task: Task, channel: Channel) -> None:
    """Write units that are committed by `flush`, and never repeat one."""
    number = task.journal.next_batch("begun")
    # Not by time, which would commit a part of a unit.
    with channel.writer(commit_every_s=3600) as writer:
        task.journal.write({"kind": "owner", "owner": writer.handle.id})
        while not task.stopping():
            attempt = attempt_name()
            unit = f"{task.name}-{number}-{attempt}"
            records = records_of(task.name, number, unit, attempt)
            where = {"channel": task.channel, "job": task.name, "batch": number}
            task.journal.note("begun", unit, rows=len(records), keyed=False, **where)
            write_slowly(writer, records, flush=False)
            task.journal.note("ready", unit, attempt=attempt)
            try:
                writer.flush()
            except CommitUnknown:
                told = "committed" if writer.resolve() else "dropped"
            else:
                told = "committed"
            task.journal.note(told, unit, batch=number)
            number += 1


def copy(task: Task, gateway: Gateway, channel: Channel) -> None:
    """Copy records in transactions, with some that fail and are read again."""
    place: dict[str, Any] = {"index": task.index, "size": task.size}
    reader = gateway.channel(task.source).reader(group="copy", until=None, **place)
    with reader, channel.writer(group="copy", **place) as writer:
        while not task.stopping():
            try:
                with _transaction(task, gateway, reader, writer):
                    _copy_some(task, reader, writer)
            except _Undecided:
                continue
            except CommitUnknown:
                writer.resolve()


class _Undecided(Exception):
    """A transaction fails on purpose."""


def _transaction(
    task: Task, gateway: Gateway, reader: ChannelReader, writer: ChannelWriter
) -> AbstractContextManager[object]:
    if not task.exactly_once:
        return contextlib.nullcontext()
    return gateway.transaction(reader, writer)


def _copy_some(task: Task, reader: ChannelReader, writer: ChannelWriter) -> None:
    found = [record_of(row) for row in reader.read(_READ, timeout=0.5)]
    attempt = attempt_name()
    if not found:
        return
    copies = [
        each._replace(unit=attempt, part=0, attempt=attempt, seq=seq)._asdict()
        for seq, each in enumerate(found)
    ]
    write_slowly(writer, copies, flush=False)
    if task.exactly_once and random.random() < 0.1:  # noqa: S311 - a fault
        raise _Undecided
    task.journal.note("ready", attempt, attempt=attempt)
    if not task.exactly_once:
        writer.flush()
        reader.commit()


def read(task: Task, channel: Channel) -> None:
    """Read what is there again and again; note it together with where the next read begins."""
    at: dict[int, Position] = {}
    for line in task.journal.lines():
        at = {
            int(partition): Position(offset=offset, records=records)
            for partition, (offset, records) in line["positions"].items()
        }
    while True:
        last = task.stopping()
        with channel.reader(until="now", start=at or "earliest") as reader:
            found = [list(record_of(row)) for row in reader]
            at = reader.position()
        positions = {p: (each.offset, each.records) for p, each in at.items()}
        if found:
            task.journal.note("read", "", records=found, positions=positions)
        if last:
            return
        time.sleep(1)


def main(text: str) -> None:
    task = Task.of(text)
    with Gateway(task.url, control_grace_s=_GRACE_S) as gateway:
        channel = gateway.channel(task.channel)
        if task.kind == "write":
            write_batches(task, channel)
        elif task.kind == "flush":
            write_flushes(task, channel)
        elif task.kind == "copy":
            copy(task, gateway, channel)
        else:
            read(task, channel)


if __name__ == "__main__":
    main(sys.argv[1])
