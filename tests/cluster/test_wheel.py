"""The wheel: its content, environments with it alone, and executors with an archived one."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from typing import Any

import pyarrow
import pyspark
import pytest
from packaging.requirements import Requirement

from sluiceway import Gateway
from sluiceway_gateway.dev.demo.environment import spark_home


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built once."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=480,
    )
    (wheel,) = directory.glob("*.whl")
    return wheel


ROOT = Path(__file__).parents[2]
_PIP = [sys.executable, "-m", "pip"]


_QUIETLY = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-index", "--no-deps"]


_HEAVY = {"numpy", "numpy.libs", "pandas", "pyarrow"}


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment; `run` returns the output of a program."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def packages(self) -> Path:
        minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.path / "lib" / minor / "site-packages"

    def run(self, *command: str | Path, **variables: str) -> str:
        result = subprocess.run(
            [str(word) for word in command],
            env={"PATH": f"{self.path / 'bin'}:/usr/bin:/bin", **variables},
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


def make_environment(
    path: Path, wheel: Path | None, *extras: str, links: bool = True
) -> Environment:
    """Create an environment with the wheel and the requirements of its extras.

    Without a wheel it is empty. Without `links`, all packages but the largest are copied.
    """
    venv.create(path, with_pip=False, symlinks=True)
    environment = Environment(path=path)
    if wheel is not None:
        subprocess.run(
            [*_PIP, "--python", str(environment.python), "install", *_QUIETLY, str(wheel)],
            check=True,
            timeout=480,
        )
        for package in requirements_of(wheel, *extras):
            _put(package, environment.packages, links=links)
    return environment


def requirements_of(wheel: Path, *extras: str) -> list[Distribution]:
    """Return the requirements of the wheel with these extras, recursively."""
    name, version, *_ = wheel.name.split("-")
    metadata = PathDistribution(zipfile.Path(wheel, f"{name}-{version}.dist-info/"))
    return list(_closure(metadata.requires or (), extras))


def _closure(requirements: Iterable[str], extras: Iterable[str]) -> Iterator[Distribution]:
    seen = set()
    todo = [(Requirement(specification), frozenset(extras)) for specification in requirements]
    while todo:
        requirement, active = todo.pop()
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *active)):
            continue
        package = distribution(requirement.name)
        inner = frozenset(requirement.extras)
        if (package.name, inner) in seen:
            continue
        seen.add((package.name, inner))
        if package.name != "sluiceway":
            yield package
        todo += [(Requirement(specification), inner) for specification in package.requires or ()]


def _put(package: Distribution, packages: Path, *, links: bool) -> None:
    for name in sorted({file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}):
        target = packages / name
        source = Path(str(package.locate_file(name)))
        if target.exists():
            continue
        if links or name in _HEAVY:
            target.symlink_to(source)
        elif source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


LOADED = """
import sys, sluiceway
from sluiceway import *
print(sluiceway.__version__, sluiceway.__file__)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return make_environment(tmp_path_factory.mktemp("client") / "environment", wheel)


def test_the_wheel_contains_its_packages_only(wheel: Path, names: set[str]) -> None:
    assert wheel.name == "sluiceway-0.1.0-py3-none-any.whl"
    assert {name.split("/")[0] for name in names} == {
        "sluiceway",
        "sluiceway_gateway",
        # Spark's own lookup finds data sources by this beginning of a name.
        "pyspark_sluiceway",
        "sluiceway-0.1.0.dist-info",
    }
    assert {name for name in names if "test" in name or name.endswith(".pyc")} == set()


