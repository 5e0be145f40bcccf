"""Spark's sessions, records of channels, and writes as Spark calls them."""

import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError

from sluiceway.api.models import Connection
from sluiceway.channel import Channel
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.endpoints import Job
from sluiceway.spark.ledger_batches import TaskResult
from sluiceway.spark.offsets import StreamOffset
from sluiceway.spark.types import struct_of
from sluiceway.spark.writer import ChannelStreamWriter
from topics import Topics

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])


class SparkParts:
    """The parts of a Spark session that an application uses; `jobs` is None without a driver."""

    def __init__(self, jobs: list[int] | None) -> None:
        self.jobs = jobs
        self.pause: Callable[[], object] = lambda: None
        """Called before the jobs are returned."""
        self.conf: dict[str, str] = {}
        self.streams = Mock(get=Mock(return_value=None))
        self._sc = SimpleNamespace(_jsc=self)

    def stop(self) -> None:
        """Stop the session and its driver."""
        self._sc = SimpleNamespace(_jsc=None)

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        if self.jobs is None:
            raise Py4JNetworkError("the JVM has ended")
        return SimpleNamespace(statusTracker=lambda: self)

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - Spark's name
        self.pause()
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
        writer.write([{"id": id_, "s": str(id_)} for id_ in ids])


def ids_in(channel: Channel) -> dict[int, list[int]]:
    """Return the ids in each partition that is not empty, in order."""
    ids_by_partition = {}
    for partition in range(channel.connection("read").partitions):
        with channel.reader(until="now", partitions=[partition]) as reader:
            if ids := [record["id"] for record in reader]:
                ids_by_partition[partition] = ids
    return ids_by_partition


def all_ids(channel: Channel) -> list[int]:
    """Return the ids in all partitions, in ascending order."""
    return sorted(id_ for ids in ids_in(channel).values() for id_ in ids)


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


def pickled_copy(value: Any) -> Any:
    """Return a pickled and unpickled copy, as another process gets it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def rows(ids: Iterable[int]) -> pa.RecordBatch:
    """Return a batch of records with these ids."""
    return pa.RecordBatch.from_pylist([{"id": id_, "s": str(id_)} for id_ in ids], SCHEMA)


class Tasks:
    """Replacement of Spark's TaskContext, for one task at a time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def run(self, number: int, **properties: str) -> None:
        """Begin a task with a number and local properties."""
        context = SimpleNamespace(
            partitionId=lambda: number, taskAttemptId=lambda: 0, getLocalProperty=properties.get
        )
        # Only Spark's JVM makes contexts of tasks.
        self._patch.setattr("pyspark.TaskContext.get", lambda: context)


class Query:
    """A streaming query into a channel: its runs, micro-batches and their tasks."""

    def __init__(
        self, channel: Channel, url: str, tasks: Tasks, job: Job | None = None, **options: str
    ) -> None:
        self.id = str(uuid.uuid4())
        self.run_id = str(uuid.uuid4())
        self._source = ChannelDataSource({"path": channel.name} | options, gateway_url=url)
        self._source.job = job
        self._tasks = tasks

    def restart(self) -> None:
        """Start a new run of the query."""
        self.run_id = str(uuid.uuid4())

    def sink(self) -> ChannelStreamWriter:
        """Return the writer of a micro-batch, or of its commit."""
        writer = pickled_copy(self._source).streamWriter(struct_of(SCHEMA), overwrite=False)
        return pickled_copy(writer)

    def attempt(self, batch: int, task: int, *batches: Iterable[int]) -> TaskResult:
        return self.attempt_lazily(batch, task, batches)

    def attempt_lazily(self, batch: int, task: int, batches: Iterable[Iterable[int]]) -> TaskResult:
        """Run an attempt of a task over batches of ids, and return its commit message."""
        properties = {
            "sql.streaming.queryId": self.id,
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": self.run_id,
        }
        self._tasks.run(task, **properties)
        return pickled_copy(self.sink().write(map(rows, batches)))

    def write(self, batch: int, *tasks: Iterable[int]) -> list[TaskResult]:
        """Run a micro-batch with one attempt of each task, and commit it."""
        results = [self.attempt(batch, number, ids) for number, ids in enumerate(tasks)]
        self.sink().commit(results, batch)
        return results


class BatchJob:
    """A batch write into a channel: one run of a job."""

    def __init__(self, channel: Channel, url: str, tasks: Tasks, job: Job, **options: str) -> None:
        source = ChannelDataSource({"path": channel.name} | options, gateway_url=url)
        source.job = job
        self._tasks = tasks
        self.writer = pickled_copy(source).writer(struct_of(SCHEMA), overwrite=False)

    def attempt(self, task: int, *batches: Iterable[int], **properties: str) -> TaskResult:
        """Run an attempt of a task over batches of ids, and return its commit message."""
        self._tasks.run(task, **properties)
        return pickled_copy(pickled_copy(self.writer).write(map(rows, batches)))

    def write(self, *tasks: Iterable[int]) -> list[TaskResult]:
        """Run the job with one attempt of each task, and commit it."""
        results = [self.attempt(number, ids) for number, ids in enumerate(tasks)]
        pickled_copy(self.writer).commit(results)
        return results
