"""sluiceway.aio: the interface awaited, and cancelled at each point."""

import asyncio
import functools
import itertools
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
import uvloop

from faults import at_call
from sluiceway import Channel, ChannelReader, ChannelWriter, Endpoint, aio
from sluiceway.errors import EndpointClosed, OptionError, SluicewayTimeout
from topics import readings
from waiting import until

T = TypeVar("T")
NewChannel = Callable[..., Channel]
Run = Callable[[Callable[[aio.Channel], Coroutine[Any, Any, T]]], T]


NewLoop = Callable[[], asyncio.AbstractEventLoop]
of_each_loop = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@pytest.fixture
def new_loop() -> NewLoop:
    return asyncio.new_event_loop


@pytest.fixture
def run(new_loop: NewLoop, channel: Channel, gateway_url: str) -> Callable[..., Any]:
    """Run a coroutine function with a channel in a new loop."""

    def run(work: Callable[[aio.Channel], Awaitable[T]], name: str = channel.name) -> T:
        async def connected() -> T:
            async with aio.Gateway(gateway_url) as gateway:
                return await work(await gateway.channel(name))

        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(asyncio.wait_for(connected(), 180))

    return run


@pytest.fixture
def exact(new_channel: NewChannel) -> Channel:
    return new_channel(delivery="exactly_once")


@types.coroutine
def cancelled_at(coroutine: Coroutine[Any, Any, T], number: int) -> Generator[Any, None, T]:
    """Run a coroutine in the current task, which is cancelled at its n-th suspension."""
    task = asyncio.current_task()
    assert task is not None
    try:
        waiter = coroutine.send(None)
        for suspension in itertools.count(1):
            if suspension == number:
                task.cancel()
            try:
                result = yield waiter
            except BaseException as error:
                waiter = coroutine.throw(error)
            else:
                waiter = coroutine.send(result)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("endless")


async def cancelled(work: Callable[[], Coroutine[Any, Any, T]], number: int) -> T | None:
    """Return the result of a coroutine; None if it was cancelled at its n-th suspension."""
    try:
        return await asyncio.create_task(_as_coroutine(work(), number))
    except asyncio.CancelledError:
        return None


async def _as_coroutine(coroutine: Coroutine[Any, Any, T], number: int) -> T:
    return await cancelled_at(coroutine, number)


def test_records_are_written_and_read_to_the_end(run: Run[None]) -> None:
    async def work(channel: aio.Channel) -> None:
        async with channel.writer() as writer:
            assert await writer.write(readings(100)) == 100
            await writer.flush()
            assert writer.accepted_records == 100
        async with channel.reader() as reader:
            records = [record async for record in reader]
            assert sorted(records, key=lambda record: record["id"]) == readings(100)
            assert reader.finished
        reader = await channel.reader(until="now")
        batches = [batch async for batch in reader.batches()]
        assert sum(batch.num_rows for batch in batches) == 100
        await reader.close()

    run(work)


def test_a_read_waits_for_its_records_or_its_timeout(run: Run[None]) -> None:
    async def work(channel: aio.Channel) -> None:
        async with channel.reader(until=None) as reader, channel.writer(partition=0) as writer:
            assert await reader.read(1, timeout=0) == []
            reading = asyncio.create_task(reader.read(4, timeout=None))
            await writer.write(readings(2))
            await writer.flush()
            # It has none of them before all have arrived.
            assert (await reader.position())[0].offset == 0
            await writer.write(readings(2, 2))
            assert await reading == readings(4)
            assert (await reader.position())[0].offset == 4
            with pytest.raises(OptionError, match="max_records"):
                await reader.read(0)

    run(work)


@of_each_loop
def test_a_reader_that_is_cancelled_at_each_point_returns_each_record_once(
    run: Run[None],
) -> None:
    total, returned = 200, list[dict[str, Any]]()

    async def work(channel: aio.Channel) -> None:
        async with channel.writer(partition=0) as writer:
            await writer.write(readings(total))
        async with channel.reader(group="g") as reader:

            async def step() -> None:
                records = await reader.read(7, timeout=10)
                returned.extend(records)
                async for record in reader:
                    returned.append(record)
                    if record["id"] % 3 == 0:
                        break
                async for batch in reader.batches():
                    returned.extend(batch.slice(0, 0).to_pylist())
                    returned.extend(batch.to_pylist())
                    break
                await reader.commit()

            for number in itertools.cycle(range(1, 12)):
                await cancelled(step, number)
                at = (await reader.position()).get(0)
                assert at is not None
                assert at.offset == len(returned)
                if reader.finished:
                    break
                await reader.seek({0: len(returned)})
            await reader.commit()
            assert (await channel.committed("g"))[0].offset == total

    run(work)
    assert returned == readings(total)


