"""The memory of Spark's Python workers, as the kernel counts it (Linux)."""

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_EVERY_S = 0.25
_PROC = Path("/proc")
_NEW_PEAK = "5"
"""Value for `clear_refs` that resets a process's peak, see proc(5)."""


class WorkerMemory:
    """Peak memory of the Python workers of this process's Spark while they are watched.

    `peak_mb` is the largest worker's, `grown_mb` the largest growth of a worker since its first
    observation; without workers both are 0.

    The kernel keeps each process's peak, so occasional polling misses only the last growth of a
    worker that ends between two polls.
    """

    def __init__(self) -> None:
        self.peak_mb = self.grown_mb = 0
        self._first_mb: dict[int, int] = {}

    @property
    def workers(self) -> int:
        """Number of observed workers."""
        return len(self._first_mb)

    def poll(self) -> None:
        """Record the peaks of the current workers."""
        for pid in _workers():
            with contextlib.suppress(OSError):  # it has ended
                lines = (_PROC / str(pid) / "status").read_text().splitlines()
                fields = dict(line.split(":", 1) for line in lines)
                if "VmHWM" in fields:
                    peak_mb, now_mb = _mb(fields["VmHWM"]), _mb(fields["VmRSS"])
                    first_mb = self._first_mb.setdefault(pid, now_mb)
                    self.peak_mb = max(self.peak_mb, peak_mb)
                    self.grown_mb = max(self.grown_mb, peak_mb - first_mb)


@contextmanager
def watched_workers() -> Iterator[WorkerMemory]:
    """Watch the workers in the block; earlier peaks do not count."""
    memory = WorkerMemory()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_EVERY_S):
            memory.poll()

    for pid in _workers():
        with contextlib.suppress(OSError):
            (_PROC / str(pid) / "clear_refs").write_text(_NEW_PEAK)
    memory.poll()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield memory
        memory.poll()
    finally:
        done.set()
        thread.join()


def _workers() -> list[int]:
    """Return Spark's Python processes among the descendants of this one."""
    parents = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The process name may contain brackets and spaces.
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = []
    for pid in parents:
        with contextlib.suppress(OSError):
            command = (_PROC / str(pid) / "cmdline").read_bytes()
            if b"pyspark" in command and b"daemon" in command and _is_below(pid, parents):
                found.append(pid)
    return found


def _mb(kilobytes: str) -> int:
    return int(kilobytes.split()[0]) // 1024


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False
