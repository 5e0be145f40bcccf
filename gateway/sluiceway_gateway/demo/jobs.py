"""A job of the demo as a process, in a session of its own, and its end with all it started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

_GRACE_S = 10.0
_POLL_S = 0.05
_TAIL_LINES = 25

OnEvent = Callable[[Mapping[str, Any]], None]


class JobFailed(Exception):
    """A job ended without a result; the text has the end of its log."""


def run_job(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    on_event: OnEvent,
) -> Mapping[str, Any]:
    """Run a module of the demo and return its result, with `on_event` for what it tells before.

    However this ends, the job's process and all that it started are gone then. Raises JobFailed.
    """
    log = directory / f"{module}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", f"sluiceway_gateway.demo.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        try:
            result = _listen(process, on_event)
            status = process.wait()
        except BaseException:
            # All at once: whoever tells executors to end before their driver has new ones started.
            _kill(process.pid)
            raise
        finally:
            _end(process)
    if status != 0 or result is None:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        raise JobFailed(f"The job {module} failed with exit status {status}:\n{tail}")
    return result


def _listen(process: "subprocess.Popen[bytes]", on_event: OnEvent) -> Mapping[str, Any] | None:
    result = None
    for line in process.stdout or ():
        event = json.loads(line)
        if event["event"] == "result":
            result = event["result"]
        else:
            on_event(event)
    return result


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the whole session to end, by force when it takes too long."""
    deadline_s = time.monotonic() + _GRACE_S
    try:
        while _session(process.pid) and time.monotonic() < deadline_s:
            process.poll()
            time.sleep(_POLL_S)
    finally:
        _kill(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _kill(session: int) -> None:
    for pid in _session(session):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _session(session: int) -> list[int]:
    """Return the processes of a session that still run.

    Spark's Python workers form process groups of their own, but stay in the session.
    """
    return [each.pid for each in psutil.process_iter() if _runs_in(each, session)]


def _runs_in(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
        return False
