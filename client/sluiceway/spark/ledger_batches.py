"""Batches of exactly-once channels: one for each job or micro-batch, from all of its tasks.

Planning, tasks and commit run in separate processes. Every task opens the batch and gets the same
one. The tasks' commit messages list the written intervals, and the driver commits these.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self, TypeAlias

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from sluiceway import Connection
from sluiceway.errors import (
    CommitUnknown,
    IncompleteBatch,
    OptionError,
    ReplayMismatch,
    SluicewayError,
)
from sluiceway.spi import (
    Batch,
    BatchRequest,
    BatchState,
    Control,
    LeaseKeeper,
    Process,
    Timer,
    Transport,
    WriteBatch,
    WrittenRecords,
    this_process,
)

__all__ = ["BatchPart", "CommitMessages", "JobBatch", "TaskBatch", "TaskResult", "request_of_job"]

LOGGER = logging.getLogger(__name__)

_OPEN_AFTER_S: Final = 5.0
_COMMIT_TIMEOUT_S: Final = 120.0
_ABORT_TIMEOUT_S: Final = 5.0
_NOTHING_COMMITTED: Final = "Nothing was committed; run the job again, or restart the query"
_MAX_OWNER_CHARACTERS: Final = 200
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
"""Spark's local properties that identify a task's micro-batch. The job group of a query has the id
of its run."""
_KEEPERS: Final[dict[tuple[object, ...], LeaseKeeper]] = {}
_CONTROLS: Final[dict[tuple[Process, str | None], Control]] = {}


@dataclass(frozen=True, kw_only=True)
class BatchPart:
    """A task's part of a batch: the records written by its successful attempt.

    The records of a replayed batch are only counted.
    """

    request: BatchRequest
    batch: Batch
    records: int
    written: WrittenRecords


@dataclass(frozen=True, kw_only=True)
class TaskResult(WriterCommitMessage):
    """Commit message of a task: `records` were acknowledged by Kafka.

    `ends` has the end offset of each partition after them; None if it is not needed. `part` is the
    task's part of a batch, and `request` that of a micro-batch that it did not open.
    """

    records: int
    ends: Mapping[int, int] | None = None
    part: BatchPart | None = None
    request: BatchRequest | None = None
    trace: Mapping[str, str] | None = None
    """The trace of the micro-batch, for its commit."""


CommitMessages: TypeAlias = Sequence[WriterCommitMessage | None]
"""The commit messages in Spark's driver, by task number."""


