"""Pruning of ended endpoints that no longer matter."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from endpoints import Services
from gateways import TOPIC_ID
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import EndpointNotFound
from sluiceway_gateway.endpoints import session_store
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.attach_request import AttachSpec
from sluiceway_gateway.endpoints.heartbeats import EndpointReport
from sluiceway_gateway.endpoints.model import Endpoint, Health, Role, State
from sluiceway_gateway.endpoints.positions import Position
from sluiceway_gateway.endpoints.pruning import PruneCounts, Pruner
from sluiceway_gateway.endpoints.service import DetachSpec
from sluiceway_gateway.offsets.model import Commit
from sluiceway_gateway.tables import metadata

DAYS = 30


class Past:
    """A channel, and a clock that advances by days."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.services = Services(database)
        self.name, self.uid = self.services.channel()
        self.pruner = Pruner(database=database, days=DAYS, clock=self.services.clock)

    def attach(
        self,
        role: Role = Role.READER,
        *,
        group: str = "g",
        session: str | None = None,
        dynamic: bool = False,
    ) -> Endpoint:
        place = {"group": group} if dynamic else {"group": group, "index": 0, "size": 1}
        if not group:
            place = {}
        spec = AttachSpec(
            id=uuid.uuid4().hex,
            session=session or uuid.uuid4().hex,
            client="",
            role=role,
            **place,  # type: ignore[arg-type]
        )
        attached = self.services.attach(self.name, spec, uid=self.uid)
        return attached.endpoint

    def detach(
        self, endpoint: Endpoint, state: State = State.CLOSED, ends: dict[int, int] | None = None
    ) -> None:
        departure = DetachSpec(epoch=endpoint.epoch, state=state, ends=ends)
        self.services.endpoints.detach(
            self.name, endpoint.id, departure, uid=self.uid, principal=LOOPBACK
        )

    def later(self, days: float) -> None:
        self.services.clock.advance(timedelta(days=days))

    def prune(self) -> PruneCounts:
        counts = self.pruner.run_once()
        assert counts.pause_s > 0
        return counts

    def knows(self, endpoint: Endpoint) -> bool:
        try:
            self.services.endpoints.get(self.name, endpoint.id)
        except EndpointNotFound:
            return False
        return True

    def rows(self, table: str) -> int:
        with self.database.read() as tx:
            count = select(func.count()).select_from(metadata.tables[table])
            return int(tx.execute(count).scalar_one())


@pytest.fixture
def past(database: Database) -> Iterator[Past]:
    past = Past(database)
    yield past
    past.services.offsets.close()


def test_a_superseded_reader_is_pruned_with_its_session_and_history(past: Past) -> None:
    old, new = past.attach(), past.attach()
    past.later(DAYS)
    assert past.prune() == PruneCounts()
    assert past.knows(old)
    past.later(1)
    assert past.prune() == PruneCounts(events=3, endpoints=1, sessions=1)
    assert (past.knows(old), past.knows(new)) == (False, True)
    assert past.prune() == PruneCounts()


def test_a_pruned_id_cannot_commit_send_heartbeats_or_take_a_place(past: Past) -> None:
    old, new = past.attach(), past.attach()
    past.later(DAYS + 1)
    past.prune()
    commit = Commit(
        channel=past.name,
        channel_uid=past.uid,
        group="g",
        endpoint=old.id,
        epoch=old.epoch,
        generation=old.generation,
        topic_id=TOPIC_ID,
        number=1,
        positions=(Position(partition=0, offset=1),),
    )
    with pytest.raises(EndpointNotFound):
        past.services.offsets.submit(commit, principal=LOOPBACK).result(30)
    report = EndpointReport(
        id=old.id,
        epoch=old.epoch,
        state=State.STARTED,
        counters={},
    )
    response = past.services.beats.beat(old.session, 9, [report], principal=LOOPBACK)
    assert [reply.status for reply in response.replies] == ["gone"]
    page = past.services.endpoints.page(past.name, after=None, limit=10)
    assert [endpoint.id for endpoint in page.endpoints] == [new.id]


