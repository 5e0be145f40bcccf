"""The client's code in the model: its threads, its requests, and what its classes need."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass, replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest import mock

import httpx
from pydantic_core import to_json
from tests.model.gateway import Gateway, Move
from tests.model.world import Killed, Record, Steps, Violation, World, pause

from sluiceway.api import ledger as ledger_requests
from sluiceway.api.endpoints import Position, PositionAdvance
from sluiceway.api.ledger import LedgerCalls
from sluiceway.api.parsing import JsonNode, parse, problem
from sluiceway.api.parsing import to_json as request_json
from sluiceway.errors import GatewayUnavailable, KafkaUnavailable, SluicewayError
from sluiceway.kafka.messages import DeliveryReport
from sluiceway.ledger import leases, write_batch, writer_batches
from sluiceway.ledger.intervals import DeliveredIntervals
from sluiceway.ledger.write_batch import Block, WriteBatch
from sluiceway.ledger.writer_batches import WriterBatches
from sluiceway_gateway.api.problems import problem_response
from sluiceway_gateway.core.errors import SluicewayGatewayError
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger.batches import CommitRequest
from sluiceway_gateway.ledger.model import Batch, Manifest, digest_of, manifest_of
from sluiceway_gateway.ledger.service import BatchInTopic, CommittedBatch
from sluiceway_gateway.ledger.wire import BatchPost, LeaseBody, batch_json, commit_json

UID = "c" * 32
"""The channel's unique id."""
T = TypeVar("T")


class ClientThread(threading.Thread):
    """A thread for synchronous code, which runs only while the model's thread waits for it."""

    def __init__(self) -> None:
        super().__init__(name="model-client", daemon=True)
        self._turn, self._model_turn = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._model_turn.acquire()
        self._code: Callable[[], Any] | None = None
        self._steps: Steps | None = None
        self._killed = False
        self.start()

    def run(self) -> None:
        """Run one piece of code after the other, until there is none."""
        while self._turn.acquire() and self._code is not None:
            try:
                result = self._code()
            except BaseException as error:
                self._code = partial(_raise, error)
            else:
                self._code = partial(_same, result)
            self._steps = None
            self._model_turn.release()

    def wait(self, steps: Steps) -> Any:
        """Let the model take steps, and return their result. Raises Killed after a crash."""
        if self._killed:
            raise Killed
        self._steps = steps
        self._hand_over(self._model_turn, self._turn)
        return self._code()  # type: ignore[misc]  # the outcome of the steps

    def steps(self, code: Callable[[], Any]) -> Steps:
        """Run code, as steps of the model."""
        self._killed = False
        self._resume(code)
        while self._steps is not None:
            try:
                result = yield from self._steps
            except (GeneratorExit, Violation):
                self._killed = True
                self._resume(partial(_raise, Killed()))
                raise
            except BaseException as error:
                self._resume(partial(_raise, error))
            else:
                self._resume(partial(_same, result))
        return self._code()  # type: ignore[misc]  # its outcome

    def end(self) -> None:
        """End the thread, which runs no code."""
        self._code = None
        self._turn.release()
        self.join()

    def _resume(self, code: Callable[[], Any]) -> None:
        self._code = code
        self._hand_over(self._turn, self._model_turn)

    @staticmethod
    def _hand_over(to: threading.Lock, back: threading.Lock) -> None:
        to.release()
        back.acquire()


def _same(result: T) -> T:
    return result


def _raise(error: BaseException) -> None:
    raise error


_IDLE: list[ClientThread] = []


def in_thread(code: Callable[[], Any]) -> Steps:
    """Run synchronous code in a thread; an interrupt or a crash reaches it where it waits."""
    thread = _IDLE.pop() if _IDLE else ClientThread()
    try:
        return (yield from thread.steps(code))
    finally:
        _IDLE.append(thread)


def wait(steps: Steps) -> Any:
    """Let the model take steps, and return their result, in synchronous code."""
    return cast("ClientThread", threading.current_thread()).wait(steps)


