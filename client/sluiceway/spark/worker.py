"""What a Python worker process keeps from task to task: Kafka clients, and its own quickness.

Connecting anew costs a task 100 ms or more. Spark's daemon forks its workers, and librdkafka
does not survive a fork: nothing is made at import, and what a parent process kept is never
touched by a child.
"""

import ctypes
import gc
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar
from zipimport import zipimporter

import pyarrow as pa

C = TypeVar("C")

_REUSED = "SPARK_REUSE_WORKER"
"""Set by Spark in Python workers that do one task after another."""

_SPARKS_ARCHIVE = re.compile(r"(pyspark|py4j-.*-src)\.zip|spark-core_.*\.jar")
"""The archives that Spark puts on the import path of its workers, by their file names."""

_trim: Callable[[int], int] | None = (
    getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
)
"""What makes the C library give memory back, where it is glibc: librdkafka's lies there."""

_settled_pid: int | None = None


def prepare_worker() -> None:
    """Spare this worker process, before its next task, what Spark's worker does between tasks.

    Before each task, Spark invalidates Python's import caches: the index of an archive is read
    again for every folder in it that a module came from, which for Spark's own archives takes a
    tenth of a second. They do not change while Spark runs, so they are left out of those caches.
    After each task, Spark collects garbage, which walks all that was ever imported; modules are
    no garbage. What the task before freed goes back to the system here: a worker that did many
    kinds of work would hold the most that each of them took. Processes that Spark does not reuse
    are left as they are.
    """
    global _settled_pid
    if _REUSED not in os.environ:
        return
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter) and _is_sparks(importer.archive):
            del sys.path_importer_cache[path]
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
    if _settled_pid != os.getpid():
        _settled_pid = os.getpid()
        gc.freeze()


def _is_sparks(archive: str) -> bool:
    return _SPARKS_ARCHIVE.fullmatch(Path(archive).name) is not None


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
