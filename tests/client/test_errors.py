"""The exception tree, and the tables that translate foreign errors."""

import gc
import inspect
import logging
import pickle
import threading
import weakref

import pytest
from confluent_kafka import KafkaError

from sluiceway import errors
from sluiceway.api.parsing import BY_CODE
from sluiceway.errors import (
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    CorruptMessage,
    DeliveryFailed,
    Fenced,
    Forbidden,
    GatewayAccessFailed,
    GatewayError,
    GatewayUnavailable,
    IncompatibleGateway,
    InvalidRecord,
    InvalidRequest,
    KafkaFailure,
    KafkaUnavailable,
    OffsetOutOfRange,
    PortError,
    RecordTooLarge,
    SluicewayError,
    TopicGone,
    Unauthenticated,
    UnsupportedType,
)
from sluiceway.kafka.errors import create_client, run_callbacks, translate_error
from sluiceway_gateway.api.openapi import error_codes
from sluiceway_gateway.core.kafka.client import rejection
from sluiceway_gateway.core.kafka.model import Cause

TREE = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, SluicewayError)
]


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_exception_is_in_the_documented_tree_with_a_unique_code(
    kind: type[SluicewayError],
) -> None:
    assert f" {kind.__name__}" in (errors.__doc__ or "")
    assert [other for other in TREE if other.code == kind.code] == [kind]
    assert kind.__doc__


@pytest.mark.parametrize(
    "error",
    [
        GatewayError("no", status=409, code="channel_pinned", errors=[{"pointer": "/spec"}]),
        UnsupportedType(path="a.b", type_name="decimal", hint="use a string"),
        InvalidRecord(index=3, field="a.b", reason="it is null"),
        RecordTooLarge(index=3, size_bytes=2000, limit_bytes=1000),
        DeliveryFailed(partition=2, reason="late", written_records=7, failed_records=5),
        OffsetOutOfRange(partition=1, offset=5, begin=7, end=9),
        CorruptMessage(channel="c", partition=1, offset=5, reason="too short"),
        KafkaUnavailable("no broker"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_can_be_pickled(error: SluicewayError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.code == error.code


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (ChannelNotFound("it was deleted"), True),
        (Conflict("no"), True),
        (Conflict("not yet", code="members_open", retriable=True), False),
        (Fenced("another one has its place"), True),
        (InvalidRequest("no"), True),
        (ChannelNotReady("no topic yet"), False),
        (GatewayUnavailable("no response"), False),
        (GatewayAccessFailed("its certificate has expired"), False),
        (Unauthenticated("its token is replaced"), False),
        (Forbidden("its token is replaced"), False),
        (GatewayError("a fault", status=500, code="internal_error"), False),
        (IncompatibleGateway("the response of a proxy"), False),
        (KafkaUnavailable("no broker"), False),
        (TopicGone("it was deleted"), True),
        (PortError("closing", errors={"a": Forbidden("no"), "b": Fenced("no")}, channels=2), True),
        (PortError("closing", errors={"a": Forbidden("no")}, channels=2), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_final_if_no_repetition_can_succeed(error: SluicewayError, final: bool) -> None:
    assert error.is_final is final


def test_every_code_of_the_gateway_has_an_exception() -> None:
    answered = {error_code.code for error_code in error_codes()}
    assert answered <= BY_CODE.keys()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, KafkaUnavailable),
        (KafkaError._TIMED_OUT, KafkaUnavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, KafkaUnavailable),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicGone),
        (KafkaError._UNKNOWN_PARTITION, TopicGone),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaFailure),
    ],
)
def test_kafka_errors_are_distinguished_by_code(code: int, kind: type[KafkaFailure]) -> None:
    error = translate_error(KafkaError(code), doing="reading", topic="t")
    assert type(error) is kind
    assert "topic t" in str(error)


def named(names: str) -> set[str]:
    return set(names.split())


