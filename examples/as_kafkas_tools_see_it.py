"""Positions are written to Kafka's own group offsets as well, where other tools look for them.

The gateway keeps the positions, and nothing reads them back from Kafka. What this program asks
Kafka for is what `kafka-consumer-groups --describe` and exporters of lag ask for.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/as_kafkas_tools_see_it.py
"""

import time
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from sluiceway import Channel, Gateway


@dataclass
class Letter:
    """What one record of the channel looks like."""

    number: int


def seen_in_kafka(channel: Channel, group: str, offset: int) -> int:
    """Return the group's lag once Kafka has this offset of it, about a second after the commit."""
    connection = channel.connection("read")
    place = TopicPartition(connection.topic_name, 0)
    # It asks, and joins nothing.
    asks = Consumer({**connection.kafka, "group.id": group, "log_level": 3})
    deadline_s = time.monotonic() + 60
    try:
        while True:
            try:
                (found,) = asks.committed([place], timeout=10)
            except KafkaException as error:
                # A new cluster has no place for offsets before the first is written.
                if not error.args[0].retriable():
                    raise
            else:
                if found.offset == offset:
                    return asks.get_watermark_offsets(place, timeout=10)[1] - found.offset
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"Kafka does not show the offset {offset} of {group!r}")
            time.sleep(0.1)
    finally:
        asks.close()


def main() -> None:
    with Gateway() as gateway:
        letters = gateway.channel("letters", schema=Letter, mirrored=True)
        with letters.writer() as writer:
            writer.write(Letter(number=number) for number in range(10))
        with letters.reader(group="sorters") as reader:
            reader.read(4, timeout=None)
            reader.commit()
            print(f"the group lags by {seen_in_kafka(letters, 'sorters', 4)} letters")
            print(f"{len(list(reader))} more are read")
            reader.commit()
        print(f"the group lags by {seen_in_kafka(letters, 'sorters', 10)} letters")


if __name__ == "__main__":
    main()
