"""Reaper: finds silent endpoints by heartbeat numbers and its own clock."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from endpoints import Site, report, site
from gateways import UNREACHABLE, Rig
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.endpoints.liveness import LostEnds, ReapCounts, Reaper


class Monotonic:
    """A clock that only tests advance."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Watch:
    """A reaper that runs on time unless delayed."""

    def __init__(self, rig: Rig) -> None:
        self.time = Monotonic()
        self.before_write: Callable[[], object] = lambda: None
        """Called between the scan and the write of a pass, which the clock dates."""

        def clock() -> datetime:
            self.before_write()
            return rig.clock()

        self.reaper = Reaper(database=rig.database, clock=clock, monotonic=self.time)
        self.pause_s = 0.0

    def look(self, *, late_s: float = 0.0) -> ReapCounts:
        """Run one pass, on time or later."""
        self.time.now_s += self.pause_s + late_s
        counts = self.reaper.run_once()
        self.pause_s = counts.pause_s
        return counts

    def on(self, seconds: float) -> None:
        """Run all passes within a period."""
        until_s = self.time.now_s + seconds
        while self.time.now_s + self.pause_s <= until_s:
            self.look()


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig, heartbeat={"interval_ms": 2000, "timeout_ms": 20_000})


@pytest.fixture
def watch(rig: Rig, flights: Site) -> Watch:
    watch = Watch(rig)
    watch.look()
    return watch


def health(flights: Site, endpoint: Any) -> str:
    stored: str = flights.get(endpoint)["health"]
    return stored


@pytest.mark.sample
def test_silence_makes_an_endpoint_suspect_then_lost_and_a_heartbeat_heals_it(
    flights: Site, watch: Watch
) -> None:
    reader = flights.attach()
    watch.on(6)
    assert health(flights, reader) == "healthy"
    watch.on(1.5)
    assert health(flights, reader) == "suspect"
    watch.on(12)
    assert health(flights, reader) == "suspect"
    suspect = flights.get(reader)
    assert suspect["changed_at"] == reader["changed_at"]
    flights.rig.clock.advance(60)
    watch.on(2)
    assert health(flights, reader) == "lost"
    stored = flights.get(reader)
    assert stored["state"] == "opened"
    assert stored["changed_at"] > suspect["changed_at"]
    assert [(event["health"], event["by"]) for event in stored["events"]] == [
        ("healthy", "loopback"),
        ("suspect", "gateway"),
        ("lost", "gateway"),
    ]
    (reply,) = flights.beat(report(reader))
    assert (reply["status"], reply["health"]) == ("ok", "healthy")
    assert flights.get(reader)["events"][-1]["cause"] == "its session sends heartbeats again"


@pytest.mark.long
def test_an_endpoint_with_heartbeats_stays_healthy(flights: Site, watch: Watch) -> None:
    reader, writer = flights.attach(), flights.attach("writer")
    before = flights.rig.http.get(f"{flights.path}/endpoints").headers["etag"]
    for _ in range(15):
        watch.on(5)
        flights.beat(report(reader), report(writer))
    assert flights.rig.http.get(f"{flights.path}/endpoints").headers["etag"] == before


def test_after_a_pause_of_its_own_the_reaper_starts_over(flights: Site, watch: Watch) -> None:
    reader = flights.attach()
    watch.on(5)
    assert watch.look(late_s=3600).suspect == 0
    watch.on(5)
    assert health(flights, reader) == "healthy"
    watch.on(3)
    assert health(flights, reader) == "suspect"


def test_a_new_leader_starts_over(flights: Site, watch: Watch) -> None:
    reader = flights.attach()
    watch.on(19)
    assert health(flights, reader) == "suspect"
    other = Watch(flights.rig)
    other.on(19)
    assert health(flights, reader) == "suspect"
    other.on(3)
    assert health(flights, reader) == "lost"


@pytest.mark.sample
@pytest.mark.parametrize("hours", [1, -1])
def test_setting_the_wall_clock_makes_no_endpoint_lost(
    flights: Site, watch: Watch, hours: int
) -> None:
    reader = flights.attach()
    watch.on(4)
    flights.rig.clock.advance(timedelta(hours=hours))
    watch.on(1)
    assert health(flights, reader) == "healthy"
    watch.on(3)
    assert health(flights, reader) == "suspect"


@pytest.mark.long
def test_only_open_endpoints_are_evaluated(flights: Site, watch: Watch) -> None:
    closed, old = flights.attach(), flights.member()
    flights.detach(closed)
    flights.member()
    watch.on(30)
    assert (health(flights, closed), health(flights, old)) == ("healthy", "healthy")
    assert watch.look().evaluated == 0


def test_a_superseded_endpoint_is_not_healed_by_its_heartbeats(flights: Site, watch: Watch) -> None:
    old = flights.member()
    watch.on(30)
    flights.member()
    assert flights.beat(report(old))[0]["status"] == "fenced"
    assert health(flights, old) == "lost"


