"""Fifty readers start at once on one channel, each with a partition of its own, and none waits.

Which partitions a member has follows from its index and the group's size alone, so nobody
negotiates, and nobody pauses when another comes. The channel grows to the group's size. As all
are in one process, they share their connections to Kafka. A second group, in the mode `broadcast`,
gives every record to each of its members. Member 0 closes last.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/fifty_at_once.py
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
    """What one record of the channel looks like."""

    number: int


def checks() -> Iterator[Check]:
    for number in range(RECORDS):
        yield Check(number=number)


def read(channel: Channel, index: int, all_have_one: Barrier) -> tuple[int, int, tuple[int, ...]]:
    """Read all that is this member's: return how much before the others had any, and in all."""
    with channel.reader(
        group="inspectors", index=index, size=READERS, share_connection=True
    ) as reader:
        before = len(reader.read(1, timeout=None))
        # Each holds its first record here, while none has more.
        all_have_one.wait(60)
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
        found = [each.result(120) for each in reading]
        print(f"{sum(before for before, _, _ in found)} readers had their first record at once")
        print(f"{sum(count for _, count, _ in found)} records were read, each once")
        print(f"member 7 had the partitions {found[7][2]}")
        auditing = [pool.submit(audit, channel, index) for index in range(2)]
        print(f"each auditor read {[each.result(120) for each in auditing]}")
        members = [each for each in channel.endpoints() if each.group == "inspectors"]
        last = max(members, key=lambda each: each.changed_at)
        print(f"the last to close was member {last.index} of {last.size}")


if __name__ == "__main__":
    main()
