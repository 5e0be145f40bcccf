from typing import Any

import pytest

from gateways import Rig, code


def names(rig: Rig, headers: dict[str, str] | None = None, **parameters: Any) -> list[str]:
    """Return the names on all pages."""
    channel_names: list[str] = []
    while True:
        response = rig.http.get("/v1/channels", params=parameters, headers=headers)
        assert response.status_code == 200, response.text
        channel_names += [channel["metadata"]["name"] for channel in response.json()["items"]]
        if response.json()["next_cursor"] is None:
            return channel_names
        parameters["cursor"] = response.json()["next_cursor"]


@pytest.mark.long
def test_an_empty_list_has_no_further_page(shared_rig: Rig) -> None:
    assert shared_rig.http.get("/v1/channels").json() == {"items": [], "next_cursor": None}


@pytest.mark.sample
@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
def test_pages_follow_each_other_by_name(rig: Rig, limit: int) -> None:
    made = ["b", "a", "a-b", "a.b", "c"]
    for name in made:
        rig.put(name)
    assert names(rig, limit=limit) == sorted(made)


@pytest.mark.long
def test_pages_continue_despite_created_and_deleted_channels(rig: Rig) -> None:
    for name in ("a", "c", "e"):
        rig.put(name)
    first = rig.http.get("/v1/channels", params={"limit": 2}).json()
    for name in ("b", "d"):
        rig.put(name)
    assert names(rig, limit=2, cursor=first["next_cursor"]) == ["d", "e"]


def test_items_are_whole_channels(rig: Rig) -> None:
    made = rig.put().json()
    assert rig.http.get("/v1/channels").json()["items"] == [made]


def test_selectors_filter_by_label(rig: Rig) -> None:
    rig.put("a", metadata={"labels": {"team": "x", "tier": "1"}})
    rig.put("b", metadata={"labels": {"team": "y"}})
    rig.put("c")
    assert names(rig, selector="team=x") == ["a"]
    assert names(rig, selector="team!=x") == ["b", "c"]
    assert names(rig, selector="team") == ["a", "b"]
    assert names(rig, selector="!team") == ["c"]
    assert names(rig, selector="team in (x,y),!tier") == ["b"]
    assert names(rig, selector="team notin (x)", limit=1) == ["b", "c"]
    assert names(rig, selector=" ") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("parameters", "where"),
    [
        ({"cursor": "x"}, "query:cursor"),
        ({"cursor": ""}, "query:cursor"),
        ({"cursor": "MTph="}, "query:cursor"),
        ({"cursor": "MjphYg"}, "query:cursor"),
        ({"cursor": "é"}, "query:cursor"),
        ({"selector": "a b"}, "query:selector"),
        ({"selector": "a=\0"}, "query:selector"),
        ({"limit": 0}, "query:limit"),
        ({"limit": 1001}, "query:limit"),
        ({"limit": "many"}, "query:limit"),
        ({"limit": [1, 2]}, "query:limit"),
        ({"limt": 1}, "query:limt"),
    ],
)
def test_malformed_parameters_are_refused_by_name(
    shared_rig: Rig, parameters: dict[str, Any], where: str
) -> None:
    response = shared_rig.http.get("/v1/channels", params=parameters)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert [error["pointer"] for error in response.json()["errors"]] == [where]


def test_a_list_contains_only_channels_in_the_tokens_scope(rig: Rig) -> None:
    admin = rig.token("admin")
    for name in ("team-a", "team-b", "other"):
        body = {"spec": {"schema": {"type": "record", "name": "R", "fields": []}}}
        body["spec"]["schema"]["fields"] = [{"name": "a", "type": "long"}]  # type: ignore[index]
        assert rig.http.put(f"/v1/channels/{name}", json=body, headers=admin).status_code == 201
    assert names(rig, admin) == ["other", "team-a", "team-b"]
    assert names(rig, rig.token("read")) == ["other", "team-a", "team-b"]
    assert names(rig, rig.token("read:team-"), limit=1) == ["team-a", "team-b"]
    assert names(rig, rig.token("write:team-b", "manage:o")) == ["other", "team-b"]
    assert names(rig, rig.token("read:none")) == []
