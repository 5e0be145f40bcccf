"""Offsets of partitions with newly elected leaders, or with leaders that do not answer."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from faults import suspended
from shared_kafka import SharedKafka
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.dev.embedded import KafkaServer
from topics import Topics
from waiting import until

NAME = "elected"


@pytest.fixture
def server(kafka: SharedKafka, tmp_path: Path) -> Iterator[KafkaServer]:
    with kafka.another(tmp_path) as server:
        yield server


def with_records(server: KafkaServer) -> KafkaAdmin:
    """Return a client that knows the leader of a topic with three records."""
    Topics(server.bootstrap_servers).create(NAME)
    admin = KafkaAdmin(server.bootstrap_servers, timeout_s=4)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    for _ in range(3):
        producer.produce(NAME, b"record", partition=0)
    assert producer.flush(30) == 0
    assert answered(lambda: admin.end_offsets(NAME, [0])) == {0: 3}
    return admin


def answered(ask: Callable[[], dict[int, int]]) -> dict[int, int]:
    """Return the first response that has offsets, if there is one soon."""

    def offsets() -> dict[int, int]:
        with suppress(KafkaUnavailable):
            return ask()
        return {}

    return until(offsets, 30)


@pytest.mark.long
def test_offsets_are_found_soon_after_a_leader_election(
    kafka: SharedKafka, server: KafkaServer, tmp_path: Path
) -> None:
    admin = with_records(server)
    server.stop()
    with kafka.another(tmp_path, port=server.port):
        assert answered(lambda: admin.end_offsets(NAME, [0])) == {0: 3}


@pytest.mark.long
def test_a_leader_that_does_not_answer_has_no_offsets(server: KafkaServer) -> None:
    admin = with_records(server)
    with suspended(psutil.Process(server.pid)):
        for ask in (admin.end_offsets, admin.watermarks):
            with pytest.raises(KafkaUnavailable):
                ask(NAME, [0])
        with pytest.raises(KafkaUnavailable):
            admin.newest(NAME, [0])

    # The first response may still lack the partition: None stands for a leader that was too slow.
    whole = {0: Watermarks(begin_offset=0, end_offset=3)}
    until(lambda: admin.watermarks(NAME, [0]) == whole, despite=KafkaUnavailable)
