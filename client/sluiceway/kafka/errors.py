"""Translation of Kafka errors into Sluiceway's, by code."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from sluiceway.errors import KafkaFailure, KafkaUnavailable, OptionError, TopicGone
from sluiceway.rest.auth import clear_tracebacks
from sluiceway.rest.transport import Backoff

__all__ = ["LOGGER", "is_gone", "is_unavailable", "made", "translated", "with_retries"]

C = TypeVar("C")
T = TypeVar("T")

LOGGER = logging.getLogger("sluiceway.kafka")
"""Where librdkafka's own lines go; silent until the application configures it."""
LOGGER.addHandler(logging.NullHandler())

_SHORTEST_CALL_S = 0.1

_GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own codes have such names
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_UNAVAILABLE = frozenset(
    {
        # What Kafka's own clients retry.
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.REBOOTSTRAP_REQUIRED,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        # Local codes that librdkafka describes as temporary: connections, brokers that come and go,
        # metadata that is not there yet. Access that is refused is told apart by the diagnosis.
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._DESTROY_BROKER,  # noqa: SLF001
        KafkaError._INTR,  # noqa: SLF001
        KafkaError._ISR_INSUFF,  # noqa: SLF001
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._NODE_UPDATE,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._RETRY,  # noqa: SLF001
        KafkaError._SSL,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._UNKNOWN_BROKER,  # noqa: SLF001
        KafkaError._WAIT_CACHE,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
    }
)


def made(kind: Callable[..., C], config: Mapping[str, Any]) -> C:
    """Return a client of librdkafka's; raises OptionError for properties that it refuses."""
    try:
        return kind(dict(config), logger=LOGGER)
    except KafkaException as error:
        clear_tracebacks(error)
        raise OptionError(
            f"librdkafka refuses the Kafka properties: {error.args[0].str()}. Correct them where "
            "they come from: the gateway's SLUICEWAY_KAFKA_CLIENT_PROPERTIES, this process's "
            "SLUICEWAY_KAFKA_CREDENTIALS, or the call's own"
        ) from error


def is_unavailable(error: KafkaError) -> bool:
    """Whether the error says that brokers do not answer (now)."""
    return error.code() in _UNAVAILABLE


def is_gone(error: KafkaError) -> bool:
    """Whether the error says that there is no such topic or partition."""
    return error.code() in _GONE


def with_retries(
    call: Callable[[float], T],
    *,
    timeout_s: float,
    refresh: Callable[[float], object] = lambda _: None,
) -> T:
    """Return what `call` returns; call it again after a retriable error, for `timeout_s` at most.

    Retriable errors are those that `is_unavailable` names, such as a leader election's, and
    failures that are `retriable`. `call` is given the seconds that are left, and so is `refresh`,
    which runs before each further call. Raises the last error.
    """
    pauses = Backoff(timeout_s)
    while True:
        try:
            return call(max(_SHORTEST_CALL_S, pauses.left_s))
        except (KafkaException, KafkaFailure) as error:
            if not _is_retriable(error) or not pauses.wait():
                raise
        refresh(max(_SHORTEST_CALL_S, pauses.left_s))


def translated(error: KafkaError, *, doing: str, topic: str) -> KafkaFailure:
    """Return what to raise for `error`, which came while `doing` something with `topic`."""
    if is_unavailable(error):
        return KafkaUnavailable(
            f"Kafka did not answer while {doing} (topic {topic}): {error.str()}. Positions are "
            "kept; try again when the brokers are back"
        )
    if is_gone(error):
        return TopicGone(
            f"Kafka has no such topic or partition any more while {doing} (topic {topic}): "
            f"{error.str()}. Open the channel anew to see what became of it"
        )
    return KafkaFailure(f"Kafka refused {doing} (topic {topic}): {error.name()}, {error.str()}")


def _is_retriable(error: KafkaException | KafkaFailure) -> bool:
    if isinstance(error, KafkaFailure):
        return error.retriable
    return is_unavailable(error.args[0])
