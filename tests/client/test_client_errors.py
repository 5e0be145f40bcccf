"""The exception tree, and the tables that foreign errors go through."""

import inspect
import pickle

import pytest
from confluent_kafka import KafkaError

from sluiceway import errors
from sluiceway.errors import (
    CorruptMessage,
    DeliveryFailed,
    GatewayError,
    InvalidRecord,
    KafkaFailure,
    KafkaUnavailable,
    OffsetOutOfRange,
    RecordTooLarge,
    SluicewayError,
    TopicGone,
    UnsupportedType,
)
from sluiceway.kafka.failures import translated
from sluiceway.problems import BY_CODE
from sluiceway_gateway.domain import errors as gateway_errors

TREE = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, SluicewayError)
]


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_exception_is_drawn_in_the_tree_and_has_a_code_of_its_own(
    kind: type[SluicewayError],
) -> None:
    assert f" {kind.__name__}" in (errors.__doc__ or "")
    assert [each for each in TREE if each.code == kind.code] == [kind]
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
def test_exceptions_travel_between_processes_whole(error: SluicewayError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.code == error.code


def test_every_code_that_the_gateway_can_answer_has_its_exception() -> None:
    answered = {
        each.code
        for _, each in inspect.getmembers(gateway_errors, inspect.isclass)
        if issubclass(each, gateway_errors.SluicewayGatewayError)
        and not issubclass(each, gateway_errors.StartupRefused)
    }
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
def test_kafka_errors_are_told_apart_by_code(code: int, kind: type[KafkaFailure]) -> None:
    error = translated(KafkaError(code), doing="reading", topic="t")
    assert type(error) is kind
    assert "topic t" in str(error)
