"""Executors with an archived environment, submitted with the commands of docs/clusters.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyspark
import pytest

from environments import ROOT, Environment, make_environment
from sluiceway import Gateway
from sluiceway_gateway.demo.environment import spark_home

pytestmark = pytest.mark.long

JOB = Path(__file__).with_name("archive_job.py")
DEFAULTS = """
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.log.level OFF
spark.sql.shuffle.partitions 2
spark.task.maxFailures 1
spark.ui.enabled false
"""
# Environments that fail on executors; on the driver these paths are working environments.
BROKEN = ("missing", "other")
OTHER_PYTHON = """
import sys
from collections import namedtuple
Version = namedtuple("Version", "major minor micro releaselevel serial")
sys.version_info = Version(3, sys.version_info[1] - 1, 0, "final", 0)
"""


def commands(heading: str) -> str:
    """Return the shell commands of the first block below a heading of docs/clusters.md."""
    page = (ROOT / "docs" / "clusters.md").read_text().partition(f"\n## {heading}\n")[2]
    match = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert match is not None
    return match[1]


def shell(script: str, directory: Path, **variables: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        ["bash", "-ec", script],
        cwd=directory,
        # Faster than the default compression.
        env={**inherited, "GZIP": "-1", **variables},
        check=True,
        timeout=480,
    )


@pytest.fixture(scope="module")
def directory(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver's directory with the environment and the broken archives."""
    directory = tmp_path_factory.mktemp("job")
    make_environment(directory / "environment", wheel, links=False)
    broken = tmp_path_factory.mktemp("broken")
    for name in BROKEN:
        environment = make_environment(broken / name, None)
        _break(environment, name)
        shell(f"tar -czf {directory / name}.tar.gz -C {environment.path} .", directory)
    for name in BROKEN:
        (directory / name).symlink_to("environment")
    return directory


def _break(environment: Environment, name: str) -> None:
    """Add the packages that Spark needs, and break the environment."""
    for each in ("numpy", "numpy.libs", "pyarrow"):
        (environment.packages / each).symlink_to(Path(pyarrow.__file__).parents[1] / each)
    if name == "other":
        # Not in `sitecustomize`, because the system's Python may have one.
        (environment.packages / "other_python.py").write_text(OTHER_PYTHON)
        (environment.packages / "other.pth").write_text("import other_python\n")


@pytest.fixture(scope="module")
def submitted(
    directory: Path, gateway_url: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Results of archive_job.py, submitted with the commands of the page."""
    home = spark_home(tmp_path_factory.mktemp("spark") / "home")
    # As on a cluster, pyspark comes from Spark, not from the archived environment.
    (home / "python").symlink_to(Path(pyspark.__file__).parent / "python")
    (directory / "spark-defaults.conf").write_text(DEFAULTS)
    prepare, submit = commands("spark-submit").split("\n\n")
    packing = prepare.splitlines()[-1]
    assert packing.startswith("tar ")
    archives = "".join(f",{name}.tar.gz#{name}" for name in BROKEN)
    script = f"{packing}\n{submit}"
    for documented, replacement in {
        "https://gateway.example:8900": gateway_url,
        "spark://master.example:7077": "local-cluster[1,2,1024]",
        "environment.tar.gz#environment": f"environment.tar.gz#environment{archives}",
        "job.py": f"{JOB} archives found.json {' '.join(BROKEN)}",
    }.items():
        assert documented in script
        script = script.replace(documented, replacement)
    shell(
        script,
        directory,
        PATH=f"{home}/bin:{os.environ['PATH']}",
        SPARK_HOME=str(home),
        SPARK_CONF_DIR=str(directory),
        SPARK_LOCAL_DIRS=str(directory / "local"),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    results: dict[str, Any] = json.loads((directory / "found.json").read_text())
    return results


def test_executors_run_the_client_of_the_archive(
    submitted: dict[str, Any], directory: Path
) -> None:
    assert submitted["driver"]["client"].startswith(f"{directory}/environment/lib/")
    assert submitted["executors"]
    for executor in submitted["executors"]:
        assert not executor["directory"].startswith(str(directory))
        for place in ("python", "client", "kafka"):
            assert executor[place].startswith(f"{executor['directory']}/environment/")


def test_executors_write_and_read_a_channel(submitted: dict[str, Any], gateway_url: str) -> None:
    assert submitted["rows"] == [1000, 499500, 499500]
    with Gateway(gateway_url) as gateway, gateway.channel("archives").reader(until="now") as reader:
        assert sum(record["id"] for record in reader) == 499500


def test_an_executor_without_the_client_fails_with_the_install_command(
    submitted: dict[str, Any],
) -> None:
    failure = submitted["failures"]["missing"]

    assert re.search(
        r"Python worker \S+/missing/bin/python on \S+ cannot load sluiceway: No module named 'slu",
        failure,
    )
    assert "install sluiceway 0.1.0 there" in failure
    assert "--archives environment.tar.gz#environment" in failure


def test_spark_reports_an_executor_with_another_python(submitted: dict[str, Any]) -> None:
    minor = sys.version_info.minor

    assert (
        f"Python in worker has different version: 3.{minor - 1} than that in driver: 3.{minor}"
        in submitted["failures"]["other"]
    )
