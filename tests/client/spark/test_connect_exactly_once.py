"""Exactly-once channels over Spark Connect."""

import json
from pathlib import Path
from typing import Any

import pytest

from processes import run_script, spark_environment

pytestmark = pytest.mark.long

JOB = Path(__file__).with_name("connect_exactly_once_job.py")


@pytest.fixture(scope="module")
def results(gateway_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of connect_exactly_once_job.py."""
    directory = tmp_path_factory.mktemp("connect")
    variables = spark_environment(directory)
    run_script(JOB, gateway_url, "found.json", cwd=directory, **variables)
    response: dict[str, Any] = json.loads((directory / "found.json").read_text())
    return response


def test_a_job_that_runs_again_with_its_batch_key_writes_once(results: dict[str, Any]) -> None:
    assert results["session"] == "pyspark.sql.connect.session"
    assert results["all"] == [*range(150)]
    assert results["keys"] == ["tuesday", "monday"]
    assert "committed with 100 records, and now has 99" in results["another"]


def test_a_snapshot_is_the_channel_as_of_a_commit(results: dict[str, Any]) -> None:
    assert results["snapshot"] == [*range(100)]


def test_a_replayed_micro_batch_that_was_committed_writes_nothing(results: dict[str, Any]) -> None:
    assert results["copy"] == [*range(160)]
    assert results["commits"] == [1, 1, 2]


def test_foreach_batch_writes_each_batch_once_by_its_key(results: dict[str, Any]) -> None:
    assert results["connect-once-keyed"] == 1


def test_a_write_without_a_key_is_refused_as_it_may_be_in_foreach_batch(
    results: dict[str, Any],
) -> None:
    assert "needs a batch key" in results["in_foreach_batch"]
    assert "needs a batch key" in results["outside"]
    assert results["connect-once-forgetful"] == 0