CODES = {
    name: value
    for name, value in vars(KafkaError).items()
    if isinstance(value, int) and name.lstrip("_").isupper()
}
GONE = {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
# Codes with an underscore are librdkafka's own; Kafka's clients retry the others.
RETRIABLE = named(
    """
    _ALL_BROKERS_DOWN _AUTHENTICATION _DESTROY_BROKER _INTR _ISR_INSUFF _MSG_TIMED_OUT _NODE_UPDATE
    _RESOLVE _RETRY _SSL _TIMED_OUT _TIMED_OUT_QUEUE _TRANSPORT _UNKNOWN_BROKER _WAIT_CACHE
    _WAIT_COORD
    BROKER_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
    ELIGIBLE_LEADERS_NOT_AVAILABLE FENCED_LEADER_EPOCH FETCH_SESSION_ID_NOT_FOUND
    INCONSISTENT_TOPIC_ID INVALID_FETCH_SESSION_EPOCH KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE
    LISTENER_NOT_FOUND NETWORK_EXCEPTION NOT_CONTROLLER NOT_COORDINATOR NOT_ENOUGH_REPLICAS
    NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_FOR_PARTITION OFFSET_NOT_AVAILABLE
    PREFERRED_LEADER_NOT_AVAILABLE REBOOTSTRAP_REQUIRED REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT
    SASL_AUTHENTICATION_FAILED THROTTLING_QUOTA_EXCEEDED UNKNOWN_LEADER_EPOCH
    UNSTABLE_OFFSET_COMMIT
    """
)
# librdkafka's own permanent codes: misuse, properties of the broker or the records, and events that
# are not errors.
LASTING = named(
    """
    _APPLICATION _ASSIGNMENT_LOST _ASSIGN_PARTITIONS _AUTO_OFFSET_RESET _BAD_COMPRESSION _BAD_MSG
    _CONFLICT _CRIT_SYS_RESOURCE _DESTROY _EXISTING_SUBSCRIPTION _FAIL _FATAL _FENCED _FS
    _GAPLESS_GUARANTEE _INCONSISTENT _INVALID_ARG _INVALID_DIFFERENT_RECORD _INVALID_TYPE
    _IN_PROGRESS _KEY_DESERIALIZATION _KEY_SERIALIZATION _LOG_TRUNCATION _MAX_POLL_EXCEEDED _NOENT
    _NOOP _NOT_CONFIGURED _NOT_IMPLEMENTED _NO_OFFSET _OUTDATED _PARTIAL _PARTITION_EOF
    _PREV_IN_PROGRESS _PURGE_INFLIGHT _PURGE_QUEUE _QUEUE_FULL _READ_ONLY _REVOKE_PARTITIONS _STATE
    _UNDERFLOW _UNKNOWN_GROUP _UNKNOWN_PROTOCOL _UNSUPPORTED_FEATURE _VALUE_DESERIALIZATION
    _VALUE_SERIALIZATION
    """
)


def test_every_local_code_of_librdkafka_is_classified_once() -> None:
    assert {name for name in CODES if name.startswith("_")} == {
        name for name in GONE | RETRIABLE | LASTING if name.startswith("_")
    }
    assert not (GONE | RETRIABLE) & LASTING
    assert CODES.keys() >= GONE | RETRIABLE


@pytest.mark.sample
@pytest.mark.parametrize("name", CODES)
def test_every_code_is_classified_as_retriable_or_gone_or_permanent(name: str) -> None:
    kind = TopicGone if name in GONE else KafkaUnavailable if name in RETRIABLE else KafkaFailure
    error = translate_error(KafkaError(CODES[name]), doing="reading", topic="t")
    assert type(error) is kind
    assert error.retriable is (name in RETRIABLE)


def test_gateway_and_client_retry_the_same_codes() -> None:
    retried = {
        name for name in CODES if rejection(KafkaError(CODES[name])).cause is Cause.UNAVAILABLE
    }
    # Its admin client is replaced during requests, and it changes topics.
    assert retried - RETRIABLE == {"_DESTROY", "REASSIGNMENT_IN_PROGRESS"}
    # It fetches no records, and requests no topic ids of logs.
    assert RETRIABLE - retried == {
        "FETCH_SESSION_ID_NOT_FOUND",
        "INCONSISTENT_TOPIC_ID",
        "INVALID_FETCH_SESSION_EPOCH",
    }


@pytest.mark.parametrize(
    ("interrupt", "raised"),
    [(SystemExit(3), SystemExit), (TimeoutError("late"), TimeoutError), (None, KeyboardInterrupt)],
)
def test_an_interrupt_within_a_callback_is_the_handlers_exception(
    interrupt: BaseException | None, raised: type[BaseException]
) -> None:
    def poll() -> None:
        raise SystemError("poll returned a result with an exception set") from interrupt

    with pytest.raises(raised) as caught:
        run_callbacks(poll)
    assert interrupt is None or caught.value is interrupt


def test_an_interrupt_that_a_client_keeps_holds_no_objects_of_its_frames() -> None:
    """confluent-kafka never releases the exception of a callback."""
    kept: list[BaseException] = []

    class Local:
        pass

    def poll() -> None:
        local = Local()
        held.append(weakref.ref(local))
        kept.append(KeyboardInterrupt())
        raise kept[0]

    held: list[weakref.ref[Local]] = []
    with pytest.raises(KeyboardInterrupt):
        run_callbacks(poll)
    gc.collect()
    assert held[0]() is None


def test_clients_are_created_where_no_interrupt_comes() -> None:
    def create(_config: dict[str, object], logger: logging.Logger) -> threading.Thread:
        assert logger.name == "sluiceway.kafka"
        return threading.current_thread()

    assert create_client(create, {}) is not threading.main_thread()
