"""Writers, pipelines and readers in Python, each a process that may end at any moment.

`python -m tests.chaos.python_jobs TASK`. A failed job exits. Its starter starts it again, and it
continues from its journal or from its group's positions. An interrupted job goes on: within a block
of a batch or transaction with the same writer and reader, elsewhere with new ones.

SIGTERM ends a writer of runs with success, and another process writes the next run.
"""

import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.chaos.checker import Identity, Record, rows_of, scan_of
from tests.chaos.journal import Journal, Task, attempt_name, record_of

from sluiceway import Channel, ChannelReader, ChannelWriter, Gateway
from sluiceway.api.endpoints import Position
from sluiceway.errors import (
    CommitUnknown,
    CounterpartError,
    GatewayUnavailable,
    KafkaUnavailable,
    SluicewayError,
)

_CHUNK = 8
_PAUSE_S = 0.05
_READ = 40
_GRACE_S = 120.0
_RUN_GRACE_S = 1.0
"""For writers of runs, so that an outage outlasts `close`."""
_RUN_PAUSE_S = 0.2
_FLUSH_EVERY = 4


def records_of(job: str, batch: int, unit: str, attempt: str) -> list[dict[str, Any]]:
    """Return the records of a batch as one attempt writes them."""
    return [
        Record(job, batch, row, unit, 0, attempt, row)._asdict()
        for row in range(rows_of(job, batch))
    ]


def write_slowly(writer: ChannelWriter, records: Sequence[dict[str, Any]], *, flush: bool) -> None:
    """Write in chunks, with pauses in which the process may be killed or paused."""
    for first in range(0, len(records), _CHUNK):
        writer.write(records[first : first + _CHUNK])
        if flush:
            writer.flush()
        time.sleep(_PAUSE_S)


def write_batches(task: Task, channel: Channel) -> None:
    """Write batches with keys; an uncommitted batch is repeated."""
    with channel.writer(group=task.name) as writer:
        for number in task.batches():
            with contextlib.suppress(KeyboardInterrupt):
                _write_batch(task, writer, number)


def _write_batch(task: Task, writer: ChannelWriter, number: int) -> None:
    unit, attempt = f"{task.name}-{number}", attempt_name()
    records = records_of(task.name, number, unit, attempt)
    fields = {"channel": task.channel, "job": task.name, "batch": number}
    task.journal.note("begun", unit, rows=len(records), **fields)
    try:
        with writer.batch(unit) if task.exactly_once else contextlib.nullcontext():
            write_slowly(writer, records, flush=True)
            task.journal.note("ready", unit, attempt=attempt)
    except CommitUnknown:
        # Either way the batch is committed once: an uncommitted one is written again.
        if not writer.resolve():
            return
    task.journal.note("committed", unit, batch=number)


def write_flushes(task: Task, channel: Channel) -> None:
    """Write units that `flush` or the end of a batch commits; a unit is never repeated."""
    number = task.journal.next_batch("begun")
    # A commit by time would split a unit.
    with channel.writer(commit_every_s=3600) as writer:
        task.journal.write({"kind": "owner", "owner": writer.handle.id})
        while not task.stopping():
            in_batch = task.exactly_once and number % 3 == 0
            try:
                _write_unit(task, writer, number, in_batch=in_batch)
            except KeyboardInterrupt:
                if not in_batch:
                    # The writer has a part of the unit.
                    raise
            number += 1


def _write_unit(task: Task, writer: ChannelWriter, number: int, *, in_batch: bool) -> None:
    attempt = attempt_name()
    unit = f"{task.name}-{number}-{attempt}"
    records = records_of(task.name, number, unit, attempt)
    fields = {"channel": task.channel, "job": task.name, "batch": number}
    task.journal.note("begun", unit, rows=len(records), keyed=False, **fields)
    try:
        with writer.batch(unit) if in_batch else contextlib.nullcontext():
            write_slowly(writer, records, flush=False)
            task.journal.note("ready", unit, attempt=attempt)
        if not in_batch:
            writer.flush()
    except CommitUnknown:
        outcome = "committed" if writer.resolve() else "dropped"
    else:
        outcome = "committed"
    task.journal.note(outcome, unit, batch=number)


def copy(task: Task, gateway: Gateway, channel: Channel) -> None:
    """Copy records in transactions; some transactions fail, and their records are read again."""
    place: dict[str, Any] = {"index": task.index, "size": task.size}
    reader = gateway.channel(task.source).reader(group="copy", until=None, **place)
    with reader, channel.writer(group="copy", **place) as writer:
        while not task.stopping():
            try:
                with _transaction(task, gateway, reader, writer):
                    _copy_some(task, reader, writer)
            except (_DeliberateFailure, KeyboardInterrupt):
                continue
            except CommitUnknown:
                writer.resolve()


class _DeliberateFailure(Exception):
    """Fails a transaction on purpose."""


def _transaction(
    task: Task, gateway: Gateway, reader: ChannelReader, writer: ChannelWriter
) -> AbstractContextManager[object]:
    if not task.exactly_once:
        return contextlib.nullcontext()
    return gateway.transaction(reader, writer)


def _copy_some(task: Task, reader: ChannelReader, writer: ChannelWriter) -> None:
    records = [record_of(row) for row in reader.read(_READ, timeout=0.5)]
    attempt = attempt_name()
    if not records:
        return
    copies = [
        record._replace(unit=attempt, part=0, attempt=attempt, seq=seq)._asdict()
        for seq, record in enumerate(records)
    ]
    write_slowly(writer, copies, flush=False)
    if task.exactly_once and random.random() < 0.1:  # noqa: S311 - a fault
        raise _DeliberateFailure
    task.journal.note("ready", attempt, attempt=attempt)
    if not task.exactly_once:
        writer.flush()
        reader.commit()


