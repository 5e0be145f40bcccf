"""Run a job of the demo: a script in a session of its own, which ends with all its processes."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from sluiceway_gateway.demo.environment import DemoEnvironment
from sluiceway_gateway.embedded import supervisor

_GRACE_S = 10.0
_POLL_S = 0.05
_TAIL_LINES = 25
#: Spark's console progress: tasks that have completed, are active, and are there in all.
_TASKS = re.compile(rb"\((\d+) \+ \d+\) / (\d+)\]")


class JobFailed(Exception):
    """A job ended without a result; the message has the end of its log."""


def jobs_path() -> Path:
    """Return the directory of the jobs: inside a wheel, or in the repository."""
    package = Path(__file__).resolve().parent
    installed = package / "jobs"
    return installed if installed.is_dir() else package.parents[2] / "examples" / "demo"


def run_job(
    name: str,
    *arguments: str,
    environment: DemoEnvironment,
    on_step: Callable[[str], None],
    on_progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Run a job and return its result: the JSON object that it prints.

    `on_step` gets each other line that it prints, `on_progress` the completed and all tasks of the
    Spark stage that runs, from a thread. However this ends, no process of the job is left. Raises
    JobFailed.
    """
    directory = environment.directory
    log = directory / f"{name}.log"
    with subprocess.Popen(
        [
            *(sys.executable, "-IS", supervisor.__file__, str(directory / f"{name}.pid")),
            *(sys.executable, str(jobs_path() / f"{name}.py"), *arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment.variables,
        cwd=directory,
        start_new_session=True,
    ) as process:
        logging = threading.Thread(target=_write_log, args=(process.stderr, log, on_progress))
        logging.start()
        try:
            result = _read_result(process, on_step)
            status = process.wait()
        except BaseException:
            # All at once: executors that end before their driver are started again.
            _kill_session(process.pid)
            raise
        finally:
            _end_session(process)
            logging.join()
    if status != 0 or result is None:
        lines = [each for each in log.read_text(errors="replace").splitlines() if each.strip()]
        tail = "\n".join([each for each in lines if not each.startswith("[Stage")][-_TAIL_LINES:])
        raise JobFailed(f"The job {name} failed with exit status {status}:\n{tail}")
    return result


def _read_result(
    process: "subprocess.Popen[bytes]", on_step: Callable[[str], None]
) -> dict[str, Any] | None:
    result: dict[str, Any] | None = None
    for line in process.stdout or ():
        if line.startswith(b"{"):
            result = json.loads(line)
        elif line.strip():
            on_step(line.decode(errors="replace").strip())
    return result


def _write_log(pipe: IO[bytes] | None, log: Path, on_progress: Callable[[int, int], None]) -> None:
    if pipe is None:
        return
    with log.open("wb") as file:
        while chunk := os.read(pipe.fileno(), 1 << 16):
            file.write(chunk)
            if found := _TASKS.findall(chunk):
                done, total = found[-1]
                on_progress(int(done), int(total))


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """Wait until every process of the session has ended, and kill what is left after 10 s."""
    deadline_s = time.monotonic() + _GRACE_S
    try:
        while _session(process.pid) and time.monotonic() < deadline_s:
            process.poll()
            time.sleep(_POLL_S)
    finally:
        _kill_session(process.pid)


def _kill_session(session: int) -> None:
    for pid in _session(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _session(session: int) -> list[int]:
    """Return the running processes of a session.

    Spark's Python workers leave the process group of their executor, but not its session.
    """
    import psutil  # part of the extra `demo` alone, while `sluiceway --help` imports this module

    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
