"""The chaos run reports duplicates of at-least-once jobs, and none with exactly-once delivery."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.__main__ import main
from tests.chaos.faults import FAULTS
from tests.chaos.rounds import rounds_of


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the report of a short run with jobs in Python."""
    report = tmp_path / "report.json"
    options = ["--no-spark", "--seed", "2", "--faults", "kill_jobs", "--report", str(report)]
    # Logs of violations, too, end with the run of the tests.
    options += ["--keep", str(tmp_path / "logs")]
    status = main([*options, *arguments])
    return status, json.loads(report.read_text())


@pytest.mark.long
def test_killed_jobs_write_no_duplicates_with_exactly_once_delivery(tmp_path: Path) -> None:
    status, report = run(tmp_path, "--minutes", "0.3")

    assert (status, report["violations"]) == (0, [])


@pytest.mark.long
def test_killed_jobs_write_duplicates_with_at_least_once_delivery(tmp_path: Path) -> None:
    status, report = run(tmp_path, "--minutes", "0.5", "--delivery", "at_least_once")

    assert status == 1
    assert report["duplicated"] > 0


@pytest.mark.parametrize("minutes", [4, 15, 60])
def test_a_run_has_rounds_with_one_broker_and_with_three(tmp_path: Path, minutes: float) -> None:
    rounds = rounds_of(
        minutes=minutes, seed=1, delivery="exactly_once", faults=[], spark=True, directory=tmp_path
    )

    assert sum(plan.seconds for plan in rounds) == pytest.approx(minutes * 60)
    assert {plan.brokers for plan in rounds} == {1, 3}
    assert len({plan.directory for plan in rounds}) == len(rounds)


def test_the_seed_of_a_short_run_chooses_one_broker_or_three(tmp_path: Path) -> None:
    brokers = set()
    for seed in range(20):
        (only,) = rounds_of(
            minutes=3,
            seed=seed,
            delivery="exactly_once",
            faults=[],
            spark=True,
            directory=tmp_path,
        )
        assert only.seconds == pytest.approx(180)
        brokers.add(only.brokers)

    assert brokers == {1, 3}


def test_the_guarantees_name_every_fault() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()

    assert {name for name in FAULTS if f"`tests/chaos/faults.py::{name}`" not in page} == set()


def test_an_unknown_fault_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--faults", "kill_jobs,meteor"])

    stderr = capsys.readouterr().err
    assert "unknown faults: meteor" in stderr
    assert all(name in stderr for name in FAULTS)
