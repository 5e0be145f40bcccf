"""What Kafka says before a channel is made. No call is made inside a transaction."""

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.change import UNSET, Change
from sluiceway_gateway.db import idempotency
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.domain.errors import (
    KafkaUnavailable,
    ReplicationExceedsBrokers,
    TopicNotFound,
)
from sluiceway_gateway.domain.request import Request
from sluiceway_gateway.kafka.calls import Cluster
from sluiceway_gateway.kafka.model import ObservedTopic


class Survey:
    """Looks at Kafka for what a new channel asks of it; of one that is there it asks nothing."""

    def __init__(self, database: Database, cluster: Cluster, *, timeout_s: float) -> None:
        self._database = database
        self._cluster = cluster
        self._timeout_s = timeout_s

    def topic(self, name: str, change: Change, request: Request | None) -> ObservedTopic | None:
        """Return the topic that a new channel is to adopt; None if none is asked for.

        Raises TopicNotFound and KafkaUnavailable.
        """
        if not isinstance(change.topic, str) or self._settled(name, request):
            return None
        seen = self._cluster.observe([change.topic])
        if change.topic in seen.topics:
            return seen.topics[change.topic]
        why = "Kafka has none of this name"
        if change.topic in seen.rejections:
            why = f"Kafka does not show it: {seen.rejections[change.topic].message}"
        raise TopicNotFound(
            f"There is no topic {change.topic!r} to adopt: {why}. Correct the name, or leave "
            "spec.topic out to have a topic made."
        )

    def check_replication(self, name: str, change: Change, request: Request | None) -> None:
        """Refuse more replicas than there are brokers; without Kafka's answer, let it pass.

        Kafka has the last word when the topic is made; this spares people the wait.
        """
        if change.replication is UNSET or change.replication is None or change.replication == 1:
            return
        if isinstance(change.topic, str) or self._settled(name, request):
            return
        try:
            brokers = len(self._cluster.describe_cluster(self._timeout_s).brokers)
        except KafkaUnavailable:
            return
        if change.replication > brokers:
            raise ReplicationExceedsBrokers(
                f"{change.replication} replicas need as many brokers, and Kafka has {brokers}: "
                f"ask for at most {brokers}, or leave spec.replication out."
            )

    def _settled(self, name: str, request: Request | None) -> bool:
        """Whether the channel is there, or the request was answered before."""
        with self._database.read() as tx:
            return channels_store.find(tx, name) is not None or (
                request is not None and idempotency.known(tx, request)
            )
