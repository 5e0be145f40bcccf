"""sluiceway.confluent.Consumer as a member of a group: joining, rebalancing, leaving."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import confluent_kafka
import httpx
import pytest

from confluent_facade import (
    BEAT,
    Facade,
    KafkaError,
    at,
    codes,
    error_code_of,
    offsets,
    poll_messages,
    poll_until,
)
from sluiceway.confluent import OFFSET_BEGINNING, OFFSET_INVALID, Consumer, TopicPartition, members
from topics import Topics
from waiting import until

Heard = list[tuple[str, list[tuple[str, int]]]]
GONE = KafkaError.UNKNOWN_TOPIC_OR_PART
EARLIEST = {"auto.offset.reset": "earliest"}


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel(filled=5)


@pytest.fixture
def consumer(consumer: Callable[..., Consumer]) -> Callable[..., Consumer]:
    """Create a consumer that starts at the first message."""
    return partial(consumer, **EARLIEST)


def hearing(received: Heard, which: str) -> Callable[[Consumer, list[TopicPartition]], None]:
    return lambda _, parts: received.append((which, [(p.topic, p.partition) for p in parts]))


def test_a_single_member_has_all_partitions_and_continues_after_a_restart(
    consumer: Callable[..., Consumer], name: str
) -> None:
    received: Heard = []
    first = consumer(**{"enable.auto.commit": True})
    first.subscribe([name], on_assign=hearing(received, "on"), on_revoke=hearing(received, "off"))
    assert offsets(poll_messages(first, 10)) == {0: [*range(5)], 1: [*range(5)]}
    both = [(name, 0), (name, 1)]
    assert received == [("on", both)]
    assert [(place.topic, place.partition) for place in first.assignment()] == both
    first.close()
    assert received == [("on", both), ("off", both)]
    second = consumer()
    second.subscribe([name])
    poll_until(lambda: len(second.assignment()) == 2, second)
    assert [place.offset for place in second.committed([at(name), at(name, 1)])] == [5, 5]
    assert second.poll(0.2) is None


@pytest.mark.long
def test_reassigned_partitions_keep_their_offsets(
    consumer: Callable[..., Consumer], name: str
) -> None:
    received: Heard = []
    first = consumer(**{"enable.auto.commit": True})
    first.subscribe([name], on_revoke=hearing(received, "off"))
    poll_messages(first, 10)
    second = consumer(**{"enable.auto.commit": True})
    second.subscribe([name])
    poll_until(lambda: bool(second.assignment()), first, second)
    poll_until(lambda: len(first.assignment()) == 1, first, second)
    (kept,), (passed,) = first.assignment(), second.assignment()
    assert {kept.partition, passed.partition} == {0, 1}
    assert received == [("off", [(name, passed.partition)])]
    # The first consumer committed what it had read before the partition was revoked.
    assert second.committed([passed])[0].offset == 5
    assert second.poll(0.2) is None
    second.unsubscribe()
    assert second.assignment() == []
    poll_until(lambda: len(first.assignment()) == 2, first)


def test_on_assign_sets_the_start_offsets(consumer: Callable[..., Consumer], name: str) -> None:
    def rewind(reader: Consumer, parts: list[TopicPartition]) -> None:
        for part in parts:
            part.offset = OFFSET_BEGINNING if part.partition else 3
        reader.assign(parts)

    reader = consumer()
    reader.subscribe([name], on_assign=rewind)
    assert offsets(poll_messages(reader, 7)) == {0: [3, 4], 1: [0, 1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("choose", "chosen"),
    [
        (lambda reader, parts: reader.assign(parts[:1]), {0}),
        (lambda reader, parts: reader.incremental_assign(parts[1:]), {1}),
        (lambda reader, parts: [reader.assign(parts), reader.assign(parts[1:])], {1}),
        (lambda reader, parts: [reader.assign(parts), reader.incremental_unassign(parts[1:])], {0}),
        (lambda reader, _: reader.assign([]), set()),
        (lambda reader, _: reader.unassign(), set()),
    ],
)
def test_partitions_that_on_assign_leaves_out_are_not_read(
    consumer: Callable[..., Consumer],
    name: str,
    choose: Callable[[Consumer, list[TopicPartition]], object],
    chosen: set[int],
) -> None:
    calls: Heard = []

    def on_assign(reader: Consumer, parts: list[TopicPartition]) -> None:
        hearing(calls, "on")(reader, parts)
        choose(reader, parts)

    reader = consumer(**{"enable.auto.commit": True})
    reader.subscribe([name], on_assign=on_assign, on_revoke=hearing(calls, "off"))
    messages = poll_messages(reader, 5 * len(chosen))
    poll_until(lambda: bool(calls), reader)
    assert {place.partition for place in reader.assignment()} == chosen
    assert reader.poll(0.2) is None
    assert set(offsets(messages)) == chosen
    reader.unsubscribe()
    # They belong to the member, but nothing of them is committed.
    both = [(name, 0), (name, 1)]
    assert calls == [("on", both), ("off", both)]
    committed = [place.offset for place in reader.committed([at(name), at(name, 1)])]
    assert committed == [5 if number in chosen else OFFSET_INVALID for number in (0, 1)]


def test_subscribing_to_several_channels_and_regexes(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    other = site.channel(filled=2, partitions=1)
    reader = consumer()
    reader.subscribe([name])
    poll_messages(reader, 10)
    reader.subscribe([f"^{name}$", other])
    assert {message.topic() for message in poll_messages(reader, 2)} == {other}
    assert len(reader.assignment()) == 3
    reader.subscribe([other])
    poll_until(lambda: [place.topic for place in reader.assignment()] == [other], reader)


@pytest.mark.long
def test_an_unknown_channel_is_an_event_and_is_read_once_it_exists(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    reader = consumer()
    reader.subscribe([f"{name}-later", name])
    first = poll_messages(reader, 1)
    assert codes(first) == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    assert first[0].topic() == f"{name}-later"
    assert len(offsets(poll_messages(reader, 10))) == 2
    later = site.gateway.channel(f"{name}-later", format="bytes", heartbeat=BEAT)
    with later.writer() as writer:
        writer.write({"value": b"now"})
    # The event is returned once, and joining is retried.
    assert [message.value() for message in poll_messages(reader, 1)] == [b"now"]


def test_assign_and_subscribe_exclude_each_other(
    consumer: Callable[..., Consumer], name: str
) -> None:
    hpe = consumer(**{"sluiceway.behaves.like": "hpe"})
    hpe.assign([at(name, 0, 0)])
    assert error_code_of(hpe.subscribe, [name]) == KafkaError._CONFLICT
    hpe.unassign()
    hpe.subscribe([name])
    usual = consumer(**{"group.id": "another"})
    usual.assign([at(name, 0, 0)])
    usual.subscribe([name])
    assert usual.assignment() == []
    assert error_code_of(usual.assign, [at(name)]) == KafkaError._CONFLICT
    usual.unassign()
    poll_until(lambda: len(usual.assignment()) == 2, usual)
    for wrong in (name, [1], None):
        with pytest.raises(TypeError):
            usual.subscribe(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        usual.subscribe([name], on_assign=1)  # type: ignore[arg-type]


def test_only_members_commit_for_a_group_that_has_members(
    consumer: Callable[..., Consumer], name: str
) -> None:
    lone = consumer()
    lone.assign([at(name, 0, 0)])
    poll_messages(lone, 2)
    member = consumer()
    member.subscribe([name])
    poll_messages(member, 1)
    assert error_code_of(lone.commit, asynchronous=False) == KafkaError.UNKNOWN_MEMBER_ID
    member.close()
    lone.commit(asynchronous=False)


def test_a_removed_member_loses_its_partitions(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    received: Heard = []
    reader = consumer()
    reader.subscribe([name], on_revoke=hearing(received, "off"), on_lost=hearing(received, "lost"))
    poll_messages(reader, 10)
    channel = site.gateway.channel(name)
    channel.dismiss(str(reader.memberid()))
    assert error_code_of(reader.commit, asynchronous=False) == KafkaError.UNKNOWN_MEMBER_ID
    (event,) = poll_messages(reader, 1)
    assert codes([event]) == [KafkaError.UNKNOWN_MEMBER_ID]
    assert event.error().fatal()
    assert event
    assert received == [("lost", [(name, 0), (name, 1)])]
    assert reader.assignment() == []


@pytest.mark.sample
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("subscribed", [True, False])
def test_a_consumer_loses_a_topic_that_is_created_again(
    consumer: Callable[..., Consumer],
    site: Facade,
    topics: Topics,
    monkeypatch: pytest.MonkeyPatch,
    *,
    subscribed: bool,
    delivery: str,
) -> None:
    # Users have no option for the interval of 5 s.
    monkeypatch.setattr(members, "_TOPIC_CHECK_S", 0.2)
    name = site.channel(delivery=delivery)
    received: Heard = []
    with site.producer() as producer:
        producer.produce(name, b"old", partition=0)
    reader = consumer()
    if subscribed:
        reader.subscribe([name], on_lost=hearing(received, "lost"))
    else:
        reader.assign([at(name, partition, 0) for partition in (0, 1)])
    assert [message.value() for message in poll_messages(reader, 1)] == [b"old"]
    connection = site.gateway.channel(name).connection("read")
    topics.create_again(connection.topic_name, connection.partitions)

    def lost() -> bool:
        # librdkafka has errors of its own while the topic is away.
        error = message.error() if (message := reader.poll(0.1)) else None
        return error is not None and error.fatal() and error.code() == GONE

    until(lost)
    assert reader.assignment() == []
    assert received == ([("lost", [(name, 0), (name, 1)])] if subscribed else [])


def test_after_a_stale_generation_reading_continues_at_the_committed_offset(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    reader = consumer()
    reader.subscribe([name])
    poll_messages(reader, 10)
    channel = site.gateway.channel(name)
    channel.reset("g", {0: 2, 1: 2}, reason="again, for a test", force=True)
    assert error_code_of(reader.commit, asynchronous=False) == KafkaError.REBALANCE_IN_PROGRESS
    assert offsets(poll_messages(reader, 6)) == {0: [2, 3, 4], 1: [2, 3, 4]}


def test_a_commit_of_kept_partitions_succeeds_while_another_thread_rebalances(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    reader, other = consumer(), consumer()
    reader.subscribe([name])
    poll_messages(reader, 10)
    path = f"{site.url}/v1/channels/{name}/endpoints/{reader.memberid()}"
    with httpx.Client() as http:
        epoch = http.get(path).json()["epoch"]

        def sync(**take: int | None) -> dict[str, Any]:
            body = {"uid": site.gateway.channel(name).uid, "epoch": epoch, **take}
            response = http.post(f"{path}/sync", json=body)
            assert response.status_code == 200, response.text
            result: dict[str, Any] = response.json()
            return result

        before = sync()
        other.subscribe([name])
        poll_until(lambda: sync()["generation"] > before["generation"], other)
        # As the first request of the rebalance in a poll, whose response has not arrived yet.
        offered = sync()
        assert sync(take=offered["generation"], has=offered["has"])["taken"]
        kept = {p: at for p, at in reader_positions(reader).items() if p in sync()["held"]}
    assert kept
    places = [at(name, partition, offset) for partition, offset in kept.items()]
    committed = reader.commit(offsets=places, asynchronous=False)
    assert {place.partition: place.offset for place in committed} == kept


def reader_positions(reader: Consumer) -> dict[int, int]:
    return {place.partition: place.offset for place in reader.position(reader.assignment())}


def test_an_abandoned_consumer_leaves_its_group(site: Facade, name: str) -> None:
    reader = site.consumer(**EARLIEST)
    reader.subscribe([name])
    poll_messages(reader, 1)
    channel = site.gateway.channel(name)
    assert len([endpoint for endpoint in channel.endpoints() if endpoint.lives]) == 1
    del reader
    until(lambda: not [endpoint for endpoint in channel.endpoints() if endpoint.lives])


@pytest.mark.long
def test_an_abandoned_consumer_that_has_committed_releases_its_kafka_client(
    site: Facade, name: str
) -> None:
    def kafka_clients() -> set[int]:
        gc.collect()
        return {
            id(client)
            for client in gc.get_objects()
            if issubclass(type(client), confluent_kafka.Consumer)
        }

    before = kafka_clients()
    reader = site.consumer(**EARLIEST)
    reader.assign([at(name, 0, 0)])
    poll_messages(reader, 1)
    reader.commit()
    until(lambda: site.gateway.channel(name).committed("g") != {})
    own = kafka_clients() - before
    assert own
    del reader
    until(lambda: not own & kafka_clients())
