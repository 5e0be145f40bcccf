"""Threads of the runtime: requests of the main thread, and work in the background."""

import itertools
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from faults import OF_FUNCTIONS, interrupted_at_call, no_threads
from sluiceway.api.endpoints import Position
from sluiceway.api.ledger import BatchLease, Committed
from sluiceway.api.transport import Transport
from sluiceway.confluent.committer import AsyncCommitter
from sluiceway.ledger.leases import LeaseKeeper
from sluiceway.ledger.visibility import CommittedRuns
from sluiceway.runtime.threads import Background, Signal, call
from topics import connection_to
from waiting import until

InChild = Callable[[Callable[[], object]], None]


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Python's own handler, whatever the test runner has."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when(ready: threading.Event) -> None:
    """Press Ctrl-C once the event is set."""

    def press() -> None:
        assert ready.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=press).start()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A listening socket, whose connections the test answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def transport(server: socket.socket) -> Iterator[Transport]:
    with closing(Transport(f"http://127.0.0.1:{server.getsockname()[1]}")) as transport:
        yield transport


def received(server: socket.socket) -> socket.socket:
    """Wait for the request of a new connection, and return the connection."""
    connection, _ = server.accept()
    connection.settimeout(60)
    assert connection.recv(65536)
    return connection


def answer(connection: socket.socket) -> socket.socket:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    return connection


def interrupted(transport: Transport, server: socket.socket) -> socket.socket:
    """Press Ctrl-C while a request is in flight, and return its connection."""
    sent = threading.Event()

    def receive() -> socket.socket:
        connection = received(server)
        sent.set()
        return connection

    with ThreadPoolExecutor(1) as pool:
        connection = pool.submit(receive)
        interrupt_when(sent)
        with pytest.raises(KeyboardInterrupt):
            transport.request("GET", "/interrupted")
        return connection.result(60)


def is_closed_by_client(connection: socket.socket) -> bool:
    with connection:
        return connection.recv(1) == b""


def test_an_interrupted_request_goes_on_and_leaves_usable_connections(
    transport: Transport, server: socket.socket
) -> None:
    first = interrupted(transport, server)
    with ThreadPoolExecutor(1) as pool:
        # While the interrupted one is in flight.
        answered = pool.submit(lambda: answer(received(server)))
        transport.request("GET", "/next")
        second = answered.result(60)
    answer(first)
    transport.close()
    assert is_closed_by_client(first)
    assert is_closed_by_client(second)


def test_a_transport_closes_its_connections_after_an_interrupted_request(
    transport: Transport, server: socket.socket
) -> None:
    connection = interrupted(transport, server)
    transport.close()
    connection.setblocking(False)
    with pytest.raises(BlockingIOError):
        connection.recv(1)
    connection.settimeout(60)
    answer(connection)
    assert is_closed_by_client(connection)


def test_a_call_of_the_main_thread_runs_in_another_one_with_its_context() -> None:
    of_caller: ContextVar[int] = ContextVar("of_caller")
    of_caller.set(7)
    thread, value = call(lambda: (threading.current_thread(), of_caller.get()))
    assert thread is not threading.main_thread()
    assert value == 7
    again, _ = call(lambda: (threading.current_thread(), None))
    assert again is thread


def test_a_call_of_another_thread_runs_in_that_one() -> None:
    ran_in: list[threading.Thread] = []
    caller = threading.Thread(target=lambda: ran_in.append(call(threading.current_thread)))
    caller.start()
    caller.join(60)
    assert ran_in == [caller]


def test_errors_of_a_call_are_raised() -> None:
    def fail() -> None:
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        call(fail)


def test_a_signal_handler_may_call_while_the_main_thread_waits() -> None:
    handled: list[int] = []
    running, proceed = threading.Event(), threading.Event()
    before = signal.signal(
        signal.SIGUSR1, lambda *_: (handled.append(call(lambda: 2)), proceed.set())
    )

    def wait() -> int:
        running.set()
        assert proceed.wait(60)
        return 1

    def press() -> None:
        assert running.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    try:
        threading.Thread(target=press).start()
        assert call(wait) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [2]


def test_calls_work_in_a_forked_child(in_forked_child: InChild) -> None:
    call(lambda: None)
    in_forked_child(lambda: call(lambda: None))


def test_without_a_new_thread_a_call_runs_in_the_main_thread(in_forked_child: InChild) -> None:
    def work() -> None:
        with no_threads("sluiceway-worker"):
            assert call(threading.current_thread) is threading.main_thread()

    in_forked_child(work)


def test_background_work_runs_one_at_a_time_and_skips_to_the_newest() -> None:
    background, ran = Background(), []
    begun, proceed, done = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        assert proceed.wait(60)
        ran.append("first")

    def record(name: str) -> Callable[[], None]:
        return lambda: ran.append(name)

    background.run(first)
    assert begun.wait(60)
    background.run(record("replaced"))
    background.run(lambda: (ran.append("newest"), done.set()))
    proceed.set()
    assert done.wait(60)
    assert ran == ["first", "newest"]


