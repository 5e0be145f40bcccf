"""Read access to the Kafka cluster. Nothing is cached."""

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
    """A topic and, by partition, its watermarks; None where no leader could be asked."""

    topic: TopicMetadata
    watermarks: Mapping[int, Watermarks | None]


class ClusterView:
    """What people may see of the cluster. Calls raise KafkaUnavailable."""

    def __init__(self, database: Database, kafka: KafkaAdmin) -> None:
        self._database = database
        self._kafka = kafka

    def cluster(self) -> Cluster:
        """Return who is in the cluster now."""
        return self._kafka.describe_cluster()

    def broker(self, broker_id: int) -> Broker:
        """Return one broker; raises NotFound if it is not alive."""
        cluster = self.cluster()
        for broker in cluster.brokers:
            if broker.id == broker_id:
                return broker
        alive = ", ".join(str(each.id) for each in cluster.brokers)
        raise NotFound(f"There is no broker {broker_id}; alive are {alive or 'none'}.")

    def require_leave(self, principal: Principal, topic: str) -> None:
        """Raise Forbidden unless the principal may see this topic.

        Administrators see all; a channel's topic is shown to those who may read the channel.
        """
        if principal.may(Action.ADMIN):
            return
        with self._database.read() as tx:
            name = channels_store.name_of_topic(tx, topic)
        principal.require(*((Action.ADMIN,) if name is None else (Action.READ, name)))

    def topic(self, name: str) -> TopicReport:
        """Return a topic's metadata and watermarks; raises NotFound."""
        topic = self._kafka.describe_topic(name)
        if topic is None:
            raise NotFound(f"There is no topic {name!r} in Kafka.")
        led = [each.partition for each in topic.partitions if each.leader is not None]
        return TopicReport(topic=topic, watermarks=self._kafka.watermarks(name, led))
