"""Owners of groups, batches and keys: what tokens of other labels may do with them."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from endpoints import Site, fresh_id, report, site
from faults import at_statements
from gateways import TOPIC_ID, Rig, code, running
from ledger_sites import LedgerSite, ledger_site, written_topic
from shared_kafka import SharedKafka
from sluiceway_gateway.channels.model import TopicRef
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import DatabaseUnavailable, InvalidRequest
from waiting import until

OWNER = "job"
OTHER = "another job"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A kind of token, and whether it may use what belongs to the label `job`."""

    label: str
    scopes: tuple[str, ...]
    may_use: bool
    manages: bool = False

    def enter(self, rig: Rig) -> None:
        become(rig, self.label, *self.scopes)


CALLERS = {
    "the owner": Caller(label=OWNER, scopes=("read", "write"), may_use=True),
    "another label": Caller(label=OTHER, scopes=("read", "write"), may_use=False),
    "another label with manage": Caller(
        label="ops", scopes=("manage",), may_use=True, manages=True
    ),
    "another label with admin": Caller(label="root", scopes=("admin",), may_use=True, manages=True),
    "another label that manages other channels": Caller(
        label=OTHER, scopes=("read", "write", "manage:elsewhere."), may_use=False
    ),
}


def become(rig: Rig, label: str, *scopes: str) -> None:
    """Use a new token from now on."""
    rig.http.headers.update(rig.token(*(scopes or ("admin",)), label=label))


def refused(response: httpx.Response) -> None:
    assert (response.status_code, code(response)) == (403, "forbidden"), response.text


def allowed(response: httpx.Response) -> None:
    assert response.status_code in (200, 201), response.text


@pytest.fixture
def flights(rig: Rig) -> Site:
    """A channel, used with a token of the label `job` that does not manage it."""
    flights = site(rig, partitions=4)
    become(rig, OWNER, "read", "write")
    return flights


@dataclass(frozen=True, kw_only=True)
class Owned:
    """What the label `job` has: a group of readers with a member, a dynamic one, and a writer."""

    flights: Site
    reader: Any
    writer: Any

    def another_session(self) -> Site:
        return Site(rig=self.flights.rig, name=self.flights.name, uid=self.flights.uid)


@pytest.fixture
def owned(flights: Site) -> Owned:
    reader = flights.member()
    flights.beat(report(reader, "started"))
    assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
    flights.join()
    return Owned(
        flights=flights, reader=reader, writer=flights.member(role="writer", group="writers")
    )


#: Uses of a group by somebody who is not the session that has attached its members.
USES_OF_GROUPS: dict[str, Callable[[Owned], httpx.Response]] = {
    "join": lambda owned: owned.another_session().post_attach(group="d", dynamic=True),
    "join of writers": lambda owned: owned.another_session().post_attach(
        "writer", group="writers", index=0, size=1
    ),
    "takeover of a place": lambda owned: owned.another_session().post_attach(
        group="g", index=0, size=1
    ),
    "resize": lambda owned: owned.flights.resize(2, owned.reader["generation"]),
    "reset": lambda owned: owned.flights.reset((0, 1, 0), force=True),
}


@pytest.mark.sample
@pytest.mark.parametrize("use", USES_OF_GROUPS.values(), ids=USES_OF_GROUPS.keys())
@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS.keys())
def test_a_group_is_used_by_its_owner_and_by_managers(
    owned: Owned, caller: Caller, use: Callable[[Owned], httpx.Response]
) -> None:
    caller.enter(owned.flights.rig)
    response = use(owned)
    if caller.may_use:
        allowed(response)
        return
    refused(response)
    assert "belongs to another owner" in response.json()["detail"]
    assert_names_nothing(response, owned.reader["id"], owned.flights.session)
    become(owned.flights.rig, OWNER, "read", "write")
    assert owned.flights.commit(owned.reader, 2, (0, 6, 0)).status_code == 200


@pytest.mark.sample
@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS.keys())
def test_positions_without_membership_are_moved_by_the_owner_and_by_managers(
    flights: Site, caller: Caller
) -> None:
    assert advance(flights, 5, before=None).status_code == 200
    caller.enter(flights.rig)
    response = advance(flights, 6, before=5)
    allowed(response) if caller.may_use else refused(response)
    assert flights.committed("alone") == [(0, 6 if caller.may_use else 5, 0)]


