"""Faults of a process: threads that cannot be started, and calls that fail or are interrupted."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

__all__ = ["failing_call", "no_threads"]


@contextmanager
def no_threads(named: str = "") -> Iterator[None]:
    """Let no thread start whose name begins with `named`."""
    start = Thread.start

    def refuse(thread: Thread) -> None:
        if thread.name.startswith(named):
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Thread, "start", refuse)
        yield


@contextmanager
def failing_call(
    owner: object, name: str, error: BaseException, *, arrives: bool
) -> Iterator[None]:
    """Raise `error` from `owner`'s method `name`, and expect it from the block.

    If the call `arrives`, it is done before.
    """
    call = getattr(owner, name)

    def fail(*arguments: Any, **options: Any) -> None:
        if arrives:
            call(*arguments, **options)
        raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, fail)
        with pytest.raises(type(error)) as raised:
            yield
    assert raised.value is error
