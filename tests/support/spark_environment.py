"""What a Spark of the tests' own needs, whichever way it is started."""

import sys
from pathlib import Path

from sluiceway_gateway.demo.environment import spark_home


def spark_environment(directory: Path) -> dict[str, str]:
    """Return variables for a Spark on this machine alone, with all its files below `directory`."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home(directory / "home")),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
