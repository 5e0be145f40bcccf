"""Virtual environments with the wheel and its requirements, and the variables of a local Spark.

Creating an environment takes less than a second: it links the requirements to the packages of the
tests. An environment to be packed gets copies.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from sluiceway_gateway.demo.environment import spark_home

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
            [str(each) for each in command],
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
        for each in requirements_of(wheel, *extras):
            _put(each, environment.packages, links=links)
    return environment


def requirements_of(wheel: Path, *extras: str) -> list[Distribution]:
    """Return the requirements of the wheel with these extras, recursively."""
    name, version, *_ = wheel.name.split("-")
    metadata = PathDistribution(zipfile.Path(wheel, f"{name}-{version}.dist-info/"))
    return list(_closure(metadata.requires or (), extras))


def pack(environment: Environment, archive: Path) -> Path:
    """Pack an environment as in docs/clusters.md, and return the archive."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(environment.path, ".")
    return archive


def _closure(requirements: Iterable[str], extras: Iterable[str]) -> Iterator[Distribution]:
    seen = set()
    todo = [(Requirement(each), frozenset(extras)) for each in requirements]
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
        todo += [(Requirement(each), inner) for each in package.requires or ()]


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