def read(task: Task, channel: Channel) -> None:
    """Read new records and the whole channel in turn; log the new records and violations."""
    start: dict[int, Position] = {}
    identities: set[Identity] = set()
    for line in task.journal.lines():
        if line["kind"] == "read":
            identities |= {Record(*record).identity for record in line["records"]}
            start = {
                int(partition): Position(offset=offset, records=records)
                for partition, (offset, records) in line["positions"].items()
            }
    whole = False
    while True:
        last, whole = task.stopping(), not whole
        with channel.reader(
            until="now", start=start if start and not whole else "earliest"
        ) as rows:
            records = [record_of(row) for row in rows]
            start = dict(rows.position())
        if whole and task.exactly_once:
            task.journal.scan(scan_of(task.channel, records, identities))
        # A batch whose front was read may be read again.
        new = [record for record in records if record.identity not in identities]
        positions = {p: (at.offset, at.records) for p, at in start.items()}
        if new:
            task.journal.note("read", "", records=new, positions=positions)
            identities |= {record.identity for record in new}
        if last and whole:
            return
        time.sleep(1)


def write_run(task: Task, channel: Channel) -> None:
    """Write a run until SIGTERM, whose handler exits with 0, or until the job should end.

    If the gateway is silent as it ends, half of the runs close again, and the others exit at once.
    The journal has the units that `flush`, or the end of the run, has acknowledged.
    """
    run, number = attempt_name(), task.journal.next_batch("ready")
    written: dict[int, int] = {}
    exiting = threading.Event()

    def stop(*_: object) -> None:
        exiting.set()
        sys.exit(0)

    def acknowledge() -> None:
        fields = {"channel": task.channel, "job": task.name, "keyed": False}
        for batch, rows in written.items():
            task.journal.note("begun", f"{run}-{batch}", rows=rows, batch=batch, **fields)
            task.journal.note("committed", f"{run}-{batch}", batch=batch)
        written.clear()

    reported, writer = True, channel.writer(group="load")
    signal.signal(signal.SIGTERM, stop)
    try:
        with writer:
            task.journal.note("run-began", run, writer=writer.handle.id)
            while not written or not task.stopping():
                records = records_of(task.name, number, f"{run}-{number}", run)
                task.journal.note("ready", f"{run}-{number}", attempt=run, batch=number)
                writer.write(records)
                written[number] = len(records)
                time.sleep(_RUN_PAUSE_S)
                number += 1
                if number % _FLUSH_EVERY == 0:
                    writer.flush()
                    acknowledge()
    except SystemExit:
        pass
    except SluicewayError as error:
        outage = isinstance(error, GatewayUnavailable | KafkaUnavailable)
        if not outage or not exiting.is_set():
            task.journal.note("run-failed", run)
            raise
        # Kafka's answer is needed for the end offsets that are reported.
        again = isinstance(error, KafkaUnavailable) or random.random() < 0.5  # noqa: S311 - a fault
        reported = again and _closes_again(writer)
    if reported:
        acknowledge()
    task.journal.note("run-ended", run, reported=reported)


def _closes_again(writer: ChannelWriter) -> bool:
    """Repeat `close` for a minute; return whether it has succeeded."""
    for _ in range(60):
        with contextlib.suppress(GatewayUnavailable, KafkaUnavailable):
            writer.close()
            return True
        time.sleep(1)
    return False


def read_runs(task: Task, channel: Channel) -> None:
    """Read run after run, each until its writers have finished; log the records and the end.

    When the job should end, it waits for the end of the last run that was acknowledged.
    """
    while True:
        task.journal.note("opened", "")
        try:
            with channel.reader(group="down") as reader:
                empty = True
                while not reader.finished:
                    records = [record_of(row) for row in reader.read(_READ, timeout=0.5)]
                    if records:
                        task.journal.note("returned", "", records=records)
                        empty = False
                    elif empty and task.stopping() and _has_read_all(task):
                        task.journal.note("left", "", endpoints=())
                        return
                reader.commit()
        except SluicewayError as error:
            writers = error.endpoints if isinstance(error, CounterpartError) else ()
            task.journal.note(error.code, "", endpoints=writers)
            raise
        task.journal.note("finished", "", endpoints=())


def _has_read_all(task: Task) -> bool:
    """Return whether the job has read all that the writer of runs has acknowledged."""
    lines = Journal(Path(task.directory), "run").lines()
    acknowledged = {line["unit"] for line in lines if line["kind"] == "committed"}
    returned = {
        Record(*record).unit
        for line in task.journal.lines()
        if line["kind"] == "returned"
        for record in line["records"]
    }
    return acknowledged <= returned


def main(text: str) -> None:
    # A shell may start background processes with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    task, ended = Task.of(text), False
    while not ended:
        with contextlib.suppress(KeyboardInterrupt):
            run(task)
            ended = True


def run(task: Task) -> None:
    grace_s = _RUN_GRACE_S if task.kind == "run" else _GRACE_S
    with Gateway(task.url, control_grace_s=grace_s) as gateway:
        channel = gateway.channel(task.channel)
        if task.kind == "write":
            write_batches(task, channel)
        elif task.kind == "flush":
            write_flushes(task, channel)
        elif task.kind == "copy":
            copy(task, gateway, channel)
        elif task.kind == "run":
            write_run(task, channel)
        elif task.kind == "read-runs":
            read_runs(task, channel)
        else:
            read(task, channel)


if __name__ == "__main__":
    main(sys.argv[1])
