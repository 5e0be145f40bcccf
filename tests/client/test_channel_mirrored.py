"""Groups of a mirrored channel in Kafka's own tools."""

import contextlib
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from shared_kafka import SharedKafka
from sluiceway import Channel
from sluiceway_gateway.dev.embedded.jars import JarSet, Module, fetch_jars, find_java, kafka_jars
from topics import readings


@pytest.fixture
def group() -> str:
    return f"delays-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def tool(kafka: SharedKafka, group: str) -> Iterator[Consumer]:
    """A client that reads the group's offsets without joining, like Kafka's tools."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "log_level": 3,
        }
    )
    yield consumer
    consumer.close()


def test_commits_show_in_kafkas_own_group_offsets(
    new_channel: Callable[..., Channel], tool: Consumer, group: str, kafka: SharedKafka
) -> None:
    channel = new_channel(mirrored=True)
    assert channel.refresh().mirrored
    with channel.writer() as writer:
        writer.write(readings(10))
        writer.flush()
        with channel.reader(group=group, until=None) as reader:
            reader.read(4, timeout=None)
            reader.commit()
            assert shown(tool, channel, until=4) == (4, 10)
        (row,) = described(kafka.bootstrap_servers, group)
        assert (row["GROUP"], row["TOPIC"]) == (group, channel.status.topic.name)
        reported = ("PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
        assert [row[column] for column in reported] == ["0", "4", "10", "6"]
    channel.update(mirrored=False)
    assert not channel.refresh().mirrored


def shown(tool: Consumer, channel: Channel, *, until: int) -> tuple[int, int]:
    """Return the group's offset and the end of the topic, once there is an offset."""
    place = TopicPartition(channel.status.topic.name, 0)
    deadline_s = time.monotonic() + 180
    while True:
        # A new broker has no topic for groups' offsets before the first commit.
        with contextlib.suppress(KafkaException):
            (committed,) = tool.committed([place], timeout=10)
            if committed.offset == until:
                return committed.offset, tool.get_watermark_offsets(place, timeout=10)[1]
        assert time.monotonic() < deadline_s


_VERSION = "4.3.1"
_JARS = JarSet(
    title=f"Kafka's tools {_VERSION}",
    name=f"kafka-tools-{_VERSION}",
    # The broker has its other dependencies.
    modules=(
        Module(
            organisation="org.apache.kafka",
            name="kafka-tools",
            version=_VERSION,
            transitive=False,
        ),
    ),
    sums={
        f"kafka-tools-{_VERSION}.jar": (
            "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c"
        )
    },
)


def described(bootstrap_servers: str, group: str) -> list[dict[str, str]]:
    """Return the table that `--describe --group` prints, a dict a row."""
    classpath = f"{fetch_jars(_JARS)}/*:{fetch_jars(kafka_jars())}/*"
    done = subprocess.run(
        [
            *(str(find_java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath),
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            *("--bootstrap-server", bootstrap_servers, "--describe", "--group", group),
        ],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    heads, *rows = [
        line.split()
        for line in done.stdout.splitlines()
        if line and "no active members" not in line
    ]
    return [dict(zip(heads, row, strict=True)) for row in rows]