async def cancel_again_and_again(task: "asyncio.Task[Any]") -> None:
    """Cancel a task at each of its next suspensions, as anyio does."""
    for _ in range(20):
        task.cancel()
        await asyncio.sleep(0)


class Held:
    """A call that waits in its thread until `proceed` is set."""

    def __init__(self) -> None:
        self.begun, self.proceed = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.begun.set()
        self.proceed.wait(60)


def test_a_read_that_is_cancelled_again_while_another_call_runs_loses_no_record(
    run: Run[None],
) -> None:
    held = Held()

    async def work(channel: aio.Channel) -> None:
        async with channel.writer(partition=0) as writer:
            await writer.write(readings(10))
        async with channel.reader(group="g", until=None) as reader:
            # The others are at hand then.
            assert await reader.read(1, timeout=None) == readings(1)
            reading = asyncio.create_task(reader.read(100, timeout=None))
            # After the first look of the call, which then waits.
            await reader.position()
            with at_call(ChannelReader, "commit", held):
                committing = asyncio.create_task(reader.commit())
                await asyncio.to_thread(held.begun.wait, 60)
                await cancel_again_and_again(reading)
                held.proceed.set()
                await committing
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await reader.read(9, timeout=10) == readings(9, 1)

    run(work)


def test_a_commit_does_not_include_the_batch_of_a_cancelled_task(run: Run[None]) -> None:
    held = Held()

    async def work(channel: aio.Channel) -> None:
        async with channel.writer(partition=0) as writer:
            await writer.write(readings(10))
        async with channel.reader(group="g", until=None) as reader:
            # The others are at hand then.
            assert await reader.read(1, timeout=None) == readings(1)
            batches = reader.batches()
            with at_call(ChannelReader, "batch_at_hand", held, arrives=True):
                taking = asyncio.ensure_future(anext(batches))
                await asyncio.to_thread(held.begun.wait, 60)
                committing = asyncio.create_task(reader.commit())
                # It waits for its turn from here on.
                await asyncio.sleep(0)
                taking.cancel()
                held.proceed.set()
                with pytest.raises(asyncio.CancelledError):
                    await taking
                await committing
            assert (await channel.committed("g"))[0].offset == 1
            assert await reader.read(9, timeout=10) == readings(9, 1)

    run(work)


def test_a_block_that_is_cancelled_again_while_another_call_runs_ends(
    run: Run[None], exact: Channel
) -> None:
    held = Held()

    async def work(channel: aio.Channel) -> None:
        writer, inside = await channel.writer(), asyncio.Event()

        async def write() -> None:
            async with writer, writer.batch("day-1"):
                await writer.write(readings(5))
                inside.set()
                await asyncio.Event().wait()

        writing = asyncio.create_task(write())
        await inside.wait()
        with at_call(ChannelWriter, "flush", held):
            flushing = asyncio.create_task(writer.flush())
            await asyncio.to_thread(held.begun.wait, 60)
            await cancel_again_and_again(writing)
            held.proceed.set()
            await flushing
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert not (await channel.commits()).open
        assert [endpoint.state for endpoint in await channel.endpoints()] == ["error"]

    run(work, exact.name)


