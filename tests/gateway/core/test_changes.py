"""Waits for changes: what is published, who is woken, and the limits of waits."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from databases import Databases
from endpoints import Site, report
from gateways import Rig
from sluiceway_gateway.core.changes import Changes, Subscription, of_channel, of_status
from sluiceway_gateway.core.db.engine import ChangeKey, ChangeKind, Database
from sluiceway_gateway.core.errors import TooManyWaiters

OF_A = {ChangeKey(ChangeKind.CHANNEL, "a")}


@pytest.fixture
def offline(sqlite: Databases) -> Iterator[Database]:
    """A database without tables."""
    with closing(Database(sqlite.empty())) as database:
        yield database


async def waited(changes: Changes, subscription: Subscription, timeout_s: float) -> bool:
    return await changes.wait(subscription, until_s=time.monotonic() + timeout_s)


def test_a_change_ends_the_waits_for_it_and_no_others(offline: Database) -> None:
    changes = Changes(offline, limit=5, reread_s=60)

    async def wait() -> list[bool]:
        awaited = (
            (of_channel("a", ChangeKind.LEDGER), 30.0),
            (of_status(), 30.0),
            (of_channel("a"), 0.2),
            (of_channel("b", ChangeKind.LEDGER, ChangeKind.ENDPOINTS), 0.2),
        )

        async def wait_for(keys: Any, timeout_s: float) -> bool:
            with changes.subscribe(keys) as subscription:
                return await waited(changes, subscription, timeout_s)

        waits = [asyncio.create_task(wait_for(*arguments)) for arguments in awaited]
        await asyncio.sleep(0)
        # From another thread, as after a commit.
        await asyncio.to_thread(
            changes.publish, {ChangeKey(ChangeKind.LEDGER, "a"), ChangeKey(ChangeKind.SAMPLES, "c")}
        )
        return await asyncio.gather(*waits)

    assert asyncio.run(wait()) == [True, True, False, False]
    assert changes.waiting == 0


def test_a_change_between_a_read_and_the_wait_ends_the_wait(offline: Database) -> None:
    changes = Changes(offline, limit=1, reread_s=60)

    async def wait() -> list[bool]:
        with changes.subscribe(of_channel("a")) as subscription:
            await asyncio.to_thread(changes.publish, OF_A)
            return [await waited(changes, subscription, timeout_s) for timeout_s in (30, 0.05)]

    assert asyncio.run(wait()) == [True, False]


def test_a_request_reads_at_most_ten_times_a_second_however_often_a_group_commits(
    offline: Database,
) -> None:
    changes = Changes(offline, limit=1, reread_s=60)

    async def wait() -> list[float]:
        ends_s = []
        with changes.subscribe(of_channel("a")) as subscription:
            for _ in range(3):
                changes.publish(OF_A)
                assert await waited(changes, subscription, 30)
                ends_s.append(time.monotonic())
        return ends_s

    first_s, second_s, third_s = asyncio.run(wait())
    assert min(second_s - first_s, third_s - second_s) > 0.09


def test_a_wait_without_a_change_reads_again_and_less_often_among_many(offline: Database) -> None:
    changes = Changes(offline, limit=400, reread_s=0.01)

    async def wait() -> bool:
        with changes.subscribe(of_channel("a")) as subscription:
            return await waited(changes, subscription, 0.5)

    assert asyncio.run(wait()) is True
    with ExitStack() as others:
        for _ in range(300):
            others.enter_context(changes.slot())
        assert asyncio.run(wait()) is False


class ClosedMeanwhile(Changes):
    """Another thread closes it while a request begins to wait."""

    @contextmanager
    def slot(self) -> Iterator[None]:
        closing = threading.Thread(target=self.close)
        closing.start()
        closing.join()
        with super().slot():
            yield


def test_a_wait_that_begins_during_the_shutdown_ends_at_once(offline: Database) -> None:
    changes = ClosedMeanwhile(offline, limit=1, reread_s=60)

    async def wait() -> list[bool]:
        async with asyncio.timeout(30):
            with changes.subscribe(()) as subscription:
                return [await waited(changes, subscription, 3600) for _ in range(2)]

    assert asyncio.run(wait()) == [False, False]


def test_waits_over_the_limit_are_refused(offline: Database) -> None:
    changes = Changes(offline, limit=1, reread_s=60)

    async def wait() -> None:
        with changes.subscribe(()) as subscription, changes.slot():
            await waited(changes, subscription, 1)

    with pytest.raises(TooManyWaiters):
        asyncio.run(wait())


def test_a_transaction_publishes_its_changes_once_after_its_commit(database: Database) -> None:
    published: list[list[ChangeKey]] = []
    database.on_commit = lambda changes: published.append(sorted(changes))
    with database.write() as tx:
        for _ in range(2):
            tx.publish(ChangeKind.ENDPOINTS, ["a", "b"])
        tx.publish(ChangeKind.CHANNEL, ["a"])
        assert published == []
    assert published == [[("channel", "a"), ("endpoints", "a"), ("endpoints", "b")]]
    with database.rehearse() as tx:
        tx.publish(ChangeKind.CHANNEL, ["a"])
    with database.write():
        """Nothing changes."""
    assert len(published) == 1


def test_requests_publish_what_others_wait_for_but_not_heartbeats(flights: Site) -> None:
    rig: Rig = flights.rig
    own: Database = rig.app.state.parts.database
    published: set[ChangeKey] = set()
    own.on_commit = published.update

    def kinds() -> set[str]:
        of_flights = {kind for kind, uid in published if uid.partition("/")[0] == flights.uid}
        published.clear()
        return of_flights

    reader = flights.member()
    assert kinds() == {"endpoints", "group"}
    flights.beat(report(reader, "started"))
    assert kinds() == {"endpoints"}
    flights.beat(report(reader, counters={"records": 5}))
    assert kinds() == set()
    flights.commit(reader, 1, (0, 5, 0))
    assert kinds() == {"group"}
    # A repetition changes nothing.
    flights.commit(reader, 1, (0, 5, 0))
    assert kinds() == set()
    flights.detach(reader)
    assert kinds() == {"endpoints"}
    rig.put(partitions=8)
    assert kinds() == {"channel"}
    rig.put(partitions=8)
    assert kinds() == set()
