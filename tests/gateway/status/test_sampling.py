"""The sampler on a real broker, with manual clocks."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from sqlalchemy import update

from endpoints import Site, report, site
from gateways import UNREACHABLE, Rig
from shared_kafka import SharedKafka
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.provisioning.store import due, remove
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.reader_progress import WINDOW
from sluiceway_gateway.status.sampler import IDLE_S, SampleCounts, Sampler
from topics import Topics
from waiting import until

EVERY_S = 5.0


class Sampling:
    """A sampler of a channel, with a manual clock."""

    def __init__(self, flights: Site, kafka: SharedKafka) -> None:
        self.flights = flights
        self.topic = flights.rig.http.get(flights.path).json()["status"]["topic"]["name"]
        Topics(kafka.bootstrap_servers).create(self.topic, 4)
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        self.kafka = KafkaAdmin(kafka.bootstrap_servers)
        until(self._leads_all)
        self.now_s = 0.0
        self.sampler = self.another()

    def _leads_all(self) -> bool:
        """Whether the broker leads all partitions of the new topic yet."""
        with suppress(KafkaUnavailable):
            return None not in self.kafka.watermarks(self.topic, range(4)).values()
        return False

    def another(self, at_look: Callable[[], object] = lambda: None) -> Sampler:
        """Return the sampler of another replica; it calls `at_look` when it looks at the clock.

        It does so after it has read the present state, and before it writes a sample.
        """

        def clock() -> datetime:
            at_look()
            return self.flights.rig.clock()

        return Sampler(
            database=self.flights.rig.database,
            kafka=self.kafka,
            clock=clock,
            monotonic=lambda: self.now_s,
        )

    def write(self, *counts: int) -> None:
        for partition, count in enumerate(counts):
            for _ in range(count):
                self.producer.produce(self.topic, b"x", partition=partition)
        assert self.producer.flush(30) == 0

    def sample(self, times: int = 1, *, every_s: float = EVERY_S) -> SampleCounts:
        for _ in range(times):
            self.now_s += every_s
            self.flights.rig.clock.advance(timedelta(seconds=every_s))
            counts = self.sampler.run_once()
        return counts

    def status(self) -> Any:
        response = self.flights.rig.http.get(f"{self.flights.path}/status")
        assert response.status_code == 200, response.text
        return response.json()

    def group(self, name: str = "g") -> Any:
        (group,) = [group for group in self.status()["groups"] if group["group"] == name]
        return group

    def lines(self) -> Any:
        return self.flights.rig.http.get("/v1/status").json()["items"]

    def etag(self) -> str:
        return self.flights.rig.http.get(f"{self.flights.path}/status").headers["etag"]


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig, name=f"flights-{uuid.uuid4().hex[:8]}", partitions=4)


@pytest.fixture
def sampling(flights: Site, kafka: SharedKafka) -> Sampling:
    return Sampling(flights, kafka)


def at(*offsets: int) -> dict[str, list[int]]:
    return {str(partition): [offset, 0] for partition, offset in enumerate(offsets)}


@pytest.mark.sample
def test_a_topic_that_grew_outside_is_compared_with_its_channel_at_once(
    sampling: Sampling, kafka: SharedKafka
) -> None:
    def is_due() -> bool:
        with sampling.flights.rig.database.read() as tx:
            return bool(due(tx, now=sampling.flights.rig.clock.now, limit=1))

    sampling.flights.attach(group="g", index=0, size=1)
    sampling.sample()
    assert not is_due()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(sampling.topic, 6)])[sampling.topic].result(30)

    def noticed() -> bool:
        sampling.sample()
        return is_due()

    until(noticed)


@pytest.mark.long
def test_lag_is_measured_from_reported_and_committed_positions(
    flights: Site, sampling: Sampling
) -> None:
    reader = flights.member(1, 2)
    flights.member(0, 2)
    sampling.write(10, 20, 0, 7)
    sampling.sample()
    group = sampling.group()
    assert (group["lag_messages"], group["lag_seconds"], group["progress"]) == (None, None, None)
    flights.beat(report(reader, "started", positions={"1": [5, 3], "3": [7, 0]}))
    flights.commit(reader, 1, (1, 4, 0))
    sampling.sample()
    group = sampling.group()
    # Partition 0 of the first member has messages and no position.
    assert group["lag_messages"] is None
    assert [
        (partition["committed"], partition["position"], partition["end"], partition["lag_messages"])
        for partition in group["partitions"]
    ] == [(None, None, 10, None), (4, 5, 20, 15), (None, None, 0, None), (None, 7, 7, 0)]
    (first, second) = sampling.status()["readers"]
    assert (first["index"], first["lag_messages"]) == (0, None)
    assert (second["index"], second["lag_messages"], second["progress"]) == (1, 15, "ok")
    # Its successor will start at its commit.
    flights.detach(reader, positions={"1": [9, 0], "3": [7, 0]})
    sampling.sample()
    assert [partition["position"] for partition in sampling.group()["partitions"]] == [
        None,
        4,
        None,
        7,
    ]


def test_a_commit_counts_before_the_next_heartbeat(flights: Site, sampling: Sampling) -> None:
    reader = flights.member()
    sampling.write(10)
    flights.beat(report(reader, "started", positions=at(2, 0, 0, 0)))
    flights.commit(reader, 1, (0, 8, 0))
    sampling.sample()
    first = sampling.group()["partitions"][0]
    assert (first["committed"], first["position"], first["lag_messages"]) == (8, 8, 2)


@pytest.mark.long
def test_rates_age_and_time_to_drain_are_of_the_window(flights: Site, sampling: Sampling) -> None:
    reader = flights.member()
    flights.beat(report(reader, "started", positions=at(0, 0, 0, 0)))
    for number in range(1, 5):
        sampling.write(20)
        flights.beat(report(reader, "started", positions=at(max(0, 10 * number - 10), 0, 0, 0)))
        sampling.sample()
    status, group = sampling.status(), sampling.group()
    assert status["write_rate"] == 4.0
    assert (group["read_rate"], group["lag_messages"], group["lag_records"]) == (2.0, 50, 50)
    assert (group["trend"], group["drain_s"]) == (2.0, None)
    # Message 30 was written between the samples at 20 and 40.
    assert (group["lag_seconds"], group["lag_seconds_at_least"]) == (12.5, False)
    assert [partition["lag_seconds"] for partition in group["partitions"]] == [12.5, 0.0, 0.0, 0.0]
    for offset in (60, 70):
        flights.beat(report(reader, "started", positions=at(offset, 0, 0, 0)))
        sampling.sample()
    group = sampling.group()
    # Since the sample at a lag of 40, 15 seconds ago.
    assert (group["lag_messages"], group["trend"], group["drain_s"]) == (10, -2.0, 5.0)
    flights.detach(reader, positions=at(70, 0, 0, 0))
    sampling.sample()
    assert sampling.group()["drain_s"] is None
    (first, *_) = status["partitions"]
    assert (first["start"], first["end"], first["stable"]) == (0, 80, None)


@pytest.mark.long
def test_an_open_reader_without_progress_is_stalled_and_a_failed_one_stopped(
    flights: Site, sampling: Sampling
) -> None:
    reader = flights.member()
    sampling.write(9)
    flights.beat(report(reader, "started", positions=at(5, 0, 0, 0)))
    sampling.sample(WINDOW - 1)
    assert sampling.group()["progress"] == "ok"
    assert sampling.group()["partitions"][0]["progress"] is None
    sampling.sample()
    group = sampling.group()
    assert (group["progress"], group["lag_messages"]) == ("stalled", 4)
    # The messages are older than the first sample.
    first_s = EVERY_S * (WINDOW - 1)
    assert (group["lag_seconds"], group["lag_seconds_at_least"]) == (first_s, True)
    assert [partition["lag_seconds_at_least"] for partition in group["partitions"]] == [
        True,
        *[False] * 3,
    ]
    (line,) = [e for e in sampling.lines() if e["channel"]["uid"] == flights.uid]
    assert (line["lag_seconds"], line["lag_seconds_at_least"]) == (first_s, True)
    assert [endpoint["progress"] for endpoint in sampling.status()["readers"]] == ["stalled"]
    flights.detach(reader, "error", cause="no memory")
    sampling.sample(WINDOW)
    assert sampling.group()["progress"] == "stopped"
    assert sampling.status()["readers"][0]["state"] == "error"
    flights.beat(report(reader, "started", positions=at(2, 0, 0, 0)))
    sampling.sample()
    assert sampling.group()["partitions"][0]["progress"] is None
    flights.beat(report(reader, "started", positions=at(1, 0, 0, 0)))
    sampling.sample()
    assert sampling.group()["progress"] == "rewound"


@pytest.mark.long
def test_the_etag_of_a_status_changes_only_with_its_content(
    flights: Site, sampling: Sampling
) -> None:
    reader = flights.member()
    flights.beat(report(reader, "started", positions=at(0, 0, 0, 0)))
    sampling.sample(WINDOW)
    rest = sampling.etag()
    assert sampling.sample(3) == SampleCounts(sampled=1, changed=0, pause_s=EVERY_S)
    assert sampling.etag() == rest
    # The time of the last sample is still updated.
    assert sampling.status()["sampled_at"] == "2030-01-01T00:01:05.000Z"
    flights.beat(report(reader, "started", counters={"records": 1}))
    assert sampling.sample().changed == 1
    assert sampling.etag() != rest
    assert sampling.status()["readers"][0]["counters"] == {"records": 1}
    # Unread messages grow older.
    sampling.write(1)
    sampling.sample(WINDOW + 1)
    assert sampling.sample().changed == 1
    assert sampling.group()["lag_seconds"] == 60.0


def test_positions_without_a_message_in_kafka_are_a_problem(
    flights: Site, sampling: Sampling, kafka: SharedKafka
) -> None:
    def listed_problems() -> list[tuple[str, str, str, str]]:
        (line,) = [line for line in sampling.lines() if line["channel"]["uid"] == flights.uid]
        problems = sampling.status()["problems"]
        assert problems == line["problems"]
        return [
            (problem["code"], problem["severity"], problem["group"], problem["reason"])
            for problem in problems
            if problem["code"] != "reader_stopped"
        ]

    sampling.write(10, 10, 10, 10)
    reader = flights.member()
    flights.commit(reader, 1, (0, 4, 0), (1, 10, 0), (2, 10, 0), (3, 4, 0))
    other = flights.member(group="h")
    flights.commit(other, 1, (0, 10, 0), (1, 12, 0))
    # Reported but not committed: a successor would not start there.
    third = flights.member(group="i")
    flights.beat(report(third, "started", positions=at(4, 12)))
    for member in (reader, other, third):
        flights.detach(member, positions={})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    removed = [TopicPartition(sampling.topic, partition, 10) for partition in (0, 3)]
    for future in admin.delete_records(removed).values():
        future.result(30)
    until(lambda: sampling.kafka.watermarks(sampling.topic, [0])[0].begin_offset == 10)
    sampling.sample(2)
    assert sampling.group()["lag_messages"] == 0
    assert listed_problems() == []
    sampling.sample()
    expired = "retention removed the next messages of 2 partitions"
    beyond = "its positions are above the last message of 1 partition"
    assert listed_problems() == [
        ("position_out_of_range", "error", "h", beyond),
        ("position_out_of_range", "warning", "g", expired),
    ]
    metrics = sampling.flights.rig.http.get("/metrics").text
    for group, partitions in (("g", 2), ("h", 1), ("i", 0)):
        labels = f'channel="{flights.path.rpartition("/")[2]}",group="{group}"'
        name = "sluiceway_group_partitions_out_of_range"
        assert f"{name}{{{labels}}} {partitions}.0" in metrics
    # The messages of the one arrive; the other is reset.
    sampling.write(0, 3)
    flights.reset((0, 10, 0), (3, 10, 0))
    sampling.sample(3)
    assert listed_problems() == []


@pytest.mark.long
def test_partitions_that_nobody_reads_are_a_problem(flights: Site, sampling: Sampling) -> None:
    def listed_problems() -> list[tuple[str, str, str]]:
        (line,) = [line for line in sampling.lines() if line["channel"]["uid"] == flights.uid]
        problems = sampling.status()["problems"]
        assert problems == line["problems"]
        return [(problem["code"], problem["group"], problem["reason"]) for problem in problems]

    sampling.write(5, 5, 5, 0)
    first, whole = flights.member(0, 2), flights.member(0, 1, group="h")

    def beat(*more: Any) -> None:
        flights.beat(report(first, positions={"0": [5, 0], "2": [5, 0]}), *more)

    beat(report(whole, positions=at(5, 5, 5, 0)))
    sampling.sample(2)
    assert listed_problems() == []
    sampling.sample()
    assert listed_problems() == [
        ("partitions_unread", "g", "nobody has ever read 1 partition with messages")
    ]
    second = flights.member(1, 2)
    beat(report(second, positions={"1": [0, 0], "3": [0, 0]}))
    sampling.sample()
    assert listed_problems() == []


def test_after_a_reset_without_positions_the_lag_is_unknown(
    flights: Site, sampling: Sampling
) -> None:
    sampling.write(10, 10)
    reader = flights.member()
    flights.commit(reader, 1, (0, 10, 0), (1, 10, 0))
    flights.detach(reader, positions=at(10, 10))
    sampling.sample()
    assert (sampling.group()["lag_messages"], sampling.group()["progress"]) == (0, "ok")
    flights.reset()
    sampling.sample()
    # The next reader starts where it likes, for instance at the first message.
    assert (sampling.group()["lag_messages"], sampling.group()["progress"]) == (None, None)


@pytest.mark.long
def test_after_a_reset_without_positions_the_lag_of_a_dynamic_group_is_unknown(
    flights: Site, sampling: Sampling
) -> None:
    sampling.write(10, 10)
    reader = flights.join("g")
    generation = flights.sync(reader).json()["generation"]
    share = flights.sync(reader, take=generation).json()
    assert share["generation"] == generation
    flights.commit(reader, 1, (0, 10, 0), (1, 10, 0), generation=generation)
    flights.detach(reader, positions=at(10, 10))
    sampling.sample()
    assert (sampling.group()["lag_messages"], sampling.group()["progress"]) == (0, "ok")
    flights.reset()
    sampling.sample()
    assert (sampling.group()["lag_messages"], sampling.group()["progress"]) == (None, None)


@pytest.mark.long
def test_after_a_reset_a_former_broadcast_member_has_no_lag_of_its_own(
    flights: Site, sampling: Sampling
) -> None:
    def lags() -> dict[int, int | None]:
        sampling.sample()
        groups = flights.rig.http.get(f"{flights.path}/status").json()["groups"]
        return {group["index"]: group["lag_messages"] for group in groups}

    sampling.write(10, 10)
    for index in (0, 1):
        reader = flights.member(index, 2, mode="broadcast")
        flights.commit(reader, 1, (0, 10, 0), (1, 10, 0))
        flights.detach(reader, positions=at(10, 10))
    assert lags() == {0: 0, 1: 0}
    flights.reset((0, 4, 0), (1, 10, 0), index=0)
    assert lags() == {0: 6, 1: 0}
    flights.reset()
    assert not any(lag == 0 for lag in lags().values())


@pytest.mark.long
def test_idle_channels_are_sampled_rarely(flights: Site, sampling: Sampling) -> None:
    assert sampling.sample().sampled == 0
    reader = flights.member()
    flights.commit(reader, 1, (0, 0, 0))
    assert sampling.sample().sampled == 1
    flights.detach(reader)
    # As long as its window changes.
    assert sampling.sample(WINDOW + 1) == SampleCounts(sampled=1, pause_s=EVERY_S)
    assert sampling.sample().sampled == 0
    sampling.write(3)
    assert sampling.sample(every_s=IDLE_S).sampled == 1
    assert sampling.group()["partitions"][0]["lag_messages"] == 3


def test_another_replica_continues_the_samples(flights: Site, sampling: Sampling) -> None:
    reader = flights.member()
    sampling.write(9)
    flights.beat(report(reader, "started", positions=at(5, 0, 0, 0)))
    sampling.sample(WINDOW - 1)
    before, sampling.sampler = sampling.sampler, sampling.another()
    sampling.sample()
    assert sampling.group()["progress"] == "stalled"
    # The first replica resumes after it has missed a sample.
    sampling.sampler = before
    sampling.sample()
    with flights.rig.database.read() as tx:
        kept = sample_store.of_channel(tx, flights.uid)
    assert [sample.number for sample in kept] == [*range(1, WINDOW + 1)]


def test_of_two_leaders_only_the_first_writes_its_sample(flights: Site, sampling: Sampling) -> None:
    flights.member()
    sampling.sample()
    numbers = [1]

    def overtake() -> None:
        assert sampling.sample().changed == 1
        numbers.append(len(numbers) + 1)

    assert sampling.another(overtake).run_once().changed == 0
    assert len(numbers) > 1
    with flights.rig.database.read() as tx:
        assert [sample.number for sample in sample_store.of_channel(tx, flights.uid)] == numbers


def test_without_kafka_lag_and_watermarks_are_unknown(flights: Site, sampling: Sampling) -> None:
    reader = flights.member()
    sampling.write(9)
    flights.beat(report(reader, "started", positions=at(5, 0, 0, 0)))
    sampling.sample()
    assert sampling.group()["lag_messages"] == 4
    sampling.kafka = KafkaAdmin(UNREACHABLE, timeout_s=0.1)
    sampling.sampler = sampling.another()
    assert sampling.sample() == SampleCounts(sampled=1, changed=1, unknown=1, pause_s=EVERY_S)
    status, group = sampling.status(), sampling.group()
    assert (status["partitions"], status["write_rate"]) == ([], None)
    assert (group["lag_messages"], group["lag_seconds"], group["progress"]) == (None, None, None)
    assert group["partitions"][0] == {
        "partition": 0,
        "committed": None,
        "position": 5,
        "end": None,
        "lag_messages": None,
        "lag_seconds": None,
        "lag_seconds_at_least": False,
        "progress": None,
    }


@pytest.mark.long
def test_old_samples_thin_out(flights: Site, sampling: Sampling) -> None:
    reader = flights.member()
    for number in range(100):
        flights.beat(report(reader, "started", counters={"n": number}))
        sampling.sample()
    with flights.rig.database.read() as tx:
        numbers = [sample.number for sample in sample_store.of_channel(tx, flights.uid)]
    older = [1, 16, 24, 32, 40, 48, 56, 64, 68, 72, 76, 80]
    assert numbers == [*older, *range(82, 91, 2), *range(91, 101)]


@pytest.mark.long
def test_a_channel_that_is_deleted_during_a_pass_is_skipped(
    flights: Site, sampling: Sampling
) -> None:
    flights.member()

    def remove_channel() -> None:
        with flights.rig.database.write() as tx:
            remove(tx, flights.uid, from_phases=tuple(Phase))

    sampling.sampler = sampling.another(remove_channel)
    assert sampling.sample() == SampleCounts(sampled=1, pause_s=EVERY_S)
    assert sampling.sample().sampled == 0


@pytest.mark.long
def test_samples_become_the_lag_history_once_in_ten_seconds(
    flights: Site, sampling: Sampling
) -> None:
    reader = flights.member()
    sampling.write(100)
    for number in range(1, 9):
        flights.beat(report(reader, "started", positions=at(10 * number, 0, 0, 0)))
        sampling.sample()
    sampling.kafka = KafkaAdmin(UNREACHABLE, timeout_s=0.1)
    sampling.sampler = sampling.another()
    sampling.sample(2)
    response = flights.rig.http.get(
        f"{flights.path}/history", params={"since": "2029-12-31T23:58:20Z"}
    ).json()
    assert response["times"] == [f"2030-01-01T00:00:{s:02}.000Z" for s in range(0, 51, 10)]
    assert response["write_rate"] == [None, *[0.0] * 4, None]
    (group,) = response["groups"]
    assert group["group"] == "g"
    # The first sample in each interval counts.
    assert group["lag_messages"] == [90, 80, 60, 40, 20, None]
    assert group["read_rate"] == [None, 2.0, 2.0, 2.0, 2.0, 0.667]
    assert group["lag_seconds"][-1] is None


@pytest.mark.sample
@pytest.mark.parametrize("kind", ["failed", "lost"])
def test_a_status_changes_when_a_failure_expires(
    flights: Site, sampling: Sampling, kind: str
) -> None:
    writer = flights.attach("writer")
    if kind == "failed":
        flights.detach(writer, "error", cause="a wrong record")
    else:
        with flights.rig.database.write() as tx:
            tx.execute(update(endpoints).values(health="lost"))
    sampling.sample(WINDOW + 1, every_s=IDLE_S)
    before = sampling.etag()
    assert [problem["code"] for problem in sampling.status()["problems"]] == [f"writer_{kind}"]
    sampling.sample(every_s=IDLE_S)
    assert sampling.etag() == before
    sampling.sample(every_s=86_400)
    assert sampling.etag() != before
    assert sampling.status()["problems"] == []


def test_a_reader_that_has_ended_is_not_said_to_be_all_right(
    flights: Site, sampling: Sampling
) -> None:
    reader = flights.member()
    flights.beat(report(reader, "started", positions=at(0, 0, 0, 0)))
    sampling.sample(2)
    assert sampling.status()["readers"][0]["progress"] == "ok"
    with flights.rig.database.write() as tx:
        tx.execute(update(endpoints).values(health="lost"))
    sampling.sample(2)
    assert sampling.status()["readers"][0]["progress"] is None
