import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from attempts import AttemptsJob
from environments import ROOT
from ledger_view import LedgerView
from shared_kafka import SharedKafka
from sluiceway import Gateway
from sluiceway.channel import Channel
from spark_tasks import SCHEMA
from topics import Topics


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built once."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=480,
    )
    (wheel,) = directory.glob("*.whl")
    return wheel


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
def run(gateway_url: str, channel: Channel, tmp_path: Path) -> AttemptsJob:
    return AttemptsJob(gateway_url, channel, tmp_path)
