"""Transactions on PostgreSQL that wait for each other's row locks."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from sqlalchemy import select, text, update

from databases import Databases, Postgres
from endpoints import Services
from gateways import UNREACHABLE
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.core.clock import system_clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.idempotency import StoredResponse
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.attach_request import AttachSpec
from sluiceway_gateway.endpoints.heartbeats import EndpointReport
from sluiceway_gateway.endpoints.model import Endpoint, Health, Mode, Role, State
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.ledger.pruning import delete_history
from sluiceway_gateway.offsets.service import Reset
from sluiceway_gateway.provisioning.reconciler import Reconciler
from sluiceway_gateway.schemas import store as schemas_store
from waiting import until

T = TypeVar("T")
WIDER = '{"fields":[],"name":"Wider","type":"record"}'


@pytest.fixture
def databases(postgres: Postgres) -> Databases:
    """PostgreSQL only: SQLite has no row locks."""
    return postgres


@pytest.fixture
def database(patient_database: Database) -> Database:
    """Its transactions may wait long for each other."""
    return patient_database


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def started(database: Database, pool: ThreadPoolExecutor, call: Callable[[], T]) -> "Future[T]":
    """Run the call in a thread, and return once it waits for a lock."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    def waits() -> bool:
        with database.read() as tx:
            return bool(tx.execute(waiting).scalar_one())

    running = pool.submit(call)
    until(lambda: running.done() or waits())
    assert not running.done()
    return running


def attached(services: Services, name: str, uid: str) -> Endpoint:
    """Attach the first of a group's readers, which supersedes the one before."""
    spec = AttachSpec(
        id=uuid.uuid4().hex,
        session=uuid.uuid4().hex,
        client="",
        role=Role.READER,
        group="g",
        index=0,
        size=1,
        mode=Mode.BROADCAST,
    )
    return services.attach(name, spec, uid=uid).endpoint


def held_alone(database: Database, name: str) -> Channel | None:
    with database.write() as tx:
        return channels_store.hold(tx, name)


def held_with_others(database: Database, name: str) -> Channel | None:
    with database.write() as tx:
        return channels_store.hold_named(tx, [name, "another"], wait=True).get(name)


@pytest.mark.parametrize("hold", [held_alone, held_with_others])
def test_a_request_that_waits_for_a_new_schema_finds_the_channel_with_it(
    database: Database,
    pool: ThreadPoolExecutor,
    hold: Callable[[Database, str], Channel | None],
) -> None:
    name, _ = Services(database).channel()
    with database.write() as tx:
        was = channels_store.hold(tx, name)
        assert was is not None
        id_ = schemas_store.register(tx, fingerprint="wider", definition=WIDER, now=system_clock())
        changed = replace(
            was,
            generation=was.generation + 1,
            revision=was.revision + 1,
            schema=WIDER,
            schema_id=id_,
            schema_version=2,
        )
        assert channels_store.replace_row(tx, changed, was=was)
        waiting = started(database, pool, lambda: hold(database, name))
    assert waiting.result(60) == changed


def test_the_reconciler_locks_channels_in_the_order_of_others(
    database: Database, pool: ThreadPoolExecutor
) -> None:
    services = Services(database)
    uids = sorted(services.channel()[1] for _ in range(2))
    with closing(KafkaAdmin(UNREACHABLE, timeout_s=0.1)) as kafka:
        reconciler = Reconciler(
            database=database,
            kafka=kafka,
            clock=system_clock,
            resync_s=30,
            delete_history=delete_history,
            wait=lambda _s: None,
        )
        with database.write() as tx:
            # The last one is the longest overdue.
            for uid, year in zip(uids, (1970, 1969), strict=True):
                overdue = update(channels).where(channels.c.uid == uid)
                tx.execute(overdue.values(due_at=datetime(year, 1, 1, tzinfo=UTC)))
        with database.write() as tx:
            channels_store.hold_channels(tx, uids[:1])
            reconciling = started(database, pool, reconciler.run_once)
            channels_store.hold_channels(tx, uids)
        assert reconciling.result(60).unreachable == 2


def test_a_reset_does_not_wait_for_superseded_members(
    database: Database, pool: ThreadPoolExecutor
) -> None:
    services = Services(database)
    name, uid = services.channel()

    def reset() -> StoredResponse:
        return services.offsets.reset(
            name,
            "g",
            Reset(
                positions=None,
                topic_id=None,
                index=None,
                generation=None,
                reason="read again",
                force=True,
            ),
            uid=uid,
            principal=LOOPBACK,
            request=None,
            render=lambda _: StoredResponse(status=200, headers={}, body=""),
        )

    superseded, _ = (attached(services, name, uid) for _ in range(2))
    with database.write() as tx:
        # As a late heartbeat of it does.
        endpoints_store.hold(tx, [superseded.id])
        assert pool.submit(reset).result(30).status == 200


def test_a_heartbeat_does_not_restore_an_endpoint_that_is_superseded_concurrently(
    database: Database, pool: ThreadPoolExecutor
) -> None:
    services = Services(database)
    name, uid = services.channel()
    lost = attached(services, name, uid)
    with database.write() as tx:
        endpoints_store.save(tx, [(lost, replace(lost, health=Health.LOST))])
    with database.write() as tx:
        channels_store.hold_channels(tx, [uid])
        # It has read the endpoint.
        beating = started(
            database,
            pool,
            lambda: services.beats.beat(lost.session, 1, [], principal=LOOPBACK, keeps=True),
        )
        tx.execute(update(endpoints).values(superseded=True))
    beating.result(60)
    assert not services.endpoints.page(name, after=None, limit=10).endpoints
    with database.read() as tx:
        assert endpoints_store.find_all(tx, [lost.id])[lost.id].health is Health.LOST


def test_a_heartbeat_does_not_replace_the_last_counters_of_an_endpoint_that_closes_concurrently(
    database: Database, pool: ThreadPoolExecutor
) -> None:
    services = Services(database)
    name, uid = services.channel()
    endpoint = attached(services, name, uid)
    earlier = EndpointReport(
        id=endpoint.id,
        epoch=1,
        state=endpoint.state,
        counters={"records": 5},
        positions={"0": [5, 0]},
    )
    last = {"counters": {"records": 9}, "reached": {"0": [9, 0]}}
    with database.write() as tx:
        tx.execute(update(endpoints).values(state=str(State.CLOSED), **last))
        # It has read the open endpoint.
        beating = started(
            database,
            pool,
            lambda: services.beats.beat(endpoint.session, 1, [earlier], principal=LOOPBACK),
        )
    beating.result(60)
    with database.read() as tx:
        row = tx.execute(select(endpoints.c.counters, endpoints.c.reached)).one()
    assert row._asdict() == last
