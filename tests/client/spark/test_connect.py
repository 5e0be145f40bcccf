"""Channels over Spark Connect, with the client in a separate process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

JOB = Path(__file__).with_name("connect_job.py")


def connect_url(session: SparkSession) -> str:
    """Return the URL of the Spark Connect server that the session's plugin started."""
    # PySpark has no other access to the port of the server.
    jvm = session.sparkContext._jvm
    assert jvm is not None
    service = getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


@pytest.fixture(scope="module")
def results(
    spark_session: SparkSession, gateway_url: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Results of connect_job.py, with the session's Spark as its server."""
    directory = tmp_path_factory.mktemp("connect")
    done = subprocess.run(
        [sys.executable, str(JOB), connect_url(spark_session), gateway_url, "found.json"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    response: dict[str, Any] = json.loads((directory / "found.json").read_text())
    return response


@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_a_channel_is_written_and_read(results: dict[str, Any], format_: str) -> None:
    assert results["session"] == "pyspark.sql.connect.session"
    assert results[format_] == [1000, 499500, 499500]


def test_a_stream_resumes_from_its_checkpoint(results: dict[str, Any]) -> None:
    assert results["streamed"] == 1500


def test_a_query_is_listed_as_a_reader_that_closes_when_stopped(
    results: dict[str, Any],
) -> None:
    assert results["seen"] == [["reader", "closed", None]]


def test_an_error_reaches_the_client(results: dict[str, Any]) -> None:
    assert "there is no channel 'no-such-channel'" in results["failure"]
