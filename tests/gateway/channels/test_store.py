from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from gateways import FAR_FUTURE
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.change import created
from sluiceway_gateway.channels.labels import Selector
from sluiceway_gateway.channels.model import (
    Channel,
    Phase,
    Retention,
    Spec,
    TopicRef,
    sources,
)
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.provisioning.store import record_observation, remove
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.model import Compatibility, Format, SchemaVersion

NOW = datetime(2030, 1, 1, 1, 2, 3, 456789, tzinfo=UTC)


def make(name: str, number: int = 0, **labels: str) -> Channel:
    return created(
        Spec(),
        labels,
        name=name,
        uid=f"{number:032x}",
        schema=SchemaVersion(id=1, version=1, fingerprint="f1", definition="{}", created_at=NOW),
        prefix="p.",
        now=NOW,
    )


def add(database: Database, *made: Channel) -> None:
    with database.write() as tx:
        assert schemas_store.register(tx, fingerprint="f", definition="{}", now=NOW) == 1
        for channel in made:
            assert channels_store.insert(tx, channel)


def find(database: Database, name: str) -> Channel | None:
    with database.read() as tx:
        return channels_store.find(tx, name)


def test_a_stored_channel_is_loaded_unchanged(database: Database) -> None:
    channel = replace(
        make("flights", team="a"),
        spec=Spec(
            compatibility=Compatibility.FORWARD,
            format=Format.ARROW,
            partitions=10_000,
            pinned=True,
            replication=3,
            retention=Retention(ms=-1, bytes=2**63 - 1),
            config={"cleanup.policy": "compact"},
        ),
    )
    add(database, channel)
    assert find(database, "flights") == channel


def test_a_spec_outside_of_the_bounds_of_requests_is_loaded(database: Database) -> None:
    """It may be of an earlier version, or of an adopted topic."""
    retention = Retention().model_copy(update={"bytes": -2})
    spec = Spec().model_copy(update={"retention": retention, "idle_ms": 1})
    channel = replace(make("flights"), spec=spec)
    add(database, channel)
    assert find(database, "flights") == channel


def test_a_channel_name_is_unique(database: Database) -> None:
    add(database, make("flights"))
    with database.write() as tx:
        assert not channels_store.insert(tx, make("flights", 1))
    assert find(database, "flights") == make("flights")


@pytest.mark.sample
@pytest.mark.parametrize(
    "wrong",
    [
        {"generation": 0},
        {"revision": 0},
        {"observed_generation": 2},
        {"keep_topic": True},
        {"phase": Phase.READY},
        {"phase": Phase.CLOSED},
        {"adopted": True},
        {"adopted": True, "topic": TopicRef(name="t", id="x"), "phase": Phase.DELETING},
        {"spec": Spec().model_copy(update={"partitions": 0})},
        {"spec": Spec().model_copy(update={"partitions": 10_001})},
        {"spec": Spec().model_copy(update={"replication": 0})},
    ],
)
def test_the_database_refuses_states_that_the_model_excludes(
    database: Database, wrong: dict[str, Any]
) -> None:
    add(database)
    with pytest.raises(IntegrityError), database.write() as tx:
        channels_store.insert(tx, replace(make("flights"), **wrong))
    assert find(database, "flights") is None


def test_a_change_made_from_an_old_state_changes_nothing(database: Database) -> None:
    first = make("flights")
    add(database, first)
    second = replace(first, labels={"a": "b"}, generation=2, revision=2)
    with database.write() as tx:
        assert channels_store.save(tx, second, was=first, from_phases=Phase)
        assert not channels_store.save(tx, replace(first, revision=3), was=first, from_phases=Phase)
        assert not channels_store.save(
            tx, replace(second, revision=3), was=second, from_phases=[Phase.READY]
        )
    assert find(database, "flights") == second


def observed(channel: Channel, phase: Phase) -> Channel:
    topic = TopicRef(name=channel.topic.name, id="x", partitions=1)
    return replace(channel, phase=phase, topic=topic, observed_generation=channel.generation)


@pytest.mark.sample
@pytest.mark.parametrize("phase", Phase)
def test_a_change_made_from_another_phase_changes_nothing(database: Database, phase: Phase) -> None:
    """Ready and closing are distinguished, though their rows have the same phase."""
    channel = observed(make("flights"), phase)
    add(database, channel)
    with database.write() as tx:
        for other in set(Phase) - {phase}:
            believed = replace(channel, phase=other)
            following = replace(believed, revision=2)
            assert not channels_store.save(tx, following, was=believed, from_phases=Phase)
            assert not channels_store.replace_row(tx, following, was=believed)
        assert channels_store.save(tx, replace(channel, revision=2), was=channel, from_phases=Phase)
    assert find(database, "flights") == replace(channel, revision=2)


