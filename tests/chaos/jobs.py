"""Processes of a run: jobs, which are restarted after a failure, and a Spark cluster."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos.journal import Task
from tests.chaos.world import free_port, wait_for

_RESTART_S = 0.5
_RESTART_EARLY_S = 5.0
"""Pause before the next start of a job whose process ran for less than this time."""


def session_of(leader: int) -> list[int]:
    """Return the process ids of a session, the leader first."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The process name may contain any character; it ends at the last bracket.
            state, _, _, session, *_ = path.read_text().rpartition(")")[2].split()
            if int(session) == leader and state != "Z":
                pids.append(int(path.parent.name))
    return sorted(pids, key=lambda pid: pid != leader)


def executors_of(job: str) -> list[int]:
    """Return the process ids of a job's executors on Spark's workers."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes()
            if (
                b"CoarseGrainedExecutorBackend" in command
                and f"-Dchaos.job={job}\0".encode() in command
            ):
                pids.append(int(path.parent.name))
    return pids


def send(number: int, pids: list[int]) -> None:
    """Send a signal to processes; processes that have ended are ignored."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Run:
    """A process of a job and its descendants, in a session of their own."""

    def __init__(self, module: str, task: Task, log: Path, variables: Mapping[str, str]) -> None:
        self.started_s = time.monotonic()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(task)],
                cwd=task.directory,
                env=os.environ | dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def leader(self) -> int:
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        return session_of(self.leader)

    def status(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Pause the processes."""
        send(signal.SIGSTOP, self.pids)

    def resume(self) -> None:
        send(signal.SIGCONT, self.pids)

    def kill(self) -> None:
        """Kill the process and its descendants."""
        while pids := self.pids:
            send(signal.SIGKILL, pids)
            self._process.poll()
            time.sleep(0.01)
        self._process.wait()


class Job:
    """A job: its process is restarted after a failure, until it succeeds.

    A fault can hold the job: meanwhile `tend` starts no process.
    """

    def __init__(self, module: str, task: Task, variables: Mapping[str, str]) -> None:
        self.task = task
        self.module = module
        self.variables = dict(variables)
        self.starts = 0
        self.done = False
        self._lock = threading.Lock()
        self._held = False
        self._due_s = 0.0
        self.run: Run | None = None

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def spark(self) -> bool:
        return self.module.endswith("spark_jobs")

    def tend(self) -> None:
        """Start a process if one is due."""
        with self._lock:
            if self.done or self._held:
                return
            if self.run is not None and (status := self.run.status()) is not None:
                young = time.monotonic() - self.run.started_s < _RESTART_EARLY_S
                self.run.kill()
                self.run, self.done = None, status == 0
                self._due_s = time.monotonic() + (_RESTART_EARLY_S if young else _RESTART_S)
            elif self.run is None and time.monotonic() >= self._due_s:
                log = Path(self.task.directory) / f"{self.name}.log"
                self.run = Run(self.module, self.task, log, self.variables)
                self.starts += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Start no process of the job while the block runs."""
        self._held = True
        with self._lock:
            pass
        try:
            yield
        finally:
            self._due_s = 0.0
            self._held = False

    def detach(self) -> Run | None:
        """Return the running process, and let another one take its place in the job."""
        with self._lock:
            run, self.run = self.run, None
            self._due_s = 0.0
        return run

    def kill(self) -> None:
        """Kill the process; `tend` starts another one."""
        run = self.detach()
        if run is not None:
            run.kill()


@contextmanager
def spark_cluster(directory: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """Run a master and two workers with different addresses; yield the master's URL.

    Spark runs a speculative attempt only on another host.
    """
    import random

    import pyspark

    home = Path(pyspark.__file__).parent
    port = free_port(random.Random())  # noqa: S311 - not a secret
    processes: list[subprocess.Popen[bytes]] = []
    package = "org.apache.spark.deploy"

    def start(name: str, *arguments: str, address: str) -> None:
        environment = {
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(home),
        }
        with (directory / f"spark-{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments],
                cwd=directory,
                env=os.environ | dict(variables) | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        processes.append(process)

    url = f"spark://127.0.0.1:{port}"
    try:
        master_arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        start("master", f"{package}.master.Master", *master_arguments, address="127.0.0.1")
        for number in (2, 3):
            address = f"127.0.0.{number}"
            work = str(directory / f"spark-work-{number}")
            limits = ["--cores", "8", "--memory", "8g", "--work-dir", work, "--webui-port", "0"]
            worker_arguments = ["--host", address, *limits, url]
            start(
                f"worker-{number}", f"{package}.worker.Worker", *worker_arguments, address=address
            )
        logs = [directory / f"spark-worker-{number}.log" for number in (2, 3)]
        wait_for(
            lambda: all(b"Successfully registered" in log.read_bytes() for log in logs),
            "Spark's workers have not registered",
        )
        yield url
    finally:
        for process in reversed(processes):
            for pid in session_of(process.pid):
                send(signal.SIGKILL, [pid])
            process.wait()


class Tender:
    """Thread that starts the processes of jobs."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and kill all processes."""
        self._ended.set()
        self._thread.join()
        for job in self.jobs:
            job.kill()

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            for job in self.jobs:
                job.tend()