@contextmanager
def client_threads(world: World, slice_intervals: int) -> Iterator[None]:
    """Let a schedule's steps run what the client runs by threads, timers and random numbers."""
    logger = logging.getLogger("sluiceway")
    with ExitStack() as stack:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        for target, name, replacement in (
            (leases, "Timer", partial(Timer, world)),
            (writer_batches, "Timer", partial(Timer, world)),
            (write_batch, "secrets", SimpleNamespace(token_hex=lambda _: world.new_id("i"))),
            (ledger_requests, "SLICE_INTERVALS", slice_intervals),
        ):
            stack.enter_context(mock.patch.object(target, name, replacement))
        try:
            yield
        finally:
            for process in (*world.processes, *(thread for _, thread in world.sleeping)):
                process.steps.close()


def end_threads() -> None:
    """End the threads, which schedules share."""
    while _IDLE:
        _IDLE.pop().end()


class Timer:
    """The client's timer in the model's time."""

    def __init__(self, world: World, method: Callable[[], object]) -> None:
        self._world, self._method = world, method
        self._due_s: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether it is set."""
        return self._due_s is not None

    def set(self, delay_s: float) -> None:
        """Call the method after the time."""
        self._due_s = self._world.seconds + delay_s
        self._world.start_thread(self._run(self._due_s), after_s=delay_s)

    def cancel(self) -> None:
        """Do nothing if the time has not come."""
        self._due_s = None

    def _run(self, due_s: float) -> Steps:
        if self._due_s == due_s:
            self._due_s = None
            yield from in_thread(self._method)


class Turn:
    """A writer's turn, for which threads wait by steps."""

    def __init__(self) -> None:
        self._owner: threading.Thread | None = None
        self._depth = 0

    def __enter__(self) -> None:
        thread = threading.current_thread()
        while self._depth and self._owner is not thread:
            wait(_step())
        self._owner = thread
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1


def _step() -> Steps:
    yield


def ledger_calls(
    world: World, gateway: Gateway, partitions: tuple[int, ...] | None = None
) -> LedgerCalls:
    """Return the client's calls, whose requests name these partitions to write to."""
    return LedgerCalls(
        cast("Any", Transport(world, gateway, partitions)),
        sleep=lambda _: wait(pause(world, 10)),
        monotonic=lambda: world.seconds,
    )


