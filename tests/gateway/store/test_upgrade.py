"""Databases of earlier revisions, brought to this one with all that is in them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from gateway_rig import Rig, code, running
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from databases import Databases
from sluiceway_gateway.db import idempotency, revision
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.idempotency import Request
from sluiceway_gateway.db.schema import metadata
from sluiceway_gateway.errors import DatabaseUnavailable, WrongRevision

REVISIONS = ("0001", "0002", "0003", "0004")
TOKEN = {"Authorization": f"Bearer slw_{'0' * 16}_{'1' * 64}"}


def migrated_to(revision_: str, url: str) -> None:
    """Make the tables of an earlier revision."""
    with opened(url) as database, writing(database) as connection:
        config = revision._config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision_)


@contextmanager
def opened(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


@pytest.fixture(params=REVISIONS)
def written(request: pytest.FixtureRequest) -> str:
    """An earlier revision."""
    found: str = request.param
    return found


@pytest.fixture
def old(written: str, databases: Databases) -> Iterator[Database]:
    """A database of that revision, without rows."""
    with opened(databases.copied(written, partial(migrated_to, written))) as database:
        assert revision.current(database) == written
        yield database


@contextmanager
def writing(database: Database) -> Iterator[Connection]:
    with database.engine.connect() as connection:
        connection = connection.execution_options(sluiceway_writes=True)
        with connection.begin():
            yield connection


def rows_of(written: str) -> str:
    return Path(__file__).with_name(f"revision_{written}.sql").read_text()


def fill(database: Database, written: str) -> None:
    """Write rows as a gateway of that revision does."""
    with writing(database) as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql("SET LOCAL TIME ZONE 'UTC'")
        for statement in re.split(r";\n", rows_of(written)):
            if statement.strip():
                connection.exec_driver_sql(statement)
        if database.dialect == "postgresql":
            connection.exec_driver_sql(
                "SELECT setval(pg_get_serial_sequence('schemas', 'id'), max(id)) FROM schemas"
            )


def before(written: str, url: str) -> None:
    """Write as an older gateway does, and migrate then."""
    migrated_to(written, url)
    with opened(url) as database:
        fill(database, written)
        revision.upgrade(database)


def after(written: str, url: str) -> None:
    """Migrate, and write as an older gateway does, which goes on while new ones are started."""
    migrated_to(written, url)
    with opened(url) as database:
        revision.upgrade(database)
        fill(database, written)


@pytest.fixture(params=[before, after])
def rig(request: pytest.FixtureRequest, written: str, databases: Databases) -> Iterator[Rig]:
    """Today's gateway on what an older one wrote, before and after the tables were expanded."""
    make = request.param
    url = databases.copied(f"{written} {make.__name__}", partial(make, written))
    with opened(url) as database, running(database, url) as rig:
        rig.http.headers.update(TOKEN)
        yield rig


def test_everything_is_read_as_it_was_and_can_be_changed(rig: Rig) -> None:
    found = {
        each["metadata"]["name"]: each for each in rig.http.get("/v1/channels").json()["items"]
    }
    assert {name: each["status"]["phase"] for name, each in found.items()} == {
        "flights": "ready",
        "readings": "provisioning",
        "lost": "failed",
        "leaving": "deleting",
    }
    flights, readings = found["flights"], found["readings"]
    assert flights["metadata"] == {
        "name": "flights",
        "uid": f"{1:032}",
        "labels": {"team": "fares"},
        "generation": 2,
        "created_at": "2026-01-02T03:04:05.000Z",
    }
    assert [each["name"] for each in flights["spec"]["schema"]["fields"]] == ["carrier", "delay"]
    assert flights["spec"]["retention"] == {"ms": 86_400_000, "bytes": None}
    assert flights["spec"]["config"] == {"min.insync.replicas": "1"}
    assert flights["status"]["topic"] == {
        "name": "sluiceway.flights-00000000",
        "id": "dG9waWMtb2YtZmxpZ2h0cw",
        "partitions": 4,
    }
    assert flights["status"]["schema"] == {"id": 1, "version": 1}
    assert [each["reason"] for each in flights["status"]["conditions"]] == [
        "TopicCreated",
        "UpToDate",
    ]
    # What is new is as if it had not been there.
    assert flights["spec"]["compatibility"] == "backward"
    assert flights["spec"].get("topic") is None
    assert flights["spec"]["beat"] == {"interval_ms": 2000, "patience_ms": 120_000}
    spec = readings["spec"]
    assert (spec["format"], spec["partitions"], spec["pinned"]) == ("arrow", 8, True)
    assert (spec["replication"], spec["retention"]["bytes"]) == (1, 1_073_741_824)

    assert code(rig.http.put("/v1/channels/readings", json={"spec": {"partitions": 9}})) == (
        "channel_pinned"
    )
    changed = rig.http.put(
        "/v1/channels/flights", json={"metadata": {"labels": {}}, "spec": {"partitions": 6}}
    )
    assert changed.status_code == 200, changed.text
    assert (changed.json()["metadata"]["generation"], changed.json()["spec"]["partitions"]) == (
        3,
        6,
    )
    connection = rig.http.get("/v1/channels/flights/connection", params={"access": "read"})
    assert connection.json()["schema"]["id"] == 1


