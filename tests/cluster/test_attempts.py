"""Exactly-once writes of Spark with two executors: retries, lost executors, replays.

Spark runs a speculative attempt on another host only, of which there is none here.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from environments import spark_environment
from ledger_view import LedgerView
from shared_kafka import SharedKafka
from sluiceway import Gateway
from sluiceway.channel import Channel
from spark_tasks import SCHEMA, fill, messages_of
from topics import Topics

pytestmark = pytest.mark.long

JOB = Path(__file__).with_name("attempts_job.py")
ROWS = 100_000

Job = Callable[..., None]


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
    """Run the job to its end."""
    shared = tmp_path / "shared"
    shared.mkdir()
    environment = os.environ | spark_environment(tmp_path)

    def run(kind: str, fault: str) -> None:
        done = subprocess.run(
            [sys.executable, str(JOB), gateway_url, kind, fault, channel.name, str(shared)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


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
    # The fault took place: some attempts wrote what is invisible.
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
