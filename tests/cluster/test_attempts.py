"""Exactly-once writes of Spark on two executors: retries, speculation, lost processes."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from environments import spark_environment
from ledger_view import LedgerView
from shared_kafka import SharedKafka
from sluiceway import Gateway
from sluiceway.channel import Channel
from sluiceway.ledger.write_batch import DEFAULT_LEASE_MS
from sluiceway_gateway.embedded import free_ports
from spark_tasks import SCHEMA, fill, messages_of
from topics import Topics
from waiting import until

pytestmark = pytest.mark.long

JOB = Path(__file__).with_name("attempts_job.py")
ROWS = 100_000

TASKS = 4


class Job:
    """Runs of the job `attempts_job.py`, which share a directory."""

    def __init__(self, gateway_url: str, channel: Channel, directory: Path) -> None:
        self.shared = directory / "shared"
        self.shared.mkdir()
        self._directory = directory
        self._arguments = (gateway_url, channel.name)
        self._environment = os.environ | spark_environment(directory)

    def start(self, kind: str, fault: str, *master: str) -> subprocess.Popen[str]:
        url, channel = self._arguments
        return subprocess.Popen(
            [sys.executable, str(JOB), url, kind, fault, channel, str(self.shared), *master],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, kind: str, fault: str, *master: str) -> None:
        """Run the job, and assert its success."""
        status, output = self.outcome(kind, fault, *master)
        assert status == 0, output

    def outcome(self, kind: str, fault: str, *master: str) -> tuple[int, str]:
        """Run the job, and return its exit status and output."""
        with self.start(kind, fault, *master) as process:
            output, _ = process.communicate(timeout=480)
            return process.returncode, output

    @contextmanager
    def holding(self, kind: str) -> Iterator[None]:
        """Run the job until all tasks have records in Kafka; after the block, kill the driver."""
        with self.start(kind, "held") as process:
            try:
                until(lambda: len(list(self.shared.glob("held-*"))) == TASKS)
                yield
            finally:
                for pid in (process.pid, *children(process.pid)):
                    os.kill(pid, signal.SIGKILL)
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


@pytest.fixture(scope="module")
def ledger(gateway_url: str, kafka: SharedKafka) -> Iterator[LedgerView]:
    with closing(LedgerView(gateway_url, Topics(kafka.bootstrap_servers))) as view:
        yield view


@pytest.fixture
def channel(gateway_url: str) -> Iterator[Channel]:
    name = f"attempts-{uuid.uuid4().hex[:8]}"
    with Gateway(gateway_url) as gateway:
        gateway.channel(f"{name}-in", SCHEMA, partitions=2)
        yield gateway.channel(name, SCHEMA, partitions=4, delivery="exactly_once")


@pytest.fixture
def run(gateway_url: str, channel: Channel, tmp_path: Path) -> Job:
    return Job(gateway_url, channel, tmp_path)


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[str]:
    """The URL of a Spark master with workers on different addresses, so that Spark speculates."""
    environment = os.environ | spark_environment(tmp_path / "cluster")
    spark_class = f"{environment['SPARK_HOME']}/bin/spark-class"
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"

    @contextmanager
    def running(name: str, *arguments: str) -> Iterator[None]:
        command = [spark_class, f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
        with (tmp_path / "cluster" / "log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)

    with ExitStack() as stack:
        stack.enter_context(running("master.Master", "--host", "127.0.0.1", "--port", str(port)))
        for host in ("127.0.0.2", "127.0.0.3"):
            options = ("--host", host, "--work-dir", str(tmp_path / "cluster" / host))
            stack.enter_context(running("worker.Worker", *options, "-c", "2", "-m", "1g", url))
        yield url


def raw_records(channel: Channel) -> int:
    return len(messages_of(channel.connection("read")))


@pytest.mark.parametrize("fault", ["failing", "killed"])
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_each_record_is_visible_once(
    gateway_url: str, channel: Channel, ledger: LedgerView, run: Job, kind: str, fault: str
) -> None:
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS))

    run(kind, fault)

    assert ledger.ids(channel) == [*range(ROWS)]
    assert ledger.kinds(channel) == ["commit"]
    # The fault happened: there are invisible records of failed attempts.
    assert raw_records(channel) > ROWS


def test_a_job_and_a_micro_batch_that_run_again_write_nothing(
    gateway_url: str, channel: Channel, ledger: LedgerView, run: Job, tmp_path: Path
) -> None:
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS, 2 * ROWS))
    for kind in ("batch", "stream"):
        run(kind, "failing")
    written = raw_records(channel)
    for note in (tmp_path / "shared" / "checkpoint" / "commits").glob("*0*"):
        note.unlink()

    for kind in ("batch", "stream"):
        run(kind, "failing")

    assert raw_records(channel) == written
    assert ledger.ids(channel) == [*range(2 * ROWS)]
    assert ledger.kinds(channel) == ["commit", "commit"]


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_of_speculative_attempts_that_both_write_one_is_visible(
    gateway_url: str,
    channel: Channel,
    ledger: LedgerView,
    run: Job,
    two_hosts: str,
    kind: str,
) -> None:
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS))

    run(kind, "slow", two_hosts)

    assert ledger.ids(channel) == [*range(ROWS)]
    assert ledger.kinds(channel) == ["commit"]
    assert (run.shared / "speculated").exists()
    assert raw_records(channel) > ROWS


def test_a_job_whose_driver_was_killed_is_written_once_by_its_key(
    channel: Channel, ledger: LedgerView, run: Job
) -> None:
    with run.holding("batch"):
        status, output = run.outcome("batch", "held")
        assert status != 0
        assert "The batch 'held' is open in another instance" in output
        assert "Wait until it ends, or stop that job" in output
        assert ledger.open_keys(channel) == ["held"]
        killed = datetime.now(UTC)

    until(lambda: not ledger.open_keys(channel))
    (reaped,) = ledger.calls.commits(channel.name).events
    assert reaped.at - killed < timedelta(milliseconds=DEFAULT_LEASE_MS) + timedelta(seconds=5)
    assert raw_records(channel) > 0
    assert ledger.ids(channel) == []
    run("batch", "held")
    written = raw_records(channel)
    run("batch", "held")

    assert ledger.ids(channel) == [*range(ROWS)]
    assert ledger.kinds(channel) == ["reap", "commit"]
    assert raw_records(channel) == written


def test_a_query_whose_driver_was_killed_goes_on_at_once(
    gateway_url: str, channel: Channel, ledger: LedgerView, run: Job
) -> None:
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS))
    with run.holding("stream"):
        (held,) = ledger.open_keys(channel)
    written = raw_records(channel)

    run("stream", "held")

    assert written > 0
    assert ledger.ids(channel) == [*range(ROWS)]
    assert [event.key for event in ledger.calls.commits(channel.name).events] == [held] * 2
    assert ledger.kinds(channel) == ["abort", "commit"]
