"""A writer that waits until two groups have read and committed its records.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/wait_acknowledged.py
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sluiceway import Channel, Gateway
from sluiceway.errors import SluicewayTimeout

ORDERS = 500


@dataclass
class Order:
    """A record of the channel."""

    id: int
    amount: float


def consume(channel: Channel, group: str) -> int:
    """Read to the end as one group, and commit after each call."""
    done = 0
    with channel.reader(group=group) as reader:
        while not reader.finished:
            done += len(reader.read(100, timeout=1.0))
            reader.commit()
    return done


def main() -> None:
    with Gateway() as gateway, ThreadPoolExecutor() as jobs:
        channel = gateway.channel("orders", schema=Order, partitions=2)
        with channel.writer() as writer:
            writer.write(Order(id=number, amount=number / 2) for number in range(ORDERS))
            try:
                writer.wait_acknowledged(["billing", "shipping"], timeout_s=0.1)
            except SluicewayTimeout as late:
                print(f"not yet: {late}")
            readers = [jobs.submit(consume, channel, group) for group in ("billing", "shipping")]
            writer.wait_acknowledged(["billing", "shipping"], timeout_s=60)
            print(f"both groups have committed {ORDERS} orders")
        print(f"{sum(each.result() for each in readers)} orders were read in all")


if __name__ == "__main__":
    main()
