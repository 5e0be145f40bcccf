"""Closing and deletion of idle channels, on a real broker with a manual clock."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from confluent_kafka import Producer

from reconciler_rig import Rig
from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.channels.store import record_use
from sluiceway_gateway.channels.usage import UsageRecorder
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.auth.model import OwnershipMode
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.auth.service import LOOPBACK, Tokens
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.endpoints.attach_request import AttachRequest, AttachSpec
from sluiceway_gateway.endpoints.change_store import events_of_group
from sluiceway_gateway.endpoints.model import Role, State
from sluiceway_gateway.endpoints.service import AttachService, DetachSpec, Endpoints
from sluiceway_gateway.ledger import batch_store
from sluiceway_gateway.lifecycle.idle import IdleCounts, TtlReaper
from topics import Topics

IDLE_S = 600


@dataclass
class LeadingReplica:
    """The leading replica: runs every ten seconds of the manual clock."""

    rig: Rig
    channel: Channel
    idler: TtlReaper = field(init=False)
    start: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.succeed()

    def succeed(self, kafka: KafkaAdmin | None = None) -> None:
        """Replace the leader by another replica without its memory."""
        self.start = self.rig.clock.now
        self.idler = TtlReaper(
            database=self.rig.database,
            kafka=kafka or self.rig.kafka,
            clock=self.rig.clock,
            monotonic=lambda: (self.rig.clock.now - self.start).total_seconds(),
        )

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock without letting time pass."""
        self.rig.clock.advance(seconds)
        self.start += timedelta(seconds=seconds)

    def run_for(self, seconds: float) -> IdleCounts:
        """Let time pass, and return the summed counts."""
        counts = IdleCounts()
        for _ in range(int(seconds // 10)):
            self.rig.clock.advance(10)
            pass_counts = self.idler.run_once()
            counts = IdleCounts(
                checked=counts.checked + pass_counts.checked,
                closed=counts.closed + pass_counts.closed,
                deleted=counts.deleted + pass_counts.deleted,
                changed=counts.changed + pass_counts.changed,
            )
        return counts

    @property
    def phase(self) -> Phase:
        return self.rig.get(self.channel).phase

    def idle_condition(self) -> tuple[str, str, str]:
        condition = self.rig.get(self.channel).condition("Idle")
        assert condition is not None
        return condition.status, condition.reason, condition.message


@pytest.fixture
def leader(rig: Rig) -> LeadingReplica:
    return LeadingReplica(rig, rig.ready(idle_ms=IDLE_S * 1000))


def produce(rig: Rig, channel: Channel) -> None:
    producer = Producer({"bootstrap.servers": rig.kafka.bootstrap_servers})
    # The timestamp of a clock that is years behind.
    producer.produce(channel.topic.name, b"x", partition=0, timestamp=1_000_000_000_000)
    assert producer.flush(30) == 0


@pytest.mark.sample
def test_an_idle_channel_is_announced_closed_and_then_deleted(
    leader: LeadingReplica,
) -> None:
    start = leader.rig.clock.now
    counts = leader.run_for(IDLE_S / 2 - 10)
    # No request to Kafka, and no change except for the condition InUse.
    assert (counts.checked, counts.changed) == (0, 1)
    assert leader.idle_condition()[:2] == ("False", "InUse")
    leader.run_for(10)
    status, reason, message = leader.idle_condition()
    assert (status, reason) == ("False", "Quiet")
    closes_at = f"{start + timedelta(seconds=IDLE_S):%Y-%m-%d %H:%M:%S}"
    end = "deleted with its records 10 minutes later"
    assert f"it is closed at {closes_at} UTC, and {end}, unless it is used" in message
    assert leader.run_for(IDLE_S / 2 - 10).closed == 0
    assert leader.run_for(10).closed == 1
    channel = leader.rig.get(leader.channel)
    assert channel.phase is Phase.CLOSED
    drained = channel.condition("Drained")
    assert drained is not None
    assert drained.reason == "Idle"
    assert leader.idle_condition()[:2] == ("True", "Unused")
    assert leader.run_for(IDLE_S - 10).deleted == 0
    with leader.rig.database.read() as tx:
        (line,) = events_of_group(tx, channel.uid, "", limit=9)
    assert line.by == "gateway"
    assert line.cause is not None
    assert "closed: not used since" in line.cause
    assert leader.run_for(10).deleted == 1
    leader.rig.run_once()
    assert leader.rig.find(leader.channel) is None
    with leader.rig.database.read() as tx:
        removed, closed, *_ = audit_store.page(tx, channel.name, before=None, limit=9)
    assert [entry.action for entry in (closed, removed)] == ["close", "delete"]
    assert {(entry.by, entry.token_id) for entry in (closed, removed)} == {("gateway", None)}
    assert closed.reason is not None
    assert "closed: not used since" in closed.reason
    assert closed.fields[0].new == "closed"
    assert leader.rig.topic(leader.channel) is None


def attach(leader: LeadingReplica) -> Callable[[], object]:
    """Attach a reader; return a function that detaches it."""

    def nothing() -> None: ...

    database = leader.rig.database
    options = {"database": database, "clock": leader.rig.clock}
    spec = AttachSpec(id=uuid.uuid4().hex, session=uuid.uuid4().hex, client="", role=Role.READER)
    caller = {"uid": leader.channel.uid, "principal": LOOPBACK}
    service = AttachService(
        tokens=Tokens(database, None),
        ownership=Ownership(database, mode=OwnershipMode.ENFORCE),
        wake=nothing,
        **options,  # type: ignore[arg-type]
    )
    request = AttachRequest(
        channel=leader.channel.name, channel_uid=leader.channel.uid, spec=spec, principal=LOOPBACK
    )
    attached = service.submit(request).result(30)
    service.close()
    detach = DetachSpec(epoch=attached.endpoint.epoch, state=State.CLOSED)
    return lambda: Endpoints(
        kafka=leader.rig.kafka,
        settlements=batch_store.settlements,
        **options,  # type: ignore[arg-type]
    ).detach(
        leader.channel.name,
        spec.id,
        detach,
        **caller,  # type: ignore[arg-type]
    )


def test_the_idle_ttl_starts_when_the_last_endpoint_detaches(
    leader: LeadingReplica,
) -> None:
    leave = attach(leader)
    assert leader.run_for(3 * IDLE_S).closed == 0
    leave()
    assert leader.run_for(IDLE_S - 10).closed == 0
    assert leader.run_for(10).closed == 1


def use_by_connecting(leader: LeadingReplica) -> None:
    UsageRecorder(leader.rig.database, clock=leader.rig.clock).record(
        leader.rig.get(leader.channel)
    )


def use_by_writing(leader: LeadingReplica) -> None:
    produce(leader.rig, leader.channel)


def use_for_a_moment(leader: LeadingReplica) -> None:
    attach(leader)()


@pytest.mark.sample
@pytest.mark.parametrize("use", [use_by_connecting, use_by_writing, use_for_a_moment])
def test_any_use_postpones_the_close(
    leader: LeadingReplica, use: Callable[[LeadingReplica], None]
) -> None:
    leader.run_for(IDLE_S - 100)
    use(leader)
    assert leader.run_for(IDLE_S - 100).closed == 0
    assert leader.run_for(200).closed == 1
    # A closed channel that is used again is not deleted.
    use_by_connecting(leader)
    assert leader.run_for(IDLE_S).deleted == 0


def test_uses_of_a_short_time_are_all_saved(rig: Rig) -> None:
    leader = LeadingReplica(rig, rig.ready(idle_ms=60_000))
    recorder = UsageRecorder(rig.database, clock=rig.clock)
    recorder.record(leader.channel)
    assert leader.run_for(50).closed == 0
    recorder.record(leader.channel)
    assert leader.run_for(50).closed == 0
    assert leader.run_for(10).closed == 1


@pytest.mark.long
def test_records_are_a_use_up_to_the_close(rig: Rig) -> None:
    # The topic is checked every 31 seconds, by passes every ten: at 590, and then at 630.
    leader = LeadingReplica(rig, rig.ready(idle_ms=620_000))
    leader.run_for(600)
    produce(rig, leader.channel)
    assert leader.run_for(300).closed == 0
    assert leader.run_for(400).closed == 1
    leader.run_for(600)
    produce(rig, leader.channel)
    assert leader.run_for(300).deleted == 0


def test_a_new_leader_sees_new_records_as_a_use(leader: LeadingReplica) -> None:
    leader.run_for(IDLE_S - 100)
    producer = Producer({"bootstrap.servers": leader.rig.kafka.bootstrap_servers})
    now_ms = int(leader.rig.clock.now.timestamp() * 1000)
    producer.produce(leader.channel.topic.name, b"x", partition=0, timestamp=now_ms)
    assert producer.flush(30) == 0
    leader.succeed()
    assert leader.run_for(IDLE_S - 20).closed == 0
    assert leader.run_for(100).closed == 1


def test_a_new_leader_watches_the_topic_before_it_closes(leader: LeadingReplica) -> None:
    leader.rig.clock.advance(5 * IDLE_S)
    leader.succeed()
    assert leader.run_for(IDLE_S / 10).closed == 0
    assert leader.run_for(IDLE_S / 10).closed == 1
    # After a late close the channel remains readable for the whole TTL.
    assert leader.run_for(IDLE_S - 100).deleted == 0


def test_a_clock_set_forward_closes_no_channel_early(leader: LeadingReplica) -> None:
    leader.run_for(IDLE_S - 100)
    leader.set_clock(3600)
    assert leader.run_for(90).closed == 0
    assert leader.run_for(10).closed == 1
    leader.run_for(IDLE_S - 100)
    leader.set_clock(3600)
    assert leader.run_for(90).deleted == 0
    assert leader.phase is Phase.CLOSED
    assert leader.run_for(10).deleted == 1


@pytest.mark.long
def test_a_clock_set_back_closes_no_channel_early(leader: LeadingReplica) -> None:
    leader.run_for(IDLE_S - 100)
    leader.set_clock(-3600)
    assert leader.run_for(IDLE_S).closed == 0
    use_by_connecting(leader)
    leader.run_for(3600 - 2 * IDLE_S)
    assert leader.phase is Phase.READY
    # The close is late by the time by which the clock was set back.
    assert leader.run_for(2 * IDLE_S).closed == 1


def test_no_channel_is_closed_without_kafka(leader: LeadingReplica) -> None:
    leader.succeed(KafkaAdmin("127.0.0.1:1", timeout_s=0.1))
    leader.rig.clock.advance(5 * IDLE_S)
    assert leader.run_for(30).closed == 0
    assert leader.phase is Phase.READY


@pytest.mark.long
def test_a_changed_idle_ttl_applies_from_the_last_use(leader: LeadingReplica) -> None:
    leader.run_for(IDLE_S - 50)
    leader.rig.change_spec(leader.channel, idle_ms=None)
    assert leader.run_for(3 * IDLE_S).changed == 0
    leader.rig.change_spec(leader.channel, idle_ms=IDLE_S * 1000)
    with leader.rig.database.write() as tx:
        record_use(tx, leader.channel.uid, leader.rig.clock.now)
    assert leader.run_for(IDLE_S - 10).closed == 0


@pytest.mark.long
def test_an_adopted_topic_stays_when_its_idle_channel_is_deleted(
    rig: Rig, operator: Topics
) -> None:
    name = f"adopted-{uuid.uuid4().hex[:8]}"
    operator.create(name)
    channel = rig.ready(observed=rig.created(name), idle_ms=IDLE_S * 1000)
    leader = LeadingReplica(rig, channel)
    leader.run_for(IDLE_S)
    assert "without its topic" in leader.idle_condition()[2]
    assert leader.run_for(IDLE_S).deleted == 1
    rig.run_once()
    assert rig.find(channel) is None
    assert rig.topic(channel) is not None
