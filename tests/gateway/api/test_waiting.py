import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from structlog.testing import capture_logs

from endpoints import Site
from gateways import Rig, code, running
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.channels.watch import Watch
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.core.longpoll import Poller
from sluiceway_gateway.core.passes import PassRecord
from sluiceway_gateway.provisioning.store import remove
from waiting import until

PATH = "/v1/channels/flights"
# Reading the system's certificate authorities takes 20 ms each time.
NOBODY_TO_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def wait(rig: Rig, etag: str, seconds: float = 60) -> httpx.Response:
    return httpx.get(
        f"{rig.url}{PATH}",
        params={"wait": seconds},
        headers={"If-None-Match": etag},
        timeout=480,
        verify=NOBODY_TO_TRUST,
    )


def start_waiting(rig: Rig, pool: ThreadPoolExecutor, etag: str) -> "Future[httpx.Response]":
    watch = rig.app.state.parts.watch
    before = watch.waiting
    waiting = pool.submit(wait, rig, etag)
    until(lambda: watch.waiting == before + 1)
    return waiting


def test_an_unchanged_channel_is_304(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    response = rig.http.get(PATH, headers={"If-None-Match": etag})
    assert (response.status_code, response.content) == (304, b"")
    assert response.headers["etag"] == etag
    assert rig.http.get(PATH, headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_wait_without_a_change_times_out(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    begun = time.monotonic()
    assert wait(rig, etag, 0.2).status_code == 304
    assert time.monotonic() - begun >= 0.2


def test_a_wait_with_an_old_etag_ends_at_once(rig: Rig) -> None:
    rig.put()
    assert wait(rig, '"other"').status_code == 200
    assert rig.http.get(PATH, params={"wait": 30}).status_code == 200


def test_a_change_by_this_replica_ends_the_wait(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    with ThreadPoolExecutor() as pool:
        waiting = start_waiting(rig, pool, etag)
        rig.put(partitions=2)
        response = waiting.result(60)
    assert response.status_code == 200
    assert response.json()["spec"]["partitions"] == 2


def test_a_change_by_another_replica_ends_the_wait(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    with ThreadPoolExecutor() as pool:
        waiting = start_waiting(rig, pool, etag)
        rig.observe("flights", Phase.READY)
        assert waiting.result(60).json()["status"]["phase"] == "ready"


def test_a_wait_for_a_deleted_channel_ends_with_404(rig: Rig) -> None:
    made = rig.put()
    with ThreadPoolExecutor() as pool:
        waiting = start_waiting(rig, pool, made.headers["etag"])
        with rig.database.write() as tx:
            remove(tx, made.json()["metadata"]["uid"], from_phases=list(Phase))
        assert code(waiting.result(60)) == "channel_not_found"


@pytest.mark.long
def test_hundreds_of_long_polls_do_not_block_other_requests(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    watch = rig.app.state.parts.watch
    with ThreadPoolExecutor(200) as pool:
        waiting = [pool.submit(wait, rig, etag) for _ in range(200)]
        until(lambda: watch.waiting == 200)
        rig.put(partitions=2)
        assert {each.result(60).status_code for each in waiting} == {200}
    until(lambda: watch.waiting == 0)


def test_a_disconnected_client_ends_its_wait(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    watch = rig.app.state.parts.watch
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(
            f"{rig.url}{PATH}?wait=60",
            headers={"If-None-Match": etag},
            timeout=httpx.Timeout(10, read=0.2),
        )
    until(lambda: watch.waiting == 0)


def test_waits_over_the_limit_are_refused(database: Database, database_url: str) -> None:
    with (
        running(database, database_url, max_waiters=1) as rig,
        ThreadPoolExecutor() as pool,
    ):
        etag = rig.put().headers["etag"]
        waiting = start_waiting(rig, pool, etag)
        response = wait(rig, etag)
        assert (response.status_code, code(response)) == (503, "too_many_waiters")
        assert response.headers["retry-after"] == "1"
        rig.put(partitions=2)
        assert waiting.result(60).status_code == 200


def test_a_stopping_gateway_answers_waiting_requests(database: Database, database_url: str) -> None:
    before = threads_of_gateways()
    with ThreadPoolExecutor() as pool:
        with running(database, database_url) as rig:
            waiting = start_waiting(rig, pool, rig.put().headers["etag"])
            begun = time.monotonic()
        assert waiting.result(60).status_code == 304
        assert time.monotonic() - begun < 45
    until(lambda: threads_of_gateways() <= before)


def threads_of_gateways() -> set[threading.Thread]:
    """The threads of this process, but for those of clients, which other tests have left."""
    return {t for t in threading.enumerate() if not t.name.startswith("sluiceway-")}


@pytest.mark.parametrize("seconds", ["-1", "61", "nan", "inf", "soon", ""])
def test_an_invalid_wait_is_refused(shared_rig: Rig, seconds: str) -> None:
    response = shared_rig.http.get(PATH, params={"wait": seconds})
    assert (response.status_code, code(response)) == (422, "invalid_request")


@pytest.mark.sample
@pytest.mark.parametrize("path", [PATH, f"{PATH}/endpoints", f"{PATH}/status", "/v1/status"])
def test_a_token_that_is_revoked_during_a_wait_does_not_see_the_change(
    flights: Site, path: str
) -> None:
    rig = flights.rig
    admin, mine = rig.token("admin"), rig.token("read")
    rig.http.headers.update(admin)
    etag = rig.http.get(path).headers["etag"]
    watch = rig.app.state.parts.watch
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            httpx.get,
            f"{rig.url}{path}",
            params={"wait": 60},
            headers=mine | {"If-None-Match": etag},
            timeout=480,
            verify=NOBODY_TO_TRUST,
        )
        until(lambda: watch.waiting == 1)
        rig.tokens.revoke(mine["Authorization"].split("_")[1])
        flights.attach()
        rig.put(partitions=8)
        response = waiting.result(60)
    assert (response.status_code, code(response)) == (401, "unauthenticated")


class ClosedMeanwhile(Poller[str, int]):
    """Another thread closes the watch after a wait was admitted, and before it has set its loop."""

    @contextmanager
    def slot(self) -> Iterator[None]:
        closing = threading.Thread(target=self.close)
        closing.start()
        closing.join()
        with super().slot():
            yield


def test_a_poller_that_is_closed_at_its_first_wait_ends_it_at_once() -> None:
    poller = ClosedMeanwhile(
        lambda _keys: {}, passes=PassRecord("test"), limit=1, poll_s=60, immediate=True
    )

    async def wait() -> bool:
        async with asyncio.timeout(30):
            return await poller.wait("a", lambda _state: False, timeout_s=3600)

    assert asyncio.run(wait()) is False


def test_a_read_that_fails_is_recorded_and_repeated() -> None:
    results = [RuntimeError("a defect"), DatabaseUnavailable("away"), None]
    failures: list[int] = []

    def read(_keys: tuple[str, ...]) -> dict[str, int]:
        error = results.pop(0)
        if error is not None:
            raise error
        return {"a": 1}

    passes = PassRecord("test", on_pass=lambda _name, number: failures.append(number))
    poller = Poller[str, int](read, passes=passes, limit=1, poll_s=0.01, immediate=True)

    async def wait() -> bool:
        return await poller.wait("a", lambda state: state == 1, timeout_s=60)

    with capture_logs() as logs:
        assert asyncio.run(wait()) is True
    assert failures[:3] == [1, 2, 0]
    assert [each["reason"] for each in logs] == ["a defect", "away"]


def test_a_published_state_ends_a_wait_without_a_read() -> None:
    reading, answered = threading.Event(), threading.Event()

    def read(_keys: tuple[str, ...]) -> dict[str, int]:
        reading.set()
        answered.wait(30)
        return {"a": 0, "b": 0}

    poller = Poller[str, int](read, passes=PassRecord("test"), limit=2, poll_s=60, immediate=True)

    async def wait() -> list[bool]:
        waits = [
            asyncio.create_task(poller.wait(key, lambda state: state == 1, timeout_s=timeout_s))
            for key, timeout_s in (("a", 30), ("b", 0.1))
        ]
        try:
            assert await asyncio.to_thread(reading.wait, 30)
            # From another thread, as after a commit.
            await asyncio.to_thread(poller.publish, "a", 1)
            return await asyncio.gather(*waits)
        finally:
            answered.set()

    assert asyncio.run(wait()) == [True, False]


def test_streams_that_a_close_wakes_find_the_watch_closed(database: Database) -> None:
    watch = Watch(database, limit=1, poll_s=1)
    closed: list[bool] = []
    watch.at_close(lambda: closed.append(watch.is_closed))
    watch.close()
    assert closed == [True]
