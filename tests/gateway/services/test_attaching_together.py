"""Instances that wait to attach take their places in one transaction, each answered on its own."""

import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from endpoint_services import PARTITIONS, Services, before_each_commit
from pydantic import SecretStr
from sqlalchemy import select, text

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.auth.service import LOOPBACK, Tokens
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.schema import endpoint_events, endpoint_groups, endpoints
from sluiceway_gateway.endpoints.attach import Attachment
from sluiceway_gateway.endpoints.attach_batch import AttachRequest
from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Role
from sluiceway_gateway.endpoints.placement import Attached, AttachSpec
from sluiceway_gateway.errors import (
    ChannelNotFound,
    DatabaseUnavailable,
    EndpointIdReused,
    Fenced,
    Forbidden,
    GroupSize,
    TopicChanged,
    UidMismatch,
    Unauthenticated,
)
from sluiceway_gateway.offsets.model import Commit, Position

KEY = SecretStr("k" * 40)


class Crowd:
    """Instances of a channel that attach at the same time."""

    def __init__(self, database: Database) -> None:
        self.services = Services(database)
        self.database = database
        self.tokens = Tokens(database, KEY)
        self.notified: list[None] = []
        self.attachment = Attachment(
            database, self.tokens, wake=lambda: None, notify=lambda: self.notified.append(None)
        )
        self.name, self.uid = self.services.channel()
        self.blocked, self.blocked_uid = self.services.channel()

    def coming(
        self, by: Principal = LOOPBACK, uid: str | None = None, **asked: Any
    ) -> AttachRequest:
        return AttachRequest(
            channel=self.name, uid=uid or self.uid, asked=an_instance(**asked), by=by
        )

    def together(self, *coming: AttachRequest) -> "list[Future[Attached]]":
        """Have all of these wait behind one at another channel, so that they go together."""
        arrived, free = threading.Event(), threading.Event()

        def hold_up() -> None:
            arrived.set()
            assert free.wait(30)

        first = AttachRequest(
            channel=self.blocked,
            uid=self.blocked_uid,
            asked=an_instance(role=Role.WRITER),
            by=LOOPBACK,
        )
        before_each_commit(self.database, hold_up)
        try:
            self.attachment.attach_soon(first)
            assert arrived.wait(30)
            return [self.attachment.attach_soon(each) for each in coming]
        finally:
            free.set()

    def attach(self, **asked: Any) -> Attached:
        return self.attachment.attach_soon(self.coming(**asked)).result(30)

    def rows(self, table: Any, uid: str) -> list[Any]:
        with self.database.read() as tx:
            found = tx.execute(select(table).where(table.c.channel_uid == uid))
            return list(found.all())


def an_instance(role: Role = Role.READER, **asked: Any) -> AttachSpec:
    given: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "session": uuid.uuid4().hex,
        "client": "a client",
    } | asked
    return AttachSpec(role=role, **given)


def member(index: int, size: int = PARTITIONS, **asked: Any) -> dict[str, Any]:
    return {"group": "g", "index": index, "size": size} | asked


@pytest.fixture
def crowd(database: Database) -> Iterator[Crowd]:
    crowd = Crowd(database)
    yield crowd
    crowd.attachment.close()
    crowd.services.attachment.close()


def test_those_that_wait_share_one_transaction(crowd: Crowd) -> None:
    commits: list[object] = []
    before_each_commit(crowd.database, lambda: commits.append(None))
    futures = crowd.together(*(crowd.coming(**member(index)) for index in range(PARTITIONS)))
    attached = [each.result(30) for each in futures]
    assert [list(each.partitions) for each in attached] == [[0], [1], [2], [3]]
    assert sorted(each.endpoint.epoch for each in attached) == [1, 2, 3, 4]
    assert all(each.created and each.versions for each in attached)
    assert len(commits) == 2
    # Those who watch are told once of each transaction.
    assert len(crowd.notified) == 2