@pytest.mark.sample
@given(steps=st.lists(st.sampled_from(Phase), max_size=6))
@settings(
    max_examples=settings.default.max_examples // 2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_rows_follow_only_the_transition_table(database: Database, steps: list[Phase]) -> None:
    with database.write() as tx:
        remove(tx, f"{0:032x}", from_phases=list(Phase))
    add(database, make("flights"))
    for following in steps:
        was = find(database, "flights")
        assert was is not None
        seen = observed(was, following)
        allowed = following is was.phase or was.phase in sources(following)
        if not allowed:
            with pytest.raises(ValueError, match="cannot become"), database.write() as tx:
                record_observation(tx, seen, was=was, now=NOW, due_at=FAR_FUTURE, refusals=0)
            assert find(database, "flights") == was
            continue
        with database.write() as tx:
            written = record_observation(tx, seen, was=was, now=NOW, due_at=FAR_FUTURE, refusals=0)
        assert written == find(database, "flights")


def test_pages_are_cut_by_name_in_the_same_order_on_both_databases(database: Database) -> None:
    names = ["a", "a-b", "a.b", "a0", "ab", "a_b", "b"]
    add(database, *(make(name, number) for number, name in enumerate(names)))
    listed: list[str] = []
    with database.read() as tx:
        while page := channels_store.page(tx, limit=2, after=listed[-1] if listed else ""):
            listed.extend(channel.name for channel in page)
    assert listed == sorted(names)


def test_a_page_has_only_the_given_prefixes(database: Database) -> None:
    add(database, *(make(name, n) for n, name in enumerate(["a", "ab", "az", "b", "c.x", "c_x"])))
    with database.read() as tx:
        page = channels_store.page(tx, limit=10, prefixes=("a", "c."))
        assert [channel.name for channel in page] == ["a", "ab", "az", "c.x"]
        assert channels_store.page(tx, limit=10, prefixes=()) == []


KEYS, VALUES = st.sampled_from(["a", "b", "ex.com/c"]), st.sampled_from(["", "x", "y"])
PARTS = st.one_of(
    KEYS,
    KEYS.map("!{}".format),
    st.builds("{}={}".format, KEYS, VALUES),
    st.builds("{}!={}".format, KEYS, VALUES),
    st.builds("{} in ({},{})".format, KEYS, VALUES, VALUES),
    st.builds("{} notin ({},{})".format, KEYS, VALUES, VALUES),
)


@pytest.mark.long
@given(
    labels=st.lists(st.dictionaries(KEYS, VALUES), min_size=1, max_size=5),
    parts=st.lists(PARTS, min_size=1, max_size=3),
)
@settings(
    max_examples=settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_selectors_match_in_sql_as_in_the_model(
    database: Database, labels: list[dict[str, str]], parts: list[str]
) -> None:
    selector = Selector.parse(",".join(parts))
    made = [
        replace(make(f"c{n}", n), labels=channel_labels) for n, channel_labels in enumerate(labels)
    ]
    with database.write() as tx:
        for n in range(5):
            remove(tx, f"{n:032x}", from_phases=list(Phase))
    add(database, *made)
    with database.read() as tx:
        selected_names = {
            channel.name for channel in channels_store.page(tx, limit=10, selector=selector)
        }
    assert selected_names == {channel.name for channel in made if selector.holds(channel.labels)}


def test_etags_of_many_names_omit_deleted_channels(database: Database) -> None:
    add(database, *(make(f"c{n}", n) for n in range(3)))
    with database.read() as tx:
        tags = channels_store.tags(tx, [f"c{n}" for n in range(1200)])
    assert sorted(tags) == ["c0", "c1", "c2"]
    assert (tags["c2"].uid, tags["c2"].revision) == (f"{2:032x}", 1)


def test_channels_are_counted_by_phase(database: Database) -> None:
    add(database, make("a", 1), make("b", 2))
    with database.read() as tx:
        assert channels_store.count_by_phase(tx, prefixes=[""]) == {
            Phase.PROVISIONING: 2,
            Phase.READY: 0,
            Phase.FAILED: 0,
            Phase.CLOSING: 0,
            Phase.CLOSED: 0,
            Phase.DELETING: 0,
        }


def test_a_schema_id_is_never_reused(database: Database) -> None:
    add(database, make("a", 1))
    with database.write() as tx:
        assert remove(tx, f"{1:032x}", from_phases=list(Phase))
        assert schemas_store.register(tx, fingerprint="f", definition="{}", now=NOW) == 1
        assert schemas_store.register(tx, fingerprint="g", definition="[]", now=NOW) > 1