def advance(flights: Site, offset: int, *, before: int | None) -> httpx.Response:
    def position(at: int) -> dict[str, int]:
        return {"partition": 0, "offset": at, "record": 0}

    body = {
        "uid": flights.uid,
        "topic_id": TOPIC_ID,
        "positions": [position(offset)],
        "before": [] if before is None else [position(before)],
    }
    return flights.rig.http.post(f"{flights.offsets_path('alone')}/advance", json=body)


#: Uses of an endpoint that another session has attached; no scope permits them.
USES_OF_ENDPOINTS: dict[str, Callable[[Owned], httpx.Response]] = {
    "heartbeat": lambda owned: owned.flights.send(report(owned.reader, "error")),
    "commit": lambda owned: owned.flights.commit(owned.reader, 2, (0, 6, 0)),
    "detach": lambda owned: owned.flights.detach(owned.reader),
}


@pytest.mark.long
@pytest.mark.parametrize("use", USES_OF_ENDPOINTS.values(), ids=USES_OF_ENDPOINTS.keys())
@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS.keys())
def test_an_endpoint_is_used_by_its_label_alone(
    owned: Owned, caller: Caller, use: Callable[[Owned], httpx.Response]
) -> None:
    caller.enter(owned.flights.rig)
    (allowed if caller.label == OWNER else refused)(use(owned))


@pytest.mark.long
@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS.keys())
def test_an_endpoint_is_dismissed_by_managers_alone(owned: Owned, caller: Caller) -> None:
    caller.enter(owned.flights.rig)
    response = owned.flights.rig.http.delete(
        f"{owned.flights.path}/endpoints/{owned.reader['id']}", params={"uid": owned.flights.uid}
    )
    (allowed if caller.manages else refused)(response)


def assert_names_nothing(response: httpx.Response, *names: str) -> None:
    detail = response.json()["detail"]
    assert [name for name in names if name in detail] == []


def test_a_member_of_a_group_that_was_transferred_cannot_commit(owned: Owned) -> None:
    flights = owned.flights
    become(flights.rig, "ops", "manage")
    assert transfer_group(flights, "g", OTHER).json() == {
        "group": "g",
        "role": "reader",
        "owner": OTHER,
    }
    become(flights.rig, OWNER, "read", "write")
    refused(flights.commit(owned.reader, 2, (0, 6, 0)))
    become(flights.rig, OTHER, "read")
    allowed(owned.another_session().post_attach(group="g", index=0, size=1))
    assert flights.committed() == [(0, 5, 0)]


def transfer_group(flights: Site, group: str, owner: str, **body: Any) -> httpx.Response:
    return flights.rig.http.post(
        f"{flights.path}/groups/{group}/owner", json={"uid": flights.uid, "owner": owner, **body}
    )


@pytest.mark.long
def test_a_shared_group_is_used_by_every_label(owned: Owned) -> None:
    flights = owned.flights
    refused(transfer_group(flights, "g", "*"))
    become(flights.rig, "ops", "manage")
    allowed(transfer_group(flights, "g", "*"))
    allowed(transfer_group(flights, "writers", "*", role="writer"))
    assert transfer_group(flights, "nobody's", "*").status_code == 404
    for label in (OTHER, "a third"):
        become(flights.rig, label, "read", "write")
        allowed(USES_OF_GROUPS["takeover of a place"](owned))
        allowed(USES_OF_GROUPS["join of writers"](owned))
        # Who owns no group needs `manage` for its positions.
        refused(flights.reset((0, 1, 0), force=True))
    assert owner_of(flights) == "*"


def owner_of(flights: Site, group: str = "g") -> Any:
    return flights.rig.http.get(flights.offsets_path(group)).json()["owner"]


@pytest.mark.long
def test_a_group_without_an_owner_belongs_to_the_first_label_that_uses_it(rig: Rig) -> None:
    flights = site(rig, partitions=4)
    flights.member()
    reader = flights.member(group="h")
    assert owner_of(flights) is None
    become(rig, "ops", "manage")
    # An operator does not use it.
    allowed(flights.resize(2, 1))
    allowed(flights.reset((0, 1, 0), force=True))
    assert owner_of(flights) is None
    become(rig, OWNER, "read")
    allowed(flights.post_attach(group="g", index=0, size=2))
    assert owner_of(flights) == OWNER
    allowed(flights.commit(reader, 1, (0, 5, 0)))
    assert owner_of(flights, "h") == OWNER
    become(rig, OTHER, "read")
    refused(Site(rig=rig, name="flights", uid=flights.uid).post_attach(group="h", index=0, size=1))
    assert [change["fields"] for change in changes(flights, "claim_owner")] == [
        [{"field": "owner", "old": None, "new": OWNER}]
    ] * 2


