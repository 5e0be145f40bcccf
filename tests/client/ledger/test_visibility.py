"""Visibility: one long poll for all readers of a process."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from faults import no_threads
from scripted_gateway import Script
from sluiceway.api.endpoints import Position
from sluiceway.api.ledger import Committed, Interval, LedgerCalls
from sluiceway.api.models import Connection
from sluiceway.errors import (
    Conflict,
    GatewayError,
    GatewayUnavailable,
    IncompatibleGateway,
    OptionError,
    RecordsLost,
    TopicGone,
    Unauthenticated,
)
from sluiceway.ledger.visibility import CommittedRuns, Visibility, visibility_of
from topics import connection_to

UID = "0" * 32


@pytest.fixture
def connection() -> Connection:
    return connection_to(
        {},
        channel_name="flights",
        channel_uid=UID,
        topic_id="topic-1",
        partitions=2,
        delivery="exactly_once",
    )


@pytest.fixture
def calls(script: Script) -> Iterator[LedgerCalls]:
    calls = LedgerCalls(script.transport(timeout_s=0.5))
    yield calls
    calls.close()


def body(number: int, **ends: Any) -> dict[str, Any]:
    stable = {"0": number * 10, "1": 0}
    return {
        "uid": UID,
        "topic_id": "topic-1",
        "number": number,
        "stable": stable,
        "visible_end": stable,
        "runs": {"0": [[0, number * 10]] if number else [], "1": []},
        "truncated": {},
        "open": [],
        "halted": None,
        **ends,
    }


def opened(
    script: Script, calls: LedgerCalls, connection: Connection, **options: Any
) -> Visibility:
    script.response(200, body(1), ETag='"1"')
    visibility = visibility_of(calls, connection, grace_s=60.0, **options)
    assert visibility is not None
    visibility.acquire()
    return visibility


def test_an_at_least_once_channel_makes_no_request(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    from dataclasses import replace

    plain = replace(connection, delivery="at_least_once")
    assert visibility_of(calls, plain, grace_s=60.0) is None
    with pytest.raises(OptionError, match="no snapshots"):
        visibility_of(calls, plain, grace_s=60.0, snapshot=3)
    assert script.requests == []


def test_readers_of_a_process_share_it(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    first = opened(script, calls, connection)
    script.response(304)
    second = visibility_of(calls, connection, grace_s=60.0)
    assert first is second
    assert [headers.get("If-None-Match") for _, _, headers in script.requests] == [None, '"1"']
    assert "from=0%3A10%2C1%3A0" in script.requests[1][1]
    assert first.runs.stable == {0: 10, 1: 0}


@pytest.mark.long
def test_many_waiting_readers_are_one_request(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    visibility = opened(script, calls, connection)
    woken: list[bool] = []

    def wait() -> None:
        while not visibility.wait(1, 5.0):
            pass
        woken.append(True)

    # Every request gets one of these; more than one would leave none for the test.
    script.response(200, body(2), ETag='"2"')
    threads = [threading.Thread(target=wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(woken) == 20
    assert visibility.number == 2
    assert visibility.runs.stable_of(0) == 20
    polls = [path for _, path, headers in script.requests if headers.get("If-None-Match") == '"1"']
    assert len(polls) == 1
    assert "wait=20" in polls[0]


def test_after_a_failed_start_of_its_thread_the_next_wait_sees_commits(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    visibility = opened(script, calls, connection)
    script.response(200, body(2), ETag='"2"')
    with no_threads("sluiceway-commits"), pytest.raises(RuntimeError, match="new thread"):
        visibility.wait(1, 0.0)
    assert visibility.wait(1, 30.0)
    assert visibility.runs.stable_of(0) == 20


def test_nothing_waits_for_commits_after_the_last_reader(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    visibility, before = opened(script, calls, connection), set(threading.enumerate())
    script.response(200, body(2), ETag='"2"')
    assert visibility.wait(1, 30.0)
    (waiting,) = (
        thread
        for thread in set(threading.enumerate()) - before
        if thread.name == "sluiceway-commits"
    )
    visibility.release()
    # Without a release, it would be there for half a minute.
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_snapshot_knows_which_of_its_records_retention_has_removed(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    ends = {"0": 10, "1": 10}
    runs = {"0": [[2, 10]], "1": [[5, 10]]}
    response = body(2, stable=ends, visible_end=ends, runs=runs, removed=[1])
    script.response(200, response)
    visibility = visibility_of(calls, connection, grace_s=60.0, snapshot=2)
    assert visibility is not None
    lost = visibility.removed_records({0: 2, 1: 5})
    assert [(p, error.offset, error.begin, error.end) for p, error in lost.items()] == [
        (1, 4, 5, 10)
    ]
    lost = visibility.removed_records({0: 4, 1: 12})
    assert [(p, error.offset, error.begin, error.end) for p, error in lost.items()] == [
        (0, 2, 4, 10),
        (1, 5, 12, 12),
    ]


def test_a_snapshot_before_a_repair_that_removed_its_records_is_refused(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    lost = {"repaired": 3, "given_up": {"0": [[15, 30]]}}
    script.response(200, body(1, **lost))
    assert visibility_of(calls, connection, grace_s=60.0, snapshot=1) is not None
    script.response(200, body(2, **lost | {"runs": {"0": [[0, 15]], "1": []}}))
    with pytest.raises(
        RecordsLost, match=r"commit 2 .* is not complete: .* partition 0, .* repair"
    ):
        visibility_of(calls, connection, grace_s=60.0, snapshot=2)
    script.response(200, body(4, **lost | {"runs": {"0": [[0, 15], [30, 40]], "1": []}}))
    assert visibility_of(calls, connection, grace_s=60.0, snapshot=4) is not None


def body_known_at(number: int, at: str | None, **others: Any) -> dict[str, Any]:
    return body(number, at=f"2026-11-25T00:00:0{number}.000Z", known_at=at, **others)


@pytest.mark.parametrize(
    ("number", "known_at"),
    [
        pytest.param(1, None, id="fewer commits"),
        pytest.param(2, "2026-11-25T00:00:09.000Z", id="as many, others"),
        pytest.param(9, "2026-11-25T00:00:09.000Z", id="more, others"),
    ],
)
def test_a_restored_database_is_an_error(
    script: Script,
    calls: LedgerCalls,
    connection: Connection,
    number: int,
    known_at: str | None,
) -> None:
    script.response(200, body_known_at(2, None), ETag='"2"')
    visibility = visibility_of(calls, connection, grace_s=60.0)
    assert isinstance(visibility, CommittedRuns)
    script.response(200, body_known_at(3, "2026-11-25T00:00:02.000Z"), ETag='"3"')
    visibility.refresh()
    assert visibility.number == 3
    # The gateway has pruned that snapshot.
    script.response(200, body_known_at(3, None), ETag='"3"')
    visibility.refresh()
    script.response(200, body_known_at(number, known_at), ETag='"n"')
    with pytest.raises(Conflict, match=r"does not know the commit 3 .* restored") as caught:
        visibility.refresh()
    assert (caught.value.code, caught.value.retriable) == ("ledger_restored", False)
    assert ["known=" in path for _, path, _ in script.requests] == [False, True, True, True]
    script.response(200, body_known_at(number, None))
    opened = visibility_of(calls, connection, grace_s=60.0)
    assert opened is not visibility


def test_an_older_answer_does_not_go_back(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    class Overtaken(LedgerCalls):
        """The second request gets its response before the first."""

        overtaking = False

        def all_committed(self, *args: Any, **named: Any) -> Committed | None:
            response = super().all_committed(*args, **named)
            if not self.overtaking:
                self.overtaking = True
                committed.refresh()
            return response

    committed = CommittedRuns(Overtaken(script.transport(timeout_s=0.5)), connection, grace_s=60.0)
    script.response(200, body(2), ETag='"2"')
    script.response(200, body(3), ETag='"3"')
    committed.refresh()
    assert (committed.number, committed.runs.stable_of(0), committed.visible_end[0]) == (3, 30, 30)


def test_new_partitions_are_requested_from_their_begin(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    visibility = opened(script, calls, connection)
    grown = {"stable": {"0": 20, "1": 0, "2": 5}, "runs": {"0": [[10, 20]], "1": []}}
    script.response(200, body(2, **grown), ETag='"2"')
    script.response(200, body(2, **{**grown, "runs": {**grown["runs"], "2": [[0, 5]]}}), ETag='"2"')
    visibility.refresh()
    assert "2%3A0" in script.requests[-1][1]
    assert visibility.runs.next_run(2, 0) == (0, 5)


def test_a_recreated_topic_is_refused(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    script.response(200, body(1, topic_id="topic-2"), ETag='"1"')
    with pytest.raises(TopicGone, match=r"topic-2.*topic-1.*Open the channel again"):
        visibility_of(calls, connection, grace_s=60.0)


def test_a_halted_channel_is_refused(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    script.response(200, body(1, halted="offsets were reused."), ETag='"1"')
    with pytest.raises(Conflict, match=r"halted.*offsets were reused.*repair flights") as raised:
        visibility_of(calls, connection, grace_s=60.0)
    assert raised.value.code == "ledger_halted"


def test_a_repair_ends_the_readers_before_it(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    before = opened(script, calls, connection)
    script.response(200, body(2, repaired=2), ETag='"2"')
    with pytest.raises(Conflict, match="was repaired") as raised:
        before.refresh()
    assert raised.value.code == "ledger_repaired"
    assert (before.number, before.runs.stable_of(0)) == (1, 10)
    script.response(200, body(2, repaired=2), ETag='"2"')
    after = visibility_of(calls, connection, grace_s=60.0)
    assert after is not None
    assert (after is before, after.number) == (False, 2)
    script.response(200, body(3, repaired=2), ETag='"3"')
    after.refresh()
    assert after.number == 3


def test_an_answer_that_lacks_runs_is_refused(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    script.response(200, body(1, runs={"0": [[0, 4]], "1": []}), ETag='"1"')
    with pytest.raises(IncompatibleGateway, match="partition 0 is listed up to 4"):
        visibility_of(calls, connection, grace_s=60.0)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "unavailable", GatewayUnavailable),
        (401, "unauthenticated", Unauthenticated),
        (500, "internal_error", GatewayError),
    ],
)
def test_an_outage_is_raised_to_waiting_readers_after_the_grace(
    script: Script,
    calls: LedgerCalls,
    connection: Connection,
    status: int,
    code: str,
    kind: type[GatewayError],
) -> None:
    now_s = [1000.0]
    visibility = CommittedRuns(calls, connection, grace_s=60.0, monotonic=lambda: now_s[0])
    script.problem(status, code)
    visibility.follow_once(calls)
    assert not visibility.wait(visibility.number, 0.0)
    now_s[0] = 1061.0
    with pytest.raises(kind):
        visibility.wait(-1, 1.0)


def test_other_failures_are_raised_at_once_and_the_next_wait_tries_again(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    visibility = opened(script, calls, connection)
    script.problem(409, "uid_mismatch")
    with pytest.raises(Conflict, match="uid_mismatch"):
        visibility.wait(1, 30.0)
    script.response(200, body(2), ETag='"2"')
    while not visibility.wait(1, 5.0):
        pass
    assert visibility.number == 2


def test_a_snapshot_is_final(script: Script, calls: LedgerCalls, connection: Connection) -> None:
    visibility = opened(script, calls, connection, snapshot=1)
    assert "snapshot=1" in script.requests[0][1]
    visibility.refresh()
    assert not visibility.wait(1, 60.0)
    assert visibility.visible_end == {0: 10, 1: 0}
    assert len(script.requests) == 1


HELD = {"stable": {"0": 10, "1": 0}, "visible_end": {"0": 10, "1": 8000}}
WHOLE = {**HELD, "runs": {"0": [[0, 10]], "1": [[3, 5], [5, 8000]]}}


def test_the_present_has_whole_batches_above_stable(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    script.response(200, body(1, **HELD))
    script.response(200, body(1, **WHOLE))
    visibility = visibility_of(calls, connection, grace_s=60.0, present=True)
    assert visibility is not None
    assert ["snapshot=1" in path for _, path, _ in script.requests] == [False, True]
    assert visibility.visible_end == {0: 10, 1: 8000}
    assert visibility.runs.between(1, 0, 9000) == (Interval(3, 8000),)
    # Others may begin below the end, so a successor starts where everything is final.
    assert visibility.resumable(1, Position(offset=8000)) == Position(offset=0)
    assert visibility.resumable(0, Position(offset=7, records=2)) == Position(offset=7, records=2)
    assert visibility.resumable(0, Position(offset=10, records=2)) == Position(offset=10)


def test_the_present_without_open_batches_is_one_request(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    visibility = opened(script, calls, connection, present=True)
    assert visibility.visible_end == {0: 10, 1: 0}
    assert len(script.requests) == 1


def test_a_present_that_the_gateway_lists_in_part_is_refused(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    script.response(200, body(1, **HELD))
    script.response(200, body(1))
    with pytest.raises(IncompatibleGateway, match="only a part of the commit 1"):
        visibility_of(calls, connection, grace_s=60.0, present=True)


def test_a_snapshot_has_partitions_that_were_added_after_the_connection(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    ends = {"0": 10, "1": 0, "2": 4, "3": 5}
    grown = {"stable": ends, "visible_end": ends}
    runs = {"0": [[0, 10]], "1": [], "2": [[0, 4]], "3": [[0, 5]]}
    script.response(200, body(1, **grown))
    script.response(200, body(1, **grown, runs=runs))
    visibility = visibility_of(calls, connection, grace_s=60.0, snapshot=1)
    assert visibility is not None
    assert "from=0%3A0%2C1%3A0%2C2%3A0%2C3%3A0" in script.requests[1][1]
    assert (visibility.partitions, visibility.runs.stable_of(2), visibility.runs.stable_of(3)) == (
        4,
        4,
        5,
    )


def test_a_snapshot_can_be_given_by_time(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    opened(script, calls, connection, snapshot=datetime(2026, 1, 2, tzinfo=UTC))
    assert "snapshot_at=2026-01-02T00%3A00%3A00%2B00%3A00" in script.requests[0][1]


@pytest.mark.parametrize("snapshot", [-1, 1.5, True, "3", datetime(2026, 1, 2)])  # noqa: DTZ001
def test_other_snapshots_are_refused(
    script: Script, calls: LedgerCalls, connection: Connection, snapshot: Any
) -> None:
    with pytest.raises(OptionError, match=r"number of a commit|time zone"):
        visibility_of(calls, connection, grace_s=60.0, snapshot=snapshot)
    assert script.requests == []


def test_the_batch_that_hides_most_is_named(
    script: Script, calls: LedgerCalls, connection: Connection
) -> None:
    visibility = opened(script, calls, connection)
    batches = [
        {
            "id": key,
            "key": key,
            "owner": "job",
            "since": "2026-01-02T03:04:05Z",
            "begin": {"0": begin},
        }
        for key, begin in (("late", 25), ("early", 10))
    ]
    script.response(
        200,
        body(2, stable={"0": 10, "1": 0}, runs={}, open=batches, visible_end={"0": 30, "1": 0}),
        ETag='"2"',
    )
    assert (
        visibility.held_back_by()
        == "the batch 'early' of 'job', open since 2026-01-02 03:04:05+0000,"
    )
    script.response(200, body(3), ETag='"3"')
    assert visibility.held_back_by() is None
