"""Names of groups and channels in paths, lists and cursors."""

from urllib.parse import quote

import pytest

from endpoints import Site, fresh_id, site
from gateways import Rig, code

GROUPS = [
    "a/b",
    "/",
    "//",
    "a/offsets",
    "offsets/reset",
    "with space ",
    "..",
    ".",
    "100%",
    "%2F",
    "a?b#c&d=e",
    "größe-東京-🛫",
    'say "hi"',
    "-",
    "x" * 249,
    "東" * 249,
]


@pytest.fixture
def flights(shared_rig: Rig) -> Site:
    return site(shared_rig, f"Flights_{fresh_id()}.V-1", partitions=2)


def path(flights: Site, group: str, rest: str = "offsets") -> str:
    segment = quote(group, safe="").replace(".", "%2E")
    return f"{flights.path}/groups/{segment}/{rest}"


@pytest.mark.sample
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_of_any_name_commits_is_read_reset_and_resized(flights: Site, group: str) -> None:
    member = flights.member(group=group)
    assert member["group"] == group
    http, uid = flights.rig.http, flights.uid
    commit = {
        "uid": uid,
        "id": member["id"],
        "epoch": 1,
        "generation": 1,
        "topic_id": "dG9waWM",
        "number": 1,
        "positions": [{"partition": 1, "offset": 5, "record": 0}],
    }
    assert http.put(path(flights, group), json=commit).is_success
    offsets = http.get(path(flights, group)).json()
    assert (offsets["group"], offsets["positions"][0]["offset"]) == (group, 5)
    (listed,) = flights.listed(group=group)
    assert listed["id"] == member["id"]
    status = http.get(f"{flights.path}/status").json()
    assert [entry["group"] for entry in status["groups"]] == [group]
    reset = {"uid": uid, "positions": None, "reason": "again", "force": True}
    response = http.post(path(flights, group, "offsets/reset"), json=reset)
    assert response.status_code == 200, response.text
    assert http.get(path(flights, group)).json()["positions"] == []
    resize = {"uid": uid, "size": 2, "generation": response.json()["generation"]}
    assert http.post(path(flights, group, "resize"), json=resize).json()["group"] == group
    assert 'route="/v1/channels/{name}/groups/{group}/offsets"' in http.get("/metrics").text


@pytest.mark.long
def test_pages_of_endpoints_continue_after_groups_of_any_name(flights: Site) -> None:
    for group in GROUPS:
        flights.member(group=group)
    seen, cursor = [], {}
    while True:
        page = flights.rig.http.get(
            f"{flights.path}/endpoints", params={"limit": 1, **cursor}
        ).json()
        seen += [endpoint["group"] for endpoint in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == sorted(GROUPS, key=str.encode)


@pytest.mark.parametrize("group", ["", "a\nb", "\0", "x" * 250, "\x7f"])
def test_a_name_with_control_characters_or_too_long_is_refused(flights: Site, group: str) -> None:
    assert flights.post_attach(group=group, index=0, size=1).status_code == 422
    assert flights.rig.http.get(path(flights, group)).status_code in (404, 422)


def test_channels_whose_names_differ_by_case_dots_or_underscores_are_different(
    shared_rig: Rig,
) -> None:
    base = fresh_id()
    names = [f"{base}.{end}" for end in ("A", "a")] + [f"{base}_a", f"-{base}-a"]
    uids = {shared_rig.put(name).json()["metadata"]["uid"] for name in names}
    assert len(uids) == 4
    listed = shared_rig.http.get("/v1/channels", params={"limit": 1000}).json()["items"]
    listed_names = [channel["metadata"]["name"] for channel in listed]
    assert set(names) <= set(listed_names)
    assert listed_names == sorted(listed_names)


def test_the_maximum_length_of_a_name_depends_on_the_topic_prefix(rig: Rig) -> None:
    most = 249 - len("sluiceway.") - len("-12345678")
    topic = rig.put("x" * most).json()["status"]["topic"]["name"]
    assert len(topic) == 249
    refused = rig.put("y" * (most + 1))
    assert (refused.status_code, code(refused)) == (422, "invalid_request")
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "path:name"
    assert "at most 230 characters here" in error["message"]
