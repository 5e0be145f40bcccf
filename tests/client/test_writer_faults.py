"""Failed deliveries: the error names partition, cause and counts, and ends the writer."""

import random
from pathlib import Path

import pytest

from relay import Relay
from shared_kafka import SharedKafka
from sluiceway.api.models import Connection
from sluiceway.errors import DeliveryFailed, EndpointClosed, KafkaFailure
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import Topics, readings
from waiting import until


def count(connection: Connection) -> int:
    with ChannelReader(connection, until="now") as reader:
        return sum(batch.num_rows for batch in reader.batches())


def noisy(number: int) -> dict[str, object]:
    return {"id": number, "station": random.Random(number).randbytes(4000).hex(), "celsius": 0.0}  # noqa: S311


def test_a_rejected_message_names_partition_and_cause_and_counts(
    topics: Topics, each_format: str
) -> None:
    # The gateway had a larger message limit than the topic.
    connection = topics.connect(each_format, partitions=2, config={"max.message.bytes": "2000"})
    writer = ChannelWriter(connection, partitioner=lambda record, _: record["id"] % 2)
    writer.write(readings(10))
    writer.flush()
    writer.write([noisy(11)])
    with pytest.raises(DeliveryFailed) as raised:
        writer.flush()
    failure = raised.value
    assert failure.partition == 1
    assert failure.reason.startswith("MSG_SIZE_TOO_LARGE")
    assert (failure.written_records, failure.failed_records) == (10, 1)
    assert count(connection) == 10
    for call in (lambda: writer.write(readings(1)), writer.flush):
        with pytest.raises(EndpointClosed, match="this writer failed") as again:
            call()
        assert again.value.__cause__ is failure
    writer.close()
    assert count(connection) == 10


def test_close_and_leaving_with_raise_a_failed_delivery(topics: Topics) -> None:
    connection = topics.connect("avro", config={"max.message.bytes": "2000"})
    writer = ChannelWriter(connection)
    writer.write([noisy(1)])
    with pytest.raises(DeliveryFailed) as first:
        writer.close()
    with pytest.raises(DeliveryFailed) as again:
        writer.close()
    assert again.value is first.value
    with pytest.raises(DeliveryFailed), ChannelWriter(connection) as writer:
        writer.write([noisy(1)])


@pytest.mark.long
def test_a_failure_ends_a_long_write_early(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1, config={"max.message.bytes": "2000"})
    writer = ChannelWriter(connection, config={"queue.buffering.max.messages": 100})
    with pytest.raises(DeliveryFailed) as raised:
        writer.write([noisy(0), *readings(150_000)])
    failure = raised.value
    assert failure.written_records + failure.failed_records == 150_001
    assert failure.failed_records > 0
    assert count(connection) >= failure.written_records


def test_kafka_unavailable_during_a_write_fails_after_the_delivery_timeout(
    fragile_kafka: Relay, fragile_topics: Topics, each_format: str
) -> None:
    connection = fragile_topics.connect(each_format)
    writer = ChannelWriter(connection, delivery_timeout_s=2)
    writer.write(readings(10))
    writer.flush()
    fragile_kafka.cut()
    writer.write(readings(5, 10))
    with pytest.raises(DeliveryFailed) as raised:
        writer.flush()
    assert (raised.value.written_records, raised.value.failed_records) == (10, 5)
    fragile_kafka.restore()
    assert count(connection) == 10


def test_a_full_queue_without_kafka_does_not_wait_forever(
    fragile_kafka: Relay, fragile_topics: Topics
) -> None:
    connection = fragile_topics.connect("avro")
    writer = ChannelWriter(
        connection, delivery_timeout_s=2, config={"queue.buffering.max.messages": 10}
    )
    fragile_kafka.cut()
    with pytest.raises(DeliveryFailed) as raised:
        writer.write(readings(1000))
    assert raised.value.written_records == 0
    assert raised.value.failed_records == 1000


def test_a_topic_deleted_under_a_writer_fails_the_delivery(
    topics: Topics, kafka: SharedKafka
) -> None:
    connection = topics.connect("avro")
    writer = ChannelWriter(connection, delivery_timeout_s=3)
    writer.write(readings(3))
    writer.flush()
    topics.delete(connection.topic_name)
    # The broker deletes it after the controller. Each partition accepts messages until its log is
    # closed.
    until(lambda: not [*Path(kafka.log_dir).glob(f"{connection.topic_name}-?")])
    writer.write(readings(3))
    with pytest.raises(KafkaFailure) as raised:
        writer.flush()
    assert isinstance(raised.value, DeliveryFailed)
    assert (raised.value.written_records, raised.value.failed_records) == (3, 3)


def test_leaving_by_an_exception_without_kafka_does_not_mask_it(
    fragile_kafka: Relay, fragile_topics: Topics
) -> None:
    writer = ChannelWriter(fragile_topics.connect("avro"))
    fragile_kafka.cut()

    def fail_half_way() -> None:
        with writer:
            writer.write(readings(10))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
