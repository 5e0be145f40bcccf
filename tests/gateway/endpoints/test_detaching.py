from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from endpoints import Site, fresh_id, report
from gateways import code
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.endpoints.service import Endpoints
from sluiceway_gateway.ledger import batch_store
from waiting import until


def test_a_finished_endpoint_is_closed_with_end_offsets_and_counters(flights: Site) -> None:
    writer = flights.member(role="writer")
    body = {"ends": {"0": 120, "3": 7}, "counters": {"records": 127, "seconds": 1.5}}
    gone = flights.detach(writer, **body).json()
    assert (gone["state"], gone["ends"], gone["counters"]) == ("closed", *body.values())
    again = flights.detach(writer, ends={"0": 1})
    assert (again.status_code, again.json()) == (200, gone)
    assert [event["state"] for event in flights.get(writer)["events"]] == ["opened", "closed"]
    assert flights.listed() == [gone]


def test_a_failed_endpoint_has_a_cause_and_cannot_be_closed(flights: Site) -> None:
    reader = flights.attach()
    gone = flights.detach(reader, "error", cause="ValueError: no such carrier").json()
    assert (gone["state"], gone["cause"]) == ("error", "ValueError: no such carrier")
    refused = flights.detach(reader)
    assert (refused.status_code, code(refused)) == (409, "illegal_transition")
    event = flights.get(reader)["events"][-1]
    assert (event["state"], event["cause"]) == ("error", "ValueError: no such carrier")


def test_member_0_of_a_group_closes_last(flights: Site) -> None:
    first, second, third = (flights.member(index, 3, role="writer") for index in range(3))
    refused = flights.detach(first)
    assert (refused.status_code, code(refused)) == (409, "members_open")
    assert refused.json()["retriable"]
    assert "1, 2" in refused.json()["detail"]
    assert flights.detach(second).status_code == 200
    assert code(flights.detach(first)) == "members_open"
    flights.detach(third, "error")
    assert flights.detach(first).status_code == 200


def test_a_failed_member_0_does_not_wait_for_its_group(flights: Site) -> None:
    first, _ = flights.member(0, 2), flights.member(1, 2)
    assert flights.detach(first, "error").status_code == 200


@pytest.mark.sample
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"epoch": None}, "/epoch"),
        ({"epoch": 0}, "/epoch"),
        ({"epoch": 2**63}, "/epoch"),
        ({"state": "stopped"}, "/state"),
        ({"cause": "x" * 1001}, "/cause"),
        ({"ends": {"x": 1}}, "/ends/x/[key]"),
        ({"ends": {"0": -1}}, "/ends/0"),
        ({"ends": {"0": 2**63}}, "/ends/0"),
        ({"counters": {"x" * 65: 1}}, f"/counters/{'x' * 65}/[key]"),
        ({"counters": {str(number): number for number in range(33)}}, "/counters"),
        ({"records": 1}, "/records"),
    ],
    ids=lambda parameter: str(parameter)[:40],
)
def test_an_invalid_field_of_a_detach_is_named(
    flights: Site, body: dict[str, Any], pointer: str
) -> None:
    writer = flights.attach("writer")
    response = flights.detach(writer, **body)
    assert (response.status_code, code(response)) == (422, "invalid_request"), response.text
    assert response.json()["errors"][0]["pointer"] == pointer
    assert flights.get(writer)["state"] == "opened"


def test_a_wrong_epoch_or_unknown_id_or_end_offsets_of_a_reader_are_refused(flights: Site) -> None:
    reader = flights.attach()
    response = flights.detach(reader, epoch=reader["epoch"] + 1)
    assert (response.status_code, code(response)) == (409, "fenced")
    response = flights.detach({"id": fresh_id(), "epoch": 1})
    assert (response.status_code, code(response)) == (404, "endpoint_not_found")
    response = flights.detach(reader, ends={"0": 1})
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert code(flights.rig.http.get(f"{flights.path}/endpoints/{fresh_id()}")) == (
        "endpoint_not_found"
    )


@pytest.mark.long
def test_the_end_offsets_of_a_place_only_grow(flights: Site) -> None:
    flights.detach(flights.member(role="writer"), ends={"0": 120, "3": 7})
    assert not flights.member(role="writer")["took_over"]
    writer = flights.member(role="writer")
    # The one before never came to an end; had it failed and said how far it was, that is known.
    assert writer["took_over"]
    failed = flights.member(role="writer", group="h")
    flights.detach(failed, "error", ends={"2": 9})
    assert not flights.member(role="writer", group="h")["took_over"]
    assert writer["ends"] is None
    gone = flights.detach(writer, ends={"0": 100, "1": 5}).json()
    assert gone["ends"] == {"0": 120, "1": 5, "3": 7}