class Transport:
    """The client's transport over the model's network."""

    identity = "gateway"

    def __init__(self, world: World, gateway: Gateway, partitions: tuple[int, ...] | None) -> None:
        self._world, self._gateway, self._partitions = world, gateway, partitions

    def clone(self) -> "Transport":
        """Return this transport, which has no connections."""
        return self

    def close(self) -> None:
        """Do nothing: it has no connections."""

    def fetch(self, kind: type[T], _method: str, path: str, **options: Any) -> T:
        """Send a request until it is answered, and return the response. Raises GatewayError."""
        return parse(kind, JsonNode(json.loads(to_json(self.request(_method, path, **options)))))

    def request(self, _method: str, path: str, *, body: Any, **_: Any) -> Any:
        """Send a request until it is answered. Raises GatewayError."""
        body = request_json(body) if is_dataclass(body) else body
        names = path.split("/")[5:]
        name = names[-1] if names else "open"
        if name == "commit" and body["records"] and self._world.fault("bogus manifest", 0.1):
            wait(self._bogus(names[0], body))
        repeats = max(0, self._world.random.randint(-4, 4))
        try:
            return wait(self._world.call(name, partial(self._respond, names, body), repeats))
        except SluicewayGatewayError as error:
            response = problem_response(error)
            raise problem(httpx.Response(response.status_code, content=response.body)) from None
        except TimeoutError:
            raise GatewayUnavailable("the gateway does not answer") from None

    def _respond(self, names: Sequence[str], body: Any) -> Any:
        """Return the gateway's response to a request about batches."""
        gateway = self._gateway
        match names:
            case []:
                named = None if self._partitions is None else list(self._partitions)
                request = BatchPost(**body | {"partitions": named})
                try:
                    batch = gateway.open(request)
                except SluicewayGatewayError:
                    gateway.refused.add((request.instance, request.key))
                    raise
                return batch_json(BatchInTopic(batch=batch, topic_id="t"))
            case ["renew"]:
                lease = timedelta(milliseconds=body["lease_ms"])
                ids = [lease["id"] for lease in body["batches"] if lease["id"] in gateway.batches]
                renewed = [vars(gateway.renew(batch, lease)) for batch in ids]
                return {
                    "batches": [
                        {name: batch[name] for name in LeaseBody.model_fields} for batch in renewed
                    ]
                }
            case [batch, "manifest", index]:
                return gateway.upload(batch, int(index), _manifest_of(body))
            case [batch, "abort"]:
                return gateway.abort(batch, body["instance"])
        request, move = _commit_of(names[0], body), _move_of(body["positions"])
        committed = gateway.commit(request, bool(body["slices"]), move)
        if self._world.fault("gateway unreachable after a commit", 0.1):
            self._world.lose_gateway()
        return commit_json(CommittedBatch(batch=committed, stable=gateway.ledger.stable))

    def _bogus(self, batch: str, body: Any) -> Steps:
        """Send an invalid manifest, as a broken client might; it must be refused."""
        valid, stored = _commit_of(batch, body), self._gateway.batches.get(batch)
        if stored is None:
            return
        manifests = [*self.bogus_manifests(stored), _lacking(valid.manifest)]
        manifest = self._world.random.choice([*filter(None, manifests)])
        lacks_slices = manifest is manifests[-1]
        request = replace(
            valid,
            digest=valid.digest if lacks_slices else digest_of(manifest),
            manifest=manifest,
            records=len(manifest),
            counts=dict.fromkeys(manifest, 1),
        )

        def commit() -> bool:
            # With the same digest, a repeated commit is answered.
            is_open = batch in {opened.id for opened in self._gateway.open_batches()}
            self._gateway.commit(request)
            return is_open

        try:
            accepted = yield from self._world.call("bogus commit", commit, 4)
        except (SluicewayGatewayError, TimeoutError):
            return
        if accepted:
            raise Violation("lost", f"the manifest {manifest} is accepted")

    def bogus_manifests(self, batch: Batch) -> list[Manifest]:
        """Return manifests past the watermark, below begin, over a run, or in other partitions."""
        log, runs = self._world.log, self._gateway.runs
        at, begin = self._world.random.choice([*batch.begin.items()])
        manifests: list[Manifest] = [
            {at: (Interval(max(begin, len(log.records[at]) - 1), 10_000),)}
        ]
        if begin and len(log.records[at]) > begin:
            manifests.append({at: (Interval(begin - 1, begin + 1),)})
        manifests += [
            {partition: (Interval(run.end - 1, run.end),)}
            for partition, first in batch.begin.items()
            for run in runs.get(partition, ())
            if run.end > first
        ]
        manifests += [
            {partition: (Interval(len(records) - 1, len(records)),)}
            for partition, records in enumerate(log.records)
            if records and partition not in batch.begin
        ]
        return manifests


def _lacking(manifest: Manifest) -> Manifest:
    """Return a manifest without one of its partitions, like slices of which one was not sent."""
    return dict([*manifest.items()][1:])


def _manifest_of(body: Any) -> Any:
    return manifest_of({int(partition): pairs for partition, pairs in body["manifest"].items()})


def _commit_of(batch: str, body: Any) -> CommitRequest:
    return CommitRequest(
        batch=batch,
        instance=body["instance"],
        digest=body["digest"],
        manifest=_manifest_of(body),
        records=body["records"],
        counts={int(partition): count for partition, count in body["counts"].items()},
    )


def _move_of(positions: Any) -> Move | None:
    if positions is None:
        return None
    (moved,) = positions["positions"]
    return Move(reader=positions["group"], start=moved["from"]["offset"], end=moved["to"]["offset"])


def produce(
    world: World,
    records: Sequence[Record],
    partitions: Sequence[int],
    intervals: DeliveredIntervals,
) -> Steps:
    """Produce records, and add their delivery reports in columns or, as a facade, one by one.

    A wrong offset leaves records missing from `written`.
    """
    one_by_one = world.random.random() < 0.5
    unkeyed_partition = world.random.choice(partitions)
    counts_from_zero = world.fault("report counts up from -1", 0.03)
    counts: Counter[int] = Counter()
    reports: list[tuple[int, int]] = []
    late: list[tuple[int, int]] = []
    for record in records:
        keyed = world.random.random() < 0.2
        partition = world.random.choice(partitions) if keyed else unkeyed_partition
        yield
        while world.kafka_away:
            yield
        if world.fault("record not written", 0.02):
            continue
        offset = world.log.append(partition, record)
        counts[partition] += 1
        if world.fault("record not acknowledged", 0.02):
            continue
        if counts_from_zero:
            offset = counts[partition] - 2
        elif reports and world.fault("report repeated", 0.01):
            partition, offset = reports[-1]
        is_late = world.fault("report late", 0.02)
        (late if is_late else reports).append((partition, offset))
    for partition, offset in (*reports, *late):
        if one_by_one:
            intervals.add_message(partition, offset)
        else:
            report = DeliveryReport(partition=partition, first=offset, messages=1, records=1)
            intervals.add(report)


