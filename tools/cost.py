"""Plugin: the processor time of each folder of tests; `make test-cost` runs it and prints the sums.

It counts a test's process and the children that have ended in it. What services shared by several
tests take, such as the broker and PostgreSQL, is only in the total.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

_FOLDER = "TEST_COST_FOLDER"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER in linux/prctl.h

_seconds: Counter[str] = Counter()


def _used_s() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count the processor time of a test, with its fixtures."""
    before_s = _used_s()
    try:
        return (yield)
    finally:
        _seconds[item.nodeid.partition("::")[0].rpartition("/")[0]] += _used_s() - before_s


def pytest_sessionfinish() -> None:
    """Write the sums of this process."""
    path = Path(os.environ[_FOLDER]) / f"{os.getpid()}.json"
    path.write_text(json.dumps(_seconds))


def main(command: Sequence[str]) -> int:
    """Run pytest's command with this plugin; print what it took, and return its exit status."""
    # Services that detach themselves become children of this process, and so count.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen([*command, "-p", "tools.cost"], env=os.environ | {_FOLDER: folder})
        status = run.wait()
        wall_s = time.monotonic() - began_s
        with suppress(ChildProcessError):
            while os.waitpid(-1, 0):
                pass
        for path in Path(folder).iterdir():
            _seconds.update(json.loads(path.read_text()))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    total_s = used.ru_utime + used.ru_stime
    lines = [f"{seconds:8.1f} s  {name}" for name, seconds in _seconds.most_common()]
    lines.append(f"{total_s - _seconds.total():8.1f} s  collection and shared services")
    lines.append(f"{total_s:8.1f} s  of processor time in all, {wall_s:.1f} s on the clock")
    sys.stdout.write("\n".join(lines) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
