"""sluiceway.confluent.Consumer as a member of a group: joining, sharing, leaving."""

from collections.abc import Callable
from functools import partial

import pytest
from confluent_facade import (
    BEAT,
    Facade,
    KafkaError,
    at,
    codes,
    offsets,
    polled_until,
    raised,
    taken,
)

from sluiceway.confluent import OFFSET_BEGINNING, Consumer, TopicPartition
from waiting import until

Heard = list[tuple[str, list[tuple[str, int]]]]
EARLIEST = {"auto.offset.reset": "earliest"}


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel(filled=5)


@pytest.fixture
def consumer(consumer: Callable[..., Consumer]) -> Callable[..., Consumer]:
    """Make a consumer that begins with the first message."""
    return partial(consumer, **EARLIEST)


def hearing(heard: Heard, which: str) -> Callable[[Consumer, list[TopicPartition]], None]:
    return lambda _, parts: heard.append((which, [(p.topic, p.partition) for p in parts]))


def test_a_member_alone_has_all_and_goes_on_where_it_was(
    consumer: Callable[..., Consumer], name: str
) -> None:
    heard: Heard = []
    first = consumer(**{"enable.auto.commit": True})
    first.subscribe([name], on_assign=hearing(heard, "on"), on_revoke=hearing(heard, "off"))
    assert offsets(taken(first, 10)) == {0: [*range(5)], 1: [*range(5)]}
    both = [(name, 0), (name, 1)]
    assert heard == [("on", both)]
    assert [(each.topic, each.partition) for each in first.assignment()] == both
    first.close()
    assert heard == [("on", both), ("off", both)]
    second = consumer()
    second.subscribe([name])
    polled_until(lambda: len(second.assignment()) == 2, second)
    assert [each.offset for each in second.committed([at(name), at(name, 1)])] == [5, 5]
    assert second.poll(0.2) is None


def test_members_share_and_a_partition_passes_on_with_its_place(
    consumer: Callable[..., Consumer], name: str
) -> None:
    heard: Heard = []
    first = consumer(**{"enable.auto.commit": True})
    first.subscribe([name], on_revoke=hearing(heard, "off"))
    taken(first, 10)
    second = consumer(**{"enable.auto.commit": True})
    second.subscribe([name])
    polled_until(lambda: bool(second.assignment()), first, second)
    polled_until(lambda: len(first.assignment()) == 1, first, second)
    (kept,), (passed,) = first.assignment(), second.assignment()
    assert {kept.partition, passed.partition} == {0, 1}
    assert heard == [("off", [(name, passed.partition)])]
    # What the first one had read of it was committed when it let go.
    assert second.committed([passed])[0].offset == 5
    assert second.poll(0.2) is None
    second.unsubscribe()
    assert second.assignment() == []
    polled_until(lambda: len(first.assignment()) == 2, first)


def test_on_assign_says_where_to_begin(consumer: Callable[..., Consumer], name: str) -> None:
    def rewind(reader: Consumer, parts: list[TopicPartition]) -> None:
        for part in parts:
            part.offset = OFFSET_BEGINNING if part.partition else 3
        reader.assign(parts)

    reader = consumer()
    reader.subscribe([name], on_assign=rewind)
    assert offsets(taken(reader, 7)) == {0: [3, 4], 1: [0, 1, 2, 3, 4]}


def test_several_channels_and_regexes_of_them(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    other = site.channel(filled=2, partitions=1)
    reader = consumer()
    reader.subscribe([name])
    taken(reader, 10)
    reader.subscribe([f"^{name}$", other])
    assert {message.topic() for message in taken(reader, 2)} == {other}
    assert len(reader.assignment()) == 3
    reader.subscribe([other])
    polled_until(lambda: [each.topic for each in reader.assignment()] == [other], reader)


def test_a_channel_that_is_not_there_is_an_event_and_is_read_once_it_is_there(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    reader = consumer()
    reader.subscribe([f"{name}-later", name])
    first = taken(reader, 1)
    assert codes(first) == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    assert first[0].topic() == f"{name}-later"
    assert len(offsets(taken(reader, 10))) == 2
    later = site.gateway.channel(f"{name}-later", format="bytes", heartbeat=BEAT)
    with later.writer() as writer:
        writer.write({"value": b"now"})
    # It is told once, and looked for again and again.
    assert [message.value() for message in taken(reader, 1)] == [b"now"]


def test_who_assigns_does_not_subscribe_and_the_other_way_round(
    consumer: Callable[..., Consumer], name: str
) -> None:
    hpe = consumer(**{"sluiceway.behaves.like": "hpe"})
    hpe.assign([at(name, 0, 0)])
    assert raised(hpe.subscribe, [name]) == KafkaError._CONFLICT
    hpe.unassign()
    hpe.subscribe([name])
    usual = consumer(**{"group.id": "another"})
    usual.assign([at(name, 0, 0)])
    usual.subscribe([name])
    assert usual.assignment() == []
    assert raised(usual.assign, [at(name)]) == KafkaError._CONFLICT
    usual.unassign()
    polled_until(lambda: len(usual.assignment()) == 2, usual)
    for wrong in (name, [1], None):
        with pytest.raises(TypeError):
            usual.subscribe(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        usual.subscribe([name], on_assign=1)  # type: ignore[arg-type]


def test_while_a_group_has_members_nobody_else_commits_for_it(
    consumer: Callable[..., Consumer], name: str
) -> None:
    lone = consumer()
    lone.assign([at(name, 0, 0)])
    taken(lone, 2)
    member = consumer()
    member.subscribe([name])
    taken(member, 1)
    assert raised(lone.commit, asynchronous=False) == KafkaError.UNKNOWN_MEMBER_ID
    member.close()
    lone.commit(asynchronous=False)


def test_a_member_that_was_put_out_hears_that_its_partitions_are_lost(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    heard: Heard = []
    reader = consumer()
    reader.subscribe([name], on_revoke=hearing(heard, "off"), on_lost=hearing(heard, "lost"))
    taken(reader, 10)
    channel = site.gateway.channel(name)
    channel.dismiss(str(reader.memberid()))
    assert raised(reader.commit, asynchronous=False) == KafkaError.UNKNOWN_MEMBER_ID
    (event,) = taken(reader, 1)
    assert codes([event]) == [KafkaError.UNKNOWN_MEMBER_ID]
    assert event.error().fatal()
    assert heard == [("lost", [(name, 0), (name, 1)])]
    assert reader.assignment() == []


def test_a_stale_generation_is_told_and_reading_goes_on_where_the_group_is(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    reader = consumer()
    reader.subscribe([name])
    taken(reader, 10)
    channel = site.gateway.channel(name)
    channel.reset("g", {0: 2, 1: 2}, reason="again, for a test", force=True)
    assert raised(reader.commit, asynchronous=False) == KafkaError.ILLEGAL_GENERATION
    assert offsets(taken(reader, 6)) == {0: [2, 3, 4], 1: [2, 3, 4]}


def test_a_consumer_that_is_forgotten_leaves_its_group(site: Facade, name: str) -> None:
    reader = site.consumer(**EARLIEST)
    reader.subscribe([name])
    taken(reader, 1)
    channel = site.gateway.channel(name)
    assert len([each for each in channel.endpoints() if each.lives]) == 1
    del reader
    until(lambda: not [each for each in channel.endpoints() if each.lives])
