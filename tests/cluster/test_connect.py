"""Channels over Spark Connect, in a process of its own: a session is of one kind or the other."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_environment import spark_environment

JOB = Path(__file__).with_name("connect_job.py")
DEFAULTS = """
spark.log.level OFF
spark.sql.shuffle.partitions 2
spark.ui.enabled false
"""


@pytest.fixture(scope="module")
def found(gateway_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job found."""
    directory = tmp_path_factory.mktemp("connect")
    (directory / "spark-defaults.conf").write_text(DEFAULTS)
    done = subprocess.run(
        [sys.executable, str(JOB), gateway_url, "found.json"],
        cwd=directory,
        env={
            **os.environ,
            **spark_environment(directory),
            "SPARK_CONF_DIR": str(directory),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads((directory / "found.json").read_text())
    return answer


@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_a_channel_is_written_and_read(found: dict[str, Any], format_: str) -> None:
    assert found["session"] == "pyspark.sql.connect.session"
    assert found[format_] == [1000, 499500, 499500]


def test_a_stream_goes_on_where_its_checkpoint_stands(found: dict[str, Any]) -> None:
    assert found["streamed"] == 1500


def test_others_see_a_query_as_a_reader_that_ended_when_it_was_stopped(
    found: dict[str, Any],
) -> None:
    assert found["seen"] == [["reader", "closed", None]]


def test_an_error_reaches_the_client(found: dict[str, Any]) -> None:
    assert "there is no channel 'no-such-channel'" in found["failure"]