def connection_of(gateway: Gateway) -> Any:
    """Return the fields of a connection that batches use."""
    return SimpleNamespace(
        channel_name="c", channel_uid=UID, topic_id="t", partitions=gateway.ledger.partitions
    )


class Writer:
    """A channel's writer, with the client's batches."""

    def __init__(self, world: World, gateway: Gateway, instance: str) -> None:
        self._world = world
        self._turn = Turn()
        self._intervals = DeliveredIntervals()
        self._accumulated: list[Any] = []
        self.failure: SluicewayError | None = None
        self.failed_unnoticed = False
        calls = ledger_calls(world, gateway)
        self.handle = SimpleNamespace(calls=calls)
        self.batches = WriterBatches(
            self,
            cast("Any", self._turn),
            calls,
            connection_of(gateway),
            self._intervals,
            writer_id=instance,
            place=None,
            commit_every_s=world.random.choice([2, 30]),
        )

    @property
    def batch(self) -> WriteBatch | None:
        """The batch of the current block."""
        return self.batches.current_block.batch

    def write(self, identities: Sequence[Any]) -> None:
        """Write records."""
        with self._turn:
            self.require_open()
            self._accumulated += identities

    def flush(self) -> None:
        """Commit all written records, except within a block."""
        with self._turn:
            self.require_open()
            self.send_accumulated()
            self.batches.flush()

    def require_open(self) -> None:
        """Raise the error by which the writer has failed, and end an abandoned block."""
        if self.failure is not None:
            raise self.failure
        self.batches.end_abandoned()

    def send_accumulated(self) -> None:
        """Produce the accumulated records."""
        identities, self._accumulated = self._accumulated, []
        if identities and self.batches.admit(len(identities)):
            batch = self.batch
            assert batch is not None
            records = [Record(identity, batch.opened.id) for identity in identities]
            wait(produce(self._world, records, [*batch.opened.begin], self._intervals))

    def discard_accumulated(self) -> None:
        """Forget the accumulated records."""
        self._accumulated = []

    def deliver(self) -> None:
        """Return, as Kafka acknowledges records when they are produced, or never."""

    def use_partitions(self, total: int) -> None:
        """Ignore the number: the batch names its partitions."""


class GroupReader:
    """A reader whose positions a transaction commits."""

    handle = SimpleNamespace(membership=True, calls=SimpleNamespace(identity="gateway"))
    revoked_uncommitted = False

    def __init__(self, world: World, group: str, committed: int) -> None:
        self._world, self._group = world, group
        self._committed = self.position = committed
        self._suspended: SluicewayError | None = None
        self.transaction: Block | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction commits its positions."""
        return self.transaction is not None and not self.transaction.abandoned

    def require_continued(self) -> None:
        """Raise unless the reader has gone on, or back, after its last transaction."""
        if self._suspended is not None:
            if not isinstance(self._suspended, KafkaUnavailable):
                raise self._suspended
            self.rewind()
            self._suspended = None

    def suspend(self, error: SluicewayError | None) -> None:
        """Refuse further calls with an error; None accepts them again."""
        self._suspended = error

    def commit_with(self, send: Callable[[PositionAdvance | None], None]) -> None:
        """Commit the position by `send`."""
        advance = None
        if self.position != self._committed:
            advance = PositionAdvance(
                channel="inputs",
                uid="i",
                topic_id=None,
                group=self._group,
                endpoint="reader",
                epoch=1,
                generation=1,
                number=1,
                before={0: Position(offset=self._committed)},
                after={0: Position(offset=self.position)},
            )
        send(advance)
        self._committed = self.position

    def mark_committed(self, positions: Any) -> None:
        """Continue after positions that a commit has stored."""
        self._committed = self.position = positions[0].offset

    def rewind(self) -> None:
        """Go back to the committed position, which needs Kafka."""
        if self._world.kafka_away:
            raise KafkaUnavailable("no broker answers")
        self.position = self._committed