def test_a_new_version_of_an_old_schema_keeps_the_old_one(rig: Rig) -> None:
    schema = rig.http.get("/v1/channels/flights").json()["spec"]["schema"]
    schema["fields"].append({"name": "gate", "type": ["null", "string"], "default": None})
    changed = rig.http.put("/v1/channels/flights", json={"spec": {"schema": schema}})
    # An id that no message in any topic carries yet.
    assert changed.json()["status"]["schema"] == {"id": 3, "version": 2}, changed.text
    kept = rig.http.get("/v1/channels/flights/schemas").json()["items"]
    assert [(each["id"], each["version"]) for each in kept] == [(1, 1), (3, 2)]


def test_endpoints_and_positions_stay_and_are_gone_on_with(rig: Rig, written: str) -> None:
    if written < "0003":
        assert rig.http.get("/v1/channels/flights/endpoints").json()["items"] == []
        return
    reader, writer = rig.http.get("/v1/channels/flights/endpoints").json()["items"]
    assert (reader["group"], reader["index"], reader["payload"]) == ("delays", 1, {"step": 1})
    assert (writer["state"], writer["ends"]) == ("closed", {"0": 50, "1": 49})
    offsets = "/v1/channels/flights/groups/delays/offsets"
    assert [each["offset"] for each in rig.http.get(offsets).json()["positions"]] == [20]
    commit = {
        "uid": f"{1:032}",
        "id": f"{6:032}",
        "epoch": 4,
        "generation": 3,
        "topic_id": "dG9waWMtb2YtZmxpZ2h0cw",
        "number": 3,
        "positions": [{"partition": 1, "offset": 30, "record": 0}],
    }
    assert rig.http.put(offsets, json=commit).status_code == 200
    assert [each["offset"] for each in rig.http.get(offsets).json()["positions"]] == [30]


def test_channels_of_every_format_are_made_beside_the_old_ones(rig: Rig) -> None:
    made = rig.http.put("/v1/channels/raw", json={"spec": {"format": "bytes"}})
    assert made.status_code == 201, made.text
    with pytest.raises(IntegrityError), writing(rig.database) as connection:
        connection.execute(text("UPDATE channels SET format = 'none' WHERE name = 'raw'"))


def test_tokens_and_answers_that_were_given_stay(rig: Rig) -> None:
    revoked = {"Authorization": f"Bearer slw_{1:016}_{'1' * 64}"}
    assert code(rig.http.get("/v1/channels", headers=revoked)) == "unauthenticated"
    asked = Request(principal="0" * 16, key="asked-before", digest="a digest")
    with rig.database.write() as tx:
        answer = idempotency.claim(tx, asked, datetime(2030, 1, 1, tzinfo=UTC))
    assert answer is not None
    assert (answer.status, answer.headers, answer.body) == (201, {"etag": '"00000000.1.1"'}, "{}")


def test_a_channel_takes_its_schemas_with_it(rig: Rig) -> None:
    with writing(rig.database) as connection:
        connection.execute(text("DELETE FROM channels WHERE name = 'lost'"))
        left = connection.execute(text("SELECT channel_uid FROM channel_schemas"))
        assert {row.channel_uid for row in left} == {f"{n:032}" for n in (1, 2, 4)}


def test_an_upgraded_database_has_the_tables_of_a_new_one(old: Database, written: str) -> None:
    fill(old, written)
    revision.upgrade(old)
    with old.engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        assert (
            compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
        )


def test_a_migration_waits_for_another_only_so_long_and_changes_nothing(
    old: Database, written: str
) -> None:
    with writing(old) as connection:
        if old.dialect == "postgresql":
            lock = text("SELECT pg_advisory_xact_lock(:lock)")
            connection.execute(lock.bindparams(lock=revision._LOCK))
        with pytest.raises(DatabaseUnavailable, match="another migration is at work"):
            revision.upgrade(old, wait_s=0.2)
    assert revision.current(old) == written
    assert revision.upgrade(old) == revision.head()


def test_a_migration_does_not_hold_up_requests_behind_a_long_transaction(
    old: Database, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revision, "_TABLE_WAIT_MS", 100)
    if old.dialect == "sqlite":
        # Readers see the state before, and hold up nobody.
        with old.read() as tx:
            tx.execute(text("SELECT uid FROM channels"))
            assert revision.upgrade(old, wait_s=0.2) == revision.head()
        return
    with old.read() as tx:
        tx.execute(text("SELECT uid FROM channels"))
        with pytest.raises(DatabaseUnavailable, match="a long transaction"):
            revision.upgrade(old)
    assert revision.current(old) == written


def test_an_older_revision_is_refused_with_the_line_to_run(old: Database, written: str) -> None:
    with pytest.raises(WrongRevision, match=rf"is at revision {written}.*run `sluiceway migrate`"):
        revision.check_revision(old)


def test_what_a_migration_sets_for_itself_is_not_left_behind(old: Database) -> None:
    revision.upgrade(old)
    if old.dialect == "sqlite":
        with old.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1


@pytest.mark.parametrize("written", REVISIONS)
def test_the_rows_are_those_of_every_table_of_their_revision(written: str) -> None:
    filled = set(re.findall(r"INSERT INTO (\w+)", rows_of(written)))
    first = {"schemas", "channels", "channel_schemas", "leases", "tokens", "requests"}
    second = {"kept_schemas"} if written >= "0002" else set()
    third = {"sessions", "endpoint_groups", "endpoints", "endpoint_events", "positions"}
    third = third if written >= "0003" else set()
    fourth = {"samples", "endpoint_tasks"} if written >= "0004" else set()
    assert filled == first | second | third | fourth
