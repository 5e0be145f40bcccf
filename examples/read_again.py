"""Reads a channel again: from an offset, from a time, from where another run stood.

A place in a channel belongs to its topic. When the channel is deleted and made anew, what was
noted in the old one is refused, and not taken for a place in the new one.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/read_again.py
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from sluiceway import ChannelReader, Gateway
from sluiceway.errors import TopicGone


@dataclass
class Line:
    """What one record of the channel looks like."""

    number: int


def numbers(reader: ChannelReader) -> list[int]:
    """Read to the end."""
    return [record["number"] for record in reader]


def main() -> None:
    with Gateway() as gateway:
        log = gateway.channel("log-to-read-again", schema=Line)
        with log.writer() as writer:
            writer.write(Line(number) for number in range(5))
            writer.flush()
            # Kafka keeps times to the millisecond.
            time.sleep(0.002)
            noon = datetime.now(UTC)
            time.sleep(0.002)
            writer.write(Line(number) for number in range(5, 10))

        with log.reader(until="now") as reader:
            print(f"all, in the order in which they were written: {numbers(reader)}")
            reader.seek({0: 7})
            print(f"from offset 7: {numbers(reader)}")
            reader.seek_to_time(noon)
            print(f"from noon: {numbers(reader)}")
            reader.seek({0: 3})
            reader.read(2)
            place = reader.position()
        with log.reader(start=place, until="now") as another:
            print(f"another goes on after 4: {numbers(another)}")

        connection = log.connection("read")
        log.delete()
        gateway.channel("log-to-read-again", schema=Line)
        try:
            ChannelReader(connection, until="now", start=place)
        except TopicGone:
            print("the place is in a log that is gone")


if __name__ == "__main__":
    main()