def test_a_dismissed_endpoint_is_ignored(flights: Site) -> None:
    failed = flights.attach("writer")
    flights.detach(failed, "error", ends={})
    path = f"{flights.path}/endpoints/{failed['id']}"
    assert code(flights.rig.http.delete(path, params={"uid": "0" * 32})) == "uid_mismatch"
    for _ in range(2):
        response = flights.rig.http.delete(path, params={"uid": flights.uid})
        assert (response.status_code, response.json()["superseded"]) == (200, True)
    assert flights.listed() == []
    assert code(flights.detach(failed, "error")) == "fenced"
    assert flights.get(failed)["events"][-1]["cause"] == "dismissed"


def test_a_failed_writer_without_records_leaves_its_place_unchanged(flights: Site) -> None:
    def fails(ends: Any = None) -> Any:
        return flights.detach(flights.member(role="writer"), "error", ends=ends).json()["ends"]

    assert fails({}) == {}
    assert not flights.member(role="writer")["took_over"]
    # The end offsets of the superseded writer are unknown.
    assert fails({}) is None
    assert fails() is None
    flights.detach(flights.member(role="writer"), ends={"0": 120})
    assert fails({}) == {"0": 120}
    assert fails({"1": 7}) == {"0": 120, "1": 7}
    assert fails() is None
    assert fails({}) is None


def test_a_writer_that_failed_before_it_wrote_counts_as_its_predecessor(flights: Site) -> None:
    """Readers that have read that one wait for a successor; others read to its ends."""

    def listed() -> tuple[Any, Any, Any]:
        (writer,) = flights.listed(role="writer")
        return writer["number"], writer["state"], writer["ends"]

    flights.detach(flights.member(role="writer"), ends={"0": 120})
    number, *_ = listed()
    for _ in range(2):
        failed = flights.member(role="writer")
        assert listed()[0] > number
        flights.detach(failed, "error", ends={})
        assert listed() == (number, "error", {"0": 120})
    flights.detach(flights.member(role="writer"), "error", ends={"0": 130})
    assert listed()[0] > number


def test_a_writer_restarted_after_an_error_does_not_confirm_its_end_offsets(
    flights: Site,
) -> None:
    writer = flights.member(role="writer")
    flights.detach(writer, "error", ends={})
    flights.beat(report(writer, "started"))
    gone = flights.detach(writer, "error").json()
    assert (gone["state"], gone["ends"]) == ("error", None)


def test_dismissing_a_writer_needs_its_end_offsets(flights: Site) -> None:
    def dismiss(endpoint: Any, **headers: Any) -> httpx.Response:
        path = f"{flights.path}/endpoints/{endpoint['id']}"
        return flights.rig.http.delete(path, params={"uid": flights.uid}, **headers)

    failed = flights.member(role="writer", group="unknown")
    flights.detach(failed, "error", cause="out of memory")
    # Kafka is unavailable here.
    response = dismiss(failed)
    assert (response.status_code, code(response)) == (503, "kafka_unavailable")
    assert "The end offsets of the endpoint" in response.json()["detail"]
    assert [endpoint["id"] for endpoint in flights.listed()] == [failed["id"]]

    told = flights.member(role="writer", group="told")
    flights.detach(told, "error", ends={"0": 5}, cause="late")
    assert dismiss(told).json()["superseded"]
    stand_in = flights.listed(group="told")[0]
    assert (stand_in["state"], stand_in["ends"]) == ("closed", {"0": 5})
    assert stand_in["cause"] == f"dismissed by loopback, in the place of {told['id']}: late"
    assert (stand_in["epoch"], stand_in["index"]) == (told["epoch"] + 1, 0)
    (event,) = flights.get(stand_in)["events"]
    assert (event["state"], event["by"]) == ("closed", "loopback")
    assert flights.get(told)["events"][-1]["cause"] == "dismissed"
    assert code(flights.detach(told)) == "fenced"
    # The end offsets of a finished writer and its successor's place are kept.
    again = dismiss(stand_in).json()
    assert again["superseded"]
    assert flights.listed(group="told")[0]["ends"] == {"0": 5}
    assert not flights.member(role="writer", group="told")["took_over"]
    # The topic is deleted, so there is nothing to read.
    flights.rig.observe(flights.name, Phase.FAILED)
    assert dismiss(failed).json()["superseded"]
    assert flights.listed(group="unknown") == []


