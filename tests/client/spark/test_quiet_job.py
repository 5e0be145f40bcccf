"""The output of a job at Spark's default log level."""

import re
from pathlib import Path

import pytest

from processes import run_script, spark_environment

JOB = Path(__file__).with_name("quiet_job.py")
ABOUT_CHANNELS = re.compile("channel|sluiceway|data ?source|traceback", re.IGNORECASE)


@pytest.mark.long
def test_a_job_that_creates_its_channels_logs_no_warnings_about_them(
    gateway_url: str, name: str, tmp_path: Path
) -> None:
    variables = spark_environment(tmp_path)
    job = run_script(JOB, gateway_url, name, str(tmp_path), cwd=tmp_path, **variables)
    # Those of a gateway that answers late are no warnings about channels.
    lines = [line for line in job.stderr.splitlines() if not line.startswith("heartbeats fail: ")]
    assert [line for line in lines if ABOUT_CHANNELS.search(line)] == []
