"""Exactly-once writes of Spark's speculative attempts."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from attempts import ROWS, AttemptsJob
from environments import spark_environment
from ledger_view import LedgerView
from sluiceway import Gateway
from sluiceway.channel import Channel
from spark_tasks import fill
from waiting import until

pytestmark = pytest.mark.long


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


def test_of_speculative_attempts_that_both_write_one_is_visible(
    gateway_url: str, channel: Channel, ledger: LedgerView, run: AttemptsJob, two_hosts: str
) -> None:
    with Gateway(gateway_url) as gateway:
        fill(gateway.channel(f"{channel.name}-in"), range(ROWS, 2 * ROWS))

    run("batch,stream", "slow", two_hosts)

    assert ledger.ids(channel) == [*range(2 * ROWS)]
    assert ledger.kinds(channel) == ["commit", "commit"]
    for kind in ("batch", "stream"):
        assert (run.shared / kind / "speculated").exists()
    assert run.messages("batch") > ROWS
    assert run.messages("stream") - run.messages("batch") > ROWS