@pytest.mark.parametrize("kind", ["batch", "transaction"])
def test_a_block_that_is_cancelled_at_each_point_is_wholly_visible_or_not_at_all(
    run: Run[None], channel: Channel, exact: Channel, gateway_url: str, kind: str
) -> None:
    with channel.writer(partition=0) as writer:
        writer.write(readings(100))

    async def work(output: aio.Channel) -> None:
        async with aio.Gateway(gateway_url) as gateway:
            source = await gateway.channel(channel.name)
            reader = await source.reader(group="g", until="now")
            writer = await output.writer(group="g")
            done = 0

            async def copy() -> None:
                nonlocal done
                if kind == "batch":
                    block: Any = writer.batch(f"batch-{done}")
                    records = readings(10, 10 * done)
                else:
                    block = gateway.transaction(reader, writer)
                async with block:
                    if kind == "transaction":
                        records = await reader.read(10, timeout=None)
                    await writer.write(records[:5])
                    await writer.write(records[5:])

            for number in itertools.cycle(range(1, 12)):
                await cancelled(copy, number)
                # A cancelled block may have been committed.
                view = await output.reader(until="now")
                visible = [record async for record in view]
                await view.close()
                assert visible == readings(len(visible))
                assert len(visible) in (10 * done, 10 * (done + 1))
                done = len(visible) // 10
                if done == 10:
                    break
            await reader.close()
            await writer.close()

    run(work, exact.name)


def test_an_opening_that_is_cancelled_leaves_no_endpoint(run: Run[None]) -> None:
    async def work(channel: aio.Channel) -> None:
        for open_ in (channel.writer, channel.reader):
            for number in itertools.count(1):
                opened = await cancelled(partial(_opened, open_), number)
                if opened is not None:
                    await opened.close()
                    break
        states = {endpoint.state for endpoint in await channel.endpoints()}
        assert states <= {"closed", "error"}

    run(work)


async def _opened(open_: Callable[[], Any]) -> Any:
    return await open_()


def test_closing_wakes_a_waiting_reader(run: Run[None]) -> None:
    async def work(channel: aio.Channel) -> None:
        reader = await channel.reader(until=None)
        reading = asyncio.create_task(reader.read(1, timeout=None))
        # After the first look of the call, which then waits.
        await reader.position()
        await reader.close()
        with pytest.raises(EndpointClosed):
            await reading

    run(work)


def test_a_member_commits_in_a_coroutine_when_its_partitions_are_revoked(run: Run[None]) -> None:
    async def work(channel: aio.Channel) -> None:
        async with channel.writer() as writer:
            await writer.write(readings(100))
        revoked: list[tuple[int, ...]] = []

        async def commit(partitions: tuple[int, ...]) -> None:
            revoked.append(partitions)
            await first.commit()

        first = await channel.reader(group="g", dynamic=True, until=None, on_revoke=commit)
        taken = await first.read(100, timeout=None)
        assert len(taken) == 100
        async with channel.reader(group="g", dynamic=True, until=None) as second:
            reading = asyncio.create_task(second.read(1, timeout=None))
            while len(second.partitions) < 1:
                assert await first.read(1, timeout=0.2) == []
                if reading.done():
                    await reading
            assert revoked == [second.partitions]
            assert len(await channel.committed("g")) == 2
            reading.cancel()
        await first.close()

    run(work)


def test_a_callback_may_close_its_reader_and_write_but_not_read(run: Run[None]) -> None:
    async def work(channel: aio.Channel) -> None:
        refused: list[OptionError] = []

        async def leave(partitions: tuple[int, ...]) -> None:
            with pytest.raises(OptionError, match="cannot read") as raised:
                await reader.read(1)
            refused.append(raised.value)
            # The writer's own calls go on meanwhile.
            await asyncio.gather(*(writer.write(readings(1, number)) for number in partitions))
            await writer.flush()
            await reader.close()

        async with channel.writer() as writer:
            reader = await channel.reader(group="g", dynamic=True, until=None, on_assign=leave)
            with pytest.raises(EndpointClosed):
                await reader.read(1, timeout=None)
            assert len(refused) == 1
            assert writer.accepted_records == 2
        async with channel.reader(until="now") as check:
            assert {record["id"] async for record in check} == {0, 1}

    run(work)