def test_what_stands_against_one_is_told_to_that_one_alone(crowd: Crowd) -> None:
    known = crowd.coming(**member(0))
    crowd.attachment.attach_soon(known).result(30)
    crowd.attach(**member(0))
    wrong = {
        GroupSize: crowd.coming(**member(1, size=3)),
        UidMismatch: crowd.coming(**member(2), uid="0" * 32),
        Fenced: known,
        EndpointIdReused: replace(known, asked=replace(known.asked, index=3)),
        ChannelNotFound: replace(crowd.coming(**member(0)), channel="nowhere"),
    }
    good = crowd.coming(**member(3))
    *refused, last = crowd.together(*wrong.values(), good)
    for future, error in zip(refused, wrong, strict=True):
        with pytest.raises(error):
            future.result(30)
    assert list(last.result(30).partitions) == [3]
    assert len(crowd.rows(endpoints, crowd.uid)) == 3


def test_a_repeat_gets_the_place_that_it_has(crowd: Crowd) -> None:
    coming = crowd.coming(**member(1))
    first, again = crowd.together(coming, coming)
    assert first.result(30).created
    assert not again.result(30).created
    assert again.result(30).endpoint == first.result(30).endpoint


def test_one_that_breaks_the_transaction_breaks_only_its_own(crowd: Crowd) -> None:
    # PostgreSQL keeps no U+0000, SQLite no half of a surrogate pair.
    poison = crowd.coming(**member(1), title="\x00\ud800")
    refused, good = crowd.together(poison, crowd.coming(**member(2)))
    with pytest.raises(Exception):  # noqa: B017 - whatever the driver raises
        refused.result(30)
    assert list(good.result(30).partitions) == [2]


def test_each_goes_on_where_its_partitions_were_committed(crowd: Crowd) -> None:
    reader = crowd.attach(**member(0, size=1)).endpoint
    commit = Commit(
        channel=crowd.name,
        channel_uid=crowd.uid,
        group="g",
        endpoint=reader.id,
        epoch=reader.epoch,
        generation=reader.generation,
        topic_id="t",
        number=1,
        positions=tuple(Position(partition=each, offset=each + 10) for each in (0, 1, 3)),
    )
    crowd.services.offsets.commit(commit, principal=LOOPBACK)
    futures = crowd.together(
        crowd.coming(**member(0, size=1)), crowd.coming(group="other", index=0, size=1)
    )
    own, others = (
        [(each.position.partition, each.position.offset) for each in future.result(30).positions]
        for future in futures
    )
    assert own == [(0, 10), (1, 11), (3, 13)]
    assert others == []
    with crowd.database.write() as tx:
        tx.execute(text("UPDATE positions SET topic_id = 'another' WHERE partition = 3"))
    (future,) = crowd.together(crowd.coming(**member(0, size=1)))
    with pytest.raises(TopicChanged):
        future.result(30)
    # Who had the place still has it.
    assert [each.superseded for each in crowd.rows(endpoints, crowd.uid)].count(False) == 2


def test_a_writer_learns_that_its_place_was_left_unfinished(crowd: Crowd) -> None:
    crowd.attach(role=Role.WRITER, group="w", index=0, size=2)
    futures = crowd.together(
        crowd.coming(role=Role.WRITER, group="w", index=0, size=2),
        crowd.coming(role=Role.WRITER, group="w", index=1, size=2),
    )
    assert [each.result(30).took_over for each in futures] == [True, False]


# SQLite has one writer at a time.
@pytest.mark.parametrize("databases", ["postgres"], indirect=True)
def test_a_channel_that_is_held_holds_up_only_its_own(crowd: Crowd) -> None:
    other, other_uid = crowd.services.channel()
    with crowd.database.write() as tx:
        channels_store.hold(tx, crowd.name)
        elsewhere = AttachRequest(channel=other, uid=other_uid, asked=an_instance(), by=LOOPBACK)
        held, free = crowd.together(crowd.coming(**member(1)), elsewhere)
        assert free.result(30).created
        assert not held.done()
    assert held.result(30).created


