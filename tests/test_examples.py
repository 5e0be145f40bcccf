"""The examples without Spark, one after the other, against a real gateway.

Each is a process of its own, so `make test` runs one of each kind.
"""

from pathlib import Path

import pytest

from processes import EXAMPLES, run_example


def test_two_replicas_count_every_reading_once_despite_a_restart(
    gateway_url: str,
) -> None:
    before, *stations, total = run_example("count_in_two.py", gateway_url)
    assert before == "100 readings counted before the restart"
    assert stations == [f"station-{number} 200" for number in range(10)]
    assert total == "2000 readings counted"


@pytest.mark.long
def test_a_writer_waits_until_two_groups_have_read_all(gateway_url: str) -> None:
    late, archived, total = run_example("wait_until_read.py", gateway_url)
    assert late.startswith("not yet: after 0.1 s the records written to the channel 'orders'")
    assert "the group 'billing': it never had a member" in late
    assert archived == "500 orders are billed and shipped, and can be archived"
    assert total == "1000 orders were read in all"


def test_orders_cycle_through_ports_until_their_channel_is_closed(gateway_url: str) -> None:
    assert run_example("ports_and_cycle.py", gateway_url) == [
        "enough orders went round: True",
        "each of them was audited and handled: True",
        "of 10 orders",
    ]


@pytest.mark.long
def test_a_channel_is_closed_after_everything_is_read_then_deleted(gateway_url: str) -> None:
    assert run_example("close_and_delete.py", gateway_url) == [
        "closing, and asked to finish: closing",
        "nobody else comes to write",
        "14752 cents",
        "the channel 'todays-sales' is not closed yet: the group 'books' has not committed 100 "
        "messages of partition 0",
        "not deleted: endpoints_live",
        "closed",
        "deleted",
    ]


@pytest.mark.long
def test_restarted_jobs_continue_and_their_predecessors_are_fenced(gateway_url: str) -> None:
    assert run_example("started_again.py", gateway_url) == [
        "the planner failed after 50 tasks, and whoever reads them is told",
        "the worker did 40 tasks, of which 30 are committed, and hangs",
        "what it did not read it cannot commit",
        "another goes on at task 30",
        "and does 29 more, to the end",
        "the first worker wakes up: fenced",
        "committed: 60 of 60",
    ]


@pytest.mark.long
def test_a_log_is_reread_from_any_valid_position(gateway_url: str) -> None:
    assert run_example("read_again.py", gateway_url) == [
        f"all, in the order in which they were written: {list(range(10))}",
        "from offset 7: [7, 8, 9]",
        "from noon: [5, 6, 7, 8, 9]",
        "another goes on after 4: [5, 6, 7, 8, 9]",
        "the place is in a log that is gone",
    ]


@pytest.mark.long
def test_a_lagging_reader_is_found_and_catches_up(gateway_url: str) -> None:
    assert run_example("who_holds_up_whom.py", gateway_url) == [
        "labels: 0 parcels left",
        "scales: 600 parcels left",
        "scales holds up whoever needs both",
        "both have all parcels: ['ok', 'ok']",
    ]


@pytest.mark.long
def test_joining_and_leaving_workers_count_every_reading_once(gateway_url: str) -> None:
    lines = run_example("workers_come_and_go.py", gateway_url)
    assert lines[0] == "Ada has (0, 1, 2, 3)"
    assert {line.split()[0] for line in lines if " has " in line} == {"Ada", "Ben", "Cid"}
    assert lines[-11:-1] == [f"station-{number} 300" for number in range(10)]
    assert lines[-1] == "3000 readings counted"


@pytest.mark.long
def test_a_watcher_sees_endpoints_without_being_one(gateway_url: str) -> None:
    assert run_example("watch_from_aside.py", gateway_url) == [
        "the model hears of its writer's harbour: True",
        "gauge[0] is started and healthy, and tells {'harbour': 'Brest'}",
        "model[0] is started and healthy",
        "gauge[0] is closed after 12 tides",
        "model[0] is closed after 12 tides",
        "2 have been here, as far as anybody knows",
    ]


@pytest.mark.long
def test_kafkas_tools_show_a_groups_lag(gateway_url: str) -> None:
    assert run_example("as_kafkas_tools_see_it.py", gateway_url) == [
        "the group lags by 6 letters",
        "6 more are read",
        "the group lags by 0 letters",
    ]


@pytest.mark.long
def test_fifty_readers_start_at_once(gateway_url: str) -> None:
    assert run_example("fifty_at_once.py", gateway_url) == [
        "50 readers had their first record at once",
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
        "may go on: True",
        "with another generation: IllegalGeneration",
        "once it has left: UnknownMemberId",
    ]


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


def test_a_program_written_for_confluent_kafka_produces_and_consumes(gateway_url: str) -> None:
    assert run_example("confluent_consume_produce.py", gateway_url) == [
        "120 messages delivered to greetings",
        "120 messages consumed from greetings",
        "120 committed",
    ]
