"""Cluster identity: refuses a Kafka cluster that does not have the channels' topics."""

import math
import threading
import time
from collections.abc import Callable

import structlog

from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import AccessFailure, AccessProblem, KafkaUnavailable
from sluiceway_gateway.core.kafka.cluster_store import record_first, recorded_id, replace_id

_log = structlog.get_logger(__name__)

#: Longest age of a comparison on which a request to Kafka relies.
_FRESH_S = 10.0


class ClusterIdentity:
    """Compares Kafka's cluster id with the one in the database; thread-safe.

    The database records the id of the first cluster. Another cluster takes its place only if
    `accepted`, the id in the settings, names it when this process compares for the first time:
    replicas with different settings cannot replace each other's cluster again and again. A cluster
    without an id is not compared.
    """

    def __init__(
        self,
        database: Database,
        *,
        accepted: str | None,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._accepted = accepted
        self._clock = clock
        self._monotonic = monotonic
        self._may_replace = accepted is not None
        self._recorded: str | None = None
        """The recorded id, as last read."""
        self._failure: AccessFailure | None = None
        """The result of the last comparison."""
        self._compared_s = -math.inf
        self._lock = threading.Lock()
        self._comparing = threading.Lock()

    @property
    def refuses(self) -> bool:
        """Whether the last comparison refused the cluster."""
        return self._failure is not None

    def require(self, describe: Callable[[bool], str | None]) -> None:
        """Raise KafkaUnavailable if the last comparison refused the cluster.

        Compares at first, and again every ten seconds, then in one thread, while others rely on
        the last result. `describe` returns the cluster's id; its argument is whether Kafka must
        answer. If it need not, an error keeps the last result, and the caller's own request finds
        the cause. Raises DatabaseUnavailable.
        """
        if self._compared_s == -math.inf:
            self.compare(describe(True))
            return
        is_due = self._monotonic() - self._compared_s >= _FRESH_S
        if is_due and self._comparing.acquire(blocking=False):
            try:
                self.compare(describe(False))
            except KafkaUnavailable:
                self._compared_s = self._monotonic()
            finally:
                self._comparing.release()
        self._require_last()

    def compare(self, cluster_id: str | None, *, reread: bool = True) -> None:
        """Raise KafkaUnavailable unless `cluster_id` is the id of the recorded or accepted cluster.

        Without `reread`, compares with the id that was last read from the database, if any. Raises
        DatabaseUnavailable.
        """
        if cluster_id is None:
            self._compared_s = self._monotonic()
            return
        with self._lock:
            before = self._failure
            if self._accepted not in (None, cluster_id):
                self._failure = _not_the_accepted(cluster_id, self._accepted)
                self._compared_s = self._monotonic()
            else:
                if reread or self._recorded is None:
                    self._recorded = self._read_or_record(cluster_id)
                    self._may_replace = False
                    self._compared_s = self._monotonic()
                is_recorded = cluster_id == self._recorded
                self._failure = (
                    None if is_recorded else _not_the_recorded(cluster_id, self._recorded)
                )
            if self._failure is not None and self._failure != before:
                _log.error("kafka is another cluster", reason=self._failure.message)
            if self._failure is None and before is not None:
                _log.info("kafka is the recorded cluster again", cluster=cluster_id)
        self._require_last()

    def _require_last(self) -> None:
        failure = self._failure
        if failure is not None:
            raise KafkaUnavailable(
                f"The gateway does nothing in Kafka: {failure.message}.", failure
            )

    def _read_or_record(self, cluster_id: str) -> str:
        """Return the recorded id, after recording `cluster_id` if it is the first or accepted."""
        with self._database.read() as tx:
            recorded = recorded_id(tx)
        if recorded is None:
            with self._database.write() as tx:
                record_first(tx, cluster_id, now=self._clock())
                recorded = recorded_id(tx)
            _log.info("kafka's cluster id is recorded", cluster=recorded)
        elif recorded != cluster_id and self._may_replace:
            with self._database.write() as tx:
                replaced = replace_id(tx, cluster_id, was=recorded, now=self._clock())
                before, recorded = recorded, recorded_id(tx)
            if replaced:
                _log.warning("another Kafka cluster is accepted", cluster=cluster_id, before=before)
        return cluster_id if recorded is None else recorded


def _not_the_recorded(cluster_id: str, recorded: str | None) -> AccessFailure:
    message = (
        f"Kafka's cluster id is {cluster_id}, but the channels' topics are in the cluster "
        f"{recorded}; correct SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS, or, to move the channels to this "
        f"cluster, set SLUICEWAY_KAFKA_CLUSTER_ID={cluster_id}, and start the gateway again"
    )
    return AccessFailure(problem=AccessProblem.CLUSTER, message=message)


def _not_the_accepted(cluster_id: str, accepted: str | None) -> AccessFailure:
    message = (
        f"Kafka's cluster id is {cluster_id}, but SLUICEWAY_KAFKA_CLUSTER_ID is {accepted}; "
        "correct that or SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS, and start the gateway again"
    )
    return AccessFailure(problem=AccessProblem.CLUSTER, message=message)
