"""A consumer on pykafka's Broker, which sends its requests one by one.

The gateway keeps the group, its generations and its offsets; messages come directly from Kafka.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/broker_calls.py
"""

import os
from urllib.parse import urlsplit

from sluiceway import Gateway
from sluiceway.broker import (
    Broker,
    Message,
    OffsetType,
    PartitionFetchRequest,
    PartitionOffsetCommitRequest,
    PartitionOffsetFetchRequest,
    PartitionOffsetRequest,
    ProduceRequest,
)
from sluiceway.broker.exceptions import ERROR_CODES

TOPIC, GROUP = b"deliveries", b"sorters"


def produce_values(broker: Broker) -> None:
    """Write three messages into each of two partitions."""
    request = ProduceRequest(required_acks=-1)
    for number in range(6):
        request.add_message(Message(b"parcel %d" % number), TOPIC, number % 2)
    results = broker.produce_messages(request).topics[TOPIC]
    print({partition: (each.err, each.offset) for partition, each in results.items()})


def consume(broker: Broker, member_id: bytes, generation: int, partitions: list[int]) -> None:
    """Fetch and commit the group's uncommitted messages."""
    wanted = [PartitionOffsetFetchRequest(TOPIC, each) for each in partitions]
    fetch_committed = broker.fetch_consumer_group_offsets(GROUP, wanted).topics[TOPIC]
    requests = [
        PartitionFetchRequest(TOPIC, p, max(0, fetch_committed[p].offset)) for p in partitions
    ]
    total_bytes = 6 * len(b"parcel 0")
    fetch = broker.fetch_messages(requests, timeout=60_000, min_bytes=total_bytes).topics[TOPIC]
    commits = []
    for partition, found in sorted(fetch.items()):
        print(partition, [message.value.decode() for message in found.messages])
        following = found.messages[-1].offset + 1
        commits.append(PartitionOffsetCommitRequest(TOPIC, partition, following, 0, b""))
    response = broker.commit_consumer_group_offsets(GROUP, generation, member_id, commits)
    print("committed:", {p: each.err for p, each in response.topics[TOPIC].items()})


def main() -> None:
    url = urlsplit(os.environ.get("SLUICEWAY_URL", "http://127.0.0.1:8900"))
    with Gateway() as gateway:
        gateway.channel(TOPIC.decode(), format="bytes", partitions=2)
    # pykafka's order: id, host, port, handler, two timeouts.
    with Broker(0, url.hostname, url.port, None, 30_000, 10_000) as broker:
        produce_values(broker)
        metadata = broker.request_metadata([TOPIC])
        print("partitions:", sorted(metadata.topics[TOPIC].partitions))
        limits = broker.request_offset_limits(
            [PartitionOffsetRequest(TOPIC, 0, OffsetType.LATEST, 1)]
        )
        print("partition 0 ends at", limits.topics[TOPIC][0].offset)

        joined = broker.join_group("sorter", GROUP, b"", TOPIC, None)
        synced = broker.sync_group("sorter", GROUP, joined.generation_id, joined.member_id, [])
        ((_, partitions),) = synced.member_assignment.partition_assignment
        consume(broker, joined.member_id, joined.generation_id, partitions)
        beat = broker.heartbeat("sorter", GROUP, joined.generation_id, joined.member_id)
        print("may continue:", beat.error_code == 0)
        beat = broker.heartbeat("sorter", GROUP, joined.generation_id + 7, joined.member_id)
        print("with another generation:", ERROR_CODES[beat.error_code].__name__)
        broker.leave_group("sorter", GROUP, joined.member_id)
        beat = broker.heartbeat("sorter", GROUP, joined.generation_id, joined.member_id)
        print("after leaving:", ERROR_CODES[beat.error_code].__name__)


if __name__ == "__main__":
    main()
