"""The gateway's Kafka client that librdkafka leaves without brokers, as one shuts down."""

from contextlib import suppress

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from restarting_broker import RestartingBroker
from sluiceway_gateway.errors import KafkaUnavailable
from sluiceway_gateway.kafka.client import Client
from sluiceway_gateway.kafka.model import Cause
from waiting import until


def answers(client: Client) -> bool:
    futures = client.admin.create_topics([NewTopic("t", 1, 1)], request_timeout=0.5)
    return client.settled("CreateTopics", futures, 0.5)["t"].cause is not Cause.UNAVAILABLE


def is_stranded(client: Client, broker: RestartingBroker) -> bool:
    """Restart the broker; return whether librdkafka does not connect to it again."""
    for step in (broker.leave, broker.end):
        step()
        with suppress(KafkaException):
            client.admin.list_topics("t", timeout=0.5)
    broker.start()
    return not any(answers(client) for _ in range(6))


def is_described(client: Client) -> bool:
    with suppress(KafkaUnavailable):
        return bool(client.describe_cluster(0.5).brokers)
    return False


def test_a_client_that_does_not_connect_again_is_replaced() -> None:
    with RestartingBroker() as broker:
        client = Client(broker.bootstrap_servers, {}, replace_after_s=60)
        until(lambda: answers(client))
        until(lambda: is_stranded(client, broker))
        client.replace_after_s = 0
        until(lambda: answers(client))


def refusal_of(client: Client) -> str:
    with pytest.raises(KafkaUnavailable) as caught:
        client.describe_cluster(5)
    return str(caught.value)


def test_brokers_that_shut_down_are_unavailable() -> None:
    with RestartingBroker() as broker:
        client = Client(broker.bootstrap_servers, {})
        (described,) = client.describe_cluster(30).brokers
        assert described.port == broker.port
        broker.leave()
        # The broker also closes the connection, which may be noticed first.
        until(lambda: "no brokers" in refusal_of(client))
        broker.start()
        until(lambda: is_described(client))