def test_anonymous_endpoints_belong_to_nobody(flights: Site) -> None:
    flights.attach()
    become(flights.rig, OTHER, "read")
    another = Site(rig=flights.rig, name=flights.name, uid=flights.uid)
    allowed(another.post_attach())


@pytest.mark.long
def test_tokens_of_one_label_are_one_owner(flights: Site) -> None:
    flights.member()
    become(flights.rig, OWNER, "read:flights")
    another = Site(rig=flights.rig, name=flights.name, uid=flights.uid)
    allowed(another.post_attach(group="g", index=0, size=1))


def changes(site: Site | LedgerSite, action: str) -> list[Any]:
    items = site.rig.http.get(f"/v1/channels/{site.name}/changes").json()["items"]
    return [change for change in items if change["action"] == action]


@pytest.mark.long
def test_transfers_and_refused_uses_are_audited(owned: Owned) -> None:
    flights = owned.flights
    become(flights.rig, OTHER, "read", "write")
    for _ in range(3):
        refused(flights.resize(2, owned.reader["generation"]))
    # The entry is written after the response.
    until(lambda: changes(flights, "foreign_use") != [])
    (use,) = changes(flights, "foreign_use")
    assert (use["by"], use["target"]) == (OTHER, "g")
    assert use["fields"] == [{"field": "resize", "old": None, "new": "refused"}]
    become(flights.rig, "ops", "manage")
    for _ in range(2):
        allowed(transfer_group(flights, "g", OTHER, reason="a new team"))
    (transfer,) = changes(flights, "transfer_owner")
    assert (transfer["by"], transfer["target"], transfer["reason"]) == ("ops", "g", "a new team")
    assert transfer["fields"] == [{"field": "owner", "old": OWNER, "new": OTHER}]
    metrics = flights.rig.http.get("/metrics").text
    assert 'sluiceway_foreign_uses_total{action="resize"} 3.0' in metrics


@pytest.mark.long
def test_uses_of_each_foreign_group_are_audited(owned: Owned) -> None:
    flights = owned.flights
    flights.member(group="h")
    become(flights.rig, OTHER, "read", "write")
    for group in ("g", "h", "h"):
        refused(flights.resize(2, 1, group=group))
    until(lambda: len(changes(flights, "foreign_use")) >= 2)
    assert [change["target"] for change in changes(flights, "foreign_use")] == ["h", "g"]


@pytest.fixture
def audited(database: Database, database_url: str) -> Iterator[Site]:
    """A channel of a gateway that permits uses by other labels."""
    with running(database, database_url, ownership="audit") as rig:
        flights = site(rig, partitions=4)
        become(rig, OWNER, "read", "write")
        yield flights


def test_a_refused_use_is_audited_once_the_database_is_back(owned: Owned) -> None:
    flights = owned.flights
    failed = threading.Event()

    def fail_once() -> None:
        if not failed.is_set():
            failed.set()
            raise DatabaseUnavailable("for this test")

    become(flights.rig, OTHER, "read", "write")
    database = flights.rig.app.state.parts.database
    with at_statements(database, "INSERT INTO audit_entries", fail_once):
        refused(flights.resize(2, owned.reader["generation"]))
        assert failed.wait(30)
        until(lambda: changes(flights, "foreign_use") != [])


def test_uses_by_other_labels_can_be_permitted_and_audited(audited: Site) -> None:
    reader = audited.member()
    become(audited.rig, OTHER, "read", "write")
    allowed(audited.resize(2, reader["generation"]))
    another = Site(rig=audited.rig, name=audited.name, uid=audited.uid)
    allowed(another.post_attach(group="g", index=0, size=2))
    # As before there were owners.
    refused(audited.reset((0, 1, 0), force=True))
    until(lambda: len(changes(audited, "foreign_use")) == 3)
    fields = [change["fields"][0] for change in changes(audited, "foreign_use")]
    assert {(field["field"], field["new"]) for field in fields} == {
        ("resize", "permitted"),
        ("join", "permitted"),
        ("reset", "permitted"),
    }
    assert owner_of(audited) == OWNER


@pytest.fixture(scope="module")
def written(kafka: SharedKafka) -> TopicRef:
    """A topic of these tests alone, because some write to it."""
    return written_topic(kafka.bootstrap_servers, partitions=4, records=100)