def test_a_superseded_writer_is_kept_until_a_later_one_closed(past: Past) -> None:
    crashed = past.attach(Role.WRITER)
    successor = past.attach(Role.WRITER)
    past.later(DAYS + 1)
    past.prune()
    assert past.knows(crashed)
    # A third endpoint still learns that a predecessor did not finish.
    past.detach(successor, State.ERROR)
    third = past.attach(Role.WRITER)
    past.detach(third, ends={0: 7})
    past.later(DAYS + 1)
    past.prune()
    assert [past.knows(endpoint) for endpoint in (crashed, successor, third)] == [
        False,
        False,
        True,
    ]


def test_closed_readers_without_a_group_are_pruned_and_writers_are_kept(
    past: Past,
) -> None:
    reader, writer = past.attach(group=""), past.attach(Role.WRITER, group="")
    member, idle = past.attach(), past.attach(group="")
    for endpoint in (reader, writer, member):
        past.detach(endpoint)
    past.later(DAYS + 1)
    assert past.prune().endpoints == 1
    kept = [past.knows(endpoint) for endpoint in (reader, writer, member, idle)]
    assert kept == [False, True, True, True]


def test_closed_members_of_a_dynamic_group_are_pruned_except_the_last(past: Past) -> None:
    first, failed, last = (past.attach(dynamic=True) for _ in range(3))
    past.detach(first)
    past.detach(failed, State.ERROR)
    past.detach(last)
    past.later(DAYS - 1)
    assert past.prune().endpoints == 0
    past.later(2)
    assert past.prune().endpoints == 2
    assert [past.knows(endpoint) for endpoint in (first, failed, last)] == [False, False, True]
    new = past.attach(dynamic=True)
    past.later(DAYS + 1)
    assert past.prune().endpoints == 1
    assert [past.knows(endpoint) for endpoint in (last, new)] == [False, True]


def test_a_reader_that_was_lost_just_now_may_return(past: Past) -> None:
    reader = past.attach(group="")
    past.later(DAYS + 1)
    past.services.beats.beat(reader.session, 1, [], principal=LOOPBACK)
    with past.database.write() as tx:
        endpoints_store.save(tx, [(reader, replace(reader, health=Health.LOST))])
    assert past.prune().endpoints == 0
    past.services.beats.beat(reader.session, 2, [], principal=LOOPBACK, keeps=True)
    assert past.services.endpoints.get(past.name, reader.id).endpoint.health is Health.HEALTHY
    past.later(DAYS + 1)
    with past.database.write() as tx:
        endpoints_store.save(tx, [(reader, replace(reader, health=Health.LOST))])
    assert past.prune().endpoints == 1


def test_a_session_without_endpoints_may_attach_again(past: Past) -> None:
    session = uuid.uuid4().hex
    past.detach(past.attach(group="", session=session))
    past.later(DAYS + 1)
    past.prune()
    assert past.rows("sessions") == 0
    again = past.attach(group="", session=session)
    past.later(DAYS + 1)
    past.prune()
    assert past.knows(again)


def test_pruning_uses_small_transactions(past: Past) -> None:
    clock = past.services.clock
    pruner = Pruner(database=past.database, days=DAYS, clock=clock, max_rows=2)
    for _ in range(6):
        past.attach()
    past.later(DAYS + 1)
    passes = 0
    while pruner.run_once().pause_s == 0:
        passes += 1
    assert passes >= 5
    assert (past.rows("endpoints"), past.rows("sessions"), past.rows("endpoint_events")) == (
        1,
        1,
        0,
    )


# SQLite has one writer at a time.
@pytest.mark.parametrize("databases", ["postgres"], indirect=True)
def test_a_session_with_an_attach_in_progress_is_kept(past: Past) -> None:
    past.later(-DAYS - 1)
    session = uuid.uuid4().hex
    with past.database.write() as tx:
        session_store.begin(tx, {session: ("", None)}, now=past.services.clock())
    past.later(DAYS + 1)
    with past.database.write() as tx:
        session_store.begin(tx, {session: ("", None)}, now=past.services.clock())
        assert past.prune().sessions == 0
    assert past.prune().sessions == 1
