"""A PostgreSQL that hangs, or whose connections are lost."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import httpx
import pytest

from databases import Postgres
from endpoints import Site, report, site
from gateways import SCHEMA, Rig, code, running
from relay import Relay
from sluiceway_gateway.db.engine import Database
from waiting import until

#: Every call is answered by then.
ANSWERED_S = 30
#: As psycopg sends it; other statements contain this text.
COMMIT = b"COMMIT\0"


@contextmanager
def gateway(url: str, **options: Any) -> Iterator[Rig]:
    database = Database(url)
    try:
        with running(database, url, **{"database_wait_ms": 500, **options}) as rig:
            rig.fail_checks_of_kafka()
            yield rig
    finally:
        database.close()


def requests(reader: Any) -> list[Callable[[Site], httpx.Response]]:
    change = {"spec": {"schema": SCHEMA}}
    return [
        lambda flights: flights.rig.http.get("/v1/channels"),
        lambda flights: flights.rig.http.get(flights.path),
        lambda flights: flights.rig.http.get("/v1/status"),
        lambda flights: flights.rig.http.put("/v1/channels/others", json=change),
        lambda flights: flights.rig.http.delete(flights.path, params={"uid": flights.uid}),
        lambda flights: flights.post_attach(),
        lambda flights: flights.post_attach(group="d", dynamic=True),
        lambda flights: flights.send(report(reader), beat=1_000_000),
        lambda flights: flights.commit(reader, 2, (0, 9, 0)),
        lambda flights: flights.detach(reader),
        lambda flights: flights.reset((0, 0, 0), headers={"Idempotency-Key": "a"}),
        lambda flights: flights.rig.http.get(flights.offsets_path("g")),
    ]


@contextmanager
def clients(flights: Site, count: int) -> Iterator[SimpleQueue[Site]]:
    """The same channel through `count` clients, each for one thread at a time.

    The pool of a shared httpx.Client now and then closes an idle connection that another thread
    has just been given, whose request then fails with "Bad file descriptor".
    """
    free: SimpleQueue[Site] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(count):
            made = httpx.Client(base_url=flights.rig.url, timeout=60, verify=False)  # noqa: S501
            free.put(replace(flights, rig=replace(flights.rig, http=stack.enter_context(made))))
        yield free


def ready(rig: Rig) -> bool:
    return bool(rig.http.get("/readyz").json()["database"])


@pytest.mark.parametrize("wait_ms", [500, pytest.param(5_000, marks=pytest.mark.long)])
def test_while_postgres_hangs_every_request_is_503(postgres: Postgres, wait_ms: int) -> None:
    with gateway(postgres.migrated(), database_wait_ms=wait_ms) as rig:
        flights = site(rig)
        reader = flights.member()
        assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
        assert ready(rig)
        threads = threading.active_count()

        def check(request: Callable[[Site], httpx.Response]) -> None:
            own = free.get()
            begun_s = time.monotonic()
            response = request(own)
            free.put(own)
            assert time.monotonic() - begun_s < ANSWERED_S
            assert (response.status_code, code(response)) == (503, "database_unavailable")
            assert response.json()["retriable"] is True

        # Many more requests than connections and threads, so that the last ones would wait far too
        # long if each took its own timeout; then again when the outage is known.
        with (
            clients(flights, 120) as free,
            postgres.stopped(),
            ThreadPoolExecutor(120) as pool,
        ):
            for times in (27, 9):
                begun_s = time.monotonic()
                readiness = pool.submit(rig.http.get, "/readyz")
                asked = [pool.submit(check, each) for each in requests(reader) * times]
                for each in asked:
                    each.result()
                # Within Prometheus' timeout.
                metrics = rig.http.get("/metrics")
                assert "sluiceway_database_up 0.0" in metrics.text
                assert readiness.result().json()["reasons"]["database"] == "DatabaseUnavailable"
                assert readiness.result().status_code == 503
                assert time.monotonic() - begun_s < ANSWERED_S
            # Workers, and one for each connection.
            assert threading.active_count() < threads + 120 + 40 + 20
        until(lambda: ready(rig), ANSWERED_S)
        assert flights.committed() == [(0, 5, 0)]
        assert flights.commit(reader, 2, (0, 9, 0)).status_code == 200
        assert flights.committed() == [(0, 9, 0)]


def test_connections_with_lost_packets_are_replaced_and_commits_continue(
    postgres: Postgres,
) -> None:
    with (
        closing(Relay(postgres.socket)) as relay,
        gateway(postgres.through(relay, postgres.migrated()), database_wait_ms=5_000) as rig,
    ):
        flights = site(rig)
        reader = flights.member()
        with ThreadPoolExecutor(20) as pool:
            for each in [pool.submit(flights.committed) for _ in range(20)]:
                each.result()
            relay.drop()
            begun_s = time.monotonic()
            looks = [pool.submit(flights.committed) for _ in range(20)]
            assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
            for each in looks:
                each.result()
        assert time.monotonic() - begun_s < ANSWERED_S
        assert ready(rig)


@pytest.mark.usefixtures("no_leader")
@pytest.mark.parametrize("arrives", [pytest.param(True, marks=pytest.mark.long), False])
def test_an_unconfirmed_commit_can_be_repeated(postgres: Postgres, arrives: bool) -> None:
    with (
        closing(Relay(postgres.socket)) as relay,
        gateway(postgres.through(relay, postgres.migrated())) as rig,
    ):
        flights = site(rig)
        reader = flights.member()
        assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
        relay.drop_at(COMMIT, forward=arrives)
        response = flights.commit(reader, 2, (0, 9, 0))
        assert not relay.drop_pending
        assert (response.status_code, code(response)) == (503, "database_unavailable")
        assert "may or may not" in response.json()["detail"]
        assert response.json()["retriable"] is True
        again = repeated(lambda: flights.commit(reader, 2, (0, 9, 0)))
        assert (again.status_code, again.json()["number"]) == (200, 2)
        assert flights.committed() == [(0, 9, 0)]


@pytest.mark.usefixtures("no_leader")
@pytest.mark.parametrize("arrives", [pytest.param(True, marks=pytest.mark.long), False])
def test_an_unconfirmed_change_is_made_once(postgres: Postgres, arrives: bool) -> None:
    with (
        closing(Relay(postgres.socket)) as relay,
        gateway(postgres.through(relay, postgres.migrated())) as rig,
    ):
        flights = site(rig)
        reader = flights.member()
        assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
        flights.detach(reader)

        def reset() -> httpx.Response:
            return flights.reset((0, 3, 0), headers={"Idempotency-Key": "once"})

        relay.drop_at(COMMIT, forward=arrives)
        assert reset().status_code == 503
        assert not relay.drop_pending
        assert repeated(reset).status_code == 200
        told = rig.http.get(flights.offsets_path("g")).json()
        assert len(told["resets"]) == 1
        assert flights.committed() == [(0, 3, 0)]


def repeated(call: Callable[[], httpx.Response]) -> httpx.Response:
    """Repeat a call until it is not 503: a lost transaction may hold its locks for a while."""
    responses: list[httpx.Response] = []

    def done() -> bool:
        responses.append(call())
        return responses[-1].status_code != 503

    until(done, 3 * ANSWERED_S)
    return responses[-1]
