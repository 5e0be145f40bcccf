"""A broker that lost the end of a partition, and a job that goes on at once."""

import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from databases import SQLite
from gateways import serving
from shared_kafka import SharedKafka
from sluiceway import Channel, Gateway
from sluiceway.errors import Conflict
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings
from topics import DEFINITION, readings


def record_batches(segment: Path) -> Iterator[tuple[int, int]]:
    """Yield the first offset and the position of each record batch."""
    data, position = segment.read_bytes(), 0
    while position + 12 <= len(data):
        offset, length = struct.unpack_from(">qi", data, position)
        if not length:
            # The rest of the file is preallocated.
            return
        yield offset, position
        position += 12 + length


def cut_half(segment: Path) -> int:
    """Remove the second half of the records; return the first offset that is lost."""
    batches = list(record_batches(segment))
    offset, position = batches[len(batches) // 2]
    os.truncate(segment, position)
    return offset


@pytest.fixture
def start_gateway(sqlite: SQLite) -> Iterator[Callable[[str], Gateway]]:
    """Start a gateway for a broker at this address, and connect to it."""
    with ExitStack() as stack:

        def start(bootstrap_servers: str) -> Gateway:
            settings = Settings(
                database_url=sqlite.migrated(),
                kafka_bootstrap_servers=bootstrap_servers,
                kafka_timeout_ms=20_000,
            )
            url = stack.enter_context(serving(create_app(settings)))
            return stack.enter_context(Gateway(url))

        yield start


def write(channel: Channel, number: int) -> None:
    with channel.writer(group="job") as writer, writer.batch(f"day-{number}"):
        writer.write(readings(10, 10 * number))


@pytest.mark.long
def test_a_job_that_goes_on_after_a_loss_halts_the_channel(
    kafka: SharedKafka, tmp_path: Path, start_gateway: Callable[[str], Gateway]
) -> None:
    with kafka.another(tmp_path) as first:
        gateway = start_gateway(first.bootstrap_servers)
        channel = gateway.channel("tails", DEFINITION, delivery="exactly_once", partitions=1)
        for number in range(10):
            write(channel, number)
        os.kill(first.pid, signal.SIGKILL)
    (segment,) = (tmp_path / "log").glob("*tails*-0/00000000000000000000.log")
    lost_from = cut_half(segment)
    assert 0 < lost_from < 100

    with kafka.another(tmp_path, port=first.port):
        # The next batch gets offsets that were committed.
        with pytest.raises(Conflict) as refused:
            write(channel, 10)
        assert refused.value.code == "ledger_halted"
        assert f"from offset {lost_from} on" in str(refused.value)
        with pytest.raises(Conflict):
            write(channel, 11)
