"""Programs that survive Ctrl-C: 2,000 signals at random times, and every promise is kept."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluiceway import Channel, ChannelWriter, Gateway

SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "id", "type": "long"}, {"name": "part", "type": "int"}],
}
PROGRAM = Path(__file__).with_name("interrupted_program.py")
SUPPORT = str(Path(__file__).parents[1] / "support")
SHORTEST_S, LONGEST_S = 0.0002, 0.1
"""The bounds of a signal's delay after the last one; short ones hit what follows an interrupt."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The journal of a program that was interrupted."""

    lines: list[dict[str, Any]]

    @property
    def summary(self) -> dict[str, Any]:
        return self.lines[-1]

    def ids(self, state: str) -> list[range]:
        return [range(*line["ids"]) for line in self.lines if line["state"] == state]


def run(task: dict[str, Any], directory: Path) -> Outcome:
    """Run the program, and send it a signal whenever it asks for one."""
    journal = directory / "journal"
    delays = random.Random(task["seed"])  # noqa: S311
    command = [sys.executable, str(PROGRAM), json.dumps(task | {"journal": str(journal)})]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": SUPPORT}
    ) as program:
        try:
            assert program.stdout is not None
            while program.stdout.read(1):
                time.sleep(SHORTEST_S * (LONGEST_S / SHORTEST_S) ** delays.random())
                program.send_signal(signal.SIGINT)
            assert program.wait(60) == 0
        finally:
            program.kill()
    return Outcome(lines=[json.loads(line) for line in journal.read_text().splitlines()])


FILLED = [3000, 3000]


def filled(gateway: Gateway, delivery: str, format_: str) -> str:
    """Create a channel with records, on an exactly-once one with aborted batches among them."""
    name = f"source-{uuid.uuid4().hex[:8]}"
    options: dict[str, Any] = {"partitions": len(FILLED), "delivery": delivery, "format": format_}
    channel = gateway.channel(name, None if format_ == "bytes" else SCHEMA, **options)

    def records(part: int, ids: range) -> list[dict[str, object]]:
        if format_ == "bytes":
            return [{"value": b"%d" % id_} for id_ in ids]
        return [{"id": id_, "part": part} for id_ in ids]

    for part, count in enumerate(FILLED):
        with channel.writer(partition=part) as writer:
            for first in range(0, count, 100):
                writer.write(records(part, range(first, first + 100)))
                writer.flush()
                if delivery == "exactly_once" and first % 500 == 0:
                    abort(writer, records(part, range(9000, 9005)))
    return name


def abort(writer: ChannelWriter, records: list[dict[str, object]]) -> None:
    with suppress(ZeroDivisionError), writer.batch("aborted"):
        writer.write(records)
        raise ZeroDivisionError


def visible(channel: Channel) -> list[list[dict[str, int]]]:
    """Return the records that readers see, by partition."""
    partitions: list[list[dict[str, int]]] = []
    for partition in range(channel.partitions):
        with channel.reader(until="now", partitions=[partition]) as reader:
            records = list(reader)
        if channel.format == "bytes":
            records = [{"id": int(record["value"]), "part": 0} for record in records]
        partitions.append(records)
    return partitions


def check_written(outcome: Outcome, channel: Channel) -> None:
    """Check that acknowledged units are visible, others wholly or not, and none twice."""
    partitions = [[record["id"] for record in records] for records in visible(channel)]
    for ids in partitions:
        assert ids == sorted(ids)
    everything = sorted(id_ for ids in partitions for id_ in ids)
    there = set(everything)
    assert len(everything) == len(there)
    for ids in outcome.ids("acknowledged"):
        assert there.issuperset(ids), ids
    for ids in outcome.ids("unknown"):
        assert there.issuperset(ids) or there.isdisjoint(ids), ids
    for ids in outcome.ids("dropped"):
        assert there.isdisjoint(ids), ids
    states = ("acknowledged", "unknown", "loose")
    assert there <= {id_ for state in states for ids in outcome.ids(state) for id_ in ids}


def check_copied(_outcome: Outcome, channel: Channel) -> None:
    """Check that each record of the source is there once, in order."""
    (records, *others) = visible(channel)
    assert not any(others)
    if channel.format == "bytes":
        # The values are unique within a partition of the source only.
        assert sorted(record["id"] for record in records) == sorted([*range(3000)] * 2)
        return
    for part, count in enumerate(FILLED):
        assert [r["id"] for r in records if r["part"] == part] == [*range(count)]


KINDS = {
    "write": 150,
    "write-committed": 150,
    "batch": 150,
    "transaction": 150,
    "read": 150,
    "read-shared": 150,
    "read-member": 120,
    "confluent-produce": 120,
    "confluent-produce-committed": 130,
    "confluent-transaction": 150,
    "confluent-consume": 110,
    "confluent-consume-committed": 110,
    "broker": 110,
    "broker-committed": 130,
    "pypz": 120,
}
"""The number of signals by kind of work: 2,000."""
COMMITTED = {"batch", "transaction", "confluent-transaction"}
FEW = 5
"""Interrupts that may come in finalizers, where Python ignores them."""


def options_of(kind: str) -> dict[str, Any]:
    """Return the options of the channel that a kind of work writes to."""
    if kind.startswith(("confluent", "broker")):
        options = {"schema": None, "format": "bytes"}
    else:
        options = {"schema": SCHEMA, "format": "avro"}
    exactly_once = kind in COMMITTED or kind.endswith("committed")
    return options | {"delivery": "exactly_once" if exactly_once else "at_least_once"}


def source_of(gateway: Gateway, kind: str) -> str:
    """Create the channel that a kind of work reads; "" if it reads none."""
    options = options_of(kind)
    if kind == "read-shared":
        return filled(gateway, "exactly_once", "arrow")
    if "transaction" in kind:
        return filled(gateway, "at_least_once", options["format"])
    if kind.startswith(("read", "broker", "confluent-consume", "pypz")):
        return filled(gateway, options["delivery"], options["format"])
    return ""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_survives_interrupts_keeps_every_promise(
    gateway: Gateway, gateway_url: str, tmp_path: Path, kind: str
) -> None:
    channel = gateway.channel(f"interrupted-{uuid.uuid4().hex[:8]}", **options_of(kind))
    task = {
        "kind": kind,
        "url": gateway_url,
        "channel": channel.name,
        "source": source_of(gateway, kind),
        "filled": FILLED,
        "interrupts": KINDS[kind],
        "seed": zlib.crc32(kind.encode()),
    }
    outcome = run(task, tmp_path)
    summary = outcome.summary
    assert summary["state"] == "ended"
    faults = [line for line in outcome.lines if line["state"] in FAULTS]
    if kind == "confluent-produce-committed":
        # It ends the producer of the channel, which fails the messages after it.
        faults = [line for line in faults if LOST_REPORT not in json.dumps(line)]
    assert faults == []
    assert summary["caught"] + summary["ignored"] == summary["raised"] == KINDS[kind], summary
    assert summary["ignored"] <= FEW, summary
    assert summary["inside"] >= summary["caught"] - FEW, summary
    if "transaction" in kind:
        check_copied(outcome, channel)
    elif not kind.startswith(("read", "confluent-consume")):
        check_written(outcome, channel)


LOST_REPORT = "an interrupt lost the delivery report"
FAULTS = ("error", "thread", "unraisable", "failed")
"""States of lines of the journal that no interrupt explains."""
