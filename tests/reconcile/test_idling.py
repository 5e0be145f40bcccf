"""Idle channels are closed and removed, on a real broker and a manual clock."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from confluent_kafka import Producer

from reconciler_rig import Rig
from sluiceway_gateway.audit import store as audit_store
from sluiceway_gateway.auth.service import LOOPBACK, Tokens
from sluiceway_gateway.channels.model import Channel, Phase, TopicRef
from sluiceway_gateway.endpoints.attach_request import AttachRequest, AttachSpec
from sluiceway_gateway.endpoints.change_store import events_of_group
from sluiceway_gateway.endpoints.model import Role, State
from sluiceway_gateway.endpoints.service import AttachService, DetachSpec, Endpoints
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.lifecycle.idle import IdleCounts, TtlReaper, UsageRecorder
from sluiceway_gateway.lifecycle.store import record_use
from topics import Topics

IDLE_S = 600


@dataclass
class Owner:
    """Runs as the leading replica does, every ten seconds of the manual clock."""

    rig: Rig
    channel: Channel
    idler: TtlReaper = field(init=False)
    start: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.succeed()

    def succeed(self, kafka: KafkaAdmin | None = None) -> None:
        """Have another replica lead, which remembers nothing."""
        self.start = self.rig.clock.now
        self.idler = TtlReaper(
            database=self.rig.database,
            logs=kafka or self.rig.kafka,
            clock=self.rig.clock,
            monotonic=lambda: (self.rig.clock.now - self.start).total_seconds(),
        )

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock; no time passes."""
        self.rig.clock.advance(seconds)
        self.start += timedelta(seconds=seconds)

    def on(self, seconds: float) -> IdleCounts:
        """Let time pass; return the summed counts."""
        counts = IdleCounts()
        for _ in range(int(seconds // 10)):
            self.rig.clock.advance(10)
            each = self.idler.run_once()
            counts = IdleCounts(
                looked_at=counts.looked_at + each.looked_at,
                closed=counts.closed + each.closed,
                removed=counts.removed + each.removed,
                changed=counts.changed + each.changed,
            )
        return counts

    @property
    def phase(self) -> Phase:
        return self.rig.get(self.channel).phase

    def said(self) -> tuple[str, str, str]:
        condition = self.rig.get(self.channel).condition("Idle")
        assert condition is not None
        return condition.status, condition.reason, condition.message


@pytest.fixture
def owner(rig: Rig) -> Owner:
    return Owner(rig, rig.ready(idle_ms=IDLE_S * 1000))


def produce(rig: Rig, channel: Channel) -> None:
    producer = Producer({"bootstrap.servers": rig.kafka.bootstrap_servers})
    # By a clock that is years behind.
    producer.produce(channel.topic.name, b"x", partition=0, timestamp=1_000_000_000_000)
    assert producer.flush(30) == 0


def test_an_idle_channel_is_announced_closed_and_then_removed(
    owner: Owner,
) -> None:
    start = owner.rig.clock.now
    counts = owner.on(IDLE_S / 2 - 10)
    # Nothing was asked of Kafka, and nothing new was written but that the channel is in use.
    assert (counts.looked_at, counts.changed) == (0, 1)
    assert owner.said()[:2] == ("False", "InUse")
    owner.on(10)
    status, reason, message = owner.said()
    assert (status, reason) == ("False", "Quiet")
    closes_at = f"{start + timedelta(seconds=IDLE_S):%Y-%m-%d %H:%M:%S}"
    assert f"it is closed at {closes_at} UTC, and removed 10 minutes later" in message
    assert owner.on(IDLE_S / 2 - 10).closed == 0
    assert owner.on(10).closed == 1
    channel = owner.rig.get(owner.channel)
    assert channel.phase is Phase.CLOSED
    drained = channel.condition("Drained")
    assert drained is not None
    assert drained.reason == "Idle"
    assert owner.said()[:2] == ("True", "Unused")
    assert owner.on(IDLE_S - 10).removed == 0
    with owner.rig.database.read() as tx:
        (line,) = events_of_group(tx, channel.uid, "", limit=9)
    assert line.by == "gateway"
    assert line.cause is not None
    assert "closed: not used since" in line.cause
    assert owner.on(10).removed == 1
    owner.rig.run_once()
    assert owner.rig.find(owner.channel) is None
    with owner.rig.database.read() as tx:
        removed, closed, *_ = audit_store.page(tx, channel.name, before=None, limit=9)
    assert [each.action for each in (closed, removed)] == ["close", "delete"]
    assert {(each.by, each.token_id) for each in (closed, removed)} == {("gateway", None)}
    assert closed.reason is not None
    assert "closed: not used since" in closed.reason
    assert closed.fields[0].new == "closed"
    assert owner.rig.topic(owner.channel) is None


def attach(owner: Owner) -> Callable[[], object]:
    """Attach a reader; return a function that detaches it."""

    def nobody() -> None: ...

    database = owner.rig.database
    given = {"database": database, "notify": nobody, "clock": owner.rig.clock}
    spec = AttachSpec(id=uuid.uuid4().hex, session=uuid.uuid4().hex, client="", role=Role.READER)
    where = {"uid": owner.channel.uid, "principal": LOOPBACK}
    service = AttachService(tokens=Tokens(database, None), wake=nobody, **given)  # type: ignore[arg-type]
    request = AttachRequest(
        channel=owner.channel.name, channel_uid=owner.channel.uid, spec=spec, principal=LOOPBACK
    )
    attached = service.submit(request).result(30)
    service.close()
    detach = DetachSpec(epoch=attached.endpoint.epoch, state=State.CLOSED)
    return lambda: Endpoints(topics=owner.rig.kafka, **given).detach(  # type: ignore[arg-type]
        owner.channel.name,
        spec.id,
        detach,
        **where,  # type: ignore[arg-type]
    )


def test_a_channel_is_in_use_while_an_endpoint_is_open_and_its_limit_starts_then(
    owner: Owner,
) -> None:
    leave = attach(owner)
    assert owner.on(3 * IDLE_S).closed == 0
    leave()
    assert owner.on(IDLE_S - 10).closed == 0
    assert owner.on(10).closed == 1


def use_by_connecting(owner: Owner) -> None:
    UsageRecorder(owner.rig.database, clock=owner.rig.clock).record(owner.rig.get(owner.channel))


def use_by_writing(owner: Owner) -> None:
    produce(owner.rig, owner.channel)


def use_for_a_moment(owner: Owner) -> None:
    attach(owner)()


@pytest.mark.parametrize("use", [use_by_connecting, use_by_writing, use_for_a_moment])
def test_any_use_postpones_the_close(owner: Owner, use: Callable[[Owner], None]) -> None:
    owner.on(IDLE_S - 100)
    use(owner)
    assert owner.on(IDLE_S - 100).closed == 0
    assert owner.on(200).closed == 1
    # One that is read again stays, closed as it is.
    use_by_connecting(owner)
    assert owner.on(IDLE_S).removed == 0


def test_a_new_leader_sees_new_records_as_a_use(owner: Owner) -> None:
    owner.on(IDLE_S - 100)
    producer = Producer({"bootstrap.servers": owner.rig.kafka.bootstrap_servers})
    now_ms = int(owner.rig.clock.now.timestamp() * 1000)
    producer.produce(owner.channel.topic.name, b"x", partition=0, timestamp=now_ms)
    assert producer.flush(30) == 0
    owner.succeed()
    assert owner.on(IDLE_S - 20).closed == 0
    assert owner.on(100).closed == 1


def test_a_new_leader_watches_the_topic_before_it_closes(owner: Owner) -> None:
    owner.rig.clock.advance(5 * IDLE_S)
    owner.succeed()
    assert owner.on(IDLE_S / 10).closed == 0
    assert owner.on(IDLE_S / 10).closed == 1
    # After a late close the channel is still readable for its whole time.
    assert owner.on(IDLE_S - 100).removed == 0


def test_a_clock_set_forward_closes_no_channel_early(owner: Owner) -> None:
    owner.on(IDLE_S - 100)
    owner.set_clock(3600)
    assert owner.on(90).closed == 0
    assert owner.on(10).closed == 1
    owner.on(IDLE_S - 100)
    owner.set_clock(3600)
    assert owner.on(90).removed == 0
    assert owner.phase is Phase.CLOSED
    assert owner.on(10).removed == 1


def test_a_clock_set_back_closes_no_channel_early(owner: Owner) -> None:
    owner.on(IDLE_S - 100)
    owner.set_clock(-3600)
    assert owner.on(IDLE_S).closed == 0
    use_by_connecting(owner)
    owner.on(3600 - 2 * IDLE_S)
    assert owner.phase is Phase.READY
    # It is late by the time by which the clock was set back.
    assert owner.on(2 * IDLE_S).closed == 1


def test_no_channel_is_closed_without_kafka(owner: Owner) -> None:
    owner.succeed(KafkaAdmin("127.0.0.1:1", timeout_s=0.1))
    owner.rig.clock.advance(5 * IDLE_S)
    assert owner.on(30).closed == 0
    assert owner.phase is Phase.READY


def test_a_changed_limit_applies_from_the_last_use(owner: Owner) -> None:
    owner.on(IDLE_S - 50)
    owner.rig.change_spec(owner.channel, idle_ms=None)
    assert owner.on(3 * IDLE_S).changed == 0
    owner.rig.change_spec(owner.channel, idle_ms=IDLE_S * 1000)
    with owner.rig.database.write() as tx:
        record_use(tx, owner.channel.uid, owner.rig.clock.now)
    assert owner.on(IDLE_S - 10).closed == 0


def test_an_adopted_topic_stays_when_its_idle_channel_is_removed(
    rig: Rig, operator: Topics
) -> None:
    name = f"adopted-{uuid.uuid4().hex[:8]}"
    operator.create(name)
    topic = TopicRef(name=name, id=rig.topic_id(name), partitions=1)
    channel = rig.ready(adopted=True, topic=topic, idle_ms=IDLE_S * 1000)
    owner = Owner(rig, channel)
    owner.on(IDLE_S)
    assert "its topic stays" in owner.said()[2]
    assert owner.on(IDLE_S).removed == 1
    rig.run_once()
    assert rig.find(channel) is None
    assert rig.topic(replace(channel, topic=topic)) is not None
