"""`GET /v1/channels/{name}/graph` over HTTP."""

from itertools import pairwise
from typing import Any

import pytest

from endpoints import Site, fresh_id, site
from gateways import Rig, code
from sluiceway_gateway.channels.service import find_channel
from sluiceway_gateway.status.graph import model
from sluiceway_gateway.status.graph.store import surroundings


def graph(rig: Rig, name: str, **headers: str) -> Any:
    response = rig.http.get(f"/v1/channels/{name}/graph", headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def chain(rig: Rig, *names: str, prefix: str = "job") -> list[Site]:
    """Create channels, and between consecutive ones a job that reads one and writes the other."""
    sites = [site(rig, name) for name in names]
    for number, (before, after) in enumerate(pairwise(sites)):
        before.session = after.session = fresh_id()
        before.member(group=f"{prefix}-{number}")
        after.member(role="writer", group=f"{prefix}-{number}")
    return sites


def test_a_pipeline_is_one_graph_from_any_of_its_channels(rig: Rig) -> None:
    chain(rig, "raw", "clean", "sums")
    chain(rig, "other", "unrelated")
    for name in ("raw", "clean", "sums"):
        pipeline = graph(rig, name)
        assert pipeline["channel"] == name
        assert [line["channel"]["name"] for line in pipeline["channels"]] == [
            "clean",
            "raw",
            "sums",
        ]
        assert not pipeline["truncated"]
        jobs = {job["name"]: job["edges"] for job in pipeline["jobs"]}
        assert {
            name: [(e["channel"], e["role"]) for e in edges] for name, edges in jobs.items()
        } == {
            "job-0": [("clean", "writer"), ("raw", "reader")],
            "job-1": [("clean", "reader"), ("sums", "writer")],
        }
        assert jobs["job-0"][0] == {
            "channel": "clean",
            "role": "writer",
            "groups": ["job-0"],
            "live": 1,
            "lost": 0,
            "failed": 0,
            "finished": 0,
        }
    lines = {e["channel"]["name"]: e for e in rig.http.get("/v1/status").json()["items"]}
    assert pipeline["channels"] == [lines[name] for name in ("clean", "raw", "sums")]


def test_spark_jobs_have_their_names_and_the_address_of_their_ui(rig: Rig) -> None:
    flights = site(rig)
    spark = {"application": "nightly", "query": "sums", "ui": "http://driver:4040"}
    flights.member(spark=spark)
    (job,) = graph(rig, "flights")["jobs"]
    assert (job["name"], job["spark"], job["processes"]) == ("sums", spark, 1)


def test_jobs_that_have_ended_stay_while_their_place_is_theirs(rig: Rig) -> None:
    flights = site(rig)
    flights.detach(flights.member())
    flights.detach(flights.attach())
    (job,) = graph(rig, "flights")["jobs"]
    assert (job["name"], job["edges"][0]["finished"]) == ("g", 1)


@pytest.mark.long
def test_channels_that_the_token_does_not_see_are_left_out(rig: Rig) -> None:
    chain(rig, "raw", "secret", "sums")
    pipeline = graph(rig, "raw", **rig.token("read:raw"))
    assert [line["channel"]["name"] for line in pipeline["channels"]] == ["raw"]
    assert [e["channel"] for job in pipeline["jobs"] for e in job["edges"]] == ["raw"]
    assert "secret" not in str(pipeline)
    refused = rig.http.get("/v1/channels/secret/graph", headers=rig.token("read:raw"))
    assert code(refused) == "forbidden"
    absent = rig.http.get("/v1/channels/absent/graph", headers=rig.token("read"))
    assert code(absent) == "channel_not_found"


@pytest.mark.long
def test_a_graph_is_bounded_and_says_so(rig: Rig) -> None:
    names = [f"c{number}" for number in range(model.MAX_HOPS + 3)]
    chain(rig, *names)
    pipeline = graph(rig, "c0")
    assert len(pipeline["channels"]) == model.MAX_HOPS + 1
    assert pipeline["truncated"]
    # All channels are within reach of the third one.
    pipeline = graph(rig, "c2")
    assert (len(pipeline["channels"]), pipeline["truncated"]) == (model.MAX_HOPS + 3, False)
    with rig.database.read() as tx:
        start = find_channel(tx, "c4")
        near, truncated = surroundings(tx, start, prefixes=[""], max_channels=3)
        assert ({endpoint.channel for endpoint in near}, truncated) == ({"c3", "c4", "c5"}, True)
        some, truncated = surroundings(tx, start, prefixes=[""], max_endpoints=2)
        assert (len(some), truncated) == (2, True)
