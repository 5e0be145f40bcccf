"""Keys of all writers of a channel, in the partitions of the topic's former producers."""

import uuid

import confluent_kafka

from confluent_facade import Facade
from sluiceway import OutputPort
from topics import Topics, messages_of

KEYS = [b"key-%d" % number for number in range(20)]


def test_every_writer_continues_the_partitions_of_librdkafkas_producers(
    site: Facade, topics: Topics
) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    topics.create(topic, 7)
    before = confluent_kafka.Producer({"bootstrap.servers": topics.bootstrap_servers})
    for key in KEYS:
        before.produce(topic, key, key)
    assert before.flush(30) == 0

    # The first message adopts the topic.
    with site.producer(**{"allow.auto.create.topics": True}) as producer:
        for key in KEYS:
            producer.produce(topic, key, key)
    channel = site.gateway.channel(topic)
    assert channel.adopted
    assert (channel.format, channel.partitioner) == ("bytes", "consistent_random")
    with channel.writer(key="value") as writer:
        writer.write({"value": key} for key in KEYS)
    with OutputPort([channel], key="value") as port:
        port.write([{"value": key} for key in KEYS])

    messages = messages_of(channel.connection("read"))
    assert len(messages) == 4 * len(KEYS)
    places = {(message.key(), message.partition()) for message in messages}
    assert len(places) == len(KEYS)
    assert len({partition for _, partition in places}) > 1
