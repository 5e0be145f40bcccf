"""Whether the parts that the gateway needs answer."""

from dataclasses import dataclass

from anyio import CapacityLimiter, to_thread

from sluiceway_gateway.domain.errors import DatabaseUnavailable, KafkaUnavailable, WrongRevision
from sluiceway_gateway.services.ports import Cluster
from sluiceway_gateway.store import revision
from sluiceway_gateway.store.engine import Database


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Which parts answer."""

    database: bool
    kafka: bool

    @property
    def ready(self) -> bool:
        """Whether all do."""
        return self.database and self.kafka


class Health:
    """Asks the database and Kafka, with few threads of its own, however often it is asked."""

    def __init__(self, database: Database, cluster: Cluster, *, timeout_s: float) -> None:
        self._database = database
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._threads = CapacityLimiter(2)

    async def readiness(self) -> Readiness:
        """Return which parts answer within the timeout."""
        database = await to_thread.run_sync(self._database_answers, limiter=self._threads)
        kafka = await to_thread.run_sync(self._kafka_answers, limiter=self._threads)
        return Readiness(database=database, kafka=kafka)

    def _database_answers(self) -> bool:
        try:
            revision.check(self._database)
        except (DatabaseUnavailable, WrongRevision):
            return False
        return True

    def _kafka_answers(self) -> bool:
        try:
            self._cluster.describe_cluster(self._timeout_s)
        except KafkaUnavailable:
            return False
        return True
