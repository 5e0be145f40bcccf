"""Runs of the Spark job `tests/cluster/attempts_job.py`, on two executors and with faults."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

from environments import ROOT, spark_environment
from sluiceway.channel import Channel
from waiting import until

__all__ = ["ROWS", "TASKS", "AttemptsJob"]

JOB = ROOT / "tests" / "cluster" / "attempts_job.py"
ROWS = 100_000
"""The number of rows of a batch job."""
TASKS = 4


class AttemptsJob:
    """Runs of the job `attempts_job.py`, which share a directory."""

    def __init__(self, gateway_url: str, channel: Channel, directory: Path) -> None:
        self.shared = directory / "shared"
        self.shared.mkdir()
        self._directory = directory
        self._arguments = (gateway_url, channel.name)
        self._environment = os.environ | spark_environment(directory)

    def start(self, kinds: str, fault: str, *master: str) -> subprocess.Popen[str]:
        url, channel = self._arguments
        return subprocess.Popen(
            [sys.executable, str(JOB), url, kinds, fault, channel, str(self.shared), *master],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, kinds: str, fault: str, *master: str) -> None:
        """Run the job, and assert its success."""
        status, output = self.outcome(kinds, fault, *master)
        assert status == 0, output

    def outcome(self, kinds: str, fault: str, *master: str) -> tuple[int, str]:
        """Run the job, and return its exit status and output."""
        with self.start(kinds, fault, *master) as process:
            output, _ = process.communicate(timeout=480)
            return process.returncode, output

    def instance(self) -> str:
        """Return the run of the last query, which is the instance of its batches."""
        return (self.shared / "stream" / "run").read_text()

    def messages(self, kind: str) -> int:
        """Return the number of messages in the channel's topic after the last run of a kind."""
        return int((self.shared / kind / "messages").read_text())

    @contextmanager
    def holding(self, kind: str) -> Iterator[None]:
        """Run the job until all tasks have records in Kafka; after the block, kill the driver."""
        with self.start(kind, "held") as process:
            try:
                until(lambda: len(list((self.shared / kind).glob("held-*"))) == TASKS)
                yield
            finally:
                pids = (process.pid, *children(process.pid))
                # Stopped first, so that none acts on the end of another one.
                for number, pid in product((signal.SIGSTOP, signal.SIGKILL), pids):
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                assert process.stdout is not None
                # Executors have the pipe, too.
                process.stdout.close()


def children(pid: int) -> list[int]:
    """Return the child processes of a process, such as the JVM of Spark's driver."""
    pids = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = each.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            pids.append(int(each.parent.name))
    return pids
