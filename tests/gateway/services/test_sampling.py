"""Samples are taken of a real broker, by clocks that the test turns."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from attaching import Site, report, site
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from gateway_rig import NOBODY, Rig

from made_topics import make
from shared_kafka import SharedKafka
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.progress import WINDOW
from sluiceway_gateway.status.sampler import IDLE_S, SampleCounts, Sampler
from waiting import until

EVERY_S = 5.0


class Looks:
    """A sampler whose time the test turns, and the channel that it looks at."""

    def __init__(self, flights: Site, kafka: SharedKafka) -> None:
        self.flights = flights
        self.topic = flights.rig.http.get(flights.path).json()["status"]["topic"]["name"]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        make(admin, NewTopic(self.topic, 4, 1))
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        self.kafka = KafkaAdmin(kafka.bootstrap_servers)
        # A broker that is asked at once may not know all partitions of its new topic yet.
        until(lambda: None not in self.kafka.watermarks(self.topic, range(4)).values())
        self.now_s = 0.0
        self.sampler = self.another()

    def another(self) -> Sampler:
        """Return the sampler of another replica."""
        return Sampler(
            database=self.flights.rig.database,
            topics=self.kafka,
            clock=self.flights.rig.clock,
            monotonic=lambda: self.now_s,
        )

    def write(self, *counts: int) -> None:
        for partition, count in enumerate(counts):
            for _ in range(count):
                self.producer.produce(self.topic, b"x", partition=partition)
        assert self.producer.flush(30) == 0

    def look(self, times: int = 1, *, every_s: float = EVERY_S) -> SampleCounts:
        for _ in range(times):
            self.now_s += every_s
            self.flights.rig.clock.turn(timedelta(seconds=every_s))
            counts = self.sampler.run_once()
        return counts

    def status(self) -> Any:
        answer = self.flights.rig.http.get(f"{self.flights.path}/status")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def group(self, name: str = "g") -> Any:
        (found,) = [each for each in self.status()["groups"] if each["group"] == name]
        return found

    def etag(self) -> str:
        return self.flights.rig.http.get(f"{self.flights.path}/status").headers["etag"]


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig, name=f"flights-{uuid.uuid4().hex[:8]}", partitions=4)


@pytest.fixture
def looks(flights: Site, kafka: SharedKafka) -> Looks:
    return Looks(flights, kafka)


def at(*offsets: int) -> dict[str, list[int]]:
    return {str(partition): [offset, 0] for partition, offset in enumerate(offsets)}


def test_lag_is_told_by_what_a_reader_says_and_by_what_was_committed(
    flights: Site, looks: Looks
) -> None:
    reader = flights.member(1, 2)
    flights.member(0, 2)
    looks.write(10, 20, 0, 7)
    looks.look()
    group = looks.group()
    assert (group["lag_messages"], group["lag_seconds"], group["progress"]) == (None, None, None)
    flights.beat(report(reader, "started", positions={"1": [5, 3], "3": [7, 0]}))
    flights.commit(reader, 1, (1, 4, 0))
    looks.look()
    group = looks.group()
    # Nobody knows of the first member's partition 0, which has messages.
    assert group["lag_messages"] is None
    assert [
        (each["committed"], each["position"], each["end"], each["lag_messages"])
        for each in group["partitions"]
    ] == [(None, None, 10, None), (4, 5, 20, 15), (None, None, 0, None), (None, 7, 7, 0)]
    (first, second) = looks.status()["readers"]
    assert (first["index"], first["lag_messages"]) == (0, None)
    assert (second["index"], second["lag_messages"], second["progress"]) == (1, 15, "ok")
    # When it is gone, what it has committed is where its successor begins.
    flights.depart(reader, positions={"1": [9, 0], "3": [7, 0]})
    looks.look()
    assert [each["position"] for each in looks.group()["partitions"]] == [None, 4, None, 7]


def test_rates_age_and_time_to_drain_come_of_the_window(flights: Site, looks: Looks) -> None:
    reader = flights.member()
    flights.beat(report(reader, "started", positions=at(0, 0, 0, 0)))
    for number in range(1, 5):
        looks.write(20)
        flights.beat(report(reader, "started", positions=at(max(0, 10 * number - 10), 0, 0, 0)))
        looks.look()
    status, group = looks.status(), looks.group()
    assert status["write_rate"] == 4.0
    assert (group["read_rate"], group["lag_messages"], group["lag_records"]) == (2.0, 50, 50)
    assert (group["trend"], group["drain_s"]) == (2.0, None)
    # The message 30 came between the looks at 20 and 40.
    assert group["lag_seconds"] == 12.5
    assert [each["lag_seconds"] for each in group["partitions"]] == [12.5, 0.0, 0.0, 0.0]
    for offset in (60, 70):
        flights.beat(report(reader, "started", positions=at(offset, 0, 0, 0)))
        looks.look()
    group = looks.group()
    assert (group["lag_messages"], group["trend"], group["drain_s"]) == (10, -0.4, 25.0)
    assert status["partitions"][0] == {"partition": 0, "start": 0, "end": 80}


def test_a_reader_that_stands_is_stalled_and_one_that_is_gone_has_stopped(
    flights: Site, looks: Looks
) -> None:
    reader = flights.member()
    looks.write(9)
    flights.beat(report(reader, "started", positions=at(5, 0, 0, 0)))
    looks.look(WINDOW - 1)
    assert looks.group()["progress"] == "ok"
    assert looks.group()["partitions"][0]["progress"] is None
    looks.look()
    group = looks.group()
    assert (group["progress"], group["lag_messages"], group["lag_seconds"]) == ("stalled", 4, None)
    assert [each["progress"] for each in looks.status()["readers"]] == ["stalled"]
    flights.depart(reader, "error", cause="no memory")
    looks.look(WINDOW)
    assert looks.group()["progress"] == "stopped"
    assert looks.status()["readers"][0]["state"] == "error"
    flights.beat(report(reader, "started", positions=at(2, 0, 0, 0)))
    looks.look()
    assert looks.group()["partitions"][0]["progress"] is None
    flights.beat(report(reader, "started", positions=at(1, 0, 0, 0)))
    looks.look()
    assert looks.group()["progress"] == "rewound"


def test_the_status_is_another_one_only_when_it_shows_something_else(
    flights: Site, looks: Looks
) -> None:
    reader = flights.member()
    flights.beat(report(reader, "started", positions=at(0, 0, 0, 0)))
    looks.look(WINDOW)
    rest = looks.etag()
    assert looks.look(3) == SampleCounts(looked_at=1, changed=0)
    assert looks.etag() == rest
    # The moment of the last look is told all the same.
    assert looks.status()["sampled_at"] == "2030-01-01T00:01:05.000Z"
    flights.beat(report(reader, "started", counters={"records": 1}))
    assert looks.look().changed == 1
    assert looks.etag() != rest
    assert looks.status()["readers"][0]["counters"] == {"records": 1}
    # What is not read gets older.
    looks.write(1)
    looks.look(WINDOW + 1)
    assert looks.look().changed == 1
    assert looks.group()["lag_seconds"] == 60.0


def test_where_nobody_lives_is_looked_at_rarely(flights: Site, looks: Looks) -> None:
    assert looks.look().looked_at == 0
    reader = flights.member()
    flights.commit(reader, 1, (0, 0, 0))
    assert looks.look().looked_at == 1
    flights.depart(reader)
    # For as long as there is anything to be learned of it.
    assert looks.look(WINDOW + 1) == SampleCounts(looked_at=1)
    assert looks.look().looked_at == 0
    looks.write(3)
    assert looks.look(every_s=IDLE_S).looked_at == 1
    assert looks.group()["partitions"][0]["lag_messages"] == 3


def test_another_replica_goes_on_with_what_was_sampled(flights: Site, looks: Looks) -> None:
    reader = flights.member()
    looks.write(9)
    flights.beat(report(reader, "started", positions=at(5, 0, 0, 0)))
    looks.look(WINDOW - 1)
    before, looks.sampler = looks.sampler, looks.another()
    looks.look()
    assert looks.group()["progress"] == "stalled"
    # The one before wakes up and finds that it has missed something.
    looks.sampler = before
    looks.look()
    with flights.rig.database.read() as tx:
        kept = sample_store.of_channel(tx, flights.uid)
    assert [each.number for each in kept] == [*range(1, WINDOW + 1)]


def test_of_two_that_believe_they_lead_the_later_one_is_left_out(
    flights: Site, looks: Looks
) -> None:
    flights.member()
    looks.look()
    other = looks.another()
    was = other._taken

    def overtaken(*arguments: Any) -> Any:
        taken = was(*arguments)
        looks.look()
        return taken

    other._taken = overtaken  # type: ignore[method-assign]
    assert other.run_once().changed == 0
    with flights.rig.database.read() as tx:
        assert [each.number for each in sample_store.of_channel(tx, flights.uid)] == [1, 2]


def test_without_kafka_nothing_is_claimed_to_be_known(flights: Site, looks: Looks) -> None:
    reader = flights.member()
    looks.write(9)
    flights.beat(report(reader, "started", positions=at(5, 0, 0, 0)))
    looks.look()
    assert looks.group()["lag_messages"] == 4
    looks.kafka = KafkaAdmin(NOBODY, timeout_s=0.1)
    looks.sampler = looks.another()
    assert looks.look() == SampleCounts(looked_at=1, changed=1, unknown=1)
    status, group = looks.status(), looks.group()
    assert (status["partitions"], status["write_rate"]) == ([], None)
    assert (group["lag_messages"], group["lag_seconds"], group["progress"]) == (None, None, None)
    assert group["partitions"][0] == {
        "partition": 0,
        "committed": None,
        "position": 5,
        "end": None,
        "lag_messages": None,
        "lag_seconds": None,
        "progress": None,
    }


def test_old_samples_thin_out(flights: Site, looks: Looks) -> None:
    reader = flights.member()
    for number in range(100):
        flights.beat(report(reader, "started", counters={"n": number}))
        looks.look()
    with flights.rig.database.read() as tx:
        numbers = [each.number for each in sample_store.of_channel(tx, flights.uid)]
    assert numbers == [24, 32, 40, 48, 56, 64, 72, 80, 88, *range(91, 101)]
    assert [each[0] for each in looks.sampler._memories[flights.uid].history] == numbers


def test_a_channel_that_goes_meanwhile_is_no_trouble(flights: Site, looks: Looks) -> None:
    from sluiceway_gateway.channels.model import Phase
    from sluiceway_gateway.provisioning.store import remove

    flights.member()
    was = looks.sampler._taken

    def removing(*arguments: Any) -> Any:
        taken = was(*arguments)
        with flights.rig.database.write() as tx:
            remove(tx, flights.uid, from_phases=tuple(Phase))
        return taken

    looks.sampler._taken = removing  # type: ignore[method-assign]
    assert looks.look().changed == 0
    assert looks.look().looked_at == 0