@pytest.fixture
def orders(
    database: Database, database_url: str, kafka: SharedKafka, written: TopicRef
) -> Iterator[LedgerSite]:
    """A channel with batches, used with a token of the label `job` that does not manage it."""
    with running(
        *(database, database_url),
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        kafka_timeout_ms=20_000,
    ) as rig:
        orders = ledger_site(rig, written)
        become(rig, OWNER, "read", "write")
        yield orders


USES_OF_BATCHES: dict[str, Callable[[LedgerSite, Any], httpx.Response]] = {
    "open": lambda orders, _: orders.post_open("k2", instance="mine"),
    "open of the open key": lambda orders, _: orders.post_open(),
    "takeover": lambda orders, _: orders.post_open(instance="mine", takeover=True),
    "commit": lambda orders, batch: orders.post_commit(batch, {0: [(0, 10)]}),
    "abort": lambda orders, batch: orders.post_abort(batch),
    "abort of any instance": lambda orders, batch: orders.post_abort(batch, instance=None),
    "renewal": lambda orders, batch: orders.post(
        "batches/renew", batches=[{"id": batch["id"], "instance": "run-1"}]
    ),
    "manifest": lambda orders, batch: orders.rig.http.put(
        f"{orders.path}/batches/{batch['id']}/manifest/0",
        json={"uid": orders.uid, "instance": "run-1", "manifest": {"0": [[0, 10]]}},
    ),
}


@pytest.mark.sample
@pytest.mark.parametrize("use", USES_OF_BATCHES.values(), ids=USES_OF_BATCHES.keys())
@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS.keys())
def test_batches_and_keys_are_used_by_their_owner_and_by_managers(
    orders: LedgerSite, caller: Caller, use: Callable[[LedgerSite, Any], httpx.Response]
) -> None:
    batch = orders.open()
    caller.enter(orders.rig)
    response = use(orders, batch)
    if caller.may_use:
        allowed(response)
        return
    refused(response)
    assert_names_nothing(response, "run-1", batch["id"])
    become(orders.rig, OWNER, "write")
    orders.commit(batch, {0: [(0, 10)]})


@pytest.mark.long
def test_no_refusal_of_a_batch_names_an_instance(orders: LedgerSite) -> None:
    batch = orders.open(instance="the-instance")
    responses = [
        orders.post_open(instance="mine"),
        orders.post_commit(batch, {0: [(0, 10)]}, instance="mine"),
        orders.post_abort(batch, instance="mine"),
    ]
    orders.open(instance="the-successor", takeover=True)
    responses.append(orders.post_commit(batch, {0: [(0, 10)]}, instance="the-instance"))
    responses.append(orders.post_open(instance="the-instance"))
    for response in responses:
        assert response.status_code == 409
        detail = response.json()["detail"]
        assert "the-successor" not in detail
    for response in responses[:3]:
        assert "the-instance" not in response.json()["detail"]


def test_heartbeats_neither_abort_nor_renew_batches_of_another_label(orders: LedgerSite) -> None:
    batch = orders.open(instance="run-1", lease_ms=15_000)
    before = orders.committed()
    become(orders.rig, OTHER, "read", "write")
    beat = {"session": fresh_id(), "beat": 1, "endpoints": []}
    for body in ({"ended": ["run-1"]}, {"renews": ["run-1"]}):
        allowed(orders.rig.http.post("/v1/heartbeats", json=beat | body))
    assert orders.committed() == before
    become(orders.rig, OWNER, "write")
    assert orders.open(instance="run-1")["lease_until"] == batch["lease_until"]


def test_heartbeats_renew_and_abort_the_other_batches_beside_a_transferred_one(
    orders: LedgerSite,
) -> None:
    transferred = orders.open("given", owner="one", instance="run-1", lease_ms=15_000)
    kept = orders.open("kept", owner="two", instance="run-1", lease_ms=15_000)
    become(orders.rig, "ops", "manage")
    allowed(transfer_batches(orders, writer="one", owner=OTHER))
    become(orders.rig, OWNER, "read", "write")
    beat = {"session": fresh_id(), "beat": 1, "endpoints": []}
    allowed(orders.rig.http.post("/v1/heartbeats", json=beat | {"renews": ["run-1"]}))
    assert orders.open("kept", owner="two", instance="run-1")["lease_until"] > kept["lease_until"]
    named = [{"id": batch["id"], "instance": "run-1"} for batch in (transferred, kept)]
    renewed = orders.post("batches/renew", batches=named).json()["batches"]
    assert [lease["id"] for lease in renewed] == [kept["id"]]
    allowed(orders.rig.http.post("/v1/heartbeats", json=beat | {"ended": ["run-1"]}))
    assert [batch["key"] for batch in orders.committed()["open"]] == ["given"]


