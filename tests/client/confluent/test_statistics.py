"""Statistics and logs of librdkafka, as programs of sluiceway.confluent get them."""

import json
import logging
import re
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID

from confluent_facade import Facade, at, poll_messages, poll_until
from sluiceway.confluent.statistics import PartitionProgress, channel_statistics
from waiting import until

OFTEN = {"statistics.interval.ms": 20}


def test_topics_become_channels_and_offsets_those_of_the_group() -> None:
    partition_statistics = {"hi_offset": 90, "committed_offset": -1001, "consumer_lag": -1}
    text = json.dumps(
        {
            "type": "consumer",
            "brokers": {"b:1/1": {"toppars": {"t-0": {"topic": "flights-1a2b", "partition": 0}}}},
            "topics": {
                "flights-1a2b": {
                    "topic": "flights-1a2b",
                    "partitions": {str(p): dict(partition_statistics) for p in (0, 1, 2, -1)},
                },
                "other": {"topic": "other", "partitions": {}},
            },
            "cgrp": {"assignment_size": 0, "state": "up"},
        }
    )
    progress = {
        ("flights", 0): PartitionProgress(committed=40, next_offset=60, end=100),
        ("flights", 1): PartitionProgress(committed=None, next_offset=0, end=-1),
    }
    statistics = json.loads(
        channel_statistics(text, {"flights-1a2b": "flights"}, lambda *place: progress.get(place))
    )
    assert statistics["topics"].keys() == {"flights", "other"}
    flights = statistics["topics"]["flights"]
    assert flights["topic"] == "flights"
    names = ("hi_offset", "committed_offset", "stored_offset", "consumer_lag")
    shown = {
        key: tuple(partition.get(name) for name in (*names, "consumer_lag_stored"))
        for key, partition in flights["partitions"].items()
    }
    assert shown == {
        "0": (90, 40, 60, 60, 40),
        "1": (90, OFFSET_INVALID, 0, -1, -1),
        "2": (90, -1001, None, -1, None),
        "-1": (90, -1001, None, -1, None),
    }
    assert statistics["cgrp"] == {"assignment_size": 2, "state": "up"}
    assert statistics["brokers"]["b:1/1"]["toppars"]["t-0"]["topic"] == "flights"


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_statistics_of_a_consumer_have_its_lag_and_committed_offsets(
    site: Facade, delivery: str
) -> None:
    name = site.channel(partitions=1, delivery=delivery)
    with site.gateway.channel(name).writer() as writer:
        writer.write({"value": b"m"} for _ in range(5))
    reported: list[dict[str, Any]] = []

    def report(text: str) -> None:
        partition = json.loads(text)["topics"].get(name, {}).get("partitions", {}).get("0")
        reported.extend([partition] if partition else [])

    def is_shown(**wanted: int) -> bool:
        return bool(reported) and wanted.items() <= reported[-1].items()

    config = {"group.id": f"g-{uuid.uuid4().hex[:8]}", "auto.offset.reset": "earliest"}
    with site.consumer(stats_cb=report, **OFTEN, **config) as reader:
        reader.subscribe([name])
        poll_messages(reader, 3)
        poll_until(lambda: is_shown(committed_offset=OFFSET_INVALID, consumer_lag=-1), reader)
        reader.commit(offsets=[at(name, 0, 2)], asynchronous=False)
        poll_until(
            lambda: is_shown(
                committed_offset=2, stored_offset=5, consumer_lag=3, consumer_lag_stored=0
            ),
            reader,
        )


def test_statistics_of_a_producer_name_channels(site: Facade) -> None:
    name, shown = site.channel(), set[str]()
    with site.producer(
        stats_cb=lambda text: shown.update(json.loads(text)["topics"]), **OFTEN
    ) as producer:
        producer.produce(name, b"m")
        until(lambda: producer.poll(0.1) or shown)
        until(lambda: producer.poll(0.1) or name in shown)
    assert shown == {name}


@pytest.mark.parametrize("client", ["consumer", "producer"])
def test_a_logger_gets_the_log_and_debug_lines_of_librdkafka(
    site: Facade, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = site.channel(filled=1)
    logger = logging.getLogger(f"program-{uuid.uuid4().hex[:8]}")
    config = {"logger": logger, "debug": "broker"}
    with caplog.at_level(logging.DEBUG, logger.name):
        if client == "consumer":
            with site.consumer(**config) as reader:
                reader.assign([at(name, 0, 0)])
                poll_messages(reader, 1)
                until(lambda: reader.poll(0.1) or logged(caplog)[logger.name])
        else:
            with site.producer(**config) as producer:
                producer.produce(name, b"m")
                until(lambda: producer.poll(0.1) or logged(caplog)[logger.name])
    # Other clients of the process, whose broker is gone, may log there.
    assert logged(caplog)[logger.name].isdisjoint(logged(caplog)["sluiceway.kafka"])


def logged(caplog: pytest.LogCaptureFixture) -> Mapping[str, set[str]]:
    """Return librdkafka's names of the clients whose lines a logger got, by the logger's name."""
    clients: dict[str, set[str]] = defaultdict(set)
    for record in caplog.records:
        clients[record.name].update(re.findall(r"rdkafka#[\w-]+", record.getMessage()))
    return clients


def test_debug_lines_without_a_logger_are_printed(site: Facade) -> None:
    program = f"""
from sluiceway.confluent import Producer
with Producer({{"bootstrap.servers": {site.url!r}, "debug": "broker"}}) as producer:
    producer.produce({site.channel()!r}, b"m")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert "%7|" in done.stderr
