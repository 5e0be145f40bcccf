"""The output of a job at Spark's default log level."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from environments import spark_environment

JOB = Path(__file__).with_name("quiet_job.py")
ABOUT_CHANNELS = re.compile("channel|sluiceway|data ?source|traceback", re.IGNORECASE)


@pytest.mark.long
def test_a_job_that_creates_its_channels_logs_no_warnings_about_them(
    gateway_url: str, name: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(JOB), gateway_url, name, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | spark_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if ABOUT_CHANNELS.search(line)] == []
