"""Read access to the Kafka cluster, without a cache."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.errors import NotFound
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.kafka.model import Broker, Cluster, TopicMetadata, Watermarks


@dataclass(frozen=True, kw_only=True)
class TopicReport:
    """A topic with its watermarks by partition; None for a partition without a leader."""

    topic: TopicMetadata
    watermarks: Mapping[int, Watermarks | None]


class ClusterService:
    """Brokers and topics of the Kafka cluster. Calls raise KafkaUnavailable."""

    def __init__(self, database: Database, kafka: KafkaAdmin) -> None:
        self._database = database
        self._kafka = kafka

    def cluster(self) -> Cluster:
        """Return the cluster's current brokers and controller."""
        return self._kafka.describe_cluster()

    def broker(self, broker_id: int) -> Broker:
        """Return a living broker. Raises NotFound."""
        cluster = self.cluster()
        for broker in cluster.brokers:
            if broker.id == broker_id:
                return broker
        alive = ", ".join(str(each.id) for each in cluster.brokers)
        raise NotFound(f"There is no broker {broker_id}; living brokers: {alive or 'none'}.")

    def authorize(self, principal: Principal, topic: str) -> None:
        """Raise Forbidden unless the principal may see this topic.

        Administrators may see all topics, readers of a channel its topic.
        """
        if principal.may(Action.ADMIN):
            return
        with self._database.read() as tx:
            name = channels_store.name_of_topic(tx, topic)
        principal.require(*((Action.ADMIN,) if name is None else (Action.READ, name)))

    def topic(self, name: str) -> TopicReport:
        """Return a topic's metadata and watermarks. Raises NotFound."""
        topic = self._kafka.describe_topic(name)
        if topic is None:
            raise NotFound(f"There is no topic {name!r} in Kafka.")
        with_leader = [each.partition for each in topic.partitions if each.leader is not None]
        return TopicReport(topic=topic, watermarks=self._kafka.watermarks(name, with_leader))