def test_callbacks_that_await_a_shared_writer_leave_threads_for_its_calls(
    run: Run[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise as many readers as there are places would be needed.
    monkeypatch.setattr(aio, "_threads", functools.cache(lambda _: aio._Threads(1)))

    async def work(channel: aio.Channel) -> None:
        async with channel.writer() as writer:

            async def write(partitions: tuple[int, ...]) -> None:
                await writer.write(readings(len(partitions)))
                await writer.flush()

            readers = [
                await channel.reader(group=name, dynamic=True, until=None, on_assign=write)
                for name in ("a", "b", "c")
            ]
            reads = [asyncio.create_task(reader.read(6, timeout=None)) for reader in readers]
            await asyncio.gather(*(writer.flush() for _ in range(3)))
            for read in reads:
                assert len(await read) == 6
            for reader in readers:
                await reader.close()

    run(work)


def test_the_failure_of_a_cancelled_call_is_logged(
    run: Run[None], caplog: pytest.LogCaptureFixture
) -> None:
    async def work(channel: aio.Channel) -> None:
        async with channel.writer() as writer:
            for call in (writer.write, channel.wait_until):
                begun, proceed = threading.Event(), threading.Event()

                def records(
                    begun: threading.Event = begun, proceed: threading.Event = proceed
                ) -> Iterator[dict[str, Any]]:
                    begun.set()
                    proceed.wait(60)
                    raise ZeroDivisionError
                    yield

                def missing(_: object, fail: Callable[[], Any] = records) -> list[str]:
                    return list(fail())

                argument = missing if call == channel.wait_until else records()
                task = asyncio.create_task(call(argument))
                await asyncio.to_thread(begun.wait, 60)
                task.cancel()
                proceed.set()
                with pytest.raises(asyncio.CancelledError):
                    await task

    run(work)
    until(lambda: caplog.text.count("has failed: ZeroDivisionError") == 2)


@pytest.mark.long
def test_more_writers_than_threads_wait_for_acknowledgements(run: Run[None]) -> None:
    async def work(channel: aio.Channel) -> None:
        writers = [await channel.writer() for _ in range(70)]
        async with channel.reader(group="g", until=None) as reader:
            await asyncio.gather(*(writer.write(readings(1)) for writer in writers))
            waits = [asyncio.create_task(writer.wait_acknowledged(["g"])) for writer in writers]
            assert len(await reader.read(70, timeout=None)) == 70
            await reader.commit()
            await asyncio.gather(*waits)
        for writer in writers:
            await writer.close()

    run(work)


def test_waiting_readers_have_no_threads(run: Run[None]) -> None:
    async def work(channel: aio.Channel) -> None:
        readers = [await channel.reader(until=None, share_connection=True) for _ in range(100)]
        before = threading.active_count()
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(reader.read(1, timeout=None)) for reader in readers]
            async with channel.writer() as writer:
                # After the first look of each of them.
                await asyncio.gather(*(reader.position() for reader in readers))
                assert threading.active_count() <= before + 66
                await writer.write(readings(1))
        assert all(task.result() == readings(1) for task in waiting)
        for reader in readers:
            await reader.close()

    run(work)


def test_counterparts_are_reported_in_the_loop(run: Run[None]) -> None:
    async def work(channel: aio.Channel) -> None:
        present: asyncio.Queue[tuple[Endpoint, ...]] = asyncio.Queue()
        async with channel.writer() as writer:
            writer.on_status(present.put_nowait)
            writer.payload = {"step": 1}
            async with channel.reader() as reader:
                while not any(
                    endpoint.id == reader.endpoint_id for endpoint in await present.get()
                ):
                    pass
                assert not reader.finish_requested

    run(work)


def test_channels_and_their_status_are_awaited(run: Run[None], gateway_url: str) -> None:
    async def work(channel: aio.Channel) -> None:
        async with aio.Gateway(gateway_url) as gateway:
            assert gateway.url == gateway_url
            names = [listed.name async for listed in gateway.channels()]
            assert channel.name in names
            assert channel.name in {summary.name for summary in await gateway.report()}
            assert await channel.refresh() is channel
            assert channel.partitions == 2
            async for report in channel.watch():
                assert report.uid == channel.uid
                break
            async for summaries in gateway.watch():
                assert channel.name in {summary.name for summary in summaries}
                break
        with pytest.raises(SluicewayTimeout):
            await channel.wait_for(writers=1, timeout_s=0.1)
        with pytest.raises(TimeoutError):
            # Not after the minute of the call.
            await asyncio.wait_for(channel.wait_for(writers=1), 0.1)
        await channel.update(labels={"team": "fares"})
        assert channel.labels == {"team": "fares"}
        await channel.delete(force=True)

    run(work)
