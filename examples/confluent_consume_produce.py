"""The consumer and producer of confluent-kafka's documentation, on a channel.

Only the import, the address and the creation of the channel differ:

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/confluent_consume_produce.py
"""

import os
import sys

from sluiceway import Gateway
from sluiceway.confluent import Consumer, KafkaError, KafkaException, Message, Producer

ADDRESS = os.environ.get("SLUICEWAY_URL", "http://127.0.0.1:8900")
delivered: list[int] = []


def acked(err: KafkaError | None, msg: Message) -> None:
    if err is not None:
        print(f"Failed to deliver message: {msg}: {err}", file=sys.stderr)
    else:
        delivered.append(msg.offset())


def produce(topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": ADDRESS, "client.id": "example"})
    for number in range(count):
        producer.produce(topic, key=f"key {number % 3}", value=f"value {number}", callback=acked)
        # Serve delivery callbacks of earlier calls.
        producer.poll(0)
    producer.flush()
    producer.close()
    print(f"{len(delivered)} messages delivered to {topic}")


def consume(topic: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": ADDRESS,
            "group.id": "example",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    ended: set[int] = set()
    count = 0
    try:
        consumer.subscribe([topic])
        while len(ended) < 2:
            msg = consumer.poll(timeout=1.0)
            if msg is None:
                continue
            if (error := msg.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                ended.add(msg.partition())
                continue
            count += 1
            if count % 50 == 0:
                consumer.commit(asynchronous=False)
        consumer.commit(asynchronous=False)
        places = consumer.committed(consumer.assignment(), timeout=10)
    finally:
        consumer.close()
    print(f"{count} messages consumed from {topic}")
    print(f"{sum(place.offset for place in places)} committed")


def main() -> None:
    with Gateway() as gateway:
        gateway.channel("greetings", format="bytes", partitions=2)
    produce("greetings", 120)
    consume("greetings")


if __name__ == "__main__":
    main()