@dataclass(frozen=True, kw_only=True)
class JobBatch:
    """The description of a write's batches for all of its processes; picklable.

    `request` is the request of a batch job. Tasks of a stream derive theirs from their micro-batch.
    Only tasks need a `connection`: a commit finds the request in their messages.
    """

    gateway_url: str | None
    """None: SLUICEWAY_URL."""
    connection: Connection | None = None
    request: BatchRequest | None = None
    has_key: bool = False
    """Whether the batch's key is the user's."""
    renewed_by_tasks: bool = True
    """Whether running tasks renew the lease, instead of the session in Spark's driver."""
    open_after_s: float = _OPEN_AFTER_S
    """After this wait for its first row, a task opens the batch, to renew the lease."""

    def in_task(self) -> "TaskBatch":
        """Return the running task's batch. Raises OptionError in `foreachBatch` without a key.

        A key in `foreachBatch` belongs to the query: one with a new checkpoint counts from 0 again,
        so it would find the keys of its predecessor, and write nothing. It also belongs to the
        micro-batch, so that a checkpoint that was rolled back is refused.
        """
        connection = self.connection
        assert connection is not None  # noqa: S101 - planned writes have one
        if self.request is None:
            return TaskBatch(self, connection, _micro_batch_request(connection), waits=True)
        number = _local_property(_BATCH_ID)
        if number is None:
            return TaskBatch(self, connection, self.request, waits=False)
        if not self.has_key:
            raise OptionError(
                "this write is in foreachBatch, which Spark may run again after a failure, so it "
                'needs a batch key: .option("batchKey", f"counts-{number}") with the number of the '
                "micro-batch. A second write with the same key writes nothing, so use another "
                "prefix with a new checkpointLocation, whose numbers begin at 0"
            )
        owner = _owner_of(_required_property(_QUERY_ID))
        request = replace(self.request, owner=owner, ordinal=int(number))
        return TaskBatch(self, connection, request, waits=False)

    def write_batch(self, request: BatchRequest, *, renews: bool = True) -> WriteBatch:
        """Return the batch of a request; `renews`: this process renews its lease."""
        calls = _control(self.gateway_url).ledger
        key = (this_process(), self.gateway_url, request.channel, request.uid, renews)
        keeper = _KEEPERS.get(key) or _KEEPERS.setdefault(
            key,
            LeaseKeeper(
                calls, request.channel, request.uid, lease_ms=request.lease_ms, renews=renews
            ),
        )
        return WriteBatch(calls, request, leases=keeper)

    def commit(self, messages: CommitMessages, *, number: int | None = None) -> WrittenRecords:
        """Commit and return the records of all tasks; none if the key was committed before.

        A batch job without records commits an empty batch; a micro-batch without records has no
        batch, but may be the replay of one. `number` is the micro-batch's number. Raises
        IncompleteBatch for missing messages and messages of another batch, ReplayMismatch,
        GatewayError, and the errors of `WriteBatch.commit`.
        """
        parts = self._parts(messages, number)
        if parts:
            batch = self.write_batch(parts[0].request).adopt(parts[0].batch)
        elif (request := self.request or self._replayed_request(messages)) is not None:
            batch = self.write_batch(request)
            batch.open()
        else:
            return WrittenRecords()
        records = sum(part.records for part in parts)
        try:
            if batch.replayed:
                batch.verify_replay(records)
                return WrittenRecords()
            if not records and self.request is None:
                batch.abort("the micro-batch has no records")
                return WrittenRecords()
            written = WrittenRecords.merged(part.written for part in parts)
            if written.records != records:
                raise IncompleteBatch(
                    f"the tasks of the batch {batch.key!r} wrote {records:,} records, but listed "
                    f"{written.records:,}. {_NOTHING_COMMITTED}"
                )
            batch.commit(written, timeout_s=_COMMIT_TIMEOUT_S)
        except CommitUnknown as error:
            error.add_note(self._advice(batch.key))
            raise
        except ReplayMismatch as error:
            if number is not None:
                error.add_note(_replay_advice(number))
            raise
        finally:
            batch.release()
        return written

    def abort(self, messages: CommitMessages, cause: str) -> None:
        """Abort the batch; its records stay invisible.

        The batch of a batch job is aborted even without a task's message, so later attempts of its
        tasks cannot open it again; one with the user's key only if tasks have opened it. If the
        request fails, this is logged, and the batch ends with its lease.
        """
        results = [message for message in messages if isinstance(message, TaskResult)]
        parts = {result.part.batch.id: result.part for result in results if result.part is not None}
        for part in parts.values():
            self.write_batch(part.request).adopt(part.batch).abort(cause)
        if not parts and self.request is not None:
            try:
                batch = self._unnamed(self.request)
                if batch is not None:
                    batch.abort(cause)
            except SluicewayError as error:
                LOGGER.warning("the batch %r was not aborted: %s", self.request.key, error)

    def _unnamed(self, request: BatchRequest) -> WriteBatch | None:
        """Return the job's batch, opened, without a message of its tasks."""
        if self.has_key:
            # The owner may be the query of `foreachBatch`, which only the tasks know.
            page = _control(self.gateway_url).ledger.commits(
                request.channel, uid=request.uid, limit=1
            )
            owners = [open_batch.owner for open_batch in page.open if open_batch.key == request.key]
            if not owners:
                return None
            request = replace(request, owner=owners[0])
        batch = self.write_batch(request)
        batch.open(timeout_s=_ABORT_TIMEOUT_S)
        return batch

    def _replayed_request(self, messages: CommitMessages) -> BatchRequest | None:
        """Return the request of a micro-batch that no task opened, if it was committed before."""
        results = (message for message in messages if isinstance(message, TaskResult))
        request = next((result.request for result in results if result.request), None)
        if request is None:
            return None
        page = _control(self.gateway_url).ledger.commits(
            request.channel, uid=request.uid, limit=1, key=request.key, timeout_s=_COMMIT_TIMEOUT_S
        )
        committed = any(event.kind == "commit" for event in page.events)
        return request if committed else None

    def _parts(self, messages: CommitMessages, number: int | None) -> list[BatchPart]:
        """Return the tasks' parts; raise IncompleteBatch unless every task has one."""
        missing = [
            str(task)
            for task, message in enumerate(messages)
            if not isinstance(message, TaskResult)
            or (message.part is None and self.request is not None)
        ]
        if missing:
            raise IncompleteBatch(
                f"Spark's commit has no message of the tasks {', '.join(missing[:5])}, so their "
                f"records are unknown. {_NOTHING_COMMITTED}"
            )
        results = (message for message in messages if isinstance(message, TaskResult))
        parts = [result.part for result in results if result.part is not None]
        batches = sorted({(part.batch.id, part.batch.state, part.request.key) for part in parts})
        strange = any(
            # In foreachBatch, only the tasks know the query and the micro-batch.
            replace(part.request, owner=self.request.owner, ordinal=None) != self.request
            if self.request is not None
            else part.request.ordinal != number
            for part in parts
        )
        if len(batches) > 1 or strange:
            keys = ", ".join(repr(key) for _, _, key in batches)
            raise IncompleteBatch(
                f"Spark's commit has messages of other batches: {keys}. {_NOTHING_COMMITTED}"
            )
        return parts

    def _advice(self, key: str) -> str:
        if self.request is None:
            return "Restart the query: it repeats the micro-batch with the same key."
        return (
            f'Run the job again with .option("batchKey", "{key}"): if it was committed, it writes '
            "nothing."
        )


