"""Waiting attach requests share a transaction, and each has its own outcome."""

import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select, text

from databases import WatchedDatabase
from endpoints import PARTITIONS, Services
from gateways import TOPIC_ID
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.core.auth.model import OwnershipMode, Principal
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.auth.service import LOOPBACK, Tokens
from sluiceway_gateway.core.errors import (
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
from sluiceway_gateway.endpoints.attach_request import Attached, AttachRequest, AttachSpec
from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Role
from sluiceway_gateway.endpoints.positions import Position
from sluiceway_gateway.endpoints.service import AttachService
from sluiceway_gateway.endpoints.tables import endpoint_events, endpoint_groups, endpoints
from sluiceway_gateway.offsets.model import Commit

KEY = SecretStr("k" * 40)


class Crowd:
    """Attach requests for one channel."""

    def __init__(self, database: WatchedDatabase) -> None:
        self.services = Services(database)
        self.database = database
        self.tokens = Tokens(database, KEY)
        self.published: list[set[tuple[str, str]]] = []
        database.on_commit = lambda changes: self.published.append(set(changes))
        self.service = AttachService(
            database,
            self.tokens,
            ownership=Ownership(database, mode=OwnershipMode.ENFORCE),
            wake=lambda: None,
        )
        self.name, self.uid = self.services.channel()
        self.blocked, self.blocked_uid = self.services.channel()

    def request(
        self, by: Principal = LOOPBACK, uid: str | None = None, **asked: Any
    ) -> AttachRequest:
        return AttachRequest(
            channel=self.name, channel_uid=uid or self.uid, spec=a_spec(**asked), principal=by
        )

    def together(self, *requests: AttachRequest) -> "list[Future[Attached]]":
        """Submit requests while one for another channel is in progress, so they share a batch."""
        arrived, free = threading.Event(), threading.Event()

        def hold_up() -> None:
            arrived.set()
            assert free.wait(30)

        first = AttachRequest(
            channel=self.blocked,
            channel_uid=self.blocked_uid,
            spec=a_spec(role=Role.WRITER),
            principal=LOOPBACK,
        )
        self.database.before_commit.append(hold_up)
        try:
            self.service.submit(first)
            assert arrived.wait(30)
            return [self.service.submit(request) for request in requests]
        finally:
            free.set()

    def attach(self, **asked: Any) -> Attached:
        return self.service.submit(self.request(**asked)).result(30)

    def rows(self, table: Any, uid: str) -> list[Any]:
        with self.database.read() as tx:
            rows = tx.execute(select(table).where(table.c.channel_uid == uid))
            return list(rows.all())


def a_spec(role: Role = Role.READER, **asked: Any) -> AttachSpec:
    defaults: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "session": uuid.uuid4().hex,
        "client": "a client",
    } | asked
    return AttachSpec(role=role, **defaults)


def member(index: int, size: int = PARTITIONS, **asked: Any) -> dict[str, Any]:
    return {"group": "g", "index": index, "size": size} | asked


@pytest.fixture
def database(patient_database: WatchedDatabase) -> WatchedDatabase:
    """Its transactions may stay open for long."""
    return patient_database


@pytest.fixture
def crowd(database: WatchedDatabase) -> Iterator[Crowd]:
    crowd = Crowd(database)
    yield crowd
    crowd.service.close()
    crowd.services.attachment.close()


def test_requests_that_wait_share_a_transaction(crowd: Crowd) -> None:
    commits: list[object] = []
    crowd.database.before_commit.append(lambda: commits.append(None))
    futures = crowd.together(*(crowd.request(**member(index)) for index in range(PARTITIONS)))
    attached = [future.result(30) for future in futures]
    assert [list(response.partitions) for response in attached] == [[0], [1], [2], [3]]
    assert sorted(response.endpoint.epoch for response in attached) == [1, 2, 3, 4]
    assert all(response.created and response.versions for response in attached)
    assert len(commits) == 2
    assert crowd.published[-1] == {("endpoints", crowd.uid), ("group", f"{crowd.uid}/g")}


