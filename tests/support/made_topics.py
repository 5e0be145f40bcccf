"""Topics that tests make themselves, past any gateway."""

import time

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic


def make(admin: AdminClient, topic: NewTopic) -> str:
    """Make a topic, wait until the broker that answers has heard of it, and return its id."""
    name = topic.topic
    admin.create_topics([topic])[name].result(30)
    deadline_s = time.monotonic() + 180
    while True:
        try:
            return str(admin.describe_topics(TopicCollection([name]))[name].result(30).topic_id)
        except KafkaException:
            # The controller made it, and brokers hear of it later.
            assert time.monotonic() < deadline_s
