"""Jobs on a local Spark."""

import os
import subprocess
import sys
from pathlib import Path

from sluiceway_gateway.demo.environment import spark_home


def run_job(directory: Path, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script that starts a local Spark, and return its output; fails if it does."""
    result = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=directory,
        env=os.environ | spark_environment(directory),
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result


def spark_environment(directory: Path) -> dict[str, str]:
    """Return variables for a local Spark, with all its files below `directory`."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home(directory / "home")),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
