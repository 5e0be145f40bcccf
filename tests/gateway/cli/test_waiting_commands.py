"""Waiting commands print the reason, time out, and end without a traceback on Ctrl-C."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from processes import INTERRUPTIBLE, process

COMMANDS = [
    ("channels", "list"),
    ("channels", "show", "a"),
    ("channels", "status"),
    ("channels", "status", "a", "--watch"),
    ("channels", "create", "a", "--format", "bytes"),
    ("tail", "a"),
]


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.long
def test_a_waiting_command_prints_the_reason_and_gives_up_with_advice(silent_url: str) -> None:
    with ExitStack() as stack:
        # They wait at the same time.
        waiting = [
            stack.enter_context(process(*command, "--url", silent_url)) for command in COMMANDS
        ]
        for running in waiting:
            assert running.wait() == 1
            notice, failure = running.text.splitlines()
            assert notice.startswith(f"sluiceway: waiting for the gateway at {silent_url}")
            assert "does not answer within 10 s" in failure
            assert "--url or SLUICEWAY_URL" in failure


def test_ctrl_c_ends_a_waiting_command_without_a_traceback(silent_url: str) -> None:
    with process("channels", "list", "--url", silent_url, command=INTERRUPTIBLE) as running:
        running.until("(waiting for the gateway)")
        assert running.end(signal.SIGINT) == 130
        assert running.text.split("\n", 1)[1].strip() == ""


@pytest.mark.parametrize(
    "command",
    [
        ("serve",),
        pytest.param(("migrate",), marks=pytest.mark.long),
        pytest.param(("token", "list"), marks=pytest.mark.long),
    ],
)
def test_a_command_that_waits_for_the_database_prints_the_reason(
    silent_url: str, command: tuple[str, ...]
) -> None:
    # By default the attempt ends when the reason is due, after 2 s.
    url = f"postgresql://u@{silent_url.removeprefix('http://')}/d?connect_timeout=60"
    with process(*command, SLUICEWAY_DATABASE_URL=url) as running:
        running.until("(waiting for the database)")


TABLE = """
from sluiceway_gateway.cli.entry import print_table
print_table(("WRITER", "CAUSE"), [("load[0]", "one two three " * 10 + "x" * 50), ("b", "none")])
"""


def in_terminal(columns: int) -> list[str]:
    """Return the lines printed to a terminal of this width."""
    parent, child = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", TABLE],
            stdout=child,
            check=True,
            env=os.environ | {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"},
        )
        os.close(child)
        text = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:
                # Linux reports the end of a terminal by an error.
                break
            if not part:
                break
            text += part
    finally:
        os.close(parent)
    return text.decode().replace("\r", "").splitlines()


@pytest.mark.sample
@pytest.mark.parametrize(("columns", "widest"), [(60, 60), (20, 40)])
def test_a_long_cause_wraps_in_its_column_and_nothing_is_cut(columns: int, widest: int) -> None:
    lines = in_terminal(columns)
    assert max(map(len, lines)) <= widest
    cause = [line[9:].strip() for line in lines[1:-1]]
    assert " ".join(cause[:-2]).split()[:3] == ["one", "two", "three"]
    assert "".join(cause).count("x") == 50
    assert all(re.match(r"load|  ", line) for line in lines[1:-1])
    assert lines[-1].split() == ["b", "none"]
