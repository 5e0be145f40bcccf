"""Access to librdkafka: allowed properties, error translation, futures to results."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeGuard

import structlog
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from sluiceway.kafka.config import LOCAL
from sluiceway.kafka.diagnosis import diagnosis
from sluiceway_gateway.core.errors import (
    AccessFailure,
    AccessProblem,
    InvalidSettings,
    KafkaUnavailable,
)
from sluiceway_gateway.core.kafka.model import Broker, Cause, Cluster, NewMessage, Rejection
from sluiceway_gateway.core.tracing import child_span

#: librdkafka properties that the gateway accepts. Some of librdkafka's properties load libraries or
#: run commands, so every property that is not listed is refused by name.
ALLOWED = (LOCAL - {"bootstrap.servers", "debug", "socket.timeout.ms"}) | {
    "broker.address.ttl",
    "client.rack",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
}

LOG = structlog.stdlib.get_logger(__name__)

_REPLACE_AFTER_S = 10.0
#: No valid name of a topic, which no broker can create, for requests about brokers only.
_NO_TOPIC = "sluiceway/none"
_SETTING = "SLUICEWAY_KAFKA_PROPERTIES"

#: Codes after which the same request may succeed later, although librdkafka treats most of them as
#: not retriable. Leading underscores are librdkafka's own codes.
_UNAVAILABLE_NAMES = """
    _ALL_BROKERS_DOWN _AUTHENTICATION _DESTROY _DESTROY_BROKER _INTR _ISR_INSUFF _MSG_TIMED_OUT
    _NODE_UPDATE _RESOLVE _RETRY _SSL _TIMED_OUT _TIMED_OUT_QUEUE _TRANSPORT _UNKNOWN_BROKER
    _WAIT_CACHE _WAIT_COORD
    BROKER_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
    ELIGIBLE_LEADERS_NOT_AVAILABLE FENCED_LEADER_EPOCH KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE
    LISTENER_NOT_FOUND NETWORK_EXCEPTION NOT_CONTROLLER NOT_COORDINATOR NOT_ENOUGH_REPLICAS
    NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_FOR_PARTITION OFFSET_NOT_AVAILABLE
    PREFERRED_LEADER_NOT_AVAILABLE REASSIGNMENT_IN_PROGRESS REBOOTSTRAP_REQUIRED
    REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT SASL_AUTHENTICATION_FAILED THROTTLING_QUOTA_EXCEEDED
    UNKNOWN_LEADER_EPOCH UNSTABLE_OFFSET_COMMIT
"""
_UNAVAILABLE = frozenset(getattr(KafkaError, name) for name in _UNAVAILABLE_NAMES.split())
#: Codes with a specific cause; every other code is `UNAVAILABLE` or `OTHER`.
CAUSES: Mapping[int, Cause] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: Cause.TOPIC_ABSENT,
    KafkaError.UNKNOWN_TOPIC_ID: Cause.TOPIC_ABSENT,
    KafkaError._UNKNOWN_TOPIC: Cause.TOPIC_ABSENT,
    KafkaError.TOPIC_ALREADY_EXISTS: Cause.TOPIC_EXISTS,
    KafkaError.TOPIC_EXCEPTION: Cause.INVALID_NAME,
    KafkaError.INVALID_PARTITIONS: Cause.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR: Cause.INVALID_REPLICATION,
    KafkaError.INVALID_REPLICA_ASSIGNMENT: Cause.INVALID_REPLICATION,
    KafkaError.INVALID_CONFIG: Cause.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION: Cause.DENIED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Cause.DENIED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Cause.DENIED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Cause.DENIED,
    KafkaError.TOPIC_DELETION_DISABLED: Cause.DENIED,
}

_NOTHING_LOST = "Nothing was lost"
_MAYBE_WRITTEN = (
    "Messages of the request may be written, and a repeat writes them again, except on "
    "exactly-once channels"
)
#: What to do after Kafka refused a message, although it answers.
_REFUSED_MESSAGES: Mapping[int, str] = {
    KafkaError.INVALID_RECORD: "the topic may be compacted, and then each message needs a key",
    KafkaError.INVALID_TIMESTAMP: (
        "the topic's settings message.timestamp.before.max.ms and message.timestamp.after.max.ms "
        "exclude the present time; raise them"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: "make it smaller, or raise the topic's max.message.bytes",
}

#: Time by which a call of librdkafka may exceed its timeout.
_GRACE_S = 5.0
#: Time between repeated requests to a group's coordinator.
_PAUSE_S = 0.1
_SOURCE = "the gateway's Kafka properties are set by SLUICEWAY_KAFKA_PROPERTIES"
_WRONG_CREDENTIALS = (
    "it refuses the user, the password or the mechanism; correct sasl.username, sasl.password and "
    "sasl.mechanism in SLUICEWAY_KAFKA_PROPERTIES, and start the gateway again"
)
_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})


def refusals(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return one sentence per property that is not allowed."""
    return tuple(_refusal(name) for name in sorted(properties) if name not in ALLOWED)


