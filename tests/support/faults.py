"""Faults: suspended processes, interrupts, failing calls, lost endpoints and commits."""

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from traceback import walk_stack
from types import FrameType
from typing import Any
from unittest.mock import Mock

import httpx
import psutil
import pytest
from sqlalchemy import event

from relay import Relay
from sluiceway import Channel
from sluiceway.api.transport import Transport
from sluiceway_gateway.core.db.engine import Database
from waiting import until


@contextmanager
def suspended(process: psutil.Process) -> Iterator[None]:
    """Stop a process (SIGSTOP) while the block runs; it begins once no thread runs.

    The threads run until one of them takes the signal, on a busy machine tens of milliseconds.
    """
    process.suspend()
    try:
        until(lambda: not _runs(process), despite=psutil.NoSuchProcess)
        yield
    finally:
        process.resume()


def _runs(process: psutil.Process) -> bool:
    """Whether any thread is neither stopped nor at its end."""
    ends = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    return any(psutil.Process(thread.id).status() not in ends for thread in process.threads())


@contextmanager
def no_threads(named: str = "") -> Iterator[None]:
    """Let no thread start whose name begins with `named`."""

    def refuse(thread: Thread) -> None:
        if thread.name.startswith(named):
            raise RuntimeError("can't start new thread")

    with at_call(Thread, "start", refuse):
        yield


@contextmanager
def at_statements(
    database: Database, words: str, action: Callable[[], object], *, values: str = ""
) -> Iterator[None]:
    """Call `action` before each statement of SQL that begins with `words`.

    Only if its parameters contain `values`. An error that `action` raises is that of the statement.
    """

    def executing(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: object
    ) -> None:
        if statement.lstrip().startswith(words) and values in str(parameters):
            action()

    event.listen(database.engine, "before_cursor_execute", executing)
    try:
        yield
    finally:
        event.remove(database.engine, "before_cursor_execute", executing)


@contextmanager
def at_call(
    owner: object, name: str, action: Callable[..., object], *, arrives: bool = False
) -> Iterator[None]:
    """Call `action` before each call of `owner`'s function `name`, with the same arguments.

    If the call `arrives`, it is done before. An error that `action` raises is that of the call.
    """
    call = getattr(owner, name)

    def act(*arguments: Any, **options: Any) -> Any:
        if not arrives:
            action(*arguments, **options)
        result = call(*arguments, **options)
        if arrives:
            action(*arguments, **options)
        return result

    with pytest.MonkeyPatch.context() as patched:
        # A fault, or another thread's step, at a moment that cannot be timed from outside.
        patched.setattr(owner, name, act)
        yield


@contextmanager
def failing_call(
    owner: object, name: str, error: BaseException, *, arrives: bool
) -> Iterator[None]:
    """Raise `error` from `owner`'s method `name` as `at_call`, and expect it from the block."""
    failing = at_call(owner, name, Mock(side_effect=error), arrives=arrives)
    with failing, pytest.raises(type(error)) as raised:
        yield
    assert raised.value is error


# The gateway notices changes of the shortest timeout of a session only, and tests share sessions.
_DIFFERENCES_MS = itertools.count()


def lose(channel: Channel, id_: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Shorten the channel's heartbeat timeout until a silent endpoint is lost; call `meanwhile`."""
    usual = channel.heartbeat
    timeout_ms = 4 * usual.interval_ms + next(_DIFFERENCES_MS)
    channel.update(heartbeat=replace(usual, timeout_ms=timeout_ms))

    def lost() -> bool:
        meanwhile()
        health = {endpoint.id: endpoint.health for endpoint in channel.endpoints()}
        # A dynamic one has no place any more.
        return health.get(id_, "lost") == "lost"

    until(lost)
    channel.update(heartbeat=usual)


#: For `Relay.drop_at`. Only a commit's body has this field. The path may be sent, and lost, before
#: the body.
LOST_COMMIT = b'"digest"'


def shorten_lost_commits(monkeypatch: pytest.MonkeyPatch, relay: Relay) -> None:
    """Give a commit a short timeout while the relay is about to lose it, and other requests not."""
    request = Transport.request

    def request_briefly(
        transport: Transport, method: str, path: str, **options: Any
    ) -> httpx.Response:
        if not (path.endswith("/commit") and relay.drop_pending):
            return request(transport, method, path, **options)
        try:
            return request(transport, method, path, **{**options, "timeout_s": 1.0})
        finally:
            until(lambda: not relay.drop_pending)

    # There is no option for the limit of one request.
    monkeypatch.setattr(Transport, "request", request_briefly)


AS_SIGNALS = ("call", "c_return")
"""Events of a profile where CPython runs a signal's handler: a function begins, C returns."""
OF_FUNCTIONS = ("call", "return")


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted_at_call(
    number: int,
    work: Callable[[], object],
    events: tuple[str, ...] = ("call", "return", "c_return"),
    *,
    action: Callable[[], object] = interrupt,
) -> bool:
    """Run `work` with an interrupt, or another action, at its n-th event; False if it has fewer.

    Events of finalizers do not count: Python ignores what is raised there, and pytest keeps it with
    the frames that the garbage collection interrupted.
    """
    calls = 0

    def profile(frame: FrameType, event: str, _called: object) -> None:
        nonlocal calls
        calls += event in events
        if calls == number and any(_is_finalizer(outer) for outer, _ in walk_stack(frame)):
            calls -= 1
        elif calls == number:
            calls += 1
            action()

    # Not a context manager, whose own calls would count.
    sys.setprofile(profile)
    try:
        work()
    except KeyboardInterrupt:
        assert calls > number
    finally:
        sys.setprofile(None)
    return calls > number


def _is_finalizer(frame: FrameType) -> bool:
    code = frame.f_code
    callback = code.co_filename == weakref.__file__ and code.co_name in {"__call__", "remove"}
    return callback or code.co_name == "__del__"


@contextmanager
def interrupted_in_report() -> Iterator[None]:
    """Interrupt the first Python callback that librdkafka's producer calls in the block.

    The interrupt is expected from the block.
    """
    serving = False

    def profile(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal serving
        if event == "call" and serving:
            sys.setprofile(None)
            raise KeyboardInterrupt
        if event.startswith("c_") and called.__name__ in ("poll", "flush"):
            serving = event == "c_call"

    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        sys.setprofile(None)
