"""Closing and deleting a channel in use, without Kafka."""

from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import update

from endpoints import Site, report, site
from gateways import UNREACHABLE, Rig, code
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.lifecycle.drain import Drainer
from sluiceway_gateway.lifecycle.service import Lifecycle


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig)


@pytest.fixture
def drainer(rig: Rig) -> Drainer:
    kafka = KafkaAdmin(UNREACHABLE, timeout_s=0.1)
    return Drainer(database=rig.database, kafka=kafka, clock=rig.clock)


def close(flights: Site, **body: Any) -> Any:
    response = flights.rig.http.post(f"{flights.path}/close", json={"uid": flights.uid} | body)
    assert response.status_code == 200, response.text
    return response.json()["status"]


def delete(flights: Site, **query: Any) -> Any:
    return flights.rig.http.delete(flights.path, params={"uid": flights.uid} | query)


def drained(status: Any) -> tuple[str, str]:
    (condition,) = (entry for entry in status["conditions"] if entry["type"] == "Drained")
    return condition["reason"], condition["message"]


def test_a_closing_channel_accepts_readers_and_refuses_writers(flights: Site) -> None:
    flights.member(role="writer", group="load")
    status = close(flights)
    assert status["phase"] == "closing"
    assert drained(status)[0] == "WritersOpen"
    assert "load[0]" in drained(status)[1]
    for asked in ({}, {"group": "load", "index": 0, "size": 1}):
        refused = flights.post_attach("writer", **asked)
        assert (refused.status_code, code(refused)) == (409, "channel_closed")
    path = f"{flights.path}/connection"
    assert code(flights.rig.http.get(path, params={"access": "write"})) == "channel_closed"
    assert flights.rig.http.get(path, params={"access": "read"}).status_code == 200
    flights.member(group="late")


@pytest.mark.long
def test_a_closing_channel_is_closed_when_its_last_writer_has_ended(
    flights: Site, drainer: Drainer
) -> None:
    first, second = flights.attach("writer"), flights.attach("writer")
    close(flights)
    assert (drainer.run_once().closing, drainer.run_once().changed) == (1, 0)
    flights.detach(first)
    assert (drainer.run_once().changed, drainer.run_once().changed) == (1, 0)
    # Failed and lost endpoints have ended, too.
    flights.detach(second, "error")
    assert drainer.run_once().closed == 1
    assert flights.rig.http.get(flights.path).json()["status"]["phase"] == "closed"
    assert drainer.run_once().closing == 0


def test_closing_awaits_ungrouped_readers_and_groups_until_kafka_reports_offsets(
    flights: Site, drainer: Drainer
) -> None:
    loner, member = flights.attach(), flights.member()
    assert drained(close(flights))[0] == "ReadersOpen"
    flights.detach(loner)
    drainer.run_once()
    assert drained(close(flights))[0] == "EndsUnknown"
    # The group has no commit and no open member.
    flights.detach(member)
    assert drainer.run_once().closed == 1


def test_records_of_a_writer_that_returns_during_the_check_are_awaited(flights: Site) -> None:
    writer, member = flights.attach("writer"), flights.member()
    flights.commit(member, 1, (0, 5, 0))
    close(flights)
    lost = update(endpoints).values(health="lost").where(endpoints.c.id == writer["id"])
    with flights.rig.database.write() as tx:
        tx.execute(lost)
    ends = [5, 6]

    def watermarks(_topic: str, partitions: range) -> dict[int, Watermarks]:
        end = ends.pop(0)
        if end == 5:
            # Writes a record after the end was read, before the channel is closed.
            flights.beat(report(writer))
            flights.detach(writer, ends={"0": 6})
        marks = {partition: Watermarks(begin_offset=0, end_offset=0) for partition in partitions}
        return marks | {0: Watermarks(begin_offset=0, end_offset=end)}

    rig = flights.rig
    drainer = Drainer(database=rig.database, kafka=Mock(watermarks=watermarks), clock=rig.clock)
    assert drainer.run_once().closed == 0
    assert (drainer.run_once().closed, ends) == (0, [])
    assert drained(close(flights))[0] == "Unread"


def test_a_forced_close_ignores_open_writers(flights: Site) -> None:
    writer = flights.attach("writer")
    close(flights)
    status = close(flights, force=True)
    assert (status["phase"], drained(status)[0]) == ("closed", "Forced")
    assert flights.beat(report(writer))[0]["asked"] == "finish"


@pytest.mark.long
def test_closing_channels_are_counted_separately(rig: Rig) -> None:
    closes = site(rig, "a")
    closes.attach("writer")
    close(closes)
    site(rig, "b")
    text = rig.http.get("/metrics").text
    for phase in ("ready", "closing"):
        assert f'sluiceway_channels{{phase="{phase}"}} 1.0' in text


@pytest.mark.sample
@pytest.mark.parametrize("topic", ["delete", "keep"])
def test_a_channel_in_use_is_not_deleted(flights: Site, topic: str) -> None:
    member, writer = flights.member(), flights.attach("writer")
    refused = delete(flights, topic=topic)
    assert (refused.status_code, code(refused)) == (409, "endpoints_live")
    assert f"writer {writer['id'][:8]}, g[0]" in refused.json()["detail"]
    flights.detach(writer)
    flights.detach(member, "error")
    if topic == "delete":
        # The group still has a place, and its uncommitted records are unread.
        assert code(delete(flights)) == "kafka_unavailable"
        flights.rig.http.delete(
            f"{flights.path}/endpoints/{member['id']}", params={"uid": flights.uid}
        )
    assert delete(flights, topic=topic).status_code == 202


def test_without_kafka_unread_records_are_unknown(flights: Site) -> None:
    member = flights.member()
    flights.commit(member, 1, (0, 5, 0))
    flights.detach(member)
    refused = delete(flights)
    assert (refused.status_code, code(refused)) == (503, "kafka_unavailable")
    assert "force=true" in refused.json()["detail"]
    assert delete(flights, topic="keep").status_code == 202


def test_a_forced_deletion_does_not_check_for_unread_records(flights: Site) -> None:
    flights.member()
    flights.attach("writer")
    assert delete(flights, force="true").json()["status"]["phase"] == "deleting"
    # A repeated request gets the same response.
    assert delete(flights).status_code == 202


def test_a_writer_during_the_check_of_a_deletion_refuses_it(flights: Site) -> None:
    flights.detach(flights.member())
    ends = [0, 1]

    def watermarks(_topic: str, partitions: range) -> dict[int, Watermarks]:
        end = ends.pop(0)
        if end == 0:
            # Writes a record after the end was read, before the deletion.
            flights.detach(flights.attach("writer"), ends={"0": 1})
        return {partition: Watermarks(begin_offset=0, end_offset=end) for partition in partitions}

    rig = flights.rig
    rig.replace(
        lifecycle=Lifecycle(
            rig.database,
            Mock(watermarks=watermarks),
            rig.app.state.parts.channels,
            clock=rig.clock,
        )
    )
    assert code(delete(flights)) == "concurrent_change"
    assert code(delete(flights)) == "unread_data"
