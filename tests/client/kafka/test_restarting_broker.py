"""Kafka clients that librdkafka leaves without brokers, as one shuts down, are replaced."""

from contextlib import closing, suppress

import pytest

from restarting_broker import RestartingBroker
from sluiceway.errors import KafkaFailure
from sluiceway.kafka.consumer import MessageStream, OwnStream
from sluiceway.kafka.shared_stream import SharedStream
from sluiceway.rest.models import Connection
from waiting import until


def connection_to(broker: RestartingBroker) -> Connection:
    return Connection(
        channel_name="c",
        channel_uid="u",
        generation=1,
        format="bytes",
        schema_id=1,
        schema_definition={"type": "bytes"},
        topic_name="t",
        topic_id=None,
        partitions=1,
        max_message_bytes=1_000_000,
        kafka={"bootstrap.servers": broker.bootstrap_servers},
    )


def answers(stream: MessageStream) -> bool:
    with suppress(KafkaFailure):
        return stream.discover_partitions() == 1
    return False


def is_stranded(stream: MessageStream, broker: RestartingBroker) -> bool:
    """Restart the broker; return whether librdkafka does not connect to it again."""
    broker.leave()
    answers(stream)
    broker.end()
    answers(stream)
    broker.start()
    return not any(answers(stream) for _ in range(6))


@pytest.mark.parametrize("stream_type", [OwnStream, SharedStream])
def test_a_consumer_that_does_not_connect_again_is_replaced(
    stream_type: type[MessageStream],
) -> None:
    with RestartingBroker() as broker:
        connection = connection_to(broker)
        with closing(stream_type(connection, timeout_s=0.5)) as stream:
            stream.assign({0: 0})
            assert not stream.renew(timeout_s=30)
            # A matter of timing within librdkafka.
            until(lambda: is_stranded(stream, broker) and stream.renew(timeout_s=0.5))
            stream.assign({0: 0})
            assert not stream.renew(timeout_s=30)
            until(lambda: answers(stream))