def test_keys_are_transferred_with_their_writer(orders: LedgerSite) -> None:
    orders.commit(orders.open("k1"), {0: [(0, 10)]})
    refused(transfer_batches(orders, key="k1", owner=OTHER))
    become(orders.rig, "ops", "manage")
    assert transfer_batches(orders, key="k1", owner=OTHER).json() == {
        "writer": "job",
        "owner": OTHER,
    }
    assert transfer_batches(orders, key="none", owner=OTHER).status_code == 404
    assert transfer_batches(orders, key="k1", writer="job", owner=OTHER).status_code == 422
    become(orders.rig, OWNER, "write")
    refused(orders.post_open("k1", instance="run-2"))
    become(orders.rig, OTHER, "write")
    assert orders.open("k1", instance="run-2")["state"] == "committed"
    become(orders.rig, "ops", "manage")
    allowed(transfer_batches(orders, writer="job", owner="*"))
    become(orders.rig, OWNER, "write")
    assert orders.open("k2", instance="run-3")["state"] == "open"
    assert len(changes(orders, "transfer_owner")) == 2


def transfer_batches(orders: LedgerSite, **body: Any) -> httpx.Response:
    return orders.post("batches/owner", **body)


def test_batches_without_an_owner_belong_to_the_first_label_that_uses_them(
    ledger: LedgerSite,
) -> None:
    batch = ledger.open()
    become(ledger.rig, OWNER, "write")
    allowed(ledger.post_open(instance="run-1"))
    become(ledger.rig, OTHER, "read", "write")
    refused(ledger.post_commit(batch, {0: [(0, 10)]}))
    (claim,) = changes(ledger, "claim_owner")
    assert (claim["by"], claim["target"]) == (OWNER, "job")


@pytest.mark.sample
@pytest.mark.parametrize("use", USES_OF_GROUPS.values(), ids=USES_OF_GROUPS.keys())
def test_without_tokens_groups_are_used_by_everybody(
    rig: Rig, use: Callable[[Owned], httpx.Response]
) -> None:
    flights = site(rig, partitions=4)
    reader = flights.member()
    flights.join()
    writer = flights.member(role="writer", group="writers")
    allowed(use(Owned(flights=flights, reader=reader, writer=writer)))
    assert owner_of(flights) is None


@pytest.mark.sample
@pytest.mark.parametrize("use", USES_OF_BATCHES.values(), ids=USES_OF_BATCHES.keys())
def test_without_tokens_batches_are_used_by_everybody(
    ledger: LedgerSite, use: Callable[[LedgerSite, Any], httpx.Response]
) -> None:
    allowed(use(ledger, ledger.open()))


def write_by_hand(orders: LedgerSite, key: str) -> httpx.Response:
    return orders.rig.http.post(
        f"{orders.path}/messages",
        json={"uid": orders.uid, "records": [{"a": 1}], "batch_key": key},
    )


def replayed(response: httpx.Response) -> bool:
    allowed(response)
    was_committed: bool = response.json()["batch"]["replayed"]
    return was_committed


@pytest.mark.long
def test_keys_of_messages_written_by_hand_belong_to_a_label(orders: LedgerSite) -> None:
    assert not replayed(write_by_hand(orders, "by-hand"))
    become(orders.rig, OTHER, "write")
    refused(write_by_hand(orders, "by-hand"))
    assert not replayed(write_by_hand(orders, "by-hand-too"))
    become(orders.rig, "ops", "manage")
    allowed(transfer_batches(orders, key="by-hand", owner=OTHER))
    become(orders.rig, OTHER, "write")
    assert replayed(write_by_hand(orders, "by-hand"))


def test_keys_of_messages_written_by_hand_without_an_owner_belong_to_the_first_label(
    ledger: LedgerSite,
) -> None:
    assert not replayed(write_by_hand(ledger, "from-before"))
    become(ledger.rig, OWNER, "write")
    assert replayed(write_by_hand(ledger, "from-before"))
    become(ledger.rig, OTHER, "write")
    refused(write_by_hand(ledger, "from-before"))


def test_no_token_has_the_label_of_every_label(rig: Rig) -> None:
    with pytest.raises(InvalidRequest, match="every label"):
        rig.token("read", label=" * ")
