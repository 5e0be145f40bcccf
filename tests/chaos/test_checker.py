"""The checker finds each kind of violation in handwritten histories."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.chaos.checker import (
    RUNS,
    ChannelHistory,
    Entry,
    Finding,
    History,
    Hold,
    Record,
    Run,
    RunRead,
    Scan,
    Seen,
    accounts,
    check,
    rows_of,
    scan_of,
)

BEGUN = Entry(kind="begun", unit="w-0", channel="direct", job="w", batch=0, rows=3)
READY = Entry(kind="ready", unit="w-0", at_s=10, attempt="a")
COMMITTED = Entry(kind="committed", unit="w-0")
JOURNAL = [BEGUN, READY, COMMITTED]


def record(row: int, *, batch: int = 0, attempt: str = "a", unit: str | None = None) -> Record:
    unit = unit or f"w-{batch}"
    return Record(job="w", batch=batch, row=row, unit=unit, part=0, attempt=attempt, seq=row)


def channel(*rows: Record, at_s: float = 11, name: str = "direct") -> ChannelHistory:
    """Return a channel with one partition, read both during the run and at its end."""
    return ChannelHistory(
        name=name, final={0: rows}, seen={0: [Seen(record, at_s) for record in rows]}
    )


def violations(*channels: ChannelHistory, entries: list[Entry] = JOURNAL) -> dict[str, int]:
    """Return the number of violations by kind."""
    return counts(check(History(entries=entries, channels=channels)))


def counts(findings: list[Finding]) -> dict[str, int]:
    return dict(Counter(finding.kind for finding in findings))


WHOLE = (record(0), record(1), record(2))


def test_a_batch_that_was_read_once_and_in_order_is_no_violation() -> None:
    assert violations(channel(*WHOLE)) == {}


def test_missing_rows_of_a_batch_are_lost() -> None:
    assert violations(channel(record(0), record(2))) == {"lost": 1}
    assert violations(channel()) == {"lost": 3}


def test_a_batch_without_a_key_may_be_missing_in_whole_until_it_is_committed() -> None:
    unkeyed = replace(BEGUN, keyed=False)

    assert violations(channel(), entries=[unkeyed, READY]) == {}
    assert violations(channel(record(0)), entries=[unkeyed, READY]) == {"lost": 2}
    assert violations(channel(), entries=[unkeyed, READY, COMMITTED]) == {"lost": 3}


def test_rows_of_two_attempts_are_duplicated() -> None:
    again = Entry(kind="ready", unit="w-0", at_s=10, attempt="b")
    both = [*WHOLE, record(1, attempt="b")]

    assert violations(channel(*both), entries=[*JOURNAL, again]) == {"duplicated": 1}


def test_a_row_before_an_earlier_one_of_its_attempt_is_reordered() -> None:
    assert violations(channel(record(0), record(2), record(1))) == {"reordered": 1}


def test_a_batch_before_an_earlier_one_of_its_job_is_reordered() -> None:
    second = [replace(entry, unit="w-1", batch=1, rows=1) for entry in JOURNAL]
    rows = [record(0, batch=1), *WHOLE]

    assert violations(channel(*rows), entries=[*JOURNAL, *second]) == {"reordered": 1}


def test_order_is_checked_within_each_partition() -> None:
    split = {0: [record(2)], 1: [record(0), record(1)]}

    assert violations(ChannelHistory(name="direct", final=split)) == {}


def test_a_row_that_was_read_before_its_attempt_was_ready_is_early() -> None:
    assert violations(channel(*WHOLE, at_s=9)) == {"early": 3}
    assert violations(channel(*WHOLE), entries=[BEGUN, replace(READY, attempt="b")]) == {"early": 3}


def test_a_row_that_was_read_before_another_task_was_ready_is_early() -> None:
    tasks = [replace(READY, parts=2), replace(READY, part=1, parts=2, at_s=12, attempt="b")]

    assert violations(channel(*WHOLE), entries=[BEGUN, *tasks]) == {"early": 3}
    assert violations(channel(*WHOLE, at_s=13), entries=[BEGUN, *tasks]) == {}


def test_a_visible_batch_that_its_job_reports_as_dropped_is_early() -> None:
    dropped = Entry(kind="dropped", unit="w-0")

    assert violations(channel(*WHOLE), entries=[BEGUN, READY, dropped]) == {"early": 3}


def test_a_record_that_was_read_and_is_gone_at_the_end_is_lost() -> None:
    unkeyed = [replace(BEGUN, keyed=False), READY]
    history = ChannelHistory(name="direct", final={0: []}, seen={0: [Seen(record(0), 11)]})

    assert violations(history, entries=unkeyed) == {"lost": 1}


def test_a_record_that_one_reader_returned_twice_is_duplicated() -> None:
    seen = [Seen(row, 11) for row in (*WHOLE[:2], WHOLE[1], WHOLE[2])]

    assert violations(replace(channel(*WHOLE), seen={0: seen})) == {"duplicated": 1}


def test_another_order_at_the_end_is_reordered() -> None:
    other = [Seen(row, 11) for row in (WHOLE[1], WHOLE[0], WHOLE[2])]
    behind = [Seen(row, 11) for row in WHOLE[1:]]

    assert violations(replace(channel(*WHOLE), seen={0: other})) == {"reordered": 1}
    assert violations(replace(channel(*WHOLE), seen={0: behind})) == {"reordered": 1}


def test_a_reading_job_reads_each_record_once() -> None:
    def read(*rows: Record) -> dict[str, int]:
        reads = {"reader": [Seen(row, 11) for row in rows]}
        return violations(replace(channel(*WHOLE), reads=reads))

    assert read(*reversed(WHOLE)) == {}
    assert read(*WHOLE, WHOLE[0]) == {"duplicated": 1}
    assert read(*WHOLE[:2]) == {"lost": 1}


@pytest.mark.parametrize(
    ("copied", "expected"),
    [(WHOLE, {}), (WHOLE[:2], {"lost": 1}), ((*WHOLE, WHOLE[0]), {"duplicated": 1})],
)
def test_a_copy_has_each_record_of_its_source_once(
    copied: tuple[Record, ...], expected: dict[str, int]
) -> None:
    rows = [row._replace(unit="t", seq=seq) for seq, row in enumerate(copied)]
    copy = replace(channel(*rows, name="piped"), source="direct")
    ready = Entry(kind="ready", unit="t", at_s=10, attempt="a")

    assert violations(channel(*WHOLE), copy, entries=[*JOURNAL, ready]) == expected


def test_a_scan_reports_duplicated_and_lost_records() -> None:
    scans = [Scan(channel="jobs", twice=0, gone=0), Scan(channel="jobs", twice=2, gone=1)]

    assert counts(check(History(scans=scans))) == {"duplicated": 2, "lost": 1}


def test_a_scan_finds_what_is_read_twice_or_in_part_and_what_is_gone() -> None:
    rows = [record(row) for row in range(rows_of("w", 0))]
    more = [record(row, batch=1) for row in range(rows_of("w", 1))]
    read = scan_of("direct", [*rows, rows[0], *more[1:]], [more[0].identity, rows[1].identity])
    assert read == Scan(channel="direct", twice=1, gone=1, partial=1)
    assert counts(check(History(scans=[read]))) == {"duplicated": 1, "lost": 1, "partial": 1}


FIRST = Run(name="a", writer="endpoint-a", began_s=10, ended_s=20)
SECOND = Run(name="b", writer="endpoint-b", began_s=40, ended_s=50)
LATER = tuple(record(row, batch=1, attempt="b") for row in range(3))


def read_of(began_s: float, *rows: Record, end: str = "finished", **fields: Any) -> RunRead:
    return RunRead(began_s=began_s, ended_s=began_s + 25, end=end, records=rows, **fields)


def of_runs(*reads: RunRead, runs: Sequence[Run] = (FIRST,)) -> dict[str, int]:
    """Return the violations of reads of the first run, and of the second one."""
    second = [replace(entry, unit="w-1", batch=1, attempt="b") for entry in JOURNAL]
    rows = (*WHOLE, *LATER) if len(runs) > 1 else WHOLE
    entries = [replace(entry, channel=RUNS, keyed=False) for entry in (*JOURNAL, *second)]
    history = History(
        entries=entries if len(runs) > 1 else entries[:3],
        channels=[ChannelHistory(name=RUNS, final={0: rows})],
        runs=runs,
        run_reads=reads,
    )
    return counts(check(history))


def test_each_read_of_runs_returns_its_run() -> None:
    assert of_runs(read_of(5, *WHOLE), read_of(31, *LATER), runs=[FIRST, SECOND]) == {}


def test_a_record_of_a_run_that_no_read_has_returned_is_lost() -> None:
    assert of_runs(read_of(5, *WHOLE[:2])) == {"lost": 1}


def test_a_read_that_ends_without_records_of_a_run_that_had_begun_is_cut_short() -> None:
    assert of_runs(read_of(15, end=""), read_of(42, *WHOLE)) == {}
    assert of_runs(read_of(15, *WHOLE[:1]), read_of(42, *WHOLE[1:])) == {"cut_short": 2}
    # Nothing was acknowledged before the first read ended; it need not have waited for that run.
    assert of_runs(read_of(5, *WHOLE[:1]), read_of(42, *WHOLE[1:])) == {}


def test_a_read_that_ends_with_nothing_before_the_next_run_is_cut_short() -> None:
    early, late = read_of(5, *WHOLE), read_of(60, *LATER)
    empty = replace(read_of(31), ended_s=35)
    runs = [FIRST, SECOND]

    assert of_runs(early, empty, late, runs=runs) == {"cut_short": 1}
    assert of_runs(empty, read_of(36, *WHOLE), runs=[replace(FIRST, began_s=37)]) == {
        "cut_short": 1
    }


def test_a_read_that_ends_with_nothing_has_read_the_rest_of_a_run_an_empty_or_a_failed_one() -> (
    None
):
    early, late = read_of(5, *WHOLE), read_of(60, *LATER)
    nothing = replace(read_of(31), ended_s=35)
    empty = Run(name="c", writer="endpoint-c", began_s=28, ended_s=29)
    for runs in ([FIRST, empty], [replace(FIRST, ended_s=33)], [replace(FIRST, ended_s=None)]):
        assert of_runs(early, nothing, late, runs=[*runs, SECOND]) == {}


def test_only_what_a_reader_did_not_finish_is_read_again() -> None:
    runs = [FIRST, SECOND]
    later = read_of(31, *WHOLE[:1], *LATER)

    assert of_runs(read_of(5, *WHOLE), later, runs=runs) == {"duplicated": 1}
    assert of_runs(read_of(5, *WHOLE, WHOLE[0])) == {"duplicated": 1}
    for end in ("", "gateway_unavailable"):
        assert of_runs(read_of(5, *WHOLE, end=end), later, runs=runs) == {}


def test_a_run_that_reported_its_end_is_not_lost_or_failed_for_its_reader() -> None:
    def ends(end: str, *, reported: bool = True, ended_s: float | None = 20) -> dict[str, int]:
        run = replace(FIRST, reported=reported, ended_s=ended_s)
        return of_runs(read_of(5, *WHOLE, end=end, endpoints=["endpoint-a"]), runs=[run])

    assert ends("writer_failed") == {"cut_short": 1}
    assert ends("writer_lost") == {"cut_short": 1}
    assert ends("writer_lost", reported=False) == {}
    assert ends("writer_failed", reported=False) == {"cut_short": 1}
    assert ends("writer_failed", ended_s=None) == {}


def test_a_job_that_did_not_end_is_stuck() -> None:
    assert counts(check(History(unfinished=["the job w"]))) == {"stuck": 1}


def test_readers_that_were_held_back_longer_than_the_lease_are_stuck() -> None:
    def held(held_s: float, *, disturbed: bool = False) -> dict[str, int]:
        hold = Hold(driver="w", lease_s=30, held_s=held_s, disturbed=disturbed)
        return counts(check(History(holds=[hold])))

    assert held(34) == {}
    assert held(36) == {"stuck": 1}
    assert held(36, disturbed=True) == {}


def test_an_absent_batch_is_explained_once_by_its_journal() -> None:
    history = History(
        entries=[BEGUN, READY, replace(COMMITTED, at_s=12)],
        channels=[channel(record(0)), channel(name="jobs")],
    )
    findings = check(history)

    assert {finding.unit for finding in findings} == {"w-0"}
    assert accounts(history, findings) == {
        "w-0": [
            "0.000 s: begun",
            "10.000 s: ready by a",
            "12.000 s: committed",
            "at the end: 1 in direct[0]",
        ]
    }


def test_an_absent_batch_without_a_key_is_lost_once_it_is_committed() -> None:
    entries = [replace(BEGUN, keyed=False), READY, COMMITTED]
    (first, *_) = check(History(entries=entries, channels=[channel()]))

    assert first.text == "direct: row 0 of w-0, which was committed"