def _refusal(name: str) -> str:
    if name == "bootstrap.servers":
        return "bootstrap.servers is a setting of its own: set SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS"
    near = get_close_matches(name, ALLOWED, n=1)
    hint = f"did you mean {near[0]}?" if near else "remove it"
    return f"the Kafka property {name!r} is not allowed; {hint}"


def rejection(error: KafkaError) -> Rejection:
    """Translate an error by its code; the message is Kafka's."""
    cause = CAUSES.get(error.code())
    if cause is None:
        retriable = error.retriable() or error.code() in _UNAVAILABLE
        cause = Cause.UNAVAILABLE if retriable else Cause.OTHER
    return Rejection(cause=cause, message=error.str())


class Client:
    """The only holder of an `AdminClient`, whose futures fail once it is garbage collected."""

    def __init__(
        self,
        bootstrap_servers: str,
        properties: Mapping[str, str],
        *,
        replace_after_s: float = _REPLACE_AFTER_S,
    ) -> None:
        if refused := refusals(properties):
            raise InvalidSettings("; ".join(refused))
        self._bootstrap_servers = bootstrap_servers
        self._last_error: KafkaError | None = None
        self._last_failure: AccessFailure | None = None
        self._last_call: tuple[bool, float] | None = None
        """Whether Kafka answered the last request, and the time of that."""
        self._properties = {**properties, "bootstrap.servers": bootstrap_servers}
        self._configuration = configuration = {
            "client.id": "sluiceway-gateway",
            # Reconnect soon after a broker is back.
            "reconnect.backoff.max.ms": 1_000,
            "socket.connection.setup.timeout.ms": 5_000,
            **self._properties,
            # Failures come back as errors; librdkafka's log lines are not structured.
            "log_level": 0,
            "error_cb": self._on_error,
        }
        self.admin = _admin_client(configuration, _SETTING)
        self._replaced: AdminClient | None = None
        self.replace_after_s = replace_after_s
        self._silent_since_s: float | None = None

    def describe_cluster(self, timeout_s: float, *, diagnosed: bool = True) -> Cluster:
        """Return the cluster and its live brokers, ordered by id, without their racks.

        Raises KafkaUnavailable, with the cause as `unavailable` finds it if `diagnosed`.
        """
        results = self._traced("Metadata", lambda: {None: self._request_cluster(timeout_s)})
        cluster: Cluster | Rejection = results[None]
        if isinstance(cluster, Rejection):
            if diagnosed:
                raise self.unavailable(cluster.message)
            raise KafkaUnavailable(cluster.message)
        self.require_response(results)
        return cluster

    def _request_cluster(self, timeout_s: float) -> Cluster | Rejection:
        # Not AdminClient.describe_cluster: librdkafka 2.16 aborts the process after a response
        # with neither brokers nor topics.
        try:
            metadata = self.admin.list_topics(_NO_TOPIC, timeout=timeout_s)
        except KafkaException as error:
            return rejection(error.args[0])
        if not metadata.brokers:
            return Rejection(cause=Cause.UNAVAILABLE, message="it has no brokers at the moment")
        return Cluster(
            cluster_id=metadata.cluster_id,
            controller_id=metadata.controller_id if metadata.controller_id >= 0 else None,
            brokers=tuple(
                Broker(id=broker.id, host=broker.host, port=broker.port, rack=None)
                for _, broker in sorted(metadata.brokers.items())
            ),
        )

    def consumer(self, properties: Mapping[str, Any]) -> Consumer:
        """Return a new consumer with these properties."""
        return Consumer({**self._configuration, **properties})

    def committed(
        self, group: str, topic: str, partitions: Iterable[int], *, timeout_s: float
    ) -> list[TopicPartition] | Rejection:
        """Return the offsets that a consumer group has committed, or the refusal of its request.

        Raises KafkaUnavailable.
        """
        requested = [TopicPartition(topic, partition) for partition in partitions]
        results = self._traced(
            "OffsetFetch", lambda: {group: self._request_committed(group, requested, timeout_s)}
        )
        committed: list[TopicPartition] | Rejection = self.require_response(results)[group]
        return committed

    def _request_committed(
        self, group: str, partitions: list[TopicPartition], timeout_s: float
    ) -> list[TopicPartition] | Rejection:
        # Not AdminClient.list_consumer_group_offsets: after a response of a broker that is not the
        # group's coordinator, librdkafka 2.16 uses the group of a consumer, and crashes.
        consumer = self.consumer({"group.id": group, "enable.auto.commit": False})
        deadline_s = time.monotonic() + timeout_s
        try:
            while True:
                left_s = max(_PAUSE_S, deadline_s - time.monotonic())
                try:
                    return _without_refusal(consumer.committed(partitions, timeout=left_s))
                except KafkaException as error:
                    refused = rejection(error.args[0])
                if refused.cause is not Cause.UNAVAILABLE or left_s <= _PAUSE_S:
                    return refused
                # Meanwhile the consumer looks up the coordinator again.
                consumer.poll(_PAUSE_S)
        finally:
            consumer.close()

    def produce(
        self,
        topic: str,
        messages: Iterable[NewMessage],
        *,
        timeout_s: float,
        max_message_bytes: int,
    ) -> list[int] | Rejection:
        """Produce messages, idempotently and on all in-sync replicas; return their offsets.

        `max_message_bytes` is the topic's limit. The result is a Rejection if Kafka refuses a
        message. Raises KafkaUnavailable if Kafka has not acknowledged each within `timeout_s`. Some
        messages may be there in both cases.
        """
        offsets: list[int] = []
        failures: list[KafkaError] = []

        def reported(index: int, error: KafkaError | None, delivered: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                offsets[index] = delivered.offset()

        producer = Producer(
            {
                **self._configuration,
                "enable.idempotence": True,
                "linger.ms": 20,
                "message.timeout.ms": round(timeout_s * 1000),
                "message.max.bytes": max(1000, max_message_bytes),
                # The topic's limit is one of batches.
                "batch.size": max(1, min(1_000_000, max_message_bytes)),
            }
        )
        for message in messages:
            on_delivery = partial(reported, len(offsets))
            offsets.append(-1)
            while not failures:
                try:
                    producer.produce(
                        topic,
                        message.value,
                        message.key,
                        message.partition,
                        on_delivery=on_delivery,
                    )
                except BufferError:
                    producer.poll(0.1)
                except KafkaException as error:
                    # Too large with its key: librdkafka refuses it without a delivery report.
                    failures.append(error.args[0])
                else:
                    break
            producer.poll(0)
            if failures:
                break
        producer.flush()
        if failures:
            advice = _REFUSED_MESSAGES.get(failures[0].code())
            if advice is not None:
                return Rejection(
                    cause=Cause.OTHER,
                    message=f"Kafka refuses a message ({failures[0].str()}): {advice}",
                )
            raise self.failure(failures[0], topic, "WRITE")
        return offsets

    def failure(self, error: KafkaError, topic: str, operation: str) -> KafkaUnavailable:
        """Return the error for a request that failed; `operation` is the one that ACLs name."""
        refusal = rejection(error)
        if refusal.cause is not Cause.DENIED and operation == "WRITE":
            return self.unavailable(refusal.message, _MAYBE_WRITTEN)
        if refusal.cause is not Cause.DENIED:
            return self.unavailable(refusal.message)
        return KafkaUnavailable(
            f"Kafka does not allow the gateway's user the operation {operation} on the topic "
            f"{topic} ({refusal.message}); add the ACL, and send the request again."
        )

    def results(
        self, operation: str, futures: Mapping[Any, "Future[Any]"], timeout_s: float
    ) -> dict[Any, Any]:
        """Wait for the results of one request; a refusal's result is its Rejection.

        `operation` is Kafka's name of the request. Raises KafkaUnavailable if every result is
        `UNAVAILABLE`.
        """
        return self.require_response(self.settled(operation, futures, timeout_s))

    def settled(
        self, operation: str, futures: Mapping[Any, "Future[Any]"], timeout_s: float
    ) -> dict[Any, Any]:
        """Wait for the results as `results` does, which may all be `UNAVAILABLE`."""
        return self._traced(
            operation, lambda: {k: _result(future, timeout_s) for k, future in futures.items()}
        )

    def _traced(self, operation: str, request: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
        """Return the results of a request, with a span."""
        attributes = {"messaging.system": "kafka", "messaging.operation.name": operation}
        with child_span(f"kafka {operation}", attributes):
            results = request()
        self._replace_if_silent(results.values())
        return results

    def _replace_if_silent(self, results: Collection[Any]) -> None:
        """Replace the admin client after some time without an answer.

        After a response without brokers, as a broker that shuts down sends, librdkafka does not
        connect again (confluentinc/librdkafka#5301).
        """
        now_s, since_s = time.monotonic(), self._silent_since_s
        if not all(_is_unavailable(result) for result in results):
            self._silent_since_s = None
        elif since_s is None:
            self._silent_since_s = now_s
        elif now_s - since_s > self.replace_after_s:
            self._silent_since_s = now_s
            LOG.info("the client of a silent kafka is replaced", silent_s=round(now_s - since_s))
            # Kept for the requests of other threads: its futures fail with its last reference.
            self._replaced, self.admin = self.admin, _admin_client(self._configuration, _SETTING)

    def require_response(self, results: dict[Any, Any]) -> dict[Any, Any]:
        """Return the results. Raises KafkaUnavailable if every one is `UNAVAILABLE`."""
        unavailable = [result.message for result in results.values() if _is_unavailable(result)]
        if unavailable and len(unavailable) == len(results):
            raise self.unavailable(unavailable[0])
        self.admin.poll(0)
        self._last_call = True, time.monotonic()
        if not unavailable:
            self._last_error = self._last_failure = None
        return results

    def unavailable(self, reason: str, effect: str = _NOTHING_LOST) -> KafkaUnavailable:
        """Return the error for a Kafka that does not answer, with the cause if it can be found.

        `effect` is what the request has done.
        """
        self._last_call = False, time.monotonic()
        # A slow broker may refuse the credentials during the diagnosis.
        failure = self._credential_failure() or self._diagnosed() or self._credential_failure()
        return self._unavailable(failure, reason, effect)

    def still_unavailable(self) -> KafkaUnavailable:
        """Return the error for a request that is not sent, with the last cause."""
        failure = self._credential_failure() or self._last_failure
        return self._unavailable(failure, "it has not answered the last request", _NOTHING_LOST)

    def _unavailable(
        self, failure: AccessFailure | None, reason: str, effect: str
    ) -> KafkaUnavailable:
        last = self._last_error
        if failure is None:
            cause = (
                f"does not answer ({reason if last is None else last.str()}); check that it "
                "runs and that the gateway can reach it"
            )
        else:
            quoted = f" (Kafka says: {last.str()})" if _is_refusal(last) else ""
            cause = f"refuses the gateway: {failure.message}{quoted}"
        return KafkaUnavailable(
            f"Kafka at {self._bootstrap_servers} {cause}. {effect}: send the request again when "
            "that is done.",
            failure,
        )

    def answered(self, within_s: float) -> bool | None:
        """Return whether Kafka answered the last request; None if none ended within that time."""
        if self._last_call is None or time.monotonic() - self._last_call[1] > within_s:
            return None
        return self._last_call[0]

    def _credential_failure(self) -> AccessFailure | None:
        self.admin.poll(0)
        if not _is_refusal(self._last_error):
            return None
        # Not librdkafka's message: it contains the elapsed time, so conditions would keep changing.
        return AccessFailure(problem=AccessProblem.CREDENTIALS, message=_WRONG_CREDENTIALS)

    def _diagnosed(self) -> AccessFailure | None:
        try:
            finding = diagnosis(self._properties)
        except TimeoutError:
            # No broker answers, so the last diagnosis still applies.
            return self._last_failure
        self._last_failure = None
        if finding is not None:
            message = f"{finding.message} ({_SOURCE})"
            self._last_failure = AccessFailure(
                problem=AccessProblem(finding.problem), message=message
            )
        return self._last_failure

    def _on_error(self, error: KafkaError) -> None:
        # "All brokers are down" follows each actual cause and adds nothing.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error


def check_client_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidSettings if librdkafka refuses the properties that clients will get."""
    placeholders = {"sasl.mechanism": "PLAIN", "sasl.username": "-", "sasl.password": "-"}
    # Clients may supply their own credentials. Without a server nothing connects.
    without_server = {
        name: value for name, value in properties.items() if name != "bootstrap.servers"
    }
    source = "SLUICEWAY_KAFKA_CLIENT_PROPERTIES or _LISTENERS"
    _admin_client({**placeholders, **without_server, "log_level": 0}, source)


def _admin_client(configuration: Mapping[str, Any], source: str) -> AdminClient:
    try:
        return AdminClient(dict(configuration))
    except KafkaException as error:
        raise InvalidSettings(
            f"librdkafka refuses what {source} hold: {error.args[0].str()}"
        ) from error


def _without_refusal(partitions: list[TopicPartition]) -> list[TopicPartition] | Rejection:
    """Return the partitions, or the refusal of the first one that is refused."""
    errors = (partition.error for partition in partitions)
    refused = next((error for error in errors if error is not None), None)
    return partitions if refused is None else rejection(refused)


def outcomes(results: Mapping[Any, Any]) -> dict[Any, Rejection | None]:
    """Replace each result with its rejection, or None."""
    return {k: v if isinstance(v, Rejection) else None for k, v in results.items()}


def accepted(results: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the results that are not rejections."""
    return {k: v for k, v in results.items() if not isinstance(v, Rejection)}


def rejected(results: Mapping[Any, Any], *, but: Iterable[Cause] = ()) -> dict[Any, Rejection]:
    """Return the rejections, except those with a cause in `but`."""
    return {
        k: v for k, v in results.items() if isinstance(v, Rejection) and v.cause not in tuple(but)
    }


def _result(future: "Future[Any]", timeout_s: float) -> Any:
    try:
        return future.result(timeout=timeout_s + _GRACE_S)
    except KafkaException as error:
        return rejection(error.args[0])
    except TimeoutError:
        return Rejection(cause=Cause.UNAVAILABLE, message="the Kafka client does not answer")


def _is_unavailable(result: object) -> TypeGuard[Rejection]:
    return isinstance(result, Rejection) and result.cause is Cause.UNAVAILABLE


def _is_refusal(error: KafkaError | None) -> TypeGuard[KafkaError]:
    return error is not None and error.code() in _REFUSED


def log_unavailable(
    log: structlog.stdlib.BoundLogger, error: KafkaUnavailable, **fields: object
) -> None:
    """Log that Kafka did not answer a background loop, which continues without it."""
    log.warning("kafka is unavailable", reason=str(error), **fields)
