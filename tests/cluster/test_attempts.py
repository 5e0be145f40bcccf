"""Exactly-once writes of Spark on two executors: retries, lost or killed ones, repeated runs."""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from ledger_view import LedgerView
from processes import spark_environment
from sluiceway import Gateway
from sluiceway.api.ledger import DEFAULT_LEASE_MS, BatchRequest, LedgerCalls
from sluiceway.api.transport import Transport
from sluiceway.channel import Channel
from spark_tasks import SCHEMA, fill
from waiting import until

pytestmark = pytest.mark.long

JOB = Path(__file__).with_name("attempts_job.py")


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
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat.rpartition(")")[2].split()[1]) == pid:
            pids.append(int(path.parent.name))
    return pids


@pytest.fixture(scope="module")
def ledger(gateway_url: str) -> Iterator[LedgerView]:
    with closing(LedgerCalls(Transport(gateway_url))) as calls:
        yield LedgerView(calls)


@pytest.fixture
def channel(gateway_url: str) -> Iterator[Channel]:
    name = f"attempts-{uuid.uuid4().hex[:8]}"
    with Gateway(gateway_url) as gateway:
        gateway.channel(f"{name}-in", SCHEMA, partitions=2)
        yield gateway.channel(name, SCHEMA, partitions=4, delivery="exactly_once")


@pytest.fixture
def run(gateway_url: str, channel: Channel, tmp_path: Path) -> AttemptsJob:
    return AttemptsJob(gateway_url, channel, tmp_path)


BOTH = "batch,stream"


@pytest.fixture
def stream_input(gateway_url: str, channel: Channel) -> None:
    """The input of the stream, whose ids follow those of the batch job."""
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS, 2 * ROWS))


@pytest.mark.usefixtures("stream_input")
@pytest.mark.parametrize("fault", ["failing", "killed"])
def test_each_record_is_visible_once(
    channel: Channel, ledger: LedgerView, run: AttemptsJob, fault: str
) -> None:
    run(BOTH, fault)

    assert ledger.ids(channel) == [*range(2 * ROWS)]
    assert ledger.kinds(channel) == ["commit", "commit"]
    # The fault happened in both: there are invisible records of failed attempts.
    assert run.messages("batch") > ROWS
    assert run.messages("stream") - run.messages("batch") > ROWS


@pytest.mark.usefixtures("stream_input")
def test_a_job_and_a_micro_batch_that_run_again_write_nothing(
    channel: Channel, ledger: LedgerView, run: AttemptsJob
) -> None:
    run(BOTH, "failing")
    written = ledger.messages(channel)
    for note in (run.shared / "stream" / "checkpoint" / "commits").glob("*0*"):
        note.unlink()

    run(BOTH, "failing")

    assert ledger.messages(channel) == written
    assert ledger.ids(channel) == [*range(2 * ROWS)]
    assert ledger.kinds(channel) == ["commit", "commit"]


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[str]:
    """The URL of a Spark master with workers on different addresses, so that Spark speculates."""
    environment = os.environ | spark_environment(tmp_path / "cluster")
    spark_class = f"{environment['SPARK_HOME']}/bin/spark-class"
    log = tmp_path / "cluster" / "log"

    @contextmanager
    def running(name: str, *arguments: str) -> Iterator[None]:
        command = [spark_class, f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
        with log.open("ab") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)

    with ExitStack() as stack:
        stack.enter_context(running("master.Master", "--host", "127.0.0.1", "--port", "0"))
        started = "Starting Spark master at (spark://.*)"
        url = until(lambda: re.search(started, log.read_text()))[1]
        for host in ("127.0.0.2", "127.0.0.3"):
            options = ("--host", host, "--work-dir", str(tmp_path / "cluster" / host))
            stack.enter_context(running("worker.Worker", *options, "-c", "2", "-m", "1g", url))
        yield url


@pytest.mark.usefixtures("stream_input")
def test_of_speculative_attempts_that_both_write_one_is_visible(
    channel: Channel, ledger: LedgerView, run: AttemptsJob, two_hosts: str
) -> None:
    run(BOTH, "slow", two_hosts)

    assert ledger.ids(channel) == [*range(2 * ROWS)]
    assert ledger.kinds(channel) == ["commit", "commit"]
    for kind in ("batch", "stream"):
        assert (run.shared / kind / "speculated").exists()
    assert run.messages("batch") > ROWS
    assert run.messages("stream") - run.messages("batch") > ROWS


def keep_open(ledger: LedgerView, channel: Channel, run: AttemptsJob) -> None:
    """Renew the lease of the batch of a killed query for the time of the test."""
    (open_batch,) = ledger.calls.commits(channel.name).open
    instance = run.instance()
    request = BatchRequest(
        channel=channel.name,
        uid=channel.uid,
        key=open_batch.key,
        owner=open_batch.owner,
        instance=instance,
        takeover=True,
        ordinal=0,
    )
    batch = ledger.calls.open(request)
    leases = ledger.calls.renew(
        channel.name, {batch.id: instance}, uid=channel.uid, lease_ms=3_600_000
    )
    assert leases[batch.id].is_open


def test_a_job_whose_driver_was_killed_is_written_once_by_its_key(
    channel: Channel, ledger: LedgerView, run: AttemptsJob
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
    assert reaped.at - killed < 4 * timedelta(milliseconds=DEFAULT_LEASE_MS)
    assert ledger.messages(channel) > 0
    assert ledger.ids(channel) == []
    run("batch", "held")

    assert ledger.ids(channel) == [*range(ROWS)]
    assert ledger.kinds(channel) == ["reap", "commit"]


def test_a_query_whose_driver_was_killed_goes_on_at_once(
    gateway_url: str, channel: Channel, ledger: LedgerView, run: AttemptsJob
) -> None:
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS))
    with run.holding("stream"):
        (held,) = ledger.open_keys(channel)
    keep_open(ledger, channel, run)
    written = ledger.messages(channel)

    run("stream", "held")

    assert written > 0
    assert ledger.ids(channel) == [*range(ROWS)]
    assert [event.key for event in ledger.calls.commits(channel.name).events] == [held] * 2
    assert ledger.kinds(channel) == ["abort", "commit"]
