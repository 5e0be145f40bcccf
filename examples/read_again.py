"""Reads a channel again from an offset, a time and a stored position.

A position is valid for one topic. After the channel is deleted and created again, a position in the
old topic is refused.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/read_again.py
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from sluiceway import ChannelReader, Gateway
from sluiceway.errors import TopicGone


@dataclass
class Line:
    """A record of the channel."""

    number: int


def numbers(reader: ChannelReader) -> list[int]:
    """Read the numbers up to the end."""
    return [record["number"] for record in reader]


def main() -> None:
    with Gateway() as gateway:
        log = gateway.channel("log-to-read-again", schema=Line)
        with log.writer() as writer:
            writer.write(Line(number) for number in range(5))
            writer.flush()
            # Kafka's timestamps have milliseconds.
            time.sleep(0.002)
            noon = datetime.now(UTC)
            time.sleep(0.002)
            writer.write(Line(number) for number in range(5, 10))

        with log.reader(until="now") as reader:
            print(f"all: {numbers(reader)}")
            reader.seek({0: 7})
            print(f"from offset 7: {numbers(reader)}")
            reader.seek_to_time(noon)
            print(f"from noon: {numbers(reader)}")
            reader.seek({0: 3})
            reader.read(2)
            position = reader.position()
        with log.reader(start=position, until="now") as another:
            print(f"another reader continues after 4: {numbers(another)}")

        connection = log.connection("read")
        log.delete()
        gateway.channel("log-to-read-again", schema=Line)
        try:
            ChannelReader(connection, until="now", start=position)
        except TopicGone:
            print("the position is in a deleted topic")


if __name__ == "__main__":
    main()
