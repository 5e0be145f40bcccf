"""Waiting commits share a transaction, and each has its own outcome."""

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from databases import WatchedDatabase
from endpoints import PARTITIONS, Services
from gateways import TOPIC_ID
from sluiceway_gateway.core.auth.model import OwnershipMode, Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.auth.service import LOOPBACK, Tokens
from sluiceway_gateway.core.errors import (
    Conflict,
    DatabaseUnavailable,
    Fenced,
    GoesBack,
    StaleGeneration,
    Unauthenticated,
)
from sluiceway_gateway.endpoints import store as endpoints_store
from sluiceway_gateway.endpoints.attach_request import AttachSpec
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.model import Endpoint, Role
from sluiceway_gateway.endpoints.positions import Position
from sluiceway_gateway.offsets.model import Commit, CommitResult
from sluiceway_gateway.offsets.service import Offsets

KEY = SecretStr("k" * 40)


class Group:
    """A group of readers that commit at the same time."""

    def __init__(self, database: WatchedDatabase) -> None:
        self.services = Services(database)
        self.database = database
        self.tokens = Tokens(database, KEY)
        ownership = Ownership(database, mode=OwnershipMode.ENFORCE)
        self.offsets = Offsets(database, self.tokens, ownership=ownership)
        self.name, self.uid = self.services.channel()
        self.members = [self.attach(index) for index in range(PARTITIONS)]

    def attach(self, index: int) -> Endpoint:
        spec = AttachSpec(
            id=uuid.uuid4().hex,
            session=uuid.uuid4().hex,
            client="",
            role=Role.READER,
            group="g",
            index=index,
            size=PARTITIONS,
        )
        attached = self.services.attach(self.name, spec, uid=self.uid)
        return attached.endpoint

    def commit(self, index: int, number: int = 1, *, offset: int | None = None) -> Commit:
        endpoint = self.members[index]
        return Commit(
            channel=self.name,
            channel_uid=self.uid,
            group="g",
            endpoint=endpoint.id,
            epoch=endpoint.epoch,
            generation=endpoint.generation,
            topic_id=TOPIC_ID,
            number=number,
            positions=(Position(partition=index, offset=number if offset is None else offset),),
        )

    def together(self, *commits: Commit, by: Principal = LOOPBACK) -> "list[Future[CommitResult]]":
        """Have all of these wait behind another one, so that they go in one transaction."""
        arrived, free = threading.Event(), threading.Event()

        def hold_up() -> None:
            arrived.set()
            assert free.wait(30)

        blocker = self.commit(0, 1, offset=0)
        self.database.before_commit.append(hold_up)
        try:
            self.offsets.submit(blocker, principal=LOOPBACK)
            assert arrived.wait(30)
            return [self.offsets.submit(commit, principal=by) for commit in commits]
        finally:
            free.set()

    def stands(self) -> dict[int, int]:
        report = self.offsets.fetch(self.name, "g", index=None)
        return {
            committed.position.partition: committed.position.offset
            for _, committed in report.positions
        }


@pytest.fixture
def database(patient_database: WatchedDatabase) -> WatchedDatabase:
    """Its transactions may stay open for long."""
    return patient_database


@pytest.fixture
def group(database: WatchedDatabase) -> Iterator[Group]:
    group = Group(database)
    yield group
    group.offsets.close()


@pytest.mark.sample
def test_waiting_commits_share_one_transaction(group: Group) -> None:
    transactions: list[object] = []
    group.database.before_commit.append(lambda: transactions.append(None))
    futures = group.together(*(group.commit(index, 5) for index in (1, 2, 3)))
    outcomes = [future.result(30) for future in futures]
    assert [outcome.number for outcome in outcomes] == [5, 5, 5]
    assert [outcome.positions[0].position.partition for outcome in outcomes] == [1, 2, 3]
    assert len(transactions) == 2
    assert group.stands() == {0: 0, 1: 5, 2: 5, 3: 5}


@pytest.mark.sample
def test_an_error_of_one_commit_does_not_affect_the_batch(group: Group) -> None:
    group.offsets.submit(group.commit(1, 1, offset=9), principal=LOOPBACK).result(30)
    group.attach(2)
    back, fenced, stale, good = group.together(
        group.commit(1, 2, offset=3),
        group.commit(2, 1),
        replace(group.commit(0, 2), generation=7),
        group.commit(3, 1),
    )
    for future, error in ((back, GoesBack), (fenced, Fenced), (stale, Conflict)):
        with pytest.raises(error):
            future.result(30)
    assert good.result(30).number == 1
    assert group.stands() == {0: 0, 1: 9, 3: 1}


def test_a_commit_that_breaks_the_transaction_fails_alone(group: Group) -> None:
    # More than a column holds: the driver refuses the whole statement.
    poison, good = group.together(group.commit(1, 2**70, offset=1), group.commit(3, 4))
    with pytest.raises(Exception):  # noqa: B017 - whatever the driver raises
        poison.result(30)
    assert good.result(30).number == 4
    assert group.stands() == {0: 0, 3: 4}


@pytest.mark.sample
def test_commits_of_one_endpoint_are_validated_in_order(group: Group) -> None:
    futures = group.together(*(group.commit(1, number) for number in (3, 1, 2, 4)))
    numbers = [future.result(30).number for future in futures]
    # An outdated number changes nothing, and returns the stored positions.
    assert numbers == [3, 3, 3, 4]
    assert group.stands() == {0: 0, 1: 4}


# SQLite has one writer at a time.
@pytest.mark.parametrize("databases", ["postgres"], indirect=True)
def test_a_commit_that_waits_for_a_lock_delays_no_other(group: Group) -> None:
    with group.database.write() as tx:
        endpoints_store.hold(tx, [group.members[1].id])
        held, free = group.together(group.commit(1, 2), group.commit(2, 2))
        assert free.result(30).number == 2
        assert not held.done()
    assert held.result(30).number == 2


def test_a_revoked_token_is_refused_in_the_transaction(group: Group) -> None:
    made = group.tokens.create(label="t", scopes=["read"])
    principal = group.tokens.authenticate(made.text.get_secret_value())
    assert group.offsets.submit(group.commit(1), principal=principal).result(30).number == 1
    group.tokens.revoke(made.token.id)
    assert group.tokens.recall(made.text.get_secret_value()) == principal
    for refused in (principal, LOOPBACK):
        with pytest.raises(Unauthenticated):
            group.offsets.submit(group.commit(2), principal=refused).result(30)
    assert group.tokens.recall(made.text.get_secret_value()) is None
    assert group.stands() == {1: 1}


def test_a_changed_group_is_seen_by_the_next_commit(group: Group) -> None:
    assert group.offsets.submit(group.commit(1), principal=LOOPBACK).result(30).number == 1
    with group.database.write() as tx:
        stored_group = groups_store.find(tx, group.uid, Role.READER, "g")
        assert stored_group is not None
        groups_store.save(tx, replace(stored_group, generation=stored_group.generation + 1))
    with pytest.raises(StaleGeneration):
        group.offsets.submit(group.commit(1, 2), principal=LOOPBACK).result(30)
    assert group.stands() == {1: 1}


def test_an_error_of_the_driver_is_reported_as_unavailable(group: Group) -> None:
    with group.database.write() as tx:
        tx.execute(text("DROP TABLE positions"))
    with pytest.raises(DatabaseUnavailable):
        group.offsets.submit(group.commit(1), principal=LOOPBACK).result(30)