@pytest.mark.sample
def test_an_error_of_one_request_does_not_affect_the_others(crowd: Crowd) -> None:
    superseded = crowd.request(**member(0))
    crowd.service.submit(superseded).result(30)
    crowd.attach(**member(0))
    wrong = {
        GroupSize: crowd.request(**member(1, size=3)),
        UidMismatch: crowd.request(**member(2), uid="0" * 32),
        Fenced: superseded,
        EndpointIdReused: replace(superseded, spec=replace(superseded.spec, index=3)),
        ChannelNotFound: replace(crowd.request(**member(0)), channel="nowhere"),
    }
    good = crowd.request(**member(3))
    *refused, last = crowd.together(*wrong.values(), good)
    for future, error in zip(refused, wrong, strict=True):
        with pytest.raises(error):
            future.result(30)
    assert list(last.result(30).partitions) == [3]
    assert len(crowd.rows(endpoints, crowd.uid)) == 3


def test_a_repeated_request_returns_the_same_endpoint(crowd: Crowd) -> None:
    request = crowd.request(**member(1))
    first, again = crowd.together(request, request)
    assert first.result(30).created
    assert not again.result(30).created
    assert again.result(30).endpoint == first.result(30).endpoint


def test_a_value_that_the_database_refuses_fails_only_its_own_request(crowd: Crowd) -> None:
    # PostgreSQL refuses U+0000, SQLite an unpaired surrogate.
    poison = crowd.request(**member(1), title="\x00\ud800")
    refused, good = crowd.together(poison, crowd.request(**member(2)))
    with pytest.raises(Exception):  # noqa: B017 - whatever the driver raises
        refused.result(30)
    assert list(good.result(30).partitions) == [2]


def test_an_endpoint_continues_at_the_committed_positions(crowd: Crowd) -> None:
    reader = crowd.attach(**member(0, size=1)).endpoint
    commit = Commit(
        channel=crowd.name,
        channel_uid=crowd.uid,
        group="g",
        endpoint=reader.id,
        epoch=reader.epoch,
        generation=reader.generation,
        topic_id=TOPIC_ID,
        number=1,
        positions=tuple(
            Position(partition=partition, offset=partition + 10) for partition in (0, 1, 3)
        ),
    )
    crowd.services.offsets.submit(commit, principal=LOOPBACK).result(30)
    futures = crowd.together(
        crowd.request(**member(0, size=1)), crowd.request(group="other", index=0, size=1)
    )
    own, others = (
        [
            (committed.position.partition, committed.position.offset)
            for committed in future.result(30).positions
        ]
        for future in futures
    )
    assert own == [(0, 10), (1, 11), (3, 13)]
    assert others == []
    with crowd.database.write() as tx:
        tx.execute(text("UPDATE positions SET topic_id = 'another' WHERE partition = 3"))
    (future,) = crowd.together(crowd.request(**member(0, size=1)))
    with pytest.raises(TopicChanged):
        future.result(30)
    # The previous instance still has its place.
    assert [row.superseded for row in crowd.rows(endpoints, crowd.uid)].count(False) == 2


def test_a_writer_takes_over_a_place_that_was_left_unfinished(crowd: Crowd) -> None:
    crowd.attach(role=Role.WRITER, group="w", index=0, size=2)
    futures = crowd.together(
        crowd.request(role=Role.WRITER, group="w", index=0, size=2),
        crowd.request(role=Role.WRITER, group="w", index=1, size=2),
    )
    assert [future.result(30).took_over for future in futures] == [True, False]


