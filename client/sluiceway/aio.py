"""Asynchronous interface: a gateway, its channels, writers and readers, awaited.

    from sluiceway import aio

    async with aio.Gateway() as gateway:
        channel = await gateway.channel("flights")
        async with channel.reader(group="billing") as reader:
            async for record in reader:
                ...

The classes have the methods of those of `sluiceway`, which do the work in threads. A reader that
waits for records needs no thread. A writer or reader makes one call at a time, in the order in
which they were awaited.

Cancelling loses nothing. A call of a writer or reader that has begun is made to its end, which its
own timeout limits, before CancelledError is raised; what a cancelled `read` has taken is returned
by the next one. A cancelled call of a Gateway or Channel is not awaited any longer: a change that
was requested may be made.
"""

import asyncio
import functools
import inspect
import itertools
import logging
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import pyarrow as pa

from sluiceway.api.auth import Token
from sluiceway.api.channels import MIN_INTERVAL_S
from sluiceway.api.models import ChannelResource
from sluiceway.api.status import ChannelSummary, StatusReport
from sluiceway.channel import Channel as SyncChannel
from sluiceway.endpoint.attached import StatusCallback
from sluiceway.endpoint.channel_endpoint import ChannelEndpoint
from sluiceway.errors import OptionError
from sluiceway.gateway import Gateway as SyncGateway
from sluiceway.ledger.write_batch import WriteBatch
from sluiceway.reader import ChannelReader
from sluiceway.reader import R as Record
from sluiceway.records.frames import require_library, to_pandas, to_polars
from sluiceway.runtime.threads import start
from sluiceway.schema import Schema
from sluiceway.transaction import Transaction as SyncTransaction
from sluiceway.writer import ChannelWriter

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = ["Channel", "Gateway", "Reader", "Transaction", "Writer"]

LOGGER = logging.getLogger("sluiceway.aio")

P = ParamSpec("P")
E = TypeVar("E", bound=ChannelEndpoint)
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
W = TypeVar("W")

_MAX_CALLS = 64
"""The most calls of writers and readers at a time in a process; others wait for their turn."""
_SHORTEST_CHECK_S = 0.25
_LONGEST_CHECK_S = 5.0
_CHECKS_PER_S = 500
"""Waiting readers look for the end, growth and outages this often, all together."""

_Turns = frozenset[asyncio.Lock]
# The turns of the writers and readers whose call runs in this thread.
_HELD: ContextVar[_Turns] = ContextVar("sluiceway_turns", default=frozenset())


def _complete(future: Future[T], work: Callable[[], T]) -> None:
    """Do some work, unless nobody waits for it any more."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _start(
    work: Callable[[], T], run: Callable[[Callable[[], object]], None] = start
) -> "asyncio.Future[T]":
    """Do some work, by default in a thread of its own, where it may wait for long."""
    future: Future[T] = Future()
    run(functools.partial(_complete, future, functools.partial(copy_context().run, work)))
    waiter = asyncio.wrap_future(future)
    future.add_done_callback(functools.partial(_log_abandoned, waiter))
    return waiter


def _log_abandoned(waiter: "asyncio.Future[Any]", future: Future[Any]) -> None:
    """Log the failure of a call whose caller has not waited for its end."""
    if waiter.cancelled() and not future.cancelled() and future.exception() is not None:
        LOGGER.warning("a call that was cancelled has failed: %r", future.exception())


class _Threads:
    """The threads that make a process's calls; each of them takes one of some places.

    A thread that waits for a callback gives its place up: the end of the callback may need others.
    """

    def __init__(self, places: int) -> None:
        self._executor = ThreadPoolExecutor(sys.maxsize, thread_name_prefix="sluiceway-aio")
        # No lock, as a deque's operations are atomic.
        self._calls: deque[Callable[[], object]] = deque()
        self._places: deque[None] = deque([None] * places)
        self._thread = threading.local()

    def run(self, call: Callable[[], object]) -> None:
        """Make a call once there is a place. Raises RuntimeError without a thread."""
        self._calls.append(call)
        self._take_place()

    def give_place_up(self) -> None:
        """Let another call have the place of this thread, if it has one."""
        if getattr(self._thread, "has_place", False):
            self._thread.has_place = False
            self._places.append(None)
            if self._calls:
                self._take_place()

    def _take_place(self) -> None:
        with suppress(IndexError):  # a thread that has one makes the call
            self._places.pop()
            self._executor.submit(self._make_calls)

    def _make_calls(self) -> None:
        self._thread.has_place = True
        while self._thread.has_place:
            try:
                call = self._calls.popleft()
            except IndexError:
                self.give_place_up()
                return
            call()
            # Its arguments may keep abandoned endpoints alive.
            del call


@functools.cache
def _threads(_process: int) -> _Threads:
    """Return the threads of a process: a forked child has none of its parent's."""
    return _Threads(_MAX_CALLS)


