"""Invalid input on exactly-once channels through the client: refused with advice, no loss."""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from ledger_view import LedgerView
from sluiceway import Channel, Gateway
from sluiceway.api.ledger import BatchRequest, Interval
from sluiceway.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    OffsetOutOfRange,
    SluicewayError,
    TopicGone,
)
from sluiceway.ledger.intervals import WrittenRecords
from sluiceway.ledger.write_batch import WriteBatch
from topics import DEFINITION, Topics, readings
from waiting import until

NewChannel = Callable[..., Channel]


@pytest.fixture
def channel(new_ledgered: NewChannel) -> Channel:
    """A channel with ten committed records in partition 0, and none in partition 1."""
    channel = new_ledgered()
    with channel.writer(partition=0) as writer:
        writer.write(readings(10))
    return channel


def batch_of(channel: Channel, ledger: LedgerView, key: str = "k", **options: Any) -> WriteBatch:
    wishes = {"owner": "query", "instance": "run-1", **options}
    batch = WriteBatch(
        ledger.calls, BatchRequest(channel=channel.name, uid=channel.uid, key=key, **wishes)
    )
    batch.open()
    return batch


def written(*intervals: tuple[int, int], partition: int = 0) -> WrittenRecords:
    listed = tuple(Interval(*bounds) for bounds in intervals)
    count = sum(end - first for first, end in listed)
    return WrittenRecords(manifest={partition: listed}, counts={partition: count})


def ids(channel: Channel, **options: Any) -> list[int]:
    with channel.reader(**{"until": "now", **options}) as reader:
        return sorted(record["id"] for record in reader)


def uncommitted(channel: Channel) -> int | None:
    ledger = channel.report().ledger
    return None if ledger is None else ledger.uncommitted_messages


@pytest.mark.sample
@pytest.mark.parametrize(
    ("listed", "advice"),
    [
        (written((5, 8)), "committed|visible|begin|earlier"),
        (written((10, 12), (11, 13)), "overlap|order|sorted|before"),
        (written((12, 12)), "empty|end|first"),
        (written((0, 1), partition=7), "partition"),
    ],
    ids=["below its begin", "overlapping", "empty interval", "no such partition"],
)
def test_an_impossible_manifest_is_refused(
    channel: Channel, ledger: LedgerView, listed: WrittenRecords, advice: str
) -> None:
    batch = batch_of(channel, ledger)
    with pytest.raises((Conflict, InvalidRequest), match=f"(?i){advice}"):
        batch.commit(listed)
    batch.abort(ValueError("given up"))
    assert ids(channel) == list(range(10))


@pytest.mark.long
def test_offsets_that_kafka_does_not_have_are_never_visible(
    channel: Channel, ledger: LedgerView
) -> None:
    batch = batch_of(channel, ledger)
    with pytest.raises(SluicewayError):
        batch.commit(written((10, 1000)), timeout_s=1)
    batch.abort(ValueError("given up"))
    with channel.writer(partition=0) as writer:
        writer.write(readings(5, 10))
    assert ids(channel) == list(range(15))


def test_a_batch_of_yesterday_is_refused(channel: Channel, ledger: LedgerView) -> None:
    batch_of(channel, ledger, "q-2", ordinal=2, takeover=True).commit(WrittenRecords())
    with pytest.raises(Conflict, match="checkpoint") as raised:
        batch_of(channel, ledger, "q-1", instance="run-2", ordinal=1, takeover=True)
    assert raised.value.code == "stale_batch"
    assert ids(channel) == list(range(10))


@pytest.mark.parametrize("adopted", [False, True], ids=["compacted", "adopted"])
def test_a_topic_that_could_lose_committed_records_is_refused(
    gateway: Gateway, topics: Topics, *, adopted: bool
) -> None:
    wrong: dict[str, Any] = {"config": {"cleanup.policy": "compact"}}
    if adopted:
        wrong = {"topic": f"adopted-{uuid.uuid4().hex[:8]}"}
        topics.create(wrong["topic"])
    with pytest.raises(GatewayError, match=r"exactly_once|exactly-once|delivery"):
        gateway.channel("unmade", DEFINITION, delivery="exactly_once", **wrong)


def test_messages_of_a_foreign_producer_stay_invisible_and_are_counted(
    channel: Channel, topics: Topics
) -> None:
    name = channel.connection("read").topic_name
    topics.produce(name, 0, [b"foreign"] * 5)
    topics.produce_in_transaction(name, 0, [b"foreign"] * 5)
    assert ids(channel) == list(range(10))
    with channel.reader(group="watched", until=None):
        # Ten messages, and the marker that ends Kafka's transaction.
        until(lambda: uncommitted(channel) == 11)
    with channel.writer(partition=0) as writer:
        writer.write(readings(5, 10))
    assert ids(channel) == list(range(15))


def test_committed_records_that_were_deleted_are_out_of_range(
    channel: Channel, topics: Topics
) -> None:
    topics.truncate(channel.connection("read").topic_name, 0, 4)
    with pytest.raises(OffsetOutOfRange):
        ids(channel, start={0: 2})
    assert ids(channel) == list(range(4, 10))


@pytest.mark.long
def test_a_position_in_a_deleted_topic_is_refused_in_the_next_topic(
    gateway: Gateway, channel: Channel, topics: Topics
) -> None:
    connection = channel.connection("read")
    with channel.reader(until=None) as reader:
        assert len(reader.read(5, timeout=None)) == 5
        topics.delete(connection.topic_name)
        topics.create(connection.topic_name, 2)
        with pytest.raises((TopicGone, Conflict)):
            until(lambda: reader.read(100, timeout=1) is None)


def test_an_older_client_is_told_to_upgrade(channel: Channel, gateway_url: str) -> None:
    path = f"{gateway_url}/v1/channels/{channel.name}/connection?access=read"
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(path)  # noqa: S310 - the gateway's own address
    with raised.value as response:
        text = json.dumps(json.load(response))
    assert raised.value.code == 409
    assert "Upgrade sluiceway" in text