def test_a_revoked_token_is_refused_in_the_transaction(crowd: Crowd) -> None:
    made = {
        scope: crowd.tokens.create(label="t", scopes=[scope])
        for scope in ("read", "read:other", "write")
    }
    by = {
        scope: crowd.tokens.authenticate(each.text.get_secret_value())
        for scope, each in made.items()
    }
    crowd.tokens.revoke(made["read:other"].token.id)
    good, wrong_role, revoked, nobody, dynamic = crowd.together(
        crowd.coming(by["read"], **member(0)),
        crowd.coming(by["write"], **member(1)),
        crowd.coming(by["read:other"], **member(2)),
        crowd.coming(LOOPBACK, **member(3)),
        crowd.coming(by["read:other"], group="d"),
    )
    assert good.result(30).created
    with pytest.raises(Forbidden):
        wrong_role.result(30)
    for future in (revoked, nobody, dynamic):
        with pytest.raises(Unauthenticated):
            future.result(30)
    assert len(crowd.rows(endpoints, crowd.uid)) == 1


def test_what_the_driver_says_of_the_database_is_told_as_unavailable(crowd: Crowd) -> None:
    with crowd.database.write() as tx:
        tx.execute(text("ALTER TABLE endpoint_events RENAME TO gone"))
    with pytest.raises(DatabaseUnavailable):
        crowd.attach(**member(1))


def some_asked(chance: random.Random) -> dict[str, Any]:
    """Ask for any place, of those who find their groups as they want them."""
    kind = chance.choice(["shared", "broadcast", "writers", "alone"])
    if kind == "alone":
        return {"role": chance.choice([Role.READER, Role.WRITER])}
    role = Role.WRITER if kind == "writers" else Role.READER
    mode = Mode.BROADCAST if kind == "broadcast" else Mode.SHARED
    return {"role": role, "mode": mode, "group": kind, "index": chance.randrange(3), "size": 3}


@pytest.mark.parametrize("seed", range(5))
def test_together_comes_to_the_same_as_one_after_the_other(crowd: Crowd, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - to repeat, not to hide
    wanted = [some_asked(chance) for _ in range(30)]
    single, single_uid = crowd.services.channel()
    for at, each in enumerate(wanted):
        crowd.services.attachment._alone(
            single, an_instance(title=str(at), **each), uid=single_uid, principal=LOOPBACK
        )
    coming = [crowd.coming(title=str(at), **each) for at, each in enumerate(wanted)]
    answers = [each.result(30) for each in crowd.together(*coming)]
    assert standing(crowd, crowd.uid) == standing(crowd, single_uid)
    stored = {row.id: row for row in crowd.rows(endpoints, crowd.uid)}
    for each in answers:
        row = stored[each.endpoint.id]
        assert (row.epoch, row.member_index) == (each.endpoint.epoch, each.endpoint.place.index)


def standing(crowd: Crowd, uid: str) -> Any:
    """Return who had each place one after the other, the groups, and how the history tells it."""
    places = defaultdict(list)
    epochs = defaultdict(list)
    for row in sorted(crowd.rows(endpoints, uid), key=lambda row: int(row.epoch)):
        index = None if row.group_name == ANONYMOUS else row.member_index
        places[row.role, row.group_name, index].append((row.title, row.superseded, row.state))
        epochs[row.role, row.group_name].append(row.epoch)
    groups = {
        (row.role, row.name): (row.mode, row.size, row.generation, row.epoch, row.next_index)
        for row in crowd.rows(endpoint_groups, uid)
    }
    lines = sorted(
        (row.group_name, row.state, (row.cause or "")[:13])
        for row in crowd.rows(endpoint_events, uid)
    )
    return places, epochs, groups, lines