def _submit(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Do some work in one of a few threads."""
    return _start(work, _threads(os.getpid()).run)


async def _to_its_end(future: "asyncio.Future[T]", undo: Callable[[T], object] | None = None) -> T:
    """Return the result of a call, which is not left before its end.

    After a cancellation, `undo` is called with the result; a failure of either is logged.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return future.result()
    try:
        result = future.result()
        if undo is not None:
            await _to_its_end(_submit(functools.partial(undo, result)))
    except Exception as failure:
        LOGGER.warning("a call that was cancelled has failed: %r", failure)
    raise cancelled


async def _without_fail(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call that is made also if this is cancelled before it has begun."""
    return await _to_its_end(asyncio.create_task(call))


class _Callback:
    """A coroutine that a call waits for in its thread; that thread makes the coroutine's calls."""

    current: ContextVar["_Callback | None"] = ContextVar("sluiceway_callback", default=None)

    def __init__(self) -> None:
        self.turns = _HELD.get()
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        # Changed in the loop's thread, as work is submitted.
        self.ended = False

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Have the waiting thread do some work."""
        future: Future[T] = Future()
        self._work.put(functools.partial(_complete, future, work))
        return asyncio.wrap_future(future)

    def wait(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
        """Run the coroutine in the loop, and return its result."""
        token = self.current.set(self)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        finally:
            self.current.reset(token)
        future.add_done_callback(self._end)
        _threads(os.getpid()).give_place_up()
        while (work := self._work.get()) is not None:
            work()
        return future.result()

    def _end(self, _future: Future[Any]) -> None:
        self.ended = True
        self._work.put(None)


def _in_loop(callback: Any) -> Any:
    """Return a function that runs a coroutine function in this loop, and waits for its end."""
    if not inspect.iscoroutinefunction(callback):
        return callback
    loop = asyncio.get_running_loop()
    return lambda *arguments: _Callback().wait(callback(*arguments), loop)


async def _in_turns(
    turns: _Turns,
    work: Callable[[], T],
    undo: Callable[[T], object] | None = None,
    submit: Callable[[Callable[[], T]], "asyncio.Future[T]"] = _submit,
) -> T:
    """Return the result of a call, in a thread; none of the others with one of these turns runs.

    A call that waits for the callback that makes this one lends it its turns, and its thread.
    """
    callback = _Callback.current.get()
    held = frozenset() if callback is None or callback.ended else callback.turns
    if callback is not None and turns & held:
        submit = callback.submit
    async with AsyncExitStack() as stack:
        # Always in the same order, so that no two calls wait for each other.
        for turn in sorted(turns - held, key=id):
            await stack.enter_async_context(turn)
        token = _HELD.set(turns | held)
        try:
            future = submit(work)
        finally:
            _HELD.reset(token)
        return await _to_its_end(future, undo)


class _Wrapper(Generic[S]):
    """An object whose calls are awaited."""

    def __init__(self, wrapped: S) -> None:
        self._sync = wrapped

    def __repr__(self) -> str:
        # Error reporters also render an object whose constructor has failed.
        return f"<aio {getattr(self, '_sync', None)!r}>"

    async def _run(self, work: Callable[[], T]) -> T:
        return await _start(work)


def _awaited(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[_Wrapper[S], P], Coroutine[Any, Any, R]]:
    """Return the awaited form of a wrapped object's method."""
    name = method.__name__

    @functools.wraps(method)
    async def call(self: _Wrapper[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        bound: Callable[P, R] = getattr(self._sync, name)
        return await self._run(functools.partial(bound, *args, **kwargs))

    return call


class _Endpoint(_Wrapper[E]):
    """A writer or reader."""

    def __init__(self, wrapped: E) -> None:
        super().__init__(wrapped)
        self._turns = frozenset({asyncio.Lock()})

    @property
    def endpoint_id(self) -> str | None:
        """The endpoint's id, 32 hexadecimal digits; None if it is not attached."""
        return self._sync.endpoint_id

    @property
    def finish_requested(self) -> bool:
        """Whether the channel is closing or being deleted, as of the last heartbeat."""
        return self._sync.finish_requested

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """The payload that its counterparts see: a JSON object up to 4 KiB, or None."""
        return self._sync.payload

    @payload.setter
    def payload(self, payload: Mapping[str, Any] | None) -> None:
        self._sync.payload = payload

    def on_status(self, callback: StatusCallback) -> None:
        """Call `callback` in the loop with the counterparts: now and after each change."""
        loop = asyncio.get_running_loop()
        self._sync.on_status(lambda present: loop.call_soon_threadsafe(callback, present))

    async def close(self) -> None:
        """Close it, as the synchronous one does; may be repeated."""
        await self._leave(self._sync.close)

    async def abort(self, error: BaseException) -> None:
        """Close it, and report to the gateway that `error` ended it."""
        await self._leave(functools.partial(self._sync.abort, error))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._leave(functools.partial(self._sync.__exit__, *raised))

    async def _run(self, work: Callable[[], T]) -> T:
        return await _in_turns(self._turns, work)

    async def _leave(self, work: Callable[[], None]) -> None:
        """Make the last call, in a thread of its own: members of a group wait for each other."""
        await _without_fail(_in_turns(self._turns, work, submit=_start))


class _Block(Generic[T]):
    """A block of a batch or a transaction, begun and ended by calls of its endpoints."""

    def __init__(self, block: AbstractContextManager[T, None], turns: _Turns) -> None:
        self._block = block
        self._turns = turns
        # A synchronous block's statement holds it: a block without it is abandoned.
        self._exit: Callable[..., object] | None = None

    async def __aenter__(self) -> T:
        leave = self._exit = self._block.__exit__
        cancelled = asyncio.CancelledError()
        return await _in_turns(
            self._turns,
            self._block.__enter__,
            undo=lambda _: leave(asyncio.CancelledError, cancelled, None),
        )

    async def __aexit__(self, *raised: Any) -> None:
        leave, self._exit = self._exit, None
        assert leave is not None  # noqa: S101 - entered
        await _without_fail(_in_turns(self._turns, functools.partial(leave, *raised)))


class Writer(_Endpoint[ChannelWriter]):
    """A ChannelWriter whose calls are awaited; opened by `Channel.writer()`.

    A cancelled `write` has written all of its records, or none if it had not begun.
    """

    write = _awaited(ChannelWriter.write)
    delete = _awaited(ChannelWriter.delete)
    flush = _awaited(ChannelWriter.flush)
    resolve = _awaited(ChannelWriter.resolve)
    end_offsets = _awaited(ChannelWriter.end_offsets)

    async def wait_acknowledged(self, groups: Sequence[str], *, timeout_s: float = 60.0) -> None:
        """Flush, and return when these reading groups have committed past the written records.

        See `ChannelWriter.wait_acknowledged`.
        """
        work = functools.partial(self._sync.wait_acknowledged, groups, timeout_s=timeout_s)
        # Readers of this process may need the other threads to get there.
        await _in_turns(self._turns, work, submit=_start)

    def batch(
        self, key: str, *, owner: str | None = None
    ) -> AbstractAsyncContextManager[WriteBatch, None]:
        """Write a batch: the block's records become visible together, or none of them.

        See `ChannelWriter.batch`. A cancelled block is aborted.
        """
        return _Block(self._sync.batch(key, owner=owner), self._turns)

    @property
    def schema(self) -> Schema:
        """The schema of the records."""
        return self._sync.schema

    @property
    def accepted_records(self) -> int:
        """The number of records of the writes so far, acknowledged or not."""
        return self._sync.accepted_records


class Reader(_Endpoint[ChannelReader[Record]], Generic[Record]):
    """A ChannelReader whose calls are awaited; opened by `Channel.reader()`.

    `async for` yields each record as a dict, or as an instance of the class `as_`; `read()` returns
    a list of them, `batches()` yields pyarrow.RecordBatches, and `to_arrow()` returns the rest.
    Each record goes to one of the tasks that share a reader: one waits for records, the others for
    their turn, and any of them may commit, seek and close meanwhile.
    """

    _waiting = 0
    """The number of readers in this process that wait for records."""

    def __init__(self, wrapped: ChannelReader[Record]) -> None:
        super().__init__(wrapped)
        self._reading = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        wake = weakref.WeakMethod(self._wake)
        # The signal may outlive this reader.
        wrapped.arrived.listener = lambda: call() if (call := wake()) is not None else None

    commit = _awaited(ChannelReader.commit)
    committed = _awaited(ChannelReader.committed)
    position = _awaited(ChannelReader.position)
    seek = _awaited(ChannelReader.seek)
    seek_to_time = _awaited(ChannelReader.seek_to_time)
    rewind = _awaited(ChannelReader.rewind)
    end_offsets = _awaited(ChannelReader.end_offsets)
    lag = _awaited(ChannelReader.lag)
    discover_partitions = _awaited(ChannelReader.discover_partitions)

    @property
    def schema(self) -> Schema:
        """The schema of the records."""
        return self._sync.schema

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that this reader reads, in order."""
        return self._sync.partitions

    @property
    def finished(self) -> bool:
        """Whether all records up to the end have been returned; never with `until=None`."""
        return self._sync.finished

    @property
    def corrupt_messages(self) -> int:
        """The number of messages skipped so far, counted again after a seek."""
        return self._sync.corrupt_messages

    async def read(self, max_records: int, timeout: float | None = 1.0) -> list[Record]:
        """Return up to `max_records` records, fewer if no more arrived within `timeout` seconds.

        See `ChannelReader.read`. A cancelled call takes none.
        """
        deadline_s = math.inf if timeout is None else self._loop.time() + timeout
        records: list[Record] = []
        async with self._one_read():
            with self._sync.span("receive", kind="receive") as span:
                await self._poll(
                    lambda: self._sync.read_at_hand(records, max_records) or None, deadline_s
                )
                self._sync.end_call()
                span.set("sluiceway.records", len(records))
                return records

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Yield the records one by one; each counts as returned when it is yielded."""
        take = functools.partial(self._sync.take_at_hand, self._sync.records_at_hand)
        while True:
            async with self._one_read():
                records: Iterator[Record] | None = await self._poll(take, math.inf)
            if records is None:
                return
            for record in records:
                yield record

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield the records as RecordBatches of `schema.arrow`, as large as they arrive.

        A batch counts as returned when it is yielded. Raises SchemaMismatch.
        """
        self._sync.require_batches()
        while True:
            async with self._one_read():
                batch = await self._poll(self._sync.batch_at_hand, math.inf)
                self._sync.end_call()
            if batch is None:
                return
            yield batch

    async def to_arrow(self) -> pa.Table:
        """Return all records up to the end as a table; see `ChannelReader.to_arrow`.

        A cancelled call takes none.
        """
        return await self._to_end(lambda table: table)

    async def to_pandas(self) -> "pd.DataFrame":
        """Return all records up to the end as a dataframe; see `ChannelReader.to_pandas`."""
        require_library("pandas", "to_pandas")
        return await self._to_end(to_pandas)

    async def to_polars(self) -> "pl.DataFrame":
        """Return all records up to the end as a dataframe; see `ChannelReader.to_polars`."""
        require_library("polars", "to_polars")
        return await self._to_end(to_polars)

    async def _to_end(self, convert: Callable[[pa.Table], T]) -> T:
        self._sync.require_end()
        batches: list[pa.RecordBatch] = []
        async with self._one_read():
            with self._sync.span("receive", kind="receive") as span:
                await self._poll(lambda: self._sync.take_to_end(batches) or None, math.inf)
                table = pa.Table.from_batches(batches, self._sync.schema.arrow)
                span.set("sluiceway.records", table.num_rows)
                try:
                    converted = await self._run(functools.partial(convert, table))
                except BaseException:
                    await _without_fail(self._run(self._sync.put_back))
                    raise
                self._sync.end_call()
                return converted

    @asynccontextmanager
    async def _one_read(self) -> AsyncIterator[None]:
        """Wait for the other reads. Raises OptionError in a callback that one of them waits for."""
        callback = _Callback.current.get()
        if callback is not None and not callback.ended and self._turns <= callback.turns:
            raise OptionError(
                "on_assign and on_revoke cannot read, because a read of this reader waits for "
                "their end: commit and seek in them, and read after them"
            )
        async with self._reading:
            yield

    async def _leave(self, work: Callable[[], None]) -> None:
        try:
            await super()._leave(work)
        finally:
            # Waiting calls raise that it is closed.
            self._wake()

    async def _poll(self, take: Callable[[], T | None], deadline_s: float) -> T | None:
        """Return the result of `take` once there is one; None at the end and the deadline.

        After an exception, what it has taken is put back.
        """
        try:
            while True:
                self._waiter = waiter = self._loop.create_future()
                taken = await self._run(take)
                left_s = deadline_s - self._loop.time()
                if taken is not None or self._sync.finished or left_s <= 0:
                    return taken
                await self._wait(waiter, left_s)
        except BaseException:
            await _without_fail(self._run(self._sync.put_back))
            raise

    async def _wait(self, waiter: "asyncio.Future[None]", left_s: float) -> None:
        """Wait for a signal, or until a check for what no signal announces."""
        check_s = min(_LONGEST_CHECK_S, max(_SHORTEST_CHECK_S, Reader._waiting / _CHECKS_PER_S))
        Reader._waiting += 1
        try:
            await asyncio.wait([waiter], timeout=min(check_s, left_s))
        finally:
            Reader._waiting -= 1

    def _wake(self) -> None:
        """Let a waiting call look for records; in any thread."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_resolve, waiter)


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class Transaction(_Block[SyncTransaction]):
    """A block whose output and input positions are committed together, or not at all.

    See `sluiceway.transaction.Transaction`; opened by `Gateway.transaction`.
    """

    def __init__(self, reader: Reader[Any], writer: Writer) -> None:
        block = SyncTransaction(reader._sync, writer._sync)  # noqa: SLF001 - of this module
        super().__init__(block, reader._turns | writer._turns)  # noqa: SLF001


class _Opening(Generic[W]):
    """A writer or reader, opened by `await`, or by `async with`, which also closes it."""

    def __init__(self, open_: Callable[[], Coroutine[Any, Any, W]]) -> None:
        self._open = open_

    def __await__(self) -> Generator[Any, None, W]:
        return self._open().__await__()

    async def __aenter__(self) -> W:
        self._opened: Any = await self._open()
        opened: W = self._opened
        return opened

    async def __aexit__(self, *raised: Any) -> None:
        await self._opened.__aexit__(*raised)


def _opening(
    wrap: Callable[[E], W], method: Callable[Concatenate[SyncChannel, P], E]
) -> Callable[Concatenate[_Wrapper[SyncChannel], P], _Opening[W]]:
    """Return the awaited form of a method that opens a writer or reader."""

    @functools.wraps(method)
    def open_(self: _Wrapper[SyncChannel], /, *args: P.args, **kwargs: P.kwargs) -> _Opening[W]:
        async def opened() -> W:
            options = {name: _in_loop(value) for name, value in kwargs.items()}
            work = functools.partial(method, self._sync, *args, **options)
            return wrap(await _to_its_end(_submit(work), _abandon))

        return _Opening(opened)

    return open_


def _abandon(endpoint: ChannelEndpoint) -> None:
    endpoint.abort(asyncio.CancelledError("cancelled while it was opened"))


def _wrapped(
    wrap: Callable[[R], W], method: Callable[Concatenate[S, P], R]
) -> Callable[Concatenate[_Wrapper[S], P], Coroutine[Any, Any, W]]:
    """Return the awaited form of a method whose result is wrapped as well."""
    awaited = _awaited(method)

    @functools.wraps(method)
    async def call(self: _Wrapper[S], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return wrap(await awaited(self, *args, **kwargs))

    return call


async def _items(items: Iterator[T]) -> AsyncIterator[T]:
    """Yield the items of an iterator that waits for the next one."""
    while item := await _start(lambda: [*itertools.islice(items, 1)]):
        yield item[0]


class Channel(_Wrapper[SyncChannel]):
    """A Channel whose calls are awaited; opened by `Gateway.channel` and `Gateway.channels`."""

    name = SyncChannel.name
    uid = SyncChannel.uid
    generation = SyncChannel.generation
    created_at = SyncChannel.created_at
    labels = SyncChannel.labels
    format = SyncChannel.format
    partitions = SyncChannel.partitions
    pinned = SyncChannel.pinned
    max_partitions = SyncChannel.max_partitions
    replication = SyncChannel.replication
    retention = SyncChannel.retention
    heartbeat = SyncChannel.heartbeat
    mirrored = SyncChannel.mirrored
    delivery = SyncChannel.delivery
    partitioner = SyncChannel.partitioner
    idle = SyncChannel.idle
    config = SyncChannel.config
    compatibility = SyncChannel.compatibility
    status = SyncChannel.status

    writer = _opening(Writer, SyncChannel.writer)
    reader = _opening(Reader, SyncChannel.reader)

    schemas = _awaited(SyncChannel.schemas)
    report = _awaited(SyncChannel.report)
    update = _awaited(SyncChannel.update)
    close = _awaited(SyncChannel.close)
    delete = _awaited(SyncChannel.delete)
    endpoints = _awaited(SyncChannel.endpoints)
    wait_for = _awaited(SyncChannel.wait_for)
    wait_until = _awaited(SyncChannel.wait_until)
    wait_until_gone = _awaited(SyncChannel.wait_until_gone)
    dismiss = _awaited(SyncChannel.dismiss)
    committed = _awaited(SyncChannel.committed)
    reset = _awaited(SyncChannel.reset)
    plan_import = _awaited(SyncChannel.plan_import)
    import_offsets = _awaited(SyncChannel.import_offsets)
    resize = _awaited(SyncChannel.resize)
    commits = _awaited(SyncChannel.commits)
    connection = _awaited(SyncChannel.connection)

    @property
    def schema(self) -> Schema:
        """The schema that writers and readers use: the given one, else the channel's newest."""
        return self._sync.schema

    @property
    def compacted(self) -> bool:
        """Whether Kafka keeps the last record of each key, so that keys can be deleted."""
        return self._sync.compacted

    @property
    def adopted(self) -> bool:
        """Whether the topic existed before the channel, and is never deleted or changed."""
        return self._sync.adopted

    async def refresh(self) -> Self:
        """Request the channel's state again and return this channel."""
        await self._run(self._sync.refresh)
        return self

    async def wait_until_ready(self, wait_s: float = 60.0) -> Self:
        """Wait until the channel is ready, or closing and thus readable; return it."""
        await self._run(functools.partial(self._sync.wait_until_ready, wait_s))
        return self

    async def wait_until_closed(self, wait_s: float = 60.0) -> Self:
        """Wait until everything in a closing channel is written and read; return it."""
        await self._run(functools.partial(self._sync.wait_until_closed, wait_s))
        return self

    def watch(self, *, every_s: float = MIN_INTERVAL_S) -> AsyncIterator[StatusReport]:
        """Yield the current `report`, and each further one that differs, at most every `every_s`.

        See `sluiceway.Channel.watch`.
        """
        return _items(self._sync.watch(every_s=every_s))

    @property
    def _resource(self) -> ChannelResource:
        # Of the descriptors above.
        return self._sync._resource  # noqa: SLF001


class Gateway(_Wrapper[SyncGateway]):
    """A Gateway whose calls are awaited; the arguments are those of `sluiceway.Gateway`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | Token | None = None,
        ca: str | None = None,
        listener: str | None = None,
        timeout_s: float = 30.0,
        control_grace_s: float = 60.0,
    ) -> None:
        bearer_token = Token.of(token)
        # Error reporters render the locals of frames.
        del token
        super().__init__(
            SyncGateway(
                url,
                token=bearer_token,
                ca=ca,
                listener=listener,
                timeout_s=timeout_s,
                control_grace_s=control_grace_s,
            )
        )

    channel = _wrapped(Channel, SyncGateway.channel)
    report = _awaited(SyncGateway.report)
    close = _awaited(SyncGateway.close)

    @property
    def url(self) -> str:
        """The gateway's URL."""
        return self._sync.url

    async def channels(self, selector: str | None = None) -> AsyncIterator[Channel]:
        """Yield the channels that the token may see, by name; see `sluiceway.Gateway.channels`."""
        async for channel in _items(self._sync.channels(selector)):
            yield Channel(channel)

    def watch(
        self, *, every_s: float = MIN_INTERVAL_S
    ) -> AsyncIterator[tuple[ChannelSummary, ...]]:
        """Yield the current `report`, and each further one that differs, at most every `every_s`.

        See `sluiceway.Gateway.watch`.
        """
        return _items(self._sync.watch(every_s=every_s))

    def transaction(self, reader: Reader[Any], writer: Writer) -> Transaction:
        """Return a block that commits its output together with the positions of its input.

            async with gateway.transaction(reader, writer):
                await writer.write(map(process, await reader.read(1000)))

        See `sluiceway.Gateway.transaction`. A cancelled block is aborted.
        """
        return Transaction(reader, writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
