"""The examples without Spark, one after the other, against a real gateway.

Each runs in a separate process, so `make test` runs one of each kind.
"""

import runpy
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from processes import EXAMPLES, run_example
from waiting import until


@pytest.mark.long
def test_two_replicas_count_every_reading_once_despite_a_restart(
    gateway_url: str,
) -> None:
    before, *stations, total = run_example("two_replicas.py", gateway_url)
    assert before == "100 readings counted before the restart"
    assert stations == [f"station-{number} 200" for number in range(10)]
    assert total == "2000 readings counted"


@pytest.mark.long
def test_a_writer_waits_until_two_groups_have_read_all(gateway_url: str) -> None:
    late, archived, total = run_example("wait_acknowledged.py", gateway_url)
    assert late.startswith("not yet: after 0.1 s the records written to the channel 'orders'")
    assert "the group 'billing': it never had a member" in late
    assert archived == "both groups have committed 500 orders"
    assert total == "1000 orders were read in all"


@pytest.mark.long
def test_orders_cycle_through_ports_until_their_channel_is_closed(gateway_url: str) -> None:
    assert run_example("ports_and_cycle.py", gateway_url) == [
        "enough orders were distributed: True",
        "each was audited and handled: True",
        "distinct orders: 10",
    ]


@pytest.mark.long
def test_a_channel_is_closed_after_everything_is_read_then_deleted(gateway_url: str) -> None:
    assert run_example("close_and_delete.py", gateway_url) == [
        "phase: closing",
        "a new writer is refused",
        "14752 cents",
        "the channel 'todays-sales' is not closed yet: the group 'books' has not committed 100 "
        "messages of partition 0",
        "not deleted: endpoints_live",
        "phase: closed",
        "deleted",
    ]


@pytest.mark.long
def test_restarted_jobs_continue_and_their_predecessors_are_fenced(gateway_url: str) -> None:
    assert run_example("restart_and_fencing.py", gateway_url) == [
        "the planner failed after 50 tasks, which readers report",
        "the worker read 40 tasks, committed 30, and hangs",
        "a commit past the read tasks is refused",
        "its successor continues at task 30",
        "and reads 29 more, to the end",
        "the first worker continues, and is fenced",
        "committed: 60 of 60",
    ]


@pytest.mark.long
def test_a_log_is_reread_from_any_valid_position(gateway_url: str) -> None:
    assert run_example("read_again.py", gateway_url) == [
        f"all: {list(range(10))}",
        "from offset 7: [7, 8, 9]",
        "from noon: [5, 6, 7, 8, 9]",
        "another reader continues after 4: [5, 6, 7, 8, 9]",
        "the position is in a deleted topic",
    ]


@pytest.mark.long
def test_a_lagging_reader_is_found_and_catches_up(gateway_url: str) -> None:
    assert run_example("find_lagging_group.py", gateway_url) == [
        "labels: lag 0",
        "scales: lag 600",
        "scales lags behind",
        "progress of both: ['ok', 'ok']",
    ]


@pytest.mark.long
def test_joining_and_leaving_workers_count_every_reading_once(gateway_url: str) -> None:
    lines = run_example("dynamic_workers.py", gateway_url)
    assert lines[0] == "Ada has (0, 1, 2, 3)"
    assert {line.split()[0] for line in lines if " has " in line} == {"Ada", "Ben", "Cid"}
    assert lines[-11:-1] == [f"station-{number} 300" for number in range(10)]
    assert lines[-1] == "3000 readings counted"


@pytest.mark.long
def test_tasks_share_a_channel_until_the_process_is_stopped(gateway_url: str) -> None:
    assert run_example("aio_workers.py", gateway_url) == [
        "4 workers share 4 partitions",
        "400 jobs are done",
    ]


@pytest.mark.long
def test_a_service_writes_and_reads_while_it_answers(
    gateway_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_URL", gateway_url)
    app = runpy.run_path(str(EXAMPLES / "aio_service.py"))["app"]
    with TestClient(app) as client:
        for cents in (250, 120):
            order = {"item": "tea", "cents": cents}
            assert client.post("/orders", json=order).status_code == 201
        until(lambda: client.get("/total").json() == {"cents": 370})


@pytest.mark.long
def test_a_watcher_sees_endpoints_without_being_one(gateway_url: str) -> None:
    assert run_example("watch_status.py", gateway_url) == [
        "the reader received its writer's payload: True",
        "gauge[0] is started and healthy, with the payload {'harbour': 'Brest'}",
        "model[0] is started and healthy",
        "gauge[0] is closed after 12 tides",
        "model[0] is closed after 12 tides",
        "the channel had 2 endpoints",
    ]


@pytest.mark.long
def test_kafkas_tools_show_a_groups_lag(gateway_url: str) -> None:
    assert run_example("mirrored_offsets.py", gateway_url) == [
        "lag of the group in Kafka: 6",
        "read 6 more letters",
        "lag of the group in Kafka: 0",
    ]


@pytest.mark.long
def test_fifty_readers_start_at_once(gateway_url: str) -> None:
    assert run_example("fifty_readers.py", gateway_url) == [
        "50 readers read at the same time",
        "500 records were read, each once",
        "member 7 had the partitions (7,)",
        "each auditor read [500, 500]",
        "the last to close was member 0 of 50",
    ]


@pytest.mark.long
def test_a_custom_consumer_uses_every_broker_request(gateway_url: str) -> None:
    assert run_example("broker_calls.py", gateway_url) == [
        "{0: (0, 0), 1: (0, 0)}",
        "partitions: [0, 1]",
        "partition 0 ends at [3]",
        "0 ['parcel 0', 'parcel 2', 'parcel 4']",
        "1 ['parcel 1', 'parcel 3', 'parcel 5']",
        "committed: {0: 0, 1: 0}",
        "may continue: True",
        "with another generation: IllegalGeneration",
        "after leaving: UnknownMemberId",
    ]


@pytest.mark.long
def test_a_pipeline_of_pypz_runs_through_a_channel(gateway_url: str) -> None:
    assert run_example("pypz_port.py", gateway_url) == [
        *(f"HelloWorld_{number}" for number in range(10)),
        "ended with [0, 0]",
    ]


def test_every_example_is_run() -> None:
    here = Path(__file__)
    text = (
        here.read_text() + (here.parent / "client" / "spark" / "test_spark_examples.py").read_text()
    )
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in text] == []


@pytest.mark.long
def test_a_program_written_for_confluent_kafka_produces_and_consumes(gateway_url: str) -> None:
    assert run_example("confluent_consume_produce.py", gateway_url) == [
        "120 messages delivered to greetings",
        "120 messages consumed from greetings",
        "120 committed",
    ]