def test_the_history_has_the_dismissal_of_a_lost_member_of_a_dynamic_group(
    flights: Site, watch: Watch
) -> None:
    member = flights.join()
    watch.on(30)
    path = f"{flights.path}/endpoints/{member['id']}"
    assert flights.rig.http.delete(path, params={"uid": flights.uid}).status_code == 200
    assert [event["cause"] for event in flights.get(member)["events"][-2:]] == [
        "no heartbeat",
        "dismissed",
    ]
    assert flights.beat(report(member))[0]["status"] == "fenced"


def test_a_heartbeat_between_scan_and_write_counts(flights: Site, watch: Watch) -> None:
    reader = flights.attach()
    watch.on(6)
    watch.before_write = lambda: flights.beat(report(reader))
    watch.on(1.5)
    assert flights.beats == 1
    assert health(flights, reader) == "healthy"


def test_a_lost_member_does_not_block_the_close_of_the_first(flights: Site, watch: Watch) -> None:
    first, second = flights.member(0, 2, mode="broadcast"), flights.member(1, 2, mode="broadcast")
    assert flights.detach(first).status_code == 409
    watch.on(30)
    assert health(flights, second) == "lost"
    assert flights.detach(first).status_code == 200
    assert flights.member(0, 3, mode="broadcast")["generation"] == 2


def test_short_intervals_are_scanned_more_often(flights: Site, watch: Watch) -> None:
    assert watch.look().pause_s == 1.0
    flights.rig.http.put(
        flights.path, json={"spec": {"heartbeat": {"interval_ms": 100, "timeout_ms": 300}}}
    )
    flights.attach()
    assert watch.look().pause_s == 0.05


def test_a_shorter_interval_of_the_channel_counts_for_silence_before_it(
    flights: Site, watch: Watch
) -> None:
    reader = flights.attach()
    watch.on(2)
    flights.rig.put("flights", heartbeat={"interval_ms": 1000, "timeout_ms": 20_000})
    watch.on(2)
    assert health(flights, reader) == "suspect"


def test_a_writer_is_lost_even_without_kafka(flights: Site, watch: Watch) -> None:
    writer = flights.attach("writer")
    watch.on(25)
    kafka = KafkaAdmin(UNREACHABLE, timeout_s=0.1)
    ends = LostEnds(database=flights.rig.database, kafka=kafka, monotonic=watch.time)
    assert ends.run_once().noted == 0
    assert flights.get(writer)["lost_at"] is None
    assert health(flights, writer) == "lost"


def test_end_offsets_from_before_a_return_of_the_writer_are_not_saved(
    flights: Site, watch: Watch
) -> None:
    writer = flights.attach("writer")
    watch.on(25)

    class Kafka(KafkaAdmin):
        end_offset = 3

        def watermarks_of(
            self, topics: Mapping[str, int]
        ) -> dict[str, dict[int, Watermarks | None]]:
            marks: Watermarks | None = Watermarks(begin_offset=0, end_offset=self.end_offset)
            if self.end_offset == 3:
                # The writer returns, writes, and is lost again.
                flights.beat(report(writer))
                watch.on(25)
                self.end_offset = 5
            return {topic: dict.fromkeys(range(count), marks) for topic, count in topics.items()}

    kafka = Kafka(UNREACHABLE)
    ends = LostEnds(database=flights.rig.database, kafka=kafka, monotonic=watch.time)
    assert ends.run_once().noted == 0
    assert (health(flights, writer), flights.get(writer)["lost_at"]) == ("lost", None)
    watch.on(10)
    assert ends.run_once().noted == 1
    assert flights.get(writer)["lost_at"] == {"0": 5}


def test_a_heartbeat_with_keeps_heals_endpoints_that_it_does_not_name(
    flights: Site, watch: Watch
) -> None:
    writer = flights.attach("writer")
    watch.look()
    watch.on(7)
    assert health(flights, writer) == "suspect"

    (kept,) = flights.send(keeps=True).json()["kept"]

    assert kept["id"] == writer["id"]
    assert health(flights, writer) == "healthy"
    assert flights.get(writer)["events"][-1]["cause"] == "its session sends heartbeats again"


def test_a_heartbeat_with_keeps_heals_an_endpoint_of_whose_tasks_it_has_reports(
    flights: Site, watch: Watch
) -> None:
    writer = flights.attach("writer")
    watch.on(30)
    task = {"endpoint": writer["id"], "task": "0", "attempt": 0, "state": "running"}

    response = flights.send(keeps=True, tasks=[task]).json()

    assert [reply["status"] for reply in response["tasks"]] == ["ok"]
    assert (health(flights, writer), flights.get(writer)["state"]) == ("healthy", "started")
