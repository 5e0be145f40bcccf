"""Concurrent clients: each response stays true despite the others."""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from endpoints import PARTITIONS, Services
from gateways import TOPIC_ID
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.idempotency import StoredResponse
from sluiceway_gateway.core.errors import Conflict, Fenced, GoesBack, StaleGeneration
from sluiceway_gateway.endpoints.attach_request import Attached, AttachSpec
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.heartbeats import EndpointReport
from sluiceway_gateway.endpoints.model import Role, State
from sluiceway_gateway.endpoints.positions import Position
from sluiceway_gateway.offsets.model import Commit
from sluiceway_gateway.offsets.service import Reset

THREADS = 8


class Crowd:
    """Threads that begin at the same time on one channel."""

    def __init__(self, database: Database) -> None:
        self.services = Services(database)
        self.name, self.uid = self.services.channel()

    def attach(self, index: int = 0, size: int = 1, *, session: str | None = None) -> Attached:
        asked = AttachSpec(
            id=uuid.uuid4().hex,
            session=session or uuid.uuid4().hex,
            client="",
            role=Role.READER,
            group="g",
            index=index,
            size=size,
        )
        return self.services.attach(self.name, asked, uid=self.uid)

    def commit(self, attached: Attached, number: int, offset: int) -> None:
        endpoint = attached.endpoint
        asked = Commit(
            channel=self.name,
            channel_uid=self.uid,
            group="g",
            endpoint=endpoint.id,
            epoch=endpoint.epoch,
            generation=endpoint.generation,
            topic_id=TOPIC_ID,
            number=number,
            positions=(Position(partition=endpoint.place.index, offset=offset),),
        )
        self.services.offsets.submit(asked, principal=LOOPBACK).result(30)

    def offsets(self) -> dict[int, int]:
        report = self.services.offsets.fetch(self.name, "g", index=None)
        return {
            committed.position.partition: committed.position.offset
            for _, committed in report.positions
        }

    def at_once(self, *calls: Callable[[], Any]) -> list[Any]:
        """Run all calls at the same time; return their results or Conflicts."""
        gate = threading.Barrier(len(calls))

        def run(call: Callable[[], Any]) -> Any:
            gate.wait()
            try:
                return call()
            except Conflict as error:
                return error

        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(run, calls))


@pytest.fixture
def crowd(database: Database) -> Crowd:
    return Crowd(database)


@pytest.mark.sample
def test_of_many_attaches_to_one_place_the_highest_epoch_wins(crowd: Crowd) -> None:
    attached = crowd.at_once(*[crowd.attach] * THREADS)
    epochs = sorted(instance.endpoint.epoch for instance in attached)
    assert epochs == list(range(1, THREADS + 1))
    page = crowd.services.endpoints.page(crowd.name, after=None, limit=10)
    assert [endpoint.epoch for endpoint in page.endpoints] == [THREADS]


def test_no_older_instance_commits_beyond_the_positions_of_a_new_one(crowd: Crowd) -> None:
    old = crowd.attach()
    for turn in range(5):
        # The commit counts and is given to the new one, or it is fenced: nothing in between.
        committed, new = crowd.at_once(
            lambda old=old, turn=turn: crowd.commit(old, 1, turn + 1), crowd.attach
        )
        positions = {stored.position.partition: stored.position.offset for stored in new.positions}
        assert positions == crowd.offsets()
        if isinstance(committed, Fenced):
            assert positions.get(0, 0) < turn + 1
        else:
            assert (committed, positions) == (None, {0: turn + 1})
        old = new


@pytest.mark.sample
def test_a_forced_reset_and_a_commit_are_serialized(crowd: Crowd) -> None:
    for turn in range(5):
        reader = crowd.attach()
        reset = Reset(
            positions=(Position(partition=0, offset=turn),),
            topic_id=TOPIC_ID,
            index=None,
            generation=None,
            reason="race",
            force=True,
        )

        def put_back(reset: Reset = reset) -> None:
            crowd.services.offsets.reset(
                crowd.name,
                "g",
                reset,
                uid=crowd.uid,
                principal=LOOPBACK,
                request=None,
                render=lambda _report: StoredResponse(status=200, headers={}, body=""),
            )

        committed, _ = crowd.at_once(lambda reader=reader: crowd.commit(reader, 1, 100), put_back)
        # The reset wins in either order.
        assert committed is None or isinstance(committed, StaleGeneration)
        assert crowd.offsets() == {0: turn}


def test_a_group_stays_with_the_label_that_claims_it_first(crowd: Crowd) -> None:
    crowd.attach()
    channel, now = crowd.name, crowd.services.clock()
    database = crowd.services.database
    with database.read() as tx:
        read = groups_store.find(tx, crowd.uid, Role.READER, "g")
    assert read is not None
    assert read.owner is None
    # A commit claims the group after an attach of another label has read it.
    for label in ("first", "second"):
        principal = Principal(id=label, scopes=(), subject=label)
        joined = replace(read, owner=label, epoch=read.epoch + 1)
        with database.write() as tx:
            groups_store.claim(tx, read, principal, channel=channel, now=now)
            groups_store.save(tx, joined)
            stored = groups_store.find(tx, crowd.uid, Role.READER, "g")
        assert stored == replace(joined, owner="first")


def test_of_concurrent_commits_of_one_endpoint_the_highest_remains(crowd: Crowd) -> None:
    reader = crowd.attach()
    calls = [
        lambda number=number: crowd.commit(reader, number, number) for number in range(1, THREADS)
    ]
    for outcome in crowd.at_once(*calls):
        assert outcome is None or isinstance(outcome, GoesBack)
    assert crowd.offsets() == {0: THREADS - 1}


@pytest.mark.sample
def test_heartbeats_commits_attaches_and_the_reaper_do_not_deadlock(crowd: Crowd) -> None:
    session = uuid.uuid4().hex
    members = [crowd.attach(index, PARTITIONS, session=session) for index in range(PARTITIONS)]
    states = (State.STARTED, State.ERROR)

    def beat_all() -> None:
        for number in range(1, 21):
            reports = [
                EndpointReport(
                    id=member.endpoint.id,
                    epoch=member.endpoint.epoch,
                    state=states[number % 2],
                    counters={"n": number},
                    payload={"n": number},
                    seen=None,
                )
                for member in reversed(members)
            ]
            crowd.services.beats.beat(session, number, reports, principal=LOOPBACK)

    def commit_all() -> None:
        for number in range(1, 11):
            for member in members[:3]:
                crowd.commit(member, number, number)

    def replace_last() -> None:
        for _ in range(10):
            crowd.attach(PARTITIONS - 1, PARTITIONS)

    def reap() -> None:
        for _ in range(20):
            crowd.services.pass_time(7)

    assert crowd.at_once(beat_all, commit_all, replace_last, reap) == [None] * 4
    assert crowd.offsets() == {0: 10, 1: 10, 2: 10}
