"""Declarative pipelines, run by `spark-pipelines`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from processes import EXAMPLES, run_script, spark_environment
from sluiceway import Gateway

pytestmark = pytest.mark.long

Run = Callable[..., str]


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A copy of the example, with its storage and its writer in the copy.

    Its channel has another name, as other tests run examples with that of the example.
    """
    directory = tmp_path / "pipeline"
    shutil.copytree(EXAMPLES / "pipeline", directory)
    shutil.copy(EXAMPLES / "write_readings.py", directory)
    for file in directory.glob("*.py"):
        file.write_text(file.read_text().replace('"readings"', '"pipeline-readings"'))
    spec = directory / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/sluiceway-pipeline" in text
    spec.write_text(text.replace("file:///tmp/sluiceway-pipeline", (tmp_path / "storage").as_uri()))
    return directory


@pytest.fixture
def run(pipeline: Path, gateway_url: str, tmp_path: Path) -> Run:
    """Run a command of `spark-pipelines` and return what it printed."""
    environment = spark_environment(tmp_path) | {"SLUICEWAY_URL": gateway_url}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [Path(sys.executable).with_name("spark-pipelines"), *arguments],
            cwd=pipeline,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_a_channel_is_source_and_exactly_once_sink_of_a_pipeline(
    run: Run, gateway: Gateway, gateway_url: str, pipeline: Path
) -> None:
    run_script(pipeline / "write_readings.py", "100", SLUICEWAY_URL=gateway_url)
    run("run")
    run_script(pipeline / "write_readings.py", "50", SLUICEWAY_URL=gateway_url)
    # The default catalog forgets its tables, and Spark refuses their directories then.
    shutil.rmtree(pipeline / "spark-warehouse")
    # Spark's own lookup finds the channel without `register`.
    flows = pipeline / "readings.py"
    text = flows.read_text().replace("sluiceway.spark.register(spark)\n", "")
    flows.write_text(text.replace('"channel"', '"sluiceway"'))
    run("run")

    sink = gateway.channel("fahrenheit")
    with sink.reader(until="now") as reader:
        assert sum(1 for _ in reader) == 150
    keys = [commit.key.rsplit("-", 1) for commit in sink.commits().events]
    assert [number for _, number in keys] == ["1", "0"]
    assert len({query for query, _ in keys}) == 1
    assert pq.read_table(pipeline / "spark-warehouse" / "warmest").num_rows == 10