def test_a_writer_that_returns_during_its_dismissal_keeps_its_later_records(
    flights: Site,
) -> None:
    failed = flights.attach("writer")
    flights.detach(failed, "error")
    ends = [3, 5]

    def watermarks(_topic: str, partitions: range) -> dict[int, Watermarks]:
        end = ends.pop(0)
        if end == 3:
            # It opens again, writes, and fails again, before it is dismissed.
            flights.beat(report(failed, "started"))
            flights.detach(failed, "error")
        return {partition: Watermarks(begin_offset=0, end_offset=end) for partition in partitions}

    rig = flights.rig
    rig.replace(
        endpoints=Endpoints(
            rig.database,
            kafka=Mock(watermarks=watermarks),
            settlements=batch_store.settlements,
            clock=rig.clock,
        )
    )
    path, params = f"{flights.path}/endpoints/{failed['id']}", {"uid": flights.uid}
    assert code(flights.rig.http.delete(path, params=params)) == "concurrent_change"
    assert flights.rig.http.delete(path, params=params).status_code == 200
    assert [endpoint["ends"] for endpoint in flights.listed()] == [dict.fromkeys("0123", 5)]


def test_a_writer_is_dismissed_while_other_endpoints_change(flights: Site) -> None:
    failed, reader = flights.attach("writer"), flights.attach("reader")
    flights.detach(failed, "error")

    def watermarks(_topic: str, partitions: range) -> dict[int, Watermarks]:
        flights.beat(report(reader, "started"))
        return {partition: Watermarks(begin_offset=0, end_offset=3) for partition in partitions}

    rig = flights.rig
    rig.replace(
        endpoints=Endpoints(
            rig.database,
            kafka=Mock(watermarks=watermarks),
            settlements=batch_store.settlements,
            clock=rig.clock,
        )
    )
    path, params = f"{flights.path}/endpoints/{failed['id']}", {"uid": flights.uid}
    assert flights.rig.http.delete(path, params=params).status_code == 200


def test_dismissing_needs_the_manage_scope(flights: Site) -> None:
    failed = flights.attach("writer")
    flights.detach(failed, "error", ends={})
    path, params = f"{flights.path}/endpoints/{failed['id']}", {"uid": flights.uid}
    for scope, status in (("write", 403), ("read", 403), ("manage", 200)):
        headers = flights.rig.token(scope)
        response = flights.rig.http.delete(path, params=params, headers=headers)
        assert response.status_code == status, response.text
    event = flights.rig.http.get(path, headers=headers).json()["events"][-1]
    assert event["cause"] == "dismissed"
    assert event["by"] not in ("loopback", "gateway")


def test_endpoints_are_listed_in_pages_ordered_by_place(flights: Site) -> None:
    for index in (2, 0, 1):
        flights.member(index, 3)
    for role in ("writer", "reader", "writer"):
        flights.attach(role)
    every = flights.listed()
    order = [(endpoint["role"], endpoint["group"], endpoint["index"]) for endpoint in every]
    assert order == [
        ("reader", None, 0),
        *[("reader", "g", index) for index in range(3)],
        *[("writer", None, index) for index in range(2)],
    ]
    items: list[Any] = []
    cursor: dict[str, Any] = {}
    while cursor is not None:
        query = {"limit": 2} | cursor
        page = flights.rig.http.get(f"{flights.path}/endpoints", params=query).json()
        items += page["items"]
        cursor = page["next_cursor"] and {"cursor": page["next_cursor"]}
    assert items == every
    assert [endpoint["index"] for endpoint in flights.listed(role="reader", group="g")] == [0, 1, 2]
    assert flights.listed(role="writer", group="g") == []
    for wrong in ({"cursor": "x"}, {"limit": 0}, {"role": "x"}, {"group": "a\n"}):
        response = flights.rig.http.get(f"{flights.path}/endpoints", params=wrong)
        assert (response.status_code, code(response)) == (422, "invalid_request")


def test_a_long_poll_of_endpoints_ends_only_on_their_changes(flights: Site) -> None:
    path, http = f"{flights.path}/endpoints", flights.rig.http
    changes = flights.rig.app.state.parts.changes
    tag = http.get(path).headers["etag"]
    assert tag == f'"{flights.uid[:8]}.e0"'
    unchanged = http.get(path, headers={"If-None-Match": tag}, params={"wait": 0.1})
    assert (unchanged.status_code, unchanged.headers["etag"]) == (304, tag)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            http.get, path, headers={"If-None-Match": tag}, params={"wait": 60}, timeout=90
        )
        until(lambda: changes.waiting == 1)
        # The state of the channel itself does not matter.
        flights.rig.put(partitions=5)
        flights.attach()
        response = waiting.result(60)
    assert (response.status_code, len(response.json()["items"])) == (200, 1)
    assert response.headers["etag"] == f'"{flights.uid[:8]}.e1"'


@pytest.mark.long
def test_a_long_poll_of_a_channel_ignores_changes_of_endpoints(flights: Site) -> None:
    tag = flights.rig.http.get(flights.path).headers["etag"]
    flights.attach()
    assert flights.rig.http.get(flights.path).headers["etag"] == tag
