"""Fetching Apache Kafka's jars and holding them against pinned sums.

Apache Ivy, which ships inside pyspark, resolves Kafka and its dependencies; what it brings is
used only if every file has the SHA-256 sum that `kafka-<version>.sha256` pins.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from sluiceway_gateway.embedded.errors import JarsUnavailable
from sluiceway_gateway.embedded.java import find_java

KAFKA_VERSION = "4.3.1"
_LOG4J_VERSION = "2.25.4"
_FETCH_TIMEOUT_S = 600
_MODULE = f"""<ivy-module version="2.0">
  <info organisation="sluiceway" module="embedded-broker"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"
                conf="default->default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="{_LOG4J_VERSION}"
                conf="default->default"/>
  </dependencies>
</ivy-module>
"""

Progress = Callable[[int, int], None]
"""Called with how many jars are there and how many there will be."""


def cache_dir() -> Path:
    """Return where fetched files are kept: SLUICEWAY_CACHE_DIR, or the user's cache directory."""
    chosen = os.environ.get("SLUICEWAY_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluiceway"


def fetch_jars(on_progress: Progress | None = None) -> Path:
    """Return the directory with Kafka's jars, fetched if they are not in the cache yet.

    The sums of all files are checked at every call. Processes that call at the same time wait
    for one another. SLUICEWAY_IVY_SETTINGS may name an Ivy settings file, for sites with a
    mirror of their own. Raises JarsUnavailable, JavaMissing.
    """
    pinned = pinned_sums()
    directory = cache_dir() / f"kafka-{KAFKA_VERSION}"
    with _locked(cache_dir() / f"kafka-{KAFKA_VERSION}.lock"):
        if not directory.is_dir():
            _fetch_into(directory, pinned, on_progress)
        wrong = differences(directory, pinned)
        if wrong:
            raise JarsUnavailable(
                f"Kafka's jars in {directory} are not the pinned ones ({'; '.join(wrong[:3])}): "
                "remove that directory and start again."
            )
    return directory


def pinned_sums() -> dict[str, str]:
    """Return the SHA-256 sum of every jar by its file name."""
    text = resources.files(__package__).joinpath(f"kafka-{KAFKA_VERSION}.sha256").read_text()
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def differences(directory: Path, pinned: dict[str, str]) -> list[str]:
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


def _fetch_into(directory: Path, pinned: dict[str, str], on_progress: Progress | None) -> None:
    java, ivy = find_java(), _ivy_jar()
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="fetch-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_MODULE)
        settings = os.environ.get("SLUICEWAY_IVY_SETTINGS")
        command = [
            *(str(java), "-cp", str(ivy), "org.apache.ivy.Main"),
            *(("-settings", settings) if settings else ()),
            *("-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml"), "-confs", "default"),
            *("-retrieve", str(work / "lib" / "[artifact]-[revision](-[classifier]).[ext]")),
            *("-types", "jar", "bundle"),
        ]
        output = _run(command, len(pinned), on_progress)
        (work / "lib").mkdir(exist_ok=True)
        wrong = differences(work / "lib", pinned)
        if wrong:
            raise JarsUnavailable(
                f"Apache Kafka {KAFKA_VERSION} could not be fetched ({'; '.join(wrong[:3])}). "
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
        "Apache Ivy, which fetches Kafka, comes with pyspark, and pyspark is not installed: "
        "pip install 'sluiceway[spark,gateway]'."
    )