def test_background_work_goes_on_after_an_error_and_after_a_lack_of_threads(
    caplog: pytest.LogCaptureFixture, in_forked_child: InChild
) -> None:
    def work() -> None:
        background, done = Background(), threading.Event()
        with no_threads("sluiceway-worker"):
            background.run(lambda: None)
        assert "work in the background waits: can't start new thread" in caplog.text
        for task, error in ((lambda: 1 // 0, "ZeroDivisionError"), (sys.exit, "SystemExit")):
            background.run(task)
            until(lambda error=error: error in caplog.text)
        background.run(done.set)
        assert done.wait(60)

    in_forked_child(work)


def interrupted_at_instruction(number: int, work: Callable[[], object]) -> bool:
    """Run `work` with an interrupt at its n-th instruction; return whether it had so many."""
    steps = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        if event != "exception":
            steps += 1
            if steps == number:
                raise KeyboardInterrupt(event)
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("method", ["set", "clear", "wait"])
def test_a_signal_is_usable_after_an_interrupt_at_any_step(method: str) -> None:
    def is_usable_after(step: int) -> bool:
        """Check it; return whether the method has so many steps."""
        woken = Signal()
        if method == "wait":
            woken.set()
        methods = {"set": woken.set, "clear": woken.clear, "wait": partial(woken.wait, 60)}
        interrupted = interrupted_at_instruction(step, methods[method])
        woken.set()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(woken.wait, 60).result(90)
        return interrupted

    assert next(step for step in itertools.count(1) if not is_usable_after(step)) > 3


def test_a_signal_wakes_all_that_wait_and_stays_set_until_it_is_cleared() -> None:
    woken = Signal()
    assert not woken.wait(0.01)
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(woken.wait, 60) for _ in range(3)]
        woken.set()
        assert [wait.result(60) for wait in waits] == [True] * 3
    woken.set()
    assert woken.is_set()
    assert woken.wait(0)
    woken.clear()
    assert not woken.is_set()
    assert not woken.wait(0)


class Renewals:
    """A gateway whose batches stay open."""

    def __init__(self) -> None:
        self.renewed = threading.Event()

    def renew(self, _channel: str, instances: Any, **_: Any) -> dict[str, BatchLease]:
        self.renewed.set()
        return {id_: BatchLease(id=id_, state="open", lease_until=None) for id_ in instances}


class LeaseKeeping:
    def __init__(self) -> None:
        self._calls: Any = Renewals()
        self._keeper = LeaseKeeper(self._calls, "flights", "uid", lease_ms=30)

    def work(self) -> None:
        self._keeper.hold(self, "1", "one")

    def close(self) -> None:
        self._calls.renewed.clear()
        self._keeper.hold(self, "2", "two")
        assert self._calls.renewed.wait(60)
        self._keeper.close()


def test_a_batch_is_renewed_after_another_one_could_start_no_thread(
    in_forked_child: InChild,
) -> None:
    def work() -> None:
        keeping = LeaseKeeping()
        with no_threads("sluiceway-worker"), pytest.raises(RuntimeError, match="new thread"):
            keeping.work()
        keeping.close()

    in_forked_child(work)


class Following:
    """A reader that waits for commits."""

    def __init__(self) -> None:
        connection = connection_to({})
        calls: Any = self
        self._runs = CommittedRuns(calls, connection, grace_s=60.0)
        self._number = 0

    def clone(self) -> "Following":
        return self

    def all_committed(self, _channel: str, **_: Any) -> Committed:
        self._number += 1
        return Committed(
            uid="uid",
            topic_id=None,
            number=self._number,
            stable={0: 1},
            visible_end={0: 1},
            runs={},
        )

    def work(self) -> None:
        self._runs.acquire()
        self._runs.wait(self._runs.number, 0.01)
        self._runs.release()

    def close(self) -> None:
        self._runs.acquire()
        until(lambda: self._runs.wait(self._runs.number, 1.0))
        self._runs.users = 0
        self._runs.release()


class Committing:
    def __init__(self) -> None:
        self._committed: list[object] = []
        self._committer = AsyncCommitter(
            lambda _channel, positions: self._committed.append(positions), report=lambda *_: None
        )

    def work(self) -> None:
        self._committer.submit({("flights", 0): Position(offset=1)})
        self._committer.flush()

    def close(self) -> None:
        self._committed.clear()
        self.work()
        assert self._committed


@pytest.mark.parametrize("kind", [LeaseKeeping, Following, Committing])
def test_what_waits_is_usable_after_an_interrupt_at_any_step(kind: Any) -> None:
    def is_usable_after(step: int) -> bool:
        used = kind()
        try:
            interrupted = interrupted_at_call(step, used.work, OF_FUNCTIONS)
        except RuntimeError as error:
            # That of a Condition which an interrupt finds without its lock, as a thread starts.
            interrupted = isinstance(error.__context__, KeyboardInterrupt)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(used.close).result(60)
        return interrupted

    assert next(step for step in itertools.count(1) if not is_usable_after(step)) > 3
