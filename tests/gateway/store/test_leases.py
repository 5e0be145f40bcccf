import pytest
from sqlalchemy import event

from databases import Postgres
from sluiceway_gateway.domain.errors import DatabaseUnavailable
from sluiceway_gateway.store import leases
from sluiceway_gateway.store.engine import Database
from waiting import until

LONG_MS = 60_000


def take(database: Database, holder: str, lease_ms: int = LONG_MS) -> int | None:
    with database.write() as tx:
        lease = leases.acquire(tx, "loops", holder, lease_ms)
    return None if lease is None else lease.epoch


def soon_over(database: Database) -> int:
    """Have `a` take a lease that is over in a moment; return its epoch.

    The time is shortened after it was taken: a short one may be over before it is given.
    """
    first = take(database, "a")
    assert first is not None
    assert take(database, "a", 30) in (first, None)
    return first


def test_one_holds_a_lease_and_others_do_not(database: Database) -> None:
    first = take(database, "a")
    assert first is not None
    assert take(database, "b") is None
    assert take(database, "a") == first


def test_a_leader_renews_by_one_statement(database: Database) -> None:
    first = take(database, "a")
    asked: list[str] = []
    event.listen(
        database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: asked.append(statement),
    )
    assert take(database, "a") == first
    assert len([each for each in asked if "leases" in each]) == 1, asked


def test_who_asks_for_a_lease_in_vain_keeps_nobody_from_renewing_it(postgres: Postgres) -> None:
    url = postgres.migrated()
    holder, other = Database(url), Database(url)
    first = take(holder, "a")
    with other.write() as tx:
        assert leases.acquire(tx, "loops", "b", LONG_MS) is None
        assert take(holder, "a") == first, "though the other has not ended its transaction"
    holder.close()
    other.close()


def test_a_lease_given_back_is_taken_with_a_higher_epoch(database: Database) -> None:
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


def test_a_lease_ends_by_the_databases_clock_and_its_epoch_goes_up(database: Database) -> None:
    first = soon_over(database)
    taken: list[int | None] = []
    until(lambda: taken.append(take(database, "b")) or taken[-1] is not None)
    assert taken[-1] == first + 1


def test_a_holder_that_comes_back_too_late_has_a_new_epoch(database: Database) -> None:
    first = soon_over(database)

    def ended() -> bool:
        with database.read() as tx:
            return leases.current(tx, "loops") is None

    until(ended)
    assert take(database, "a") == first + 1


def test_who_stands_still_within_a_transaction_holds_nobody_up_for_long(
    postgres: Postgres,
) -> None:
    """As a process does that is paused, of which PostgreSQL sees nothing else."""
    url = postgres.migrated()
    # Who waits for longer than this is told that the lease is locked.
    paused, other = Database(url), Database(url, wait_ms=10_000)
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
