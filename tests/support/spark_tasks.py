"""Helpers for tests of Spark: sessions, connections, and records of channels."""

import json
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
from py4j.protocol import Py4JNetworkError

from sluiceway.channel import Channel
from sluiceway.rest.models import Connection
from sluiceway.spark.offsets import StreamOffset
from topics import Topics

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])


class SparkParts:
    """The parts of a Spark session that an application uses; `jobs` is None without a driver."""

    def __init__(self, jobs: list[int] | None) -> None:
        self.jobs = jobs
        self.pause: Callable[[], object] = lambda: None
        """Called before the jobs are returned."""
        self.conf: dict[str, str] = {}
        self.is_stopped = False
        self.streams = Mock(get=Mock(return_value=None))
        self._sc = SimpleNamespace(_jsc=self)

    def stop(self) -> None:
        """Stop the session and its driver."""
        self.is_stopped = True
        self._sc = SimpleNamespace(_jsc=None)

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        if self.jobs is None:
            raise Py4JNetworkError("the JVM has ended")
        return SimpleNamespace(statusTracker=lambda: self)

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - Spark's name
        self.pause()
        assert self.jobs is not None
        return self.jobs


def started(run: str) -> Any:
    """Return Spark's event of the start of a query's run."""
    return SimpleNamespace(id="query", runId=run, name=None)


def progressed(run: str, channel: Channel) -> Any:
    """Return Spark's event of a micro-batch that has read nothing from a channel."""
    offset = StreamOffset.of(channel.connection("read"), {0: 0}).to_json()
    progress = {"runId": run, "sources": [{"endOffset": offset}], "sink": {}}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress)))


def fill(channel: Channel, ids: range, partition: int = 0) -> None:
    """Write records with these ids into a partition, in order."""
    with channel.writer(partition=partition) as writer:
        writer.write([{"id": each, "s": str(each)} for each in ids])


def ids_in(channel: Channel) -> dict[int, list[int]]:
    """Return the ids in each partition that is not empty, in order."""
    ids_by_partition = {}
    for partition in range(channel.connection("read").partitions):
        with channel.reader(until="now", partitions=[partition]) as reader:
            ids = [record["id"] for record in reader]
        if ids:
            ids_by_partition[partition] = ids
    return ids_by_partition


def all_ids(channel: Channel) -> list[int]:
    """Return the ids in all partitions, in ascending order."""
    return sorted(each for ids in ids_in(channel).values() for each in ids)


def produce(connection: Connection, *values: bytes | None, partition: int = 0) -> None:
    """Produce raw messages to a channel's topic, in order."""
    topics = Topics(connection.kafka["bootstrap.servers"])
    topics.produce(connection.topic_name, partition, values)


_MEASURED = """
import pickle, resource, sys

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

task = pickle.load(sys.stdin.buffer)
{prepared}
before = peak_mb()
records = {work}
print(records, peak_mb() - before)
"""


def measure(task: bytes, work: str, prepared: str = "") -> tuple[int, int]:
    """Evaluate an expression over a pickled `task` in a new process.

    Returns its result, a number of records, and the growth of the process in megabytes.
    """
    command = [sys.executable, "-c", _MEASURED.format(prepared=prepared, work=work)]
    done = subprocess.run(command, input=task, capture_output=True, check=True, timeout=480)
    records, grown_mb = map(int, done.stdout.split())
    return records, grown_mb
