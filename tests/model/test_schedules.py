"""The model finds no violation of the real rules, and notices every mutant."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.model.__main__ import main, summary
from tests.model.mutants import MUTANTS, Mutant, noticed
from tests.model.schedule import interleaved_batches, run_schedule, run_schedules
from tests.model.world import Violation

ROOT = Path(__file__).parents[2]
CLEAN = {"lost": 0, "duplicated": 0, "stuck": 0, "stable_back": 0, "not_fenced": 0}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """The report on 150 schedules of the real rules."""
    return summary([*run_schedules(range(150))])


def test_schedules_lose_duplicate_and_block_no_records(report: dict[str, Any]) -> None:
    assert {name: report[name] for name in CLEAN} == CLEAN, report["violations"]


@pytest.mark.parametrize("name", ["up to stable", "up to the visible ends", "merge with later"])
def test_a_snapshot_between_interleaved_commits_has_whole_batches(name: str) -> None:
    interleaved_batches()
    (mutant,) = [mutant for mutant in MUTANTS if name in mutant.name]
    with mutant.applied(), pytest.raises(Violation, match="are divided"):
        interleaved_batches()


def test_the_command_reports_its_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "20", "--processes", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {name: report[name] for name in CLEAN} == CLEAN
    assert (report["schedules"], report["ended_batches"] > 0) == (20, True)


def test_schedules_meet_every_kind_of_fault(report: dict[str, Any]) -> None:
    assert set(report["faults_by_kind"]) >= {
        "response lost",
        "block abandoned",
        "bogus manifest",
        "clock ahead",
        "commit log entry deleted",
        "driver declared dead",
        "block failed",
        "foreign record",
        "gateway unreachable",
        "gateway unreachable after a commit",
        "growth",
        "interrupt",
        "Kafka unreachable",
        "late abort",
        "offsets reused",
        "process killed",
        "reader crashed",
        "reader killed",
        "record not acknowledged",
        "record not written",
        "report counts up from -1",
        "report late",
        "report repeated",
        "request lost",
        "request repeated",
        "speculation",
        "truncation",
        "writer failed",
        "writer killed",
    }


def trace_in_own_process(seed: int, hash_seed: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "tests.model", "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    first = trace_in_own_process(7, "1")

    assert len(first.splitlines()) > 20
    assert trace_in_own_process(7, "2") == first
    assert run_schedule(7).digest in first


def test_schedules_leave_no_thread_behind() -> None:
    before = threading.active_count()
    run_schedule(0)
    assert threading.active_count() == before


def test_different_seeds_give_different_traces() -> None:
    assert len({outcome.digest for outcome in run_schedules(range(20))}) == 20


@pytest.mark.long
@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=mutant.name) for mutant in MUTANTS])
def test_the_model_notices(mutant: Mutant) -> None:
    assert noticed(mutant, schedules=1000) is not None


def test_the_real_rules_are_restored_after_a_mutant() -> None:
    before = run_schedule(3)
    for mutant in MUTANTS:
        with mutant.applied():
            pass

    assert run_schedule(3) == before


def test_names_of_mutants_are_unique() -> None:
    names = {mutant.name for mutant in MUTANTS}
    assert len(names) == len(MUTANTS) >= 20
