"""Tasks report for an endpoint that another session attached and keeps alive."""

from typing import Any

import pytest
from sqlalchemy import update

from endpoints import Site, fresh_id, report, site
from gateways import Rig, code
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.endpoints.tables import endpoints


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig)


class Worker:
    """A process that runs tasks and attaches no endpoints."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.session = fresh_id()
        self.beats = 0

    def send(self, *tasks: Any, beat: int | None = None) -> Any:
        self.beats += 1
        body = {"session": self.session, "beat": beat or self.beats, "endpoints": []}
        return self.site.rig.http.post("/v1/heartbeats", json=body | {"tasks": tasks})

    def tell(self, *tasks: Any, beat: int | None = None) -> list[str]:
        response = self.send(*tasks, beat=beat)
        assert response.status_code == 200, response.text
        return [reply["status"] for reply in response.json()["tasks"]]


def task(endpoint: Any, number: int, state: str = "running", attempt: int = 0, **more: Any) -> Any:
    told = {"endpoint": endpoint["id"], "task": str(number), "attempt": attempt, "state": state}
    return told | more


def records(count: int) -> Any:
    return {"counters": {"records": count}}


def test_sums_of_large_counters_are_finite(flights: Site) -> None:
    endpoint, worker = flights.attach(), Worker(flights)
    refused = worker.send(task(endpoint, 0, counters={"seconds": 1.7e308}))
    assert (refused.status_code, code(refused)) == (422, "invalid_request")
    for number in range(2):
        counters = {"seconds": 1e18, "records": 2**63 - 1}
        assert worker.tell(task(endpoint, number, counters=counters)) == ["ok"]
    assert flights.get(endpoint)["counters"] == {
        "seconds": 2e18,
        "records": 2 * (2**63 - 1),
        "tasks_running": 2,
    }


def keep(site: Site) -> Any:
    """Send a heartbeat for all endpoints of the session."""
    response = site.send(keeps=True)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_counters_of_an_endpoint_are_the_sums_of_its_tasks(flights: Site) -> None:
    endpoint = flights.attach("writer", title="a job")
    one, other = Worker(flights), Worker(flights)

    one.tell(task(endpoint, 0, **records(5)), task(endpoint, 1, **records(7)))
    other.tell(task(endpoint, 2, **records(1)))
    one.tell(task(endpoint, 0, "done", **records(20)), task(endpoint, 1, "failed", **records(9)))

    current = flights.get(endpoint)
    assert (current["title"], current["state"]) == ("a job", "started")
    assert current["counters"] == {
        "records": 30,
        "tasks_running": 1,
        "tasks_done": 1,
        "tasks_failed": 1,
    }


def test_the_cause_of_a_failed_task_is_a_part_of_its_writers(flights: Site) -> None:
    writer, other, worker = flights.attach("writer"), flights.attach("writer"), Worker(flights)
    told = task(writer, 4, "failed", cause="InvalidRecord: record 3, field 'n'")
    assert worker.tell(told) == ["ok"]
    # A retry does not hide why another attempt has failed.
    assert worker.tell(task(writer, 4, "running", attempt=1)) == ["ok"]
    current = flights.get(writer)
    assert (current["state"], current["cause"]) == ("started", told["cause"].join(("task 4: ", "")))
    flights.detach(writer, "error", cause="the Spark job failed")
    assert flights.get(writer)["cause"] == (
        "the Spark job failed; task 4: InvalidRecord: record 3, field 'n'"
    )
    worker.tell(task(other, 0, "failed", cause="KafkaUnavailable"))
    flights.detach(other, "closed")
    assert flights.get(other)["cause"] is None
    refused = worker.send(task(other, 0, "failed", cause="x" * 1001))
    assert (refused.status_code, code(refused)) == (422, "invalid_request")


def test_the_number_of_sums_is_limited_but_tasks_are_counted(flights: Site) -> None:
    endpoint, worker = flights.attach("reader"), Worker(flights)
    both = [
        {"parts": 2, "counters": {f"{number}-{name}": 1 for name in range(32)}}
        for number in range(2)
    ]

    worker.tell(*(task(endpoint, number, **fields) for number, fields in enumerate(both)))
    assert len(flights.get(endpoint)["counters"]) == 64
    worker.tell(*(task(endpoint, number, "done", **fields) for number, fields in enumerate(both)))

    current = flights.get(endpoint)
    assert (current["state"], current["counters"]["tasks_done"]) == ("closed", 2)
    assert current["counters"]["0-31"] == 1


def test_the_latest_attempt_of_a_task_counts_and_a_finished_one_is_final(
    flights: Site,
) -> None:
    endpoint = flights.attach("writer")
    worker = Worker(flights)

    worker.tell(task(endpoint, 0, "failed", attempt=3, **records(4)))
    worker.tell(task(endpoint, 0, attempt=8, **records(1)))
    assert flights.get(endpoint)["counters"]["records"] == 1
    worker.tell(task(endpoint, 0, "done", attempt=8, **records(6)))
    worker.tell(task(endpoint, 0, attempt=9, **records(2)))
    worker.tell(task(endpoint, 0, attempt=8, **records(5)))

    counters = flights.get(endpoint)["counters"]
    assert (counters["records"], counters["tasks_done"], counters["tasks_running"]) == (6, 1, 0)


def test_a_reader_is_closed_when_all_its_tasks_are_done(flights: Site) -> None:
    endpoint = flights.attach("reader")
    worker = Worker(flights)

    worker.tell(task(endpoint, 0, "done", parts=2, **records(3)))
    assert flights.get(endpoint)["state"] == "started"
    assert worker.tell(task(endpoint, 1, "done", parts=2, **records(4))) == ["ok"]

    current = flights.get(endpoint)
    assert (current["state"], current["counters"]["records"]) == ("closed", 7)
    assert worker.tell(task(endpoint, 1, attempt=1)) == ["closed"]
    assert flights.get(endpoint)["counters"] == current["counters"]


def test_a_member_closed_by_its_tasks_releases_its_partitions(rig: Rig) -> None:
    flights = site(rig, partitions=4)
    first, second = flights.join(), flights.join()
    generation = flights.sync(second).json()["generation"]
    flights.sync(first, take=generation)
    flights.sync(second, take=generation)
    done = {"parts": 1, "epoch": first["epoch"]}
    assert Worker(flights).tell(task(first, 0, "done", **done, **records(3))) == ["ok"]
    current = flights.get(first)
    assert (current["state"], current["counters"]["records"]) == ("closed", 3)
    asked = flights.sync(second).json()
    assert (asked["generation"], asked["taken"], asked["pending"]) == (generation + 1, False, [])
    response = flights.sync(second, take=generation + 1, has=generation).json()
    assert response["partitions"] == [0, 1, 2, 3]


def test_tasks_of_another_epoch_are_fenced(flights: Site) -> None:
    endpoint = flights.attach("reader")
    stale = {"parts": 1, "epoch": endpoint["epoch"] + 1}
    (reply,) = Worker(flights).send(task(endpoint, 0, "done", **stale)).json()["tasks"]
    assert (reply["status"], "Send the epoch that the attach returned" in reply["reason"]) == (
        "fenced",
        True,
    )
    assert flights.get(endpoint)["state"] == "opened"


def test_member_0_is_not_closed_by_its_tasks_before_its_group(rig: Rig) -> None:
    flights = site(rig, partitions=2)
    first, second = flights.member(0, 2), flights.member(1, 2)
    worker = Worker(flights)
    assert worker.tell(task(first, 0, "done", parts=1)) == ["ok"]
    assert flights.get(first)["state"] == "started"
    flights.detach(second)
    worker.tell(task(first, 0, "done", parts=1))
    assert flights.get(first)["state"] == "closed"


def test_a_lost_member_returns_by_heartbeats_of_its_keeping_session(
    rig: Rig, flights: Site
) -> None:
    member, other = flights.join(), Site(rig=rig, name=flights.name, uid=flights.uid)
    with rig.database.write() as tx:
        tx.execute(
            update(endpoints)
            .where(endpoints.c.id == member["id"])
            .values(superseded=True, health="lost")
        )
    generation = flights.sync(other.join()).json()["generation"]
    assert [endpoint["id"] for endpoint in keep(flights)["kept"]] == [member["id"]]
    assert flights.get(member)["health"] == "healthy"
    assert flights.sync(member).json()["generation"] == generation + 1


def test_a_kept_endpoint_is_healthy_again_although_its_task_is_fenced(
    rig: Rig, flights: Site
) -> None:
    kept, other = flights.attach("reader"), Site(rig=rig, name=flights.name, uid=flights.uid)
    foreign = other.attach("reader")
    with rig.database.write() as tx:
        tx.execute(update(endpoints).values(health="suspect"))
    tasks = [task(endpoint, 0, epoch=endpoint["epoch"] + 1) for endpoint in (kept, foreign)]
    told = flights.send(keeps=True, tasks=tasks).json()["tasks"]
    assert [reply["status"] for reply in told] == ["fenced", "fenced"]
    assert flights.get(kept)["health"] == "healthy"
    assert flights.get(foreign)["health"] == "suspect"


@pytest.mark.long
def test_only_a_writer_itself_closes_it(flights: Site) -> None:
    endpoint = flights.attach("writer")

    Worker(flights).tell(task(endpoint, 0, "done", parts=1))

    assert flights.get(endpoint)["state"] == "started"


def test_late_and_repeated_task_heartbeats_change_nothing(flights: Site) -> None:
    endpoint = flights.attach("writer")
    worker = Worker(flights)

    worker.tell(task(endpoint, 0, **records(9)), beat=5)
    assert worker.tell(task(endpoint, 0, **records(2)), beat=4) == ["ok"]
    assert worker.tell(task(endpoint, 0, **records(3)), beat=5) == ["ok"]

    assert flights.get(endpoint)["counters"]["records"] == 9


def test_tasks_of_removed_endpoints_are_refused(flights: Site) -> None:
    first = flights.member(role="writer")
    flights.member(role="writer")
    nobody = {"id": fresh_id()}

    told = Worker(flights).send(task(first, 0), task(nobody, 0)).json()["tasks"]

    assert {reply["endpoint"]: reply["status"] for reply in told} == {
        first["id"]: "fenced",
        nobody["id"]: "gone",
    }
    assert all(reply["reason"] for reply in told)


def test_tasks_need_the_scope_of_their_endpoint(rig: Rig, flights: Site) -> None:
    endpoint = flights.attach("writer")
    rig.http.headers.update(rig.token("read"))

    response = Worker(flights).send(task(endpoint, 0))

    assert [reply["status"] for reply in response.json()["tasks"]] == ["refused"]
    assert flights.get(endpoint)["counters"] == {}


def test_a_keeping_session_gets_only_endpoints_in_the_tokens_scope(rig: Rig, flights: Site) -> None:
    flights.attach("writer")
    reader = flights.attach("reader")
    rig.http.headers.update(rig.token("read"))

    assert [endpoint["id"] for endpoint in keep(flights)["kept"]] == [reader["id"]]


@pytest.mark.sample
@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "open"},
        {"attempt": -1},
        {"task": ""},
        {"parts": 0},
        {"counters": {"records": -1}},
        {"positions": {"0": [1]}},
        {"positions": {"x": [1, 0]}},
        {"unheard": 1},
    ],
)
def test_malformed_tasks_are_refused(flights: Site, wrong: Any) -> None:
    endpoint = flights.attach("writer")

    response = Worker(flights).send(task(endpoint, 0) | wrong)

    assert (response.status_code, code(response)) == (422, "invalid_request")


def test_an_attempt_is_at_most_once_in_a_heartbeat(flights: Site) -> None:
    endpoint = flights.attach("writer")

    assert Worker(flights).send(task(endpoint, 0), task(endpoint, 0)).status_code == 422


@pytest.mark.long
def test_a_keeping_session_keeps_all_endpoints_and_gets_the_open_ones(flights: Site) -> None:
    assert keep(flights)["kept"] == []
    flights.detach(flights.attach("writer"))
    writer = flights.attach("writer")
    reader = flights.attach("reader")
    Worker(flights).tell(task(reader, 0))

    kept = {endpoint["id"]: endpoint for endpoint in keep(flights)["kept"]}

    assert kept.keys() == {writer["id"], reader["id"]}
    assert kept[writer["id"]]["reported_at"] is None
    assert kept[reader["id"]]["reported_at"] is not None
    assert kept[writer["id"]]["channel"] == {"name": flights.name, "uid": flights.uid}
    assert kept[writer["id"]]["epoch"] == writer["epoch"]


def test_a_keeping_session_has_the_shortest_heartbeat_interval_of_its_channels(rig: Rig) -> None:
    hasty = site(rig, heartbeat={"interval_ms": 300, "timeout_ms": 900})
    calm = Site(rig=rig, name="calm", uid=_calm(rig), session=hasty.session)
    calm.attach("writer")
    endpoint = hasty.attach("writer")

    assert keep(hasty)["next_ms"] == 300
    assert Worker(hasty).send(task(endpoint, 0)).json()["next_ms"] == 300


def test_a_keeping_session_has_an_interval_short_enough_to_renew_batches(rig: Rig) -> None:
    calm = site(rig, heartbeat={"interval_ms": 60_000, "timeout_ms": 240_000})
    writer = calm.attach("writer")

    assert calm.send(report(writer)).json()["next_ms"] == 60_000
    assert keep(calm)["next_ms"] == 10_000


def test_a_heartbeat_without_keeps_returns_no_kept_endpoints(flights: Site) -> None:
    endpoint = flights.attach("writer")

    response = flights.send(report(endpoint)).json()

    assert response.keys() == {"next_ms", "beat", "endpoints"}


def _calm(rig: Rig) -> str:
    uid: str = rig.put("calm").json()["metadata"]["uid"]
    rig.observe("calm", Phase.READY)
    return uid
