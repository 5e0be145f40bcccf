"""What a Python worker process keeps from task to task: Kafka clients, and its own quickness.

Connecting anew costs a task 100 ms or more. Spark's daemon forks its workers, and librdkafka
does not survive a fork: nothing is made at import, and what a parent process kept is never
touched by a child.
"""

import gc
import os
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

C = TypeVar("C")

_REUSED = "SPARK_REUSE_WORKER"
"""Set by Spark in Python workers that do one task after another."""

_settled_pid: int | None = None


def settle() -> None:
    """Spare this worker process, for its later tasks, what Spark's worker does between tasks.

    Spark clears Python's import caches before each task, which reads the index of every archive
    on `sys.path` again, and collects garbage after it, which walks all that was ever imported:
    a tenth of a second of work a task. The jars that Spark puts on the path hold no Python, and
    modules are no garbage. Processes that Spark does not reuse are left as they are.
    """
    global _settled_pid
    if _settled_pid == os.getpid() or _REUSED not in os.environ:
        return
    _settled_pid = os.getpid()
    for path in [path for path in sys.path if path.endswith(".jar")]:
        sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)
    gc.freeze()


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
