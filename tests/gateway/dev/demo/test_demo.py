"""The demo as a process: its result, and what is left after an interruption."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).parent / "sluiceway"), "demo", "--json"]
# It takes about a minute, and several beside other tests. The limit is for a demo that never ends.
DEADLINE_S = 1_200
pytestmark = pytest.mark.timeout(2 * DEADLINE_S)
EXECUTOR = "CoarseGrainedExecutorBackend"
KEYS = {"rows_written", "rows_read", "checksum_in", "checksum_out", "channels", "commits"}


def environment(directory: Path) -> dict[str, str]:
    """Return variables that put all files below `directory` and mark all processes.

    The token is one of another gateway.
    """
    token = f"slw_{'0' * 16}_{'0' * 64}"
    return {**os.environ, "TMPDIR": str(directory), "SLUICEWAY_TOKEN": token}


def processes_of(directory: Path) -> list[str]:
    """Return the command lines of all processes with the mark."""
    mark = f"TMPDIR={directory}".encode()
    commands = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if any(line.startswith(mark) for line in (entry / "environ").read_bytes().split(b"\0")):
                commands.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [command for command in commands if command]


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"timeout: {what}"
        time.sleep(0.05)


def ended(demo: "subprocess.Popen[str]", *, within_s: float) -> tuple[str, str]:
    """Wait for the demo's end and return its output."""
    try:
        return demo.communicate(timeout=within_s)
    except subprocess.TimeoutExpired as late:
        text = (late.stderr or b"").decode()
        pytest.fail(f"the demo did not end within {within_s} s:\n{text}")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
    ) as process:
        yield process
        process.kill()


@pytest.mark.long
def test_every_count_and_checksum_agrees_and_nothing_is_left(
    demo: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    out, err = ended(demo, within_s=DEADLINE_S)

    assert demo.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary.keys() >= KEYS
    assert summary["rows_written"] == summary["rows_read"] == 336_776
    assert summary["checksum_in"] == summary["checksum_out"] != "0"
    assert summary["commits"] == 2
    delays = summary["channels"]["delays"]
    assert delays["rows_written"] == delays["rows_read"] > 200
    assert delays["checksum_in"] == delays["checksum_out"] != "0"
    assert "Every count and checksum agrees" in err
    assert "make up" in err
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "command"),
    [
        pytest.param(signal.SIGINT, EXECUTOR, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "kafka.Kafka", marks=pytest.mark.long),
    ],
    ids=["while Spark works", "while the broker starts"],
)
def test_an_interrupted_demo_leaves_nothing_behind(
    demo: "subprocess.Popen[str]", tmp_path: Path, number: signal.Signals, command: str
) -> None:
    wait_for(lambda: running(tmp_path, command), f"{command} runs")
    demo.send_signal(number)
    _, err = ended(demo, within_s=180)

    assert demo.returncode == 128 + number
    assert "Interrupted. Nothing is left running." in err
    assert "Traceback" not in err
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_processes_of_a_killed_demo_end(demo: "subprocess.Popen[str]", tmp_path: Path) -> None:
    wait_for(lambda: running(tmp_path, EXECUTOR), "Spark's executors run")
    demo.kill()

    wait_for(lambda: not processes_of(tmp_path), "every process has ended")


def running(directory: Path, command: str) -> list[str]:
    return [line for line in processes_of(directory) if command in line]
