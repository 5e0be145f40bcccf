import pytest
from sqlalchemy import event

from databases import Postgres
from sluiceway_gateway.core.db import leases
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.leases import Lease
from sluiceway_gateway.core.errors import DatabaseUnavailable

LONG_MS = 60_000


def take(database: Database, holder: str, lease_ms: int = LONG_MS) -> int | None:
    with database.write() as tx:
        lease = leases.acquire(tx, "loops", holder, lease_ms)
    return None if lease is None else lease.epoch


def held(database: Database) -> Lease:
    with database.read() as tx:
        lease = leases.current(tx, "loops")
    assert lease is not None
    return lease


def take_over(database: Database, holder: str, ended: Lease) -> int | None:
    with database.write() as tx:
        lease = leases.acquire(tx, "loops", holder, LONG_MS, ended=ended)
    return None if lease is None else lease.epoch


def test_a_lease_has_one_holder(database: Database) -> None:
    first = take(database, "a")
    assert first is not None
    assert take(database, "b") is None
    assert take(database, "a") == first


def test_a_leader_renews_its_lease_with_one_statement(database: Database) -> None:
    first = take(database, "a")
    asked: list[str] = []
    event.listen(
        database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: asked.append(statement),
    )
    assert take(database, "a") == first
    assert len([statement for statement in asked if "leases" in statement]) == 1, asked


def test_a_failed_acquire_does_not_block_renewal(postgres: Postgres) -> None:
    url = postgres.migrated()
    holder, other = Database(url), Database(url)
    first = take(holder, "a")
    with other.write() as tx:
        assert leases.acquire(tx, "loops", "b", LONG_MS) is None
        assert take(holder, "a") == first, "though the other has not ended its transaction"
    holder.close()
    other.close()


def test_a_released_lease_is_acquired_with_a_higher_epoch(database: Database) -> None:
    first = take(database, "a")
    assert first is not None
    with database.write() as tx:
        lease = leases.current(tx, "loops")
        assert lease is not None
        assert leases.release(tx, lease)
        assert leases.current(tx, "loops") is None
    assert take(database, "b") == first + 1
    with database.write() as tx:
        assert not leases.release(tx, lease), "it is another's by now"
    assert take(database, "a") is None


def test_an_expired_lease_is_acquired_with_a_higher_epoch(database: Database) -> None:
    first = take(database, "a")
    assert first is not None
    assert take_over(database, "b", held(database)) == first + 1
    assert take(database, "a") is None, "it is another's by now"


def test_a_renewed_lease_is_not_taken_over(database: Database) -> None:
    first = take(database, "a")
    seen = held(database)
    assert take(database, "a") == first
    assert held(database).renewals == seen.renewals + 1
    assert take_over(database, "b", seen) is None
    assert take(database, "a") == first


def test_one_of_two_concurrent_acquires_succeeds(database: Database) -> None:
    take(database, "a")
    seen = held(database)
    assert take_over(database, "b", seen) is not None
    assert take_over(database, "c", seen) is None
    assert held(database).holder == "b"


def test_a_process_paused_within_a_transaction_blocks_others_only_briefly(
    postgres: Postgres,
) -> None:
    """Hold the lock as a paused process does: PostgreSQL sees no difference."""
    url = postgres.migrated()
    # A longer wait fails because the lease is locked.
    paused, other = Database(url), Database(url, wait_ms=60_000)
    taken = []

    def stand_still() -> None:
        with paused.write() as tx:
            assert leases.acquire(tx, "loops", "paused", LONG_MS)
            taken.append(take(other, "other"))

    with pytest.raises(DatabaseUnavailable):
        stand_still()
    assert taken == [1], "and what the paused one began is undone"
    paused.close()
    other.close()
