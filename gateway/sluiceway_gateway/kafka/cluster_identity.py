"""Cluster identity: refuses a Kafka cluster that does not have the channels' topics."""

import math
import threading
import time
from collections.abc import Callable

import structlog

from sluiceway_gateway.clock import Clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.errors import AccessFailure, AccessProblem, KafkaUnavailable
from sluiceway_gateway.kafka.cluster_store import record_first, recorded_id, replace_id

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

    def compare(self, found: str | None, *, reread: bool = True) -> None:
        """Raise KafkaUnavailable unless `found` is the id of the recorded or accepted cluster.

        Without `reread`, compares with the id that was last read from the database, if any. Raises
        DatabaseUnavailable.
        """
        if found is None:
            self._compared_s = self._monotonic()
            return
        with self._lock:
            before = self._failure
            if self._accepted not in (None, found):
                self._failure = _not_the_accepted(found, self._accepted)
                self._compared_s = self._monotonic()
            else:
                if reread or self._recorded is None:
                    self._recorded = self._read_or_record(found)
                    self._may_replace = False
                    self._compared_s = self._monotonic()
                is_recorded = found == self._recorded
                self._failure = None if is_recorded else _not_the_recorded(found, self._recorded)
            if self._failure is not None and self._failure != before:
                _log.error("kafka is another cluster", reason=self._failure.message)
            if self._failure is None and before is not None:
                _log.info("kafka is the recorded cluster again", cluster=found)
        self._require_last()

    def _require_last(self) -> None:
        failure = self._failure
        if failure is not None:
            raise KafkaUnavailable(
                f"The gateway does nothing in Kafka: {failure.message}.", failure
            )

    def _read_or_record(self, found: str) -> str:
        """Return the recorded id, after recording `found` if it is the first or accepted."""
        with self._database.read() as tx:
            recorded = recorded_id(tx)
        if recorded is None:
            with self._database.write() as tx:
                record_first(tx, found, now=self._clock())
                recorded = recorded_id(tx)
            _log.info("kafka's cluster id is recorded", cluster=recorded)
        elif recorded != found and self._may_replace:
            with self._database.write() as tx:
                replaced = replace_id(tx, found, was=recorded, now=self._clock())
                before, recorded = recorded, recorded_id(tx)
            if replaced:
                _log.warning("another Kafka cluster is accepted", cluster=found, before=before)
        return found if recorded is None else recorded


def _not_the_recorded(found: str, recorded: str | None) -> AccessFailure:
    message = (
        f"Kafka's cluster id is {found}, but the channels' topics are in the cluster {recorded}; "
        "correct SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS, or, to move the channels to this cluster, set "
        f"SLUICEWAY_KAFKA_CLUSTER_ID={found}, and start the gateway again"
    )
    return AccessFailure(problem=AccessProblem.CLUSTER, message=message)


def _not_the_accepted(found: str, accepted: str | None) -> AccessFailure:
    message = (
        f"Kafka's cluster id is {found}, but SLUICEWAY_KAFKA_CLUSTER_ID is {accepted}; correct "
        "that or SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS, and start the gateway again"
    )
    return AccessFailure(problem=AccessProblem.CLUSTER, message=message)
