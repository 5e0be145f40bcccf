from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import ListConsumerGroupsResult

from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.client import CAUSES, Client, rejection
from sluiceway_gateway.core.kafka.model import Cause

CODES = sorted(
    {
        value
        for name, value in vars(KafkaError).items()
        if isinstance(value, int) and name.lstrip("_").isupper()
    }
)


@pytest.mark.sample
@pytest.mark.parametrize("code", CODES)
def test_every_code_that_librdkafka_knows_is_translated(code: int) -> None:
    assert rejection(KafkaError(code, "words")).cause in Cause


def test_the_table_names_only_codes_that_exist() -> None:
    assert CAUSES.keys() <= set(CODES)


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.OTHER])
def test_every_cause_has_a_code(cause: Cause) -> None:
    assert cause in {rejection(KafkaError(code)).cause for code in CODES}


def test_an_unlisted_code_is_other_unless_kafka_calls_it_retriable() -> None:
    assert rejection(KafkaError(KafkaError.INVALID_TIMESTAMP, "w")).cause is Cause.OTHER
    retriable = KafkaError(KafkaError.INVALID_TIMESTAMP, "w", False, True)
    assert rejection(retriable).cause is Cause.UNAVAILABLE


def test_the_brokers_message_is_kept() -> None:
    error = KafkaError(KafkaError.INVALID_CONFIG, "Value must be at least 1048576")
    assert rejection(error).message == "Value must be at least 1048576"


def test_an_operation_that_acls_forbid_is_named() -> None:
    client = Client("127.0.0.1:1", {})
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied")
    failure = client.failure(error, "flights", "READ")
    assert "the operation READ on the topic flights" in str(failure)
    assert "add the ACL" in str(failure)


@pytest.mark.parametrize(
    ("failure", "needs_acl"),
    [
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, False),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, True),
    ],
)
def test_a_group_that_its_coordinator_did_not_list_may_have_members(
    monkeypatch: pytest.MonkeyPatch, failure: int, needs_acl: bool
) -> None:
    listing: Future[ListConsumerGroupsResult] = Future()
    listing.set_result(ListConsumerGroupsResult(valid=[], errors=[KafkaError(failure, "failed")]))
    admin = KafkaAdmin("127.0.0.1:1")
    # A broker answers here as one without the group.
    monkeypatch.setattr(admin.client, "committed", lambda *_, **__: [])
    # A coordinator that fails once among several cannot be ordered from a broker.
    monkeypatch.setattr(admin.client.admin, "list_consumer_groups", lambda **_: listing)
    with pytest.raises(
        KafkaUnavailable, match=r"group 'billing': failed\. .*request again"
    ) as caught:
        admin.consumer_group("billing", "orders", [0])
    assert ("DESCRIBE" in str(caught.value)) == needs_acl
