"""A command as a process."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

COMMAND = [sys.executable, "-c", "from sluiceway_gateway.cli import main; raise SystemExit(main())"]


class Process:
    """A running command, whose standard error is read in a thread."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | variables,
        )
        self.text = ""
        self._arrived = threading.Condition()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._arrived:
                self.text += line
                self._arrived.notify_all()

    def until(self, pattern: str, timeout_s: float = 180) -> str:
        """Wait for a line that matches the pattern; return its first group."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: re.search(pattern, self.text), timeout_s), (
                self.text
            )
            found = re.search(pattern, self.text)
        assert found is not None
        return found[1]

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        self._process.send_signal(number)

    def end(self, number: int, timeout_s: float = 180) -> int:
        """Send a signal and return the exit status."""
        self.signal(number)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 180) -> int:
        try:
            status = self._process.wait(timeout_s)
            self._reading.join(timeout_s)
        finally:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()
        return status


@contextmanager
def process(*arguments: str, **variables: str) -> Iterator[Process]:
    running = Process(*arguments, **variables)
    try:
        yield running
    finally:
        if running.running():
            running.end(signal.SIGKILL)
        else:
            running.wait(0)
