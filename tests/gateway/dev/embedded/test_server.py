import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from faults import at_call
from shared_kafka import SharedKafka
from sluiceway_gateway.dev.embedded import (
    BrokerStartFailed,
    KafkaServer,
    broker,
    free_ports,
    supervisor,
)
from waiting import until

HEAP_MB = 256


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until_gone(pid: int) -> None:
    until(lambda: not _alive(pid))


def _processes(*words: str) -> list[int]:
    """Return the processes whose command lines contain all of these words."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text(errors="replace")
        except OSError:
            continue
        if all(word in command for word in words):
            pids.append(int(path.parent.name))
    return pids


def test_a_supervisor_that_fails_leaves_no_child(tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.touch()
    pid_file = tmp_path / "absent" / "pid"
    command = ["tail", "-f", str(watched)]
    supervised = [sys.executable, "-IS", supervisor.__file__, str(pid_file), *command]
    # Without a pipe, which the child would hold open.
    null = subprocess.DEVNULL
    done = subprocess.run(supervised, stdin=null, stdout=null, stderr=null, check=False)
    assert done.returncode == 1
    until(lambda: not _processes("tail", str(watched)))


@pytest.mark.long
def test_a_broker_does_not_outlive_a_killed_owner(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from sluiceway_gateway.dev.embedded import KafkaServer\n"
        "server = KafkaServer.start(Path(sys.argv[1]), heap_mb=256)\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    broker = int(owner.stdout.readline())
    assert _alive(broker)
    owner.send_signal(signal.SIGKILL)
    owner.communicate(timeout=120)
    _wait_until_gone(broker)


class Interrupted(BaseException):
    """A signal's exception, such as KeyboardInterrupt."""


@pytest.mark.long
# Of Popen, if the interruption arrives before the call returns.
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_an_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    """The interruption arrives as soon as the supervisor runs."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    def watch() -> None:
        until(lambda: _supervisors(tmp_path))
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    watching = threading.Thread(target=watch)
    try:
        watching.start()
        with pytest.raises(Interrupted):
            KafkaServer.start(tmp_path, heap_mb=HEAP_MB).stop()
    finally:
        watching.join()
        signal.signal(signal.SIGUSR1, before)
    until(lambda: not _supervisors(tmp_path))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_an_interruption_before_there_is_a_server_ends_the_supervisor(
    tmp_path: Path,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        until(lambda: _supervisors(tmp_path))
        raise Interrupted

    # No other moment is certainly between the two.
    with at_call(KafkaServer, "__init__", interrupt), pytest.raises(Interrupted):
        KafkaServer.start(tmp_path, heap_mb=HEAP_MB)
    until(lambda: not _supervisors(tmp_path))


def _supervisors(data_dir: Path) -> list[int]:
    return _processes(supervisor.__file__, str(data_dir))


def test_a_broker_that_fails_to_start_reports_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BrokerStartFailed, match=r"log\.segment\.bytes"):
        KafkaServer.start(
            tmp_path, heap_mb=HEAP_MB, properties={"log.segment.bytes": "not-a-number"}
        )


def test_a_storage_tool_that_hangs_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" != -version ] && exec sleep 60\necho \'version "21"\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    # Else 90 s, which no one has a reason to choose.
    monkeypatch.setattr(broker, "_START_TIMEOUT_S", 0.2)
    with pytest.raises(BrokerStartFailed, match=r"storage tool did not end within 0\.2 s"):
        KafkaServer.start(tmp_path / "data", heap_mb=HEAP_MB)


@pytest.mark.long
def test_a_port_in_use_is_named(tmp_path: Path, kafka: SharedKafka) -> None:
    with pytest.raises(BrokerStartFailed, match="Address already in use"):
        kafka.another(tmp_path, port=kafka.port)


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20
