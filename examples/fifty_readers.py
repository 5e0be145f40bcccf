"""Fifty readers of one group start at once, each with its own partition.

A member's partitions depend only on its index and the group's size, so there is no rebalance when
other members start. The channel grows to the group's size. The readers share their connections to
Kafka, because they are in one process. In a second group, with the mode `broadcast`, each member
gets every record. Member 0 closes last.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/fifty_readers.py
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Barrier

from sluiceway import Channel, Gateway, Heartbeat

READERS, RECORDS = 50, 500


@dataclass
class Check:
    """A record of the channel."""

    number: int


def checks() -> Iterator[Check]:
    for number in range(RECORDS):
        yield Check(number=number)


def read(channel: Channel, index: int, all_have_one: Barrier) -> tuple[int, int, tuple[int, ...]]:
    """Read a member's records; return the first read's number, the total, and the partitions."""
    with channel.reader(
        group="inspectors", index=index, size=READERS, share_connection=True
    ) as reader:
        before = len(reader.read(1, timeout=None))
        # Continue only after every member has its first record.
        all_have_one.wait(180)
        return before, before + len(list(reader)), reader.partitions


def audit(channel: Channel, index: int) -> int:
    with channel.reader(group="auditors", index=index, size=2, mode="broadcast") as reader:
        return len(list(reader))


def main() -> None:
    with Gateway() as gateway, ThreadPoolExecutor(READERS) as pool, ExitStack() as stack:
        heartbeat = Heartbeat(interval_ms=500, timeout_ms=30_000)
        channel = gateway.channel("checks", schema=Check, partitions=READERS, heartbeat=heartbeat)
        writer = stack.enter_context(channel.writer())
        writer.write(checks())
        writer.close()
        all_have_one = Barrier(READERS)
        reading = [pool.submit(read, channel, index, all_have_one) for index in range(READERS)]
        found = [each.result(300) for each in reading]
        print(f"{sum(before for before, _, _ in found)} readers read at the same time")
        print(f"{sum(count for _, count, _ in found)} records were read, each once")
        print(f"member 7 had the partitions {found[7][2]}")
        auditing = [pool.submit(audit, channel, index) for index in range(2)]
        print(f"each auditor read {[each.result(300) for each in auditing]}")
        members = [each for each in channel.endpoints() if each.group == "inspectors"]
        last = max(members, key=lambda each: each.changed_at)
        print(f"the last to close was member {last.index} of {last.size}")


if __name__ == "__main__":
    main()
