"""Translation of Kafka errors into Sluiceway's, by code."""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from sluiceway.api.transport import Backoff
from sluiceway.concurrency import keep_in_children
from sluiceway.errors import (
    KafkaFailure,
    KafkaUnavailable,
    OptionError,
    TopicGone,
    clear_tracebacks,
)
from sluiceway.kafka.config import MaskedProperties
from sluiceway.runtime.threads import call as call_apart

__all__ = [
    "create_client",
    "is_gone",
    "is_unavailable",
    "run_callbacks",
    "translate_error",
    "with_retries",
]

C = TypeVar("C")
T = TypeVar("T")

LOGGER = logging.getLogger("sluiceway.kafka")
"""The logger of librdkafka; silent until the application configures it."""
LOGGER.addHandler(logging.NullHandler())

_SHORTEST_CALL_S = 0.1

_GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_UNAVAILABLE = frozenset(
    {
        # Errors that Kafka's own clients retry.
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
        # librdkafka's local codes for temporary errors: connections, brokers, missing metadata. The
        # diagnosis recognizes refused access among them.
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._AUTHENTICATION,
        KafkaError._DESTROY_BROKER,
        KafkaError._INTR,
        KafkaError._ISR_INSUFF,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._NODE_UPDATE,
        KafkaError._RESOLVE,
        KafkaError._RETRY,
        KafkaError._SSL,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_BROKER,
        KafkaError._WAIT_CACHE,
        KafkaError._WAIT_COORD,
    }
)


def create_client(client: Callable[..., C], config: Mapping[str, Any]) -> C:
    """Create a librdkafka client. Raises OptionError for invalid properties.

    Its log goes to the property `logger`, by default to that of this module; with None librdkafka
    prints it.
    """
    if isinstance(client, type) and not client.__weakrefoffset__:
        client = _weakly_referenced(client)

    properties = MaskedProperties(config)
    logger = properties.pop("logger", LOGGER)
    named = {} if logger is None else {"logger": logger}

    def create() -> C:
        created = client(properties, **named)
        keep_in_children(created)
        return created

    try:
        # The binding turns an interrupt into a TypeError.
        return call_apart(create)
    except KafkaException as error:
        clear_tracebacks(error)
        raise OptionError(
            f"librdkafka refuses the Kafka properties: {error.args[0].str()}. Correct their "
            "source: the gateway's SLUICEWAY_KAFKA_CLIENT_PROPERTIES, this process's "
            "SLUICEWAY_KAFKA_CREDENTIALS, or the arguments of the call"
        ) from error


@functools.cache
def _weakly_referenced(client: type) -> Callable[..., Any]:
    """Return a class of the binding with weak references to its instances."""
    return type(client.__name__, (client,), {"__slots__": ("__weakref__",)})


def run_callbacks(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Return the result of a call of librdkafka's that runs callbacks in this thread.

    Raises the exception of a signal handler that raises within a callback.
    """
    try:
        return call(*arguments, **named)
    except KeyboardInterrupt as interrupt:
        raise _released(interrupt) from None
    except SystemError as error:
        raise _released(_handler_exception(error)) from None


def _released(error: BaseException) -> BaseException:
    """Return an interrupt in the place of one that confluent-kafka's binding never releases.

    Its traceback would keep the client of each frame.
    """
    if not isinstance(error, KeyboardInterrupt):
        return error
    error.__traceback__ = error.__context__ = None
    return KeyboardInterrupt(*error.args)


def _handler_exception(error: BaseException) -> BaseException:
    """Return the exception of a signal handler that raised within a callback; else the `error`.

    The interpreter may replace it by a SystemError. If that does not have it, it is the usual
    KeyboardInterrupt.
    """
    if not isinstance(error, SystemError):
        return error
    return error.__cause__ or KeyboardInterrupt()


def is_unavailable(error: KafkaError) -> bool:
    """Whether brokers do not answer at the moment."""
    return error.code() in _UNAVAILABLE


def is_gone(error: KafkaError) -> bool:
    """Whether the topic or partition does not exist."""
    return error.code() in _GONE


def with_retries(
    call: Callable[[float], T],
    *,
    timeout_s: float,
    refresh: Callable[[float], object] = lambda _: None,
) -> T:
    """Return the result of `call`; retry it after retriable errors, for `timeout_s` at most.

    Kafka errors are retried if `is_unavailable`, such as in a leader election, and exceptions if
    `retriable`. `call`, and `refresh` before each retry, get the remaining seconds. Raises the last
    error.
    """
    backoff = Backoff(timeout_s)
    while True:
        try:
            return call(max(_SHORTEST_CALL_S, backoff.left_s))
        except (KafkaException, KafkaFailure) as error:
            failure = isinstance(error, KafkaFailure)
            retriable = error.retriable if failure else is_unavailable(error.args[0])
            if not retriable or not backoff.wait():
                raise
        refresh(max(_SHORTEST_CALL_S, backoff.left_s))


def translate_error(error: KafkaError, *, doing: str, topic: str) -> KafkaFailure:
    """Return the exception for an error of librdkafka, which occurred while `doing`."""
    if is_unavailable(error):
        return KafkaUnavailable(
            f"Kafka did not answer while {doing} (topic {topic}): {error.str()}. Positions are "
            "unchanged; try again when the brokers are available"
        )
    if is_gone(error):
        return TopicGone(
            f"the topic {topic} or a partition of it does not exist any more (while {doing}): "
            f"{error.str()}. Open the channel again to see its state"
        )
    return KafkaFailure(f"Kafka refused {doing} (topic {topic}): {error.name()}, {error.str()}")
