"""Writes to channels as Spark calls them: driver and tasks exchange pickled objects."""

import pickle
import uuid
from collections.abc import Iterable
from types import SimpleNamespace
from typing import TypeVar

import pyarrow as pa
import pytest

from sluiceway.channel import Channel
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.endpoints import Job
from sluiceway.spark.ledger_batches import TaskResult
from sluiceway.spark.types import struct_of
from sluiceway.spark.writer import ChannelDataWriter, ChannelStreamWriter
from spark_tasks import SCHEMA

T = TypeVar("T")


def pickled_copy(value: T) -> T:
    """Return a pickled and unpickled copy, as another process gets it."""
    copy: T = pickle.loads(pickle.dumps(value))  # noqa: S301
    return copy


def rows(ids: Iterable[int]) -> pa.RecordBatch:
    """Return a batch of records with these ids."""
    return pa.RecordBatch.from_pylist([{"id": each, "s": str(each)} for each in ids], SCHEMA)


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
        self,
        channel: Channel,
        url: str,
        tasks: Tasks,
        job: Job | None = None,
        **options: str,
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
        assert isinstance(writer, ChannelStreamWriter)
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
        writer = pickled_copy(source).writer(struct_of(SCHEMA), overwrite=False)
        assert isinstance(writer, ChannelDataWriter)
        self.writer = writer

    def attempt(self, task: int, *batches: Iterable[int], **properties: str) -> TaskResult:
        """Run an attempt of a task over batches of ids, and return its commit message."""
        self._tasks.run(task, **properties)
        return pickled_copy(pickled_copy(self.writer).write(map(rows, batches)))

    def write(self, *tasks: Iterable[int]) -> list[TaskResult]:
        """Run the job with one attempt of each task, and commit it."""
        results = [self.attempt(number, ids) for number, ids in enumerate(tasks)]
        pickled_copy(self.writer).commit(results)
        return results
