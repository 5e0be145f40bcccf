"""Current problems of a channel."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from sluiceway_gateway.channels.change import created
from sluiceway_gateway.channels.model import Channel, Phase, Spec
from sluiceway_gateway.endpoints.model import Health, Mode, Place, Role, State
from sluiceway_gateway.schemas.model import SchemaVersion
from sluiceway_gateway.status.lag import GroupSummary, LedgerSample, OpenBatch, Sample
from sluiceway_gateway.status.problems import (
    FAILURE_AGE,
    Coverage,
    EndpointState,
    Failures,
    OutOfRange,
    current_problems,
    out_of_range,
    unread_partitions,
)
from sluiceway_gateway.status.reader_progress import (
    COMMITTED,
    DEPARTED,
    OffsetTrack,
    ProgressState,
    ReaderProgress,
    track_key,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def channel(phase: Phase = Phase.READY) -> Channel:
    schema = SchemaVersion(id=1, version=1, fingerprint="f1", definition="s", created_at=NOW)
    made = created(Spec(), name="flights", uid="0" * 32, schema=schema, prefix="", now=NOW)
    return replace(made, phase=phase)


def group(progress: ProgressState) -> GroupSummary:
    return GroupSummary(
        lag_messages=4, behind_since=1.0, behind_or_before=False, progress=progress, read_rate=0.0
    )


def endpoint(
    index: int,
    *,
    role: Role = Role.READER,
    state: State = State.STARTED,
    health: Health = Health.HEALTHY,
    group: str = "g",
) -> EndpointState:
    place = Place(role=role, group=group, index=index)
    return EndpointState(
        id=f"e{index}", place=place, state=state, health=health, changed_at=NOW, cause=None
    )


def ledger(*held_messages: int, halted: str | None = None) -> LedgerSample:
    batches = [
        OpenBatch(key=f"b{held}", owner="job", since=NOW.timestamp(), held_messages=held)
        for held in held_messages
    ]
    return LedgerSample(
        number=1,
        halted=halted,
        stable=[0],
        visible_end=[9],
        committed_messages=9,
        open_batches=len(batches),
        batches=batches,
    )


def test_a_working_channel_has_no_problem() -> None:
    groups = {"g": group(ProgressState.OK)}
    at_work = [endpoint(0), endpoint(1, state=State.CLOSED, health=Health.LOST)]
    assert (
        current_problems(
            channel(),
            coverage=Coverage.of([0, 5]),
            groups=groups,
            out_of_range={},
            unread={},
            ledger=ledger(0),
            endpoints=at_work,
            failures=None,
        )
        == ()
    )


@pytest.mark.parametrize(
    ("position", "log_end", "expected"),
    [
        (40, 100, {}),
        # Kafka lost messages at the end: the channel is halted, and its repair keeps positions.
        (80, 60, {}),
        # Committed by a client above all messages.
        (120, 110, {"g": OutOfRange(expired=0, beyond=1)}),
        (105, 110, {}),
        (5, 110, {"g": OutOfRange(expired=1, beyond=0)}),
    ],
)
def test_positions_of_an_exactly_once_channel_are_valid_up_to_what_is_stable(
    position: int, log_end: int, expected: dict[str, OutOfRange]
) -> None:
    track = OffsetTrack(position=[position], committed=[position], holder=[COMMITTED])
    sample = Sample(
        at=NOW,
        starts=[10],
        ends=[100],
        log_ends=[log_end],
        ledger=ledger(),
        tracks={track_key("g", None): track},
    )
    assert out_of_range([sample] * 3) == expected


def test_each_problem_names_its_cause_and_errors_come_first() -> None:
    problems = current_problems(
        channel(Phase.FAILED),
        coverage=Coverage.of([3, None]),
        groups={"": group(ProgressState.FALLING_BEHIND), "g": group(ProgressState.STALLED)},
        out_of_range={"h": OutOfRange(expired=1, beyond=2), "g": OutOfRange(expired=1, beyond=0)},
        unread={"j": 2},
        ledger=ledger(3, 0, halted="offsets are gone"),
        endpoints=[
            endpoint(0, health=Health.SUSPECT),
            endpoint(1, health=Health.LOST),
        ],
        failures=Failures(
            latest=endpoint(2, role=Role.WRITER, state=State.ERROR, group=""), count=3
        ),
    )
    assert [(problem.code, problem.severity.value) for problem in problems] == [
        ("channel_failed", "error"),
        ("channel_halted", "error"),
        ("reader_stalled", "error"),
        ("position_out_of_range", "error"),
        ("partitions_unread", "error"),
        ("reader_lost", "error"),
        ("partitions_unavailable", "warning"),
        ("not_converging", "warning"),
        ("batch_holds_readers", "warning"),
        ("position_out_of_range", "warning"),
        ("suspect", "warning"),
        ("writer_failed", "warning"),
    ]
    assert (problems[-1].failures, problems[-1].endpoint, problems[0].failures) == (3, "e2", None)
    assert (problems[-1].group, problems[-1].index) == (None, None)
    by_code = {problem.code: problem for problem in problems}
    batch = by_code["batch_holds_readers"]
    assert (batch.batch, batch.owner, batch.held_messages, batch.since) == ("b3", "job", 3, NOW)
    missing = by_code["partitions_unavailable"]
    assert missing.reason == "1 of 2 partitions are affected; their lag is unknown"
    assert by_code["channel_halted"].reason == "offsets are gone"
    assert (by_code["reader_stalled"].group, by_code["reader_stalled"].lag_messages) == ("g", 4)
    assert by_code["not_converging"].group is None
    (both, expired) = (problem for problem in problems if problem.code == "position_out_of_range")
    assert (both.role, both.group, expired.group) == ("reader", "h", "g")
    assert both.reason == (
        "retention removed the next messages of 1 partition, and its positions are above the last "
        "message of 2 partitions"
    )
    assert expired.reason == "retention removed the next messages of 1 partition"
    lost = by_code["reader_lost"]
    assert (lost.endpoint, lost.group, lost.index, lost.since) == ("e1", "g", 1, NOW)


@pytest.mark.parametrize(
    ("phase", "ready", "reason", "expected"),
    [
        (Phase.PROVISIONING, "False", "Provisioning", []),
        (Phase.PROVISIONING, "False", "InvalidReplication", ["error"]),
        (Phase.READY, "True", "KafkaRefused", ["warning"]),
        (Phase.CLOSING, "False", "TopicMissing", ["error"]),
        (Phase.DELETING, "False", "Deleting", []),
        (Phase.DELETING, "False", "KafkaRefused", ["warning"]),
    ],
)
def test_a_topic_that_kafka_refuses_is_a_problem(
    phase: Phase, ready: Literal["True", "False"], reason: str, expected: list[str]
) -> None:
    refused = channel(phase).with_condition("Ready", ready, reason, "a message", NOW)
    refused = refused.with_condition("Synced", "False", reason, "To do: add brokers.", NOW)
    problems = current_problems(
        refused,
        coverage=None,
        groups={},
        out_of_range={},
        unread={},
        ledger=None,
        endpoints=[],
        failures=None,
    )
    assert [problem.severity.value for problem in problems] == expected
    for problem in problems:
        assert (problem.code, problem.reason) == ("channel_not_synced", "To do: add brokers.")


def test_kafka_without_any_offsets_is_an_error() -> None:
    for starts in ([], [None, None]):
        coverage = Coverage.of(starts)
        (problem,) = current_problems(
            channel(),
            coverage=coverage,
            groups={},
            out_of_range={},
            unread={},
            ledger=None,
            endpoints=[],
            failures=None,
        )
        assert (problem.code, problem.severity.value) == ("partitions_unavailable", "error")
        assert problem.reason == "all partitions are affected; their lag is unknown"


def test_errors_are_first() -> None:
    suspects = [endpoint(number, health=Health.SUSPECT) for number in range(10)]
    endpoints = [*suspects, endpoint(99, health=Health.LOST)]
    problems = current_problems(
        channel(),
        coverage=None,
        groups={},
        out_of_range={},
        unread={},
        ledger=None,
        endpoints=endpoints,
        failures=None,
    )
    assert problems[0].code == "reader_lost"


@pytest.mark.parametrize(
    ("group_name", "position", "holder", "ends", "by_tasks", "expected"),
    [
        ("g", [7, None, None], [3, None, None], [9, 9, 0], False, {"g": 1}),
        ("g", [7, 0, None], [3, 3, None], [9, 9, 0], False, {}),
        # A lag is known, and its growth is a problem of its own.
        ("g", [7, 4, 0], [3, COMMITTED, DEPARTED], [9, 9, 9], False, {}),
        # Nobody reports positions, as clients that only commit.
        ("g", [7, None, None], [COMMITTED, None, None], [9, 9, 9], False, {}),
        ("g", [7, None, None], [3, None, None], [9, None, 9], True, {}),
        ("", [7, None, None], [3, None, None], [9, 9, 9], False, {}),
    ],
)
def test_partitions_that_no_member_has_ever_read_are_counted(
    group_name: str,
    position: list[int | None],
    holder: list[int | None],
    ends: list[int | None],
    by_tasks: bool,
    expected: dict[str, int],
) -> None:
    track = OffsetTrack(position=position, committed=[None] * 3, holder=holder)
    sample = Sample(
        at=NOW,
        starts=[0, 0, 0],
        ends=ends,
        log_ends=[],
        ledger=None,
        tracks={track_key(group_name, None): track},
    )
    reader = ReaderProgress(
        group=group_name,
        index=0,
        size=1,
        mode=Mode.SHARED,
        epoch=3,
        alive=True,
        positions={},
        by_tasks=by_tasks,
    )
    assert unread_partitions([sample] * 3, [reader]) == expected
    assert unread_partitions([sample] * 2, [reader]) == {}


def test_failures_are_one_problem_for_a_day() -> None:
    def failed(index: int, ago: timedelta) -> EndpointState:
        return replace(endpoint(index, state=State.ERROR), changed_at=NOW - ago)

    endpoints = [endpoint(0), *(failed(hours, timedelta(hours=hours)) for hours in (23, 2, 24))]
    failures = Failures.of(endpoints, since=NOW - FAILURE_AGE)
    assert failures is not None
    assert (failures.latest.id, failures.count) == ("e2", 2)
    assert Failures.of(endpoints, since=NOW) is None
