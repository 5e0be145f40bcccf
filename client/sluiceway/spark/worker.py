"""Kafka clients that a Python worker process keeps from task to task.

Connecting anew costs a task 100 ms or more. Spark's daemon forks its workers, and librdkafka
does not survive a fork: nothing is made at import, and what a parent process kept is never
touched by a child.
"""

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

C = TypeVar("C")


class ClientPool(Generic[C]):
    """Idle clients of this process by a key; a borrowed one has one borrower.

    `make` opens a client for a key, `close` ends one. A client is kept when its borrower is
    done, and closed when the borrower failed or was given up, since nobody knows what such a
    client still has in hand.
    """

    def __init__(self, *, close: Callable[[C], object]) -> None:
        self._close = close
        self._idle: dict[tuple[int, Hashable], list[C]] = {}

    @contextmanager
    def borrow(self, key: Hashable, make: Callable[[], C]) -> Iterator[C]:
        """Lend the idle client of this key, or a new one."""
        idle = self._idle.setdefault((os.getpid(), key), [])
        client = idle.pop() if idle else make()
        try:
            yield client
        except BaseException:
            self._close(client)
            raise
        idle.append(client)

    def close(self) -> None:
        """Close the idle clients of this process."""
        for (pid, _), idle in self._idle.items():
            while pid == os.getpid() and idle:
                self._close(idle.pop())
