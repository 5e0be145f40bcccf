"""What lists of endpoints tell about the batches of failed and lost writers."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from endpoints import Site
from gateways import code
from ledger_sites import FEATURES, LedgerSite
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.ledger.pruning import LedgerPruner

RUN = {0: [(0, 5)]}


@pytest.fixture
def site(ledger: LedgerSite) -> Site:
    ledger.rig.http.headers.update(FEATURES)
    return Site(ledger.rig, ledger.name, ledger.uid)


def settled(site: Site, writer: Any, state: str = "error", **body: Any) -> Any:
    """Return what readers are told about a writer, after it has ended."""
    if state == "error":
        assert site.detach(writer, "error", **body).status_code == 200
    (stored,) = (
        endpoint for endpoint in site.listed(role="writer") if endpoint["id"] == writer["id"]
    )
    return stored["settled"]


def test_a_writer_that_has_lost_its_place_commits_and_opens_nothing(
    site: Site, ledger: LedgerSite
) -> None:
    """Readers until the end of all writers wait for its successor only."""
    first = site.member(role="writer")
    run = f"{first['id']}-1f"
    done = ledger.open("k0", instance=run)
    committed = ledger.commit(done, {0: [(0, 2)]}, instance=run)
    left = ledger.open("k1", instance=run)
    site.member(role="writer")

    assert code(ledger.post_commit(left, {0: [(2, 5)]}, instance=run)) == "fenced"
    assert code(ledger.post_open("k2", instance=run)) == "fenced"
    assert ledger.commit(done, {0: [(0, 2)]}, instance=run) == committed
    assert ledger.post_abort(left, run).json()["state"] == "aborted"


@pytest.mark.long
def test_a_failed_job_whose_key_was_committed_since_is_settled(
    site: Site, ledger: LedgerSite
) -> None:
    writer = site.attach("writer")
    for instance in (writer["id"], f"{writer['id']}-1f"):
        failed = ledger.open(instance=instance)
        assert settled(site, writer, "opened") is None, "it is open"
        ledger.post_abort(failed, instance)
    assert settled(site, writer) == "none"
    ledger.commit(ledger.open(instance="run-2"), RUN, instance="run-2")
    assert settled(site, writer, "ended") == "all"


def test_a_failed_job_that_had_committed_its_keys_is_settled(
    site: Site, ledger: LedgerSite
) -> None:
    writer = site.attach("writer")
    ledger.commit(ledger.open(instance=writer["id"]), RUN, instance=writer["id"])
    assert settled(site, writer) == "all"


def test_a_failed_writer_with_a_key_that_nobody_committed_is_not_settled(
    site: Site, ledger: LedgerSite
) -> None:
    writer = site.attach("writer")
    ledger.commit(ledger.open(instance=writer["id"]), RUN, instance=writer["id"])
    left = ledger.open("k2", instance=writer["id"])
    assert settled(site, writer) == "some", "its batch is open"
    ledger.post_abort(left, writer["id"])
    assert settled(site, writer, "ended") == "some"


def test_a_failed_writer_that_used_keys_of_its_own_is_settled_only_if_it_committed_nothing(
    site: Site, ledger: LedgerSite
) -> None:
    first, second = site.attach("writer"), site.attach("writer")
    for writer in (first, second):
        batch = ledger.open(f"{writer['id']}-1", writer["id"], writer["id"], own_key=True)
        if writer is first:
            ledger.commit(batch, RUN, instance=writer["id"])
        else:
            ledger.post_abort(batch, writer["id"])
    assert [settled(site, first), settled(site, second)] == ["some", "none"]


def test_a_failed_writer_of_a_channel_that_is_being_deleted_is_not_settled(
    site: Site, ledger: LedgerSite
) -> None:
    """Its batches may be deleted already."""
    writer = site.attach("writer")
    assert settled(site, writer) == "none"
    response = ledger.rig.http.delete(ledger.path, params={"uid": ledger.uid, "force": True})
    assert response.is_success, response.text
    assert settled(site, writer, "ended") is None


def test_a_lost_writer_is_settled_as_well(site: Site, ledger: LedgerSite) -> None:
    writer = site.attach("writer")
    ledger.commit(ledger.open(instance=writer["id"]), RUN, instance=writer["id"])
    with ledger.rig.database.write() as tx:
        tx.execute(update(endpoints).values(health="lost"))
    assert settled(site, writer, "lost") == "all"


def test_nothing_is_known_of_writers_of_at_least_once_channels(flights: Site) -> None:
    assert settled(flights, flights.attach("writer")) is None


def test_nothing_is_known_of_queries_and_readers(site: Site) -> None:
    query = site.attach("writer", spark={"query": "counts"})
    assert settled(site, query) is None
    reader = site.attach()
    site.detach(reader, "error")
    assert [endpoint["settled"] for endpoint in site.listed(role="reader")] == [None]


def test_heartbeats_tell_readers_the_same(site: Site) -> None:
    reader, writer = site.attach(), site.attach("writer")
    site.detach(writer, "error")
    (reply,) = site.beat(
        {"id": reader["id"], "epoch": reader["epoch"], "state": "started", "seen": None}
    )
    assert [counterpart["settled"] for counterpart in reply["counterparts"]] == ["none"]


@pytest.mark.long
def test_pruning_changes_nothing_while_the_writer_has_its_place(
    site: Site, ledger: LedgerSite
) -> None:
    writers = [site.member(role="writer", group=group) for group in ("own", "left", "again")]
    own, left, again = (writer["id"] for writer in writers)
    for number in range(3):
        batch = ledger.open(f"{own}-{number}", own, own, own_key=True)
        ledger.commit(batch, {0: [(number, number + 1)]}, instance=own)
    ledger.commit(ledger.open("k1", instance=left), {0: [(3, 4)]}, instance=left)
    ledger.post_abort(ledger.open("k2", instance=left), left)
    ledger.post_abort(ledger.open("k3", instance=again), again)
    ledger.commit(ledger.open("k3", instance="run-2"), {0: [(4, 5)]}, instance="run-2")
    before = [settled(site, writer) for writer in writers]
    assert before == ["some", "some", "all"]
    pruner = LedgerPruner(database=ledger.rig.database, days=30, clock=ledger.rig.clock)
    ledger.rig.clock.advance(timedelta(days=31))
    assert pruner.run_once().batches == 2, "all but the last commit of the first one"
    assert pruner.run_once().batches == 0
    assert [settled(site, writer, "ended") for writer in writers] == before
    for group in ("own", "left", "again"):
        site.member(role="writer", group=group)
    assert pruner.run_once().batches == 3
