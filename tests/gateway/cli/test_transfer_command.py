"""`sluiceway channels transfer`: groups, and batches with their keys, for another label."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from databases import SQLite
from endpoints import Site, site
from gateways import Rig, running
from processes import Run, Sluiceway
from sluiceway_gateway.core.db.engine import Database


@pytest.fixture
def flights(sqlite: SQLite) -> Iterator[Site]:
    url = sqlite.migrated()
    with closing(Database(url)) as database, running(database, url) as rig:
        flights = site(rig)
        rig.http.headers.update(rig.token("read", "write", label="job"))
        flights.member()
        flights.member(role="writer", group="writers")
        yield flights


def owner(rig: Rig) -> str:
    label = rig.http.get("/v1/channels/flights/groups/g/offsets").json()["owner"]
    assert isinstance(label, str)
    return label


def test_a_group_is_transferred_and_shared(flights: Site, sluiceway: Sluiceway) -> None:
    rig = flights.rig

    def transfer(*arguments: str, scope: str = "manage") -> Run:
        token = rig.token(scope, label="ops")["Authorization"].removeprefix("Bearer ")
        return sluiceway("channels", "transfer", "flights", *arguments, url=rig.url, token=token)

    done = transfer("etl", "--group", "g", "--reason", "a new team")
    assert (done.status, done.out) == (0, "g of the channel flights belongs to etl\n")
    assert owner(rig) == "etl"
    done = transfer("*", "--writers", "writers")
    assert done.out == "writers of the channel flights is shared with every label\n"
    transfer("etl", "--group", "nobody's").failed("no group")
    transfer("etl", "--group", "g", scope="read").failed("scope manage")
    transfer("etl").failed("--batches", status=2)
    transfer("etl", "--key", "k", "--batches", "job").failed("--batches", status=2)
    transfer("etl", "--key", "k").failed("at_least_once")
    assert owner(rig) == "etl"