# SQLite has one writer at a time.
@pytest.mark.parametrize("databases", ["postgres"], indirect=True)
def test_a_locked_channel_delays_only_its_own_requests(crowd: Crowd) -> None:
    other, other_uid = crowd.services.channel()
    with crowd.database.write() as tx:
        channels_store.hold(tx, crowd.name)
        elsewhere = AttachRequest(
            channel=other, channel_uid=other_uid, spec=a_spec(), principal=LOOPBACK
        )
        held, free = crowd.together(crowd.request(**member(1)), elsewhere)
        assert free.result(30).created
        assert not held.done()
    assert held.result(30).created


def test_a_revoked_token_is_refused_in_the_transaction(crowd: Crowd) -> None:
    made = {
        scope: crowd.tokens.create(label="t", scopes=[scope])
        for scope in ("read", "read:other", "write")
    }
    by = {
        scope: crowd.tokens.authenticate(new_token.text.get_secret_value())
        for scope, new_token in made.items()
    }
    crowd.tokens.revoke(made["read:other"].token.id)
    good, wrong_role, revoked, nobody, dynamic = crowd.together(
        crowd.request(by["read"], **member(0)),
        crowd.request(by["write"], **member(1)),
        crowd.request(by["read:other"], **member(2)),
        crowd.request(LOOPBACK, **member(3)),
        crowd.request(by["read:other"], group="d"),
    )
    assert good.result(30).created
    with pytest.raises(Forbidden):
        wrong_role.result(30)
    for future in (revoked, nobody, dynamic):
        with pytest.raises(Unauthenticated):
            future.result(30)
    assert len(crowd.rows(endpoints, crowd.uid)) == 1


def test_an_error_of_the_driver_is_raised_as_unavailable(crowd: Crowd) -> None:
    with crowd.database.write() as tx:
        tx.execute(text("ALTER TABLE endpoint_events RENAME TO gone"))
    with pytest.raises(DatabaseUnavailable):
        crowd.attach(**member(1))


def random_spec(chance: random.Random) -> dict[str, Any]:
    """Return fields of a spec whose group has the requested kind."""
    kind = chance.choice(["shared", "broadcast", "writers", "alone"])
    if kind == "alone":
        return {"role": chance.choice([Role.READER, Role.WRITER])}
    role = Role.WRITER if kind == "writers" else Role.READER
    mode = Mode.BROADCAST if kind == "broadcast" else Mode.SHARED
    return {"role": role, "mode": mode, "group": kind, "index": chance.randrange(3), "size": 3}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_a_batch_gives_the_same_as_single_requests(crowd: Crowd, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - to repeat, not to hide
    wanted = [random_spec(chance) for _ in range(30)]
    single, single_uid = crowd.services.channel()
    for at, fields in enumerate(wanted):
        crowd.services.attach(single, a_spec(title=str(at), **fields), uid=single_uid)
    requests = [crowd.request(title=str(at), **fields) for at, fields in enumerate(wanted)]
    responses = [future.result(30) for future in crowd.together(*requests)]
    assert rows_of(crowd, crowd.uid) == rows_of(crowd, single_uid)
    stored = {row.id: row for row in crowd.rows(endpoints, crowd.uid)}
    for response in responses:
        row = stored[response.endpoint.id]
        assert (row.epoch, row.member_index) == (
            response.endpoint.epoch,
            response.endpoint.place.index,
        )


def test_members_of_a_dynamic_group_join_in_one_generation(crowd: Crowd) -> None:
    attached = [future.result(30) for future in crowd.together(crowd.request(group="d"))]
    more = crowd.together(*(crowd.request(group="d") for _ in range(3)))
    attached += [future.result(30) for future in more]
    assert [response.endpoint.place.index for response in attached] == [0, 1, 2, 3]
    assert [list(response.partitions) for response in attached] == [[]] * 4
    (group,) = [row for row in crowd.rows(endpoint_groups, crowd.uid) if row.name == "d"]
    assert (group.size, group.generation, group.next_index) == (4, 3, 4)


def rows_of(crowd: Crowd, uid: str) -> Any:
    """Return the successive instances in each place, the groups, and the history."""
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
