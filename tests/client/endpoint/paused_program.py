"""A program that a test pauses and continues: four kinds of endpoints in separate channels.

It reads the channels' names from standard input, prints the ids of its endpoints, waits for a
line, continues with each, and prints the results.
"""

import json
import sys
from typing import Any

from confluent_kafka import KafkaException

from sluiceway import ChannelReader, Gateway
from sluiceway.confluent import Consumer, TopicPartition
from sluiceway.errors import SluicewayError


def main(url: str) -> None:
    names = json.loads(sys.stdin.readline())
    consumer = Consumer(
        {
            "bootstrap.servers": url,
            "group.id": "g",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    with (
        Gateway(url) as gateway,
        gateway.channel(names["dynamic"]).reader(group="g", dynamic=True, until=None) as dynamic,
        gateway.channel(names["fixed"]).reader(group="g", until=None) as fixed,
        gateway.channel(names["writer"]).writer() as writer,
    ):
        consumer.subscribe([names["confluent"]])
        polled(consumer, 10)
        consumer.commit(offsets=[TopicPartition(names["confluent"], 0, 3)], asynchronous=False)
        read(dynamic, 20)
        read(fixed, 10)
        writer.write([{"id": number, "station": None, "celsius": 0.5} for number in range(5)])
        say(
            {
                "confluent": consumer.memberid(),
                "dynamic": dynamic.endpoint_id,
                "fixed": fixed.endpoint_id,
                "writer": writer.endpoint_id,
            }
        )
        sys.stdin.readline()
        reported: dict[str, Any] = {}
        reported["confluent"] = {"commit": refused(consumer), "read": sorted(polled(consumer, 7))}
        reported["dynamic"] = {"commit": refused(dynamic), "read": read(dynamic, 20)}
        reported["fixed"] = {"commit": refused(fixed), "read": read(fixed, 10)}
        writer.write([{"id": number, "station": None, "celsius": 0.5} for number in range(5)])
        writer.flush()
        reported["writer"] = {"written": sum(writer.end_offsets().values())}
        for member in (consumer, dynamic, fixed):
            member.commit()
        say(reported)
    consumer.close()


def polled(consumer: Consumer, count: int) -> list[list[int]]:
    """Return the partitions and offsets of a number of messages."""
    places: list[list[int]] = []
    while len(places) < count:
        message = consumer.poll(1)
        if message is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            places.append([message.partition(), message.offset()])
    return places


def read(reader: ChannelReader, count: int) -> int:
    """Read a number of records."""
    received = 0
    while received < count:
        received += len(reader.read(count - received))
    return received


def refused(reader: Any) -> Any:
    """Commit; return the code of a refusal, or None."""
    try:
        if isinstance(reader, Consumer):
            reader.commit(asynchronous=False)
        else:
            reader.commit()
    except KafkaException as error:
        return error.args[0].code()
    except SluicewayError as error:
        return error.code
    return None


def say(reported: dict[str, Any]) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(reported) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
