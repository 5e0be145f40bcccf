"""Fetching jars and holding them against pinned sums.

Apache Ivy, which ships inside pyspark, resolves modules and their dependencies; what it brings
is used only if every file has the SHA-256 sum that is pinned for it.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from sluiceway._version import install_command
from sluiceway_gateway.embedded.errors import JarsUnavailable
from sluiceway_gateway.embedded.java import find_java

KAFKA_VERSION = "4.3.1"
_FETCH_TIMEOUT_S = 600

Progress = Callable[[int, int], None]
"""Called with how many jars are there and how many there will be."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module of a Maven repository."""

    organisation: str
    name: str
    version: str
    transitive: bool = True

    def dependency(self) -> str:
        """Return Ivy's element for it."""
        return (
            f'<dependency org="{self.organisation}" name="{self.name}" rev="{self.version}" '
            f'transitive="{str(self.transitive).lower()}" conf="default->default"/>'
        )


@dataclass(frozen=True, kw_only=True)
class JarSet:
    """Jars that belong together: `title` for people, `name` in the cache, sums by file name."""

    title: str
    name: str
    modules: tuple[Module, ...]
    sums: Mapping[str, str]

    def description(self) -> str:
        """Return the Ivy file that asks for them."""
        return (
            '<ivy-module version="2.0"><info organisation="sluiceway" module="jars"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{''.join(each.dependency() for each in self.modules)}</dependencies>"
            "</ivy-module>"
        )


def read_sums(text: str) -> dict[str, str]:
    """Return SHA-256 sums by file name from lines as sha256sum prints them."""
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def kafka_jars() -> JarSet:
    """Return the set of the broker's jars."""
    sums = resources.files(__package__).joinpath(f"kafka-{KAFKA_VERSION}.sha256").read_text()
    return JarSet(
        title=f"Apache Kafka {KAFKA_VERSION}",
        name=f"kafka-{KAFKA_VERSION}",
        modules=(
            Module(organisation="org.apache.kafka", name="kafka_2.13", version=KAFKA_VERSION),
            Module(
                organisation="org.apache.logging.log4j", name="log4j-slf4j-impl", version="2.25.4"
            ),
        ),
        sums=read_sums(sums),
    )


def cache_dir() -> Path:
    """Return where fetched files are kept: SLUICEWAY_CACHE_DIR, or the user's cache directory."""
    chosen = os.environ.get("SLUICEWAY_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluiceway"


def fetch_jars(jars: JarSet, on_progress: Progress | None = None) -> Path:
    """Return the directory with these jars, fetched if they are not in the cache yet.

    The sums of all files are checked at every call. Processes that call at the same time wait
    for one another. SLUICEWAY_IVY_SETTINGS may name an Ivy settings file, for sites with a
    mirror of their own. Raises JarsUnavailable, JavaMissing.
    """
    directory = cache_dir() / jars.name
    with _locked(cache_dir() / f"{jars.name}.lock"):
        if not directory.is_dir():
            _fetch_into(directory, jars, on_progress)
        wrong = differences(directory, jars.sums)
        if wrong:
            raise JarsUnavailable(
                f"The jars in {directory} are not the pinned ones ({'; '.join(wrong[:3])}): "
                "remove that directory and start again."
            )
    return directory


def differences(directory: Path, pinned: Mapping[str, str]) -> list[str]:
    """Return what differs between a directory of jars and the pinned sums, in words."""
    there = {path.name: path for path in directory.glob("*.jar")}
    return [
        *(f"{name} is missing" for name in sorted(pinned.keys() - there.keys())),
        *(f"{name} is not expected" for name in sorted(there.keys() - pinned.keys())),
        *(
            f"{name} has another SHA-256 sum"
            for name in sorted(there.keys() & pinned.keys())
            if hashlib.sha256(there[name].read_bytes()).hexdigest() != pinned[name]
        ),
    ]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_into(directory: Path, jars: JarSet, on_progress: Progress | None) -> None:
    java, ivy = find_java(), _ivy_jar()
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="fetch-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(jars.description())
        settings = os.environ.get("SLUICEWAY_IVY_SETTINGS")
        command = [
            *(str(java), "-cp", str(ivy), "org.apache.ivy.Main"),
            *(("-settings", settings) if settings else ()),
            *("-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml"), "-confs", "default"),
            *("-retrieve", str(work / "lib" / "[artifact]-[revision](-[classifier]).[ext]")),
            *("-types", "jar", "bundle"),
        ]
        output = _run(command, len(jars.sums), on_progress)
        (work / "lib").mkdir(exist_ok=True)
        wrong = differences(work / "lib", jars.sums)
        if wrong:
            raise JarsUnavailable(
                f"{jars.title} could not be fetched ({'; '.join(wrong[:3])}). "
                "Check the network, or name a mirror in an Ivy settings file by "
                f"SLUICEWAY_IVY_SETTINGS. Ivy's last lines:\n{output}"
            )
        shutil.move(work / "lib", directory)


def _run(command: list[str], total: int, on_progress: Progress | None) -> str:
    """Run Ivy, report each jar as it arrives, and return the last lines it printed."""
    lines: list[str] = []
    arrived = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        try:
            for line in ivy.stdout or ():
                lines = [*lines[-14:], line.rstrip()]
                # One such line a module of this resolution; the jar is on disk by then.
                if "[SUCCESSFUL ]" in line and on_progress is not None:
                    arrived = min(arrived + 1, total)
                    on_progress(arrived, total)
            ivy.wait(timeout=_FETCH_TIMEOUT_S)
        except BaseException:
            ivy.kill()
            raise
    return "\n".join(lines)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for jar in sorted(Path(place).glob("jars/ivy-*.jar")):
            return jar
    raise JarsUnavailable(
        "Apache Ivy, which fetches jars, comes with pyspark, and pyspark is not installed: "
        f"{install_command('spark', 'gateway')}."
    )
