"""Cluster metadata in confluent-kafka's form, with channels in place of topics."""

import time
from typing import Any, Final

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata

from sluiceway.confluent.config import Common
from sluiceway.confluent.errors import kafka_error, kafka_exceptions
from sluiceway.confluent.waiting import left_s
from sluiceway.errors import ChannelNotFound
from sluiceway.spi import ChannelResource, admin_config, create_client

__all__ = ["cluster_metadata"]

_LONGEST_S: Final = 3600.0
_USABLE: Final = ("ready", "closing", "closed")


def cluster_metadata(settings: Common, channel: str | None, timeout: float) -> ClusterMetadata:
    """Return brokers, and one channel or all of them with their partitions.

    A channel that does not exist has an `error`, as in confluent-kafka. Raises KafkaException.
    """
    deadline_s = time.monotonic() + (_LONGEST_S if timeout < 0 else timeout)
    absent: KafkaError | None = None
    channels: list[ChannelResource] = []
    with kafka_exceptions():
        if channel is None:
            channels = list(settings.control.channels(timeout_s=left_s(deadline_s)))
        else:
            try:
                channels = [settings.control.channel(channel, timeout_s=left_s(deadline_s))]
            except ChannelNotFound as error:
                absent = kafka_error(error)
        names = {resource.status.topic.name: resource.name for resource in channels}
        metadata = _of_kafka(settings, channels, left_s(deadline_s))
    topics = metadata.topics
    metadata.topics = {}
    for topic, name in names.items():
        if topic in topics:
            topics[topic].topic = name
            metadata.topics[name] = topics[topic]
    if absent is not None:
        metadata.topics[channel] = unknown = TopicMetadata()
        unknown.topic, unknown.error = channel, absent
    return metadata


def _of_kafka(settings: Common, channels: list[ChannelResource], timeout_s: float) -> Any:
    """Return Kafka's metadata; without a channel there is no connection to Kafka."""
    if not channels:
        return ClusterMetadata()
    # Others, such as failed ones, have no connection.
    usable = next((channel for channel in channels if channel.status.phase in _USABLE), channels[0])
    connection = settings.control.connection(usable.name, "read", timeout_s=timeout_s)
    client = create_client(AdminClient, admin_config(connection.kafka, settings.kafka))
    one = connection.topic_name if len(channels) == 1 else None
    return client.list_topics(one, timeout=timeout_s)
