"""The wheel, and environments with only the wheel and its requirements."""

import subprocess
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from environments import ROOT, Environment, make_environment, requirements_of

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


def test_the_wheel_contains_both_packages_only(wheel: Path, names: set[str]) -> None:
    assert wheel.name == "sluiceway-0.1.0-py3-none-any.whl"
    assert {name.split("/")[0] for name in names} == {
        "sluiceway",
        "sluiceway_gateway",
        "sluiceway-0.1.0.dist-info",
    }
    assert {name for name in names if "test" in name or name.endswith(".pyc")} == set()


def test_the_wheel_contains_every_module_and_data_file(names: set[str]) -> None:
    sources = {
        str(path.relative_to(ROOT / side))
        for side, package in (("client", "sluiceway"), ("gateway", "sluiceway_gateway"))
        for path in (ROOT / side / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    migrations = {
        f"sluiceway_gateway/{path.relative_to(ROOT)}"
        for path in (ROOT / "migrations").rglob("*.py")
    }
    jobs = {
        f"sluiceway_gateway/demo/jobs/{path.name}"
        for path in (ROOT / "examples" / "demo").glob("*.py")
    }
    assert "sluiceway_gateway/demo/jobs/write_flights.py" in jobs
    assert {"sluiceway/py.typed", "sluiceway_gateway/py.typed"} <= sources
    assert "sluiceway_gateway/http/swagger_ui/swagger-ui-bundle.js" in sources
    assert "sluiceway_gateway/ui/static/index.html" in sources
    assert "sluiceway_gateway/migrations/env.py" in migrations
    assert (sources | migrations | jobs) - names == set()
    licenses = "sluiceway-0.1.0.dist-info/licenses"
    swagger_ui = f"{licenses}/gateway/sluiceway_gateway/http/swagger_ui"
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
    required = {each.name.lower() for each in requirements_of(wheel)}

    assert {"confluent-kafka", "fastavro", "httpx", "numpy", "pyarrow"} <= required
    assert required & {"pyspark", "pandas", "fastapi", "sqlalchemy", "grpcio"} == set()


@pytest.mark.long
def test_the_client_imports_without_spark(client: Environment) -> None:
    version, file, *loaded = client.run(client.python, "-c", LOADED).split()

    assert version == "0.1.0"
    assert Path(file).is_relative_to(client.path)
    assert {"confluent_kafka", "pyarrow"} <= set(loaded)
    assert {"pyspark", "pandas", "fastapi", "sqlalchemy"} & set(loaded) == set()


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