def test_the_wheel_contains_every_module_and_data_file(names: set[str]) -> None:
    sources = {
        str(path.relative_to(ROOT / side))
        for side, package in (
            ("client", "sluiceway"),
            ("client", "pyspark_sluiceway"),
            ("gateway", "sluiceway_gateway"),
        )
        for path in (ROOT / side / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    migrations = {
        f"sluiceway_gateway/{path.relative_to(ROOT)}"
        for path in (ROOT / "migrations").rglob("*.py")
    }
    jobs = {
        f"sluiceway_gateway/dev/demo/jobs/{path.name}"
        for path in (ROOT / "examples" / "demo").glob("*.py")
    }
    assert "sluiceway_gateway/dev/demo/jobs/write_flights.py" in jobs
    assert {"sluiceway/py.typed", "sluiceway_gateway/py.typed"} <= sources
    assert "sluiceway_gateway/api/swagger_ui/swagger-ui-bundle.js" in sources
    assert "sluiceway_gateway/ui/static/index.html" in sources
    assert "sluiceway_gateway/migrations/env.py" in migrations
    assert (sources | migrations | jobs) - names == set()
    licenses = "sluiceway-0.1.0.dist-info/licenses"
    swagger_ui = f"{licenses}/gateway/sluiceway_gateway/api/swagger_ui"
    assert {f"{licenses}/LICENSE", f"{swagger_ui}/LICENSE", f"{swagger_ui}/NOTICE"} <= names
    dashboard = f"{licenses}/gateway/sluiceway_gateway/ui/static/vendor"
    assert {f"{dashboard}/preact/LICENSE", f"{dashboard}/htm/LICENSE"} <= names


def test_the_metadata_names_the_extras_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = HeaderParser().parsestr(
            archive.read("sluiceway-0.1.0.dist-info/METADATA").decode()
        )
        commands = archive.read("sluiceway-0.1.0.dist-info/entry_points.txt").decode()
    assert {"spark", "connect", "gateway"} <= set(metadata.get_all("Provides-Extra") or ())
    assert "sluiceway = sluiceway_gateway.cli:main" in commands
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_client_requires_neither_spark_nor_the_gateway(wheel: Path) -> None:
    required = {package.name.lower() for package in requirements_of(wheel)}

    assert {"confluent-kafka", "fastavro", "httpx", "numpy", "pyarrow"} <= required
    assert required & {"pyspark", "pandas", "fastapi", "sqlalchemy", "grpcio"} == set()


@pytest.mark.long
def test_the_client_imports_without_spark(client: Environment) -> None:
    version, file, *loaded = client.run(client.python, "-c", LOADED).split()

    assert version == "0.1.0"
    assert Path(file).is_relative_to(client.path)
    assert {"confluent_kafka", "pyarrow"} <= set(loaded)
    assert {"pyspark", "pandas", "fastapi", "sqlalchemy"} & set(loaded) == set()


@pytest.mark.long
def test_the_command_names_the_missing_extra(
    client: Environment,
) -> None:
    result = subprocess.run(
        [client.path / "bin" / "sluiceway", "channels", "list"],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        "sluiceway: this command needs the package click, which comes with the extra 'gateway': "
        "`pip install '.[gateway]'` in a checkout of sluiceway 0.1.0.\n"
    )


@pytest.mark.long
def test_an_installed_gateway_migrates_its_database(wheel: Path, tmp_path: Path) -> None:
    gateway = make_environment(tmp_path / "environment", wheel, "gateway")
    database = f"sqlite:///{tmp_path / 'gateway.db'}"

    output = gateway.run("sluiceway", "migrate", SLUICEWAY_DATABASE_URL=database)

    newest = max(path.name[:4] for path in (ROOT / "migrations" / "versions").glob("0*.py"))
    assert newest in output
    assert (tmp_path / "gateway.db").exists()


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
    for package in ("numpy", "numpy.libs", "pyarrow"):
        (environment.packages / package).symlink_to(Path(pyarrow.__file__).parents[1] / package)
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


@pytest.mark.long
def test_executors_run_the_client_of_the_archive(
    submitted: dict[str, Any], directory: Path
) -> None:
    assert submitted["driver"]["client"].startswith(f"{directory}/environment/lib/")
    assert submitted["executors"]
    for executor in submitted["executors"]:
        assert not executor["directory"].startswith(str(directory))
        for place in ("python", "client", "kafka"):
            assert executor[place].startswith(f"{executor['directory']}/environment/")


@pytest.mark.long
def test_executors_write_and_read_a_channel(submitted: dict[str, Any], gateway_url: str) -> None:
    assert submitted["rows"] == [1000, 499500, 499500]
    with Gateway(gateway_url) as gateway, gateway.channel("archives").reader(until="now") as reader:
        assert sum(record["id"] for record in reader) == 499500


@pytest.mark.long
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


@pytest.mark.long
def test_spark_reports_an_executor_with_another_python(submitted: dict[str, Any]) -> None:
    minor = sys.version_info.minor

    assert (
        f"Python in worker has different version: 3.{minor - 1} than that in driver: 3.{minor}"
        in submitted["failures"]["other"]
    )