def _replay_advice(number: int) -> str:
    return (
        f"Spark repeats the micro-batch {number}, which was committed, with other records: the "
        "query uses random values, its code has changed, records that it reads were lost, or its "
        "checkpoint was restored from an older copy. To keep the committed records and continue "
        "after them, start the query with a new checkpointLocation, and with the offsets in the "
        f"file offsets/{number} of its present one as startingOffsets. In a restored checkpoint "
        "they are not those of the committed records: use the endOffset in the progress of the "
        f"micro-batch {number} of the earlier run"
    )


class TaskBatch:
    """The batch of a running task, as a context manager.

    The task renews the lease, unless the session in Spark's driver does. A batch job's task opens
    the batch on entry. A stream's task opens it with its first row, because a micro-batch without
    rows has no batch, or after a long wait for that row: otherwise no task would renew the batch
    after all tasks with early rows have ended.
    """

    def __init__(
        self, job: JobBatch, connection: Connection, request: BatchRequest, *, waits: bool
    ) -> None:
        self._partitions = connection.partitions
        self._batch = job.write_batch(request, renews=job.renewed_by_tasks)
        self._lock = threading.Lock()
        self._ended = False
        self._opens_after_s = job.open_after_s if waits else None
        self._timer = Timer(self._open_early)

    def __enter__(self) -> Self:
        """Open the batch unless it waits for rows; raises the errors of `open`."""
        if self._opens_after_s is None:
            self.open()
        else:
            self._timer.set(self._opens_after_s)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing the lease; another attempt may continue the batch."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            self._batch.release()

    def open(self) -> bool:
        """Return whether to produce records, which is False if the batch was committed before.

        Raises the errors of `WriteBatch.open`, also for a partition of the plan.
        """
        with self._lock:
            self._batch.open(partitions=self._partitions)
        return not self._batch.replayed

    def check(self) -> None:
        """Raise Conflict if the batch has ended."""
        self._batch.check()

    def result(self, records: int, written: WrittenRecords | None = None) -> TaskResult:
        """Return the task's commit message; without a part if it did not open the batch."""
        if self._batch.state is BatchState.OPENING:
            # The gateway may have opened it; then the driver has to end it.
            self._open_early()
        with self._lock:
            if self._batch.state in {BatchState.NEW, BatchState.OPENING}:
                return TaskResult(records=records, request=self._batch.request)
            part = BatchPart(
                request=self._batch.request,
                batch=self._batch.opened,
                records=records,
                written=written or WrittenRecords(),
            )
        return TaskResult(records=records, part=part)

    def _open_early(self) -> None:
        with self._lock:
            if self._ended:
                return
            try:
                self._batch.open(partitions=self._partitions)
            except SluicewayError as error:
                LOGGER.warning("the batch %r is not open yet: %s", self._batch.key, error)


def request_of_job(
    connection: Connection,
    *,
    instance: str,
    key: str | None,
    application: str | None,
    group: str | None,
) -> BatchRequest:
    """Return the request of a new run of a batch job, shared by its tasks and its commit.

    A key belongs to the job's group, else to the application, so jobs of other owners with the same
    key are refused. Raises OptionError for a key that is too long.
    """
    own_key = key is None
    if key is None:
        key = f"job-{instance}"
    if not 1 <= len(key) <= _MAX_OWNER_CHARACTERS:
        raise OptionError(
            f"batchKey is {key!r}; it takes a text of 1 to {_MAX_OWNER_CHARACTERS} characters"
        )
    owner = f"Spark job {group or application or key}"[:_MAX_OWNER_CHARACTERS]
    return replace(_request(connection, key, owner, instance), own_key=own_key)


def _micro_batch_request(connection: Connection) -> BatchRequest:
    query, number, run = map(_required_property, (_QUERY_ID, _BATCH_ID, _RUN_ID))
    request = _request(connection, f"{query}-{number}", _owner_of(query), run)
    return replace(request, takeover=True, ordinal=int(number))


def _owner_of(query: str) -> str:
    return f"Spark query {query}"


def _request(connection: Connection, key: str, owner: str, instance: str) -> BatchRequest:
    return BatchRequest(
        channel=connection.channel_name,
        uid=connection.channel_uid,
        key=key,
        owner=owner,
        instance=instance,
        topic_id=connection.topic_id,
    )


def _local_property(name: str) -> str | None:
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(name)


def _required_property(name: str) -> str:
    value = _local_property(name)
    if value is None:
        raise RuntimeError(f"Spark's task lacks the local property {name}")
    return value


def _control(gateway_url: str | None) -> Control:
    """Return this process's control plane, whose connections stay open until it ends."""
    key = (this_process(), gateway_url)
    if key not in _CONTROLS:
        control = Control(Transport(gateway_url))
        if _CONTROLS.setdefault(key, control) is control:
            # Not by atexit, which a forked child would run with the locks of this process.
            this_process().finalize(control, control.close)
    return _CONTROLS[key]
