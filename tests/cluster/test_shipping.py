"""Unpickling in workers with a missing, incomplete or different client."""

import pickle
import subprocess
import sys
from pathlib import Path

import py4j
import pyspark
import pytest
from pyspark import cloudpickle

from sluiceway.spark import batch_reader, datasource, microbatch, writer
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.worker import Shipped

OPENING = """
import pickle, sys
from pathlib import Path
try:
    print(pickle.loads(Path(sys.argv[1]).read_bytes()).gateway_url)
except ImportError as error:
    print(error)
"""
INSTALL = "install sluiceway 0.1.0 there"


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    source = ChannelDataSource({"path": "flights"}, gateway_url="http://gateway:8900")
    file = tmp_path / "shipped"
    file.write_bytes(cloudpickle.dumps(source))
    return file


def client(directory: Path, version: str) -> Path:
    """Create an importable client with a version and no modules."""
    package = directory / "sluiceway"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    return directory


def unpickle_in_worker(shipped: Path, *path: Path) -> str:
    """Unpickle in a Python with PySpark and `path`; return the output."""
    packages = shipped.with_name("packages")
    packages.mkdir()
    for package in (py4j, pyspark):
        (packages / package.__name__).symlink_to(Path(package.__file__).parent)
    program = f"import sys\nsys.path[:0] = {[str(entry) for entry in (packages, *path)]}\n{OPENING}"
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(shipped)],
        capture_output=True,
        text=True,
        check=True,
        timeout=480,
    )
    return result.stdout


def test_shipped_objects_survive_pickling() -> None:
    source = ChannelDataSource({"path": "flights"}, gateway_url="http://gateway:8900")

    for copy in (pickle.loads(pickle.dumps(source)), cloudpickle.loads(cloudpickle.dumps(source))):  # noqa: S301
        assert type(copy) is ChannelDataSource
        assert vars(copy) == vars(source)


def test_a_worker_without_the_client_fails_with_the_install_command(shipped: Path) -> None:
    output = unpickle_in_worker(shipped)

    assert f"worker {sys.executable}" in output
    assert "cannot load sluiceway: No module named 'sluiceway'" in output
    assert INSTALL in output
    assert "--archives environment.tar.gz#environment" in output
    assert f"set PYSPARK_PYTHON to a Python that has it, such as {sys.executable}" in output


@pytest.mark.sample
@pytest.mark.parametrize("version", ["0.0.9", "0.2.0", "1.1.0"])
def test_a_worker_with_another_version_fails_with_both_versions(
    shipped: Path, tmp_path: Path, version: str
) -> None:
    output = unpickle_in_worker(shipped, client(tmp_path, version))

    assert f"has sluiceway {version}, the driver has 0.1.0" in output
    assert INSTALL in output


def test_a_worker_with_an_incomplete_client_fails_with_the_missing_module(
    shipped: Path, tmp_path: Path
) -> None:
    """A client with another patch version is accepted; only the missing module is reported."""
    output = unpickle_in_worker(shipped, client(tmp_path, "0.1.7"))

    assert "cannot load sluiceway: No module named 'sluiceway.spark'" in output
    assert INSTALL in output


def test_every_class_that_spark_pickles_is_shipped() -> None:
    ours = {
        class_
        for module in (datasource, batch_reader, microbatch, writer)
        for class_ in vars(module).values()
        if isinstance(class_, type)
        and class_.__module__.startswith("sluiceway.spark")
        and any(base.__module__ == "pyspark.sql.datasource" for base in class_.__mro__)
        and class_.__name__.endswith(("Source", "Reader", "Writer"))
    }

    assert len(ours) >= 5
    assert {class_ for class_ in ours if not issubclass(class_, Shipped)} == set()
