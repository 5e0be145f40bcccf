"""Mirrors a group's positions to Kafka's own group offsets, for Kafka's tools.

The gateway stores the positions, and never reads them back from Kafka. This program requests the
same offsets from Kafka as `kafka-consumer-groups --describe` and lag exporters.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/mirrored_offsets.py
"""

import time
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sluiceway import Channel, Gateway


@dataclass
class Letter:
    """A record of the channel."""

    number: int


def lag_in_kafka(channel: Channel, group: str, offset: int) -> int:
    """Return the group's lag once Kafka has its offset, about a second after the commit."""
    connection = channel.connection("read")
    partition = TopicPartition(connection.topic_name, 0)
    # This consumer requests offsets without joining the group.
    consumer = Consumer({**connection.kafka, "group.id": group, "log_level": 3})
    deadline_s = time.monotonic() + 60
    try:
        while True:
            try:
                (found,) = consumer.committed([partition], timeout=10)
            except KafkaException as error:
                # A new cluster has no topic for offsets before the first commit.
                if not error.args[0].retriable():
                    raise
            else:
                if found.offset == offset:
                    return consumer.get_watermark_offsets(partition, timeout=10)[1] - offset
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"Kafka does not show the offset {offset} of {group!r}")
            time.sleep(0.1)
    finally:
        consumer.close()


def main() -> None:
    with Gateway() as gateway:
        letters = gateway.channel("letters", schema=Letter, mirrored=True)
        with letters.writer() as writer:
            writer.write(Letter(number=number) for number in range(10))
        with letters.reader(group="sorters") as reader:
            reader.read(4, timeout=None)
            reader.commit()
            print(f"lag of the group in Kafka: {lag_in_kafka(letters, 'sorters', 4)}")
            print(f"read {len(list(reader))} more letters")
            reader.commit()
        print(f"lag of the group in Kafka: {lag_in_kafka(letters, 'sorters', 10)}")


if __name__ == "__main__":
    main()
