"""Java and Kafka's jars for the embedded broker.

Apache Ivy, which is part of pyspark, resolves and downloads the jars. They are used only if every
file has its pinned SHA-256 sum.

EmbeddedError
├── JavaMissing          no Java, or one that is too old
├── JarsUnavailable      jars could not be fetched, or are not the pinned ones
└── BrokerStartFailed    the broker exited, or did not answer in time (in broker.py)
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from sluiceway import install_command
from sluiceway_gateway.core.errors import EmbeddedError

KAFKA_VERSION = "4.3.1"
JAVA_VERSION = 17
"""The oldest Java that runs Kafka and Spark."""

_FETCH_ADVICE = (
    "Check the network. Behind a proxy, set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST "
    "-Dhttps.proxyPort=PORT', as Java ignores https_proxy; or set SLUICEWAY_IVY_SETTINGS to an Ivy "
    "settings file that names a mirror, or SLUICEWAY_CACHE_DIR to a copy of another machine's cache"
)
_JAVA_ADVICE = (
    f"install Java {JAVA_VERSION} or newer (Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME to one"
)

OnProgress = Callable[[int, int], None]
"""Called with the number of downloaded jars, and of all jars."""


class JavaMissing(EmbeddedError):
    """No usable Java; the message says what to install."""


class JarsUnavailable(EmbeddedError):
    """The jars could not be fetched, or do not have the pinned SHA-256 sums."""


def find_java() -> Path:
    """Return the `java` of JAVA_HOME, or else the first one on PATH.

    Raises JavaMissing if there is none, or it does not run, or it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise JavaMissing(f"No java was found on PATH: {_JAVA_ADVICE}.")
    try:
        response = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{java} does not run ({error}): {_JAVA_ADVICE}.") from error
    # `version "17.0.15"` is 17 and `version "1.8.0_402"` is 8.
    version = re.search(r'version "(?:1\.)?(\d+)', response.stderr + response.stdout)
    if version is None or int(version[1]) < JAVA_VERSION:
        name = version[1] if version else "of an unknown version"
        raise JavaMissing(f"{java} is Java {name}: {_JAVA_ADVICE}.")
    return Path(java)


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module of a Maven repository."""

    organisation: str
    name: str
    version: str
    transitive: bool = True


@dataclass(frozen=True, kw_only=True)
class JarSet:
    """The jars of some modules and their dependencies."""

    title: str
    """Name in messages."""
    name: str
    """The name of its directory in the cache."""
    modules: tuple[Module, ...]
    sums: Mapping[str, str]
    """The pinned SHA-256 sums by file name."""

    def ivy_file(self) -> str:
        """Return the Ivy file that requests the modules."""
        dependencies = "".join(
            f'<dependency org="{module.organisation}" name="{module.name}" rev="{module.version}" '
            f'transitive="{str(module.transitive).lower()}" conf="default->default"/>'
            for module in self.modules
        )
        return (
            '<ivy-module version="2.0"><info organisation="sluiceway" module="jars"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{dependencies}</dependencies></ivy-module>"
        )


def read_sums(text: str) -> dict[str, str]:
    """Parse the output of sha256sum into sums by file name."""
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def kafka_jars() -> JarSet:
    """Return the jars of the broker."""
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


def fetch_jars(
    jars: JarSet, on_progress: OnProgress | None = None, *, timeout_s: float = 600.0
) -> Path:
    """Return the directory of these jars, after fetching them if they are not in the cache.

    The cache is SLUICEWAY_CACHE_DIR, or else `sluiceway` in the user's cache directory. Every call
    checks the sums of all files. A lock lets only one process fetch at a time, for up to
    `timeout_s`. SLUICEWAY_IVY_SETTINGS may name an Ivy settings file, for a site with its own
    mirror. Raises JarsUnavailable, JavaMissing.
    """
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("SLUICEWAY_CACHE_DIR") or user_cache / "sluiceway")
    directory = cache / jars.name
    # A complete cache may be read-only.
    if not _is_dir(directory):
        with _locked(cache / f"{jars.name}.lock"):
            # Another process may have fetched them meanwhile.
            if not _is_dir(directory):
                _fetch_into(directory, jars, on_progress, timeout_s)
    wrong = differences(directory, jars.sums)
    if wrong:
        raise JarsUnavailable(
            f"The jars in {directory} are not the pinned ones ({'; '.join(wrong[:3])}): "
            "remove that directory and start again."
        )
    return directory


def differences(directory: Path, pinned: Mapping[str, str]) -> list[str]:
    """Return a message for each difference between a directory of jars and the pinned sums."""
    jars = {path.name: path for path in directory.glob("*.jar")}
    return [
        *(f"{name} is missing" for name in sorted(pinned.keys() - jars.keys())),
        *(f"{name} is not expected" for name in sorted(jars.keys() - pinned.keys())),
        *(
            f"{name} has another SHA-256 sum"
            for name in sorted(jars.keys() & pinned.keys())
            if hashlib.sha256(jars[name].read_bytes()).hexdigest() != pinned[name]
        ),
    ]


def _is_dir(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - pathlib raises below a directory without access


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise JarsUnavailable(
            f"Jars cannot be kept in {path.parent} ({error.strerror}): set SLUICEWAY_CACHE_DIR to "
            "a directory that this user may write."
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_into(
    directory: Path, jars: JarSet, on_progress: OnProgress | None, timeout_s: float
) -> None:
    """Fetch into a temporary directory, check the sums, and rename it to `directory`."""
    java, ivy = find_java(), _ivy_jar()
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="fetch-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(jars.ivy_file())
        settings = os.environ.get("SLUICEWAY_IVY_SETTINGS")
        command = [
            *(str(java), "-cp", str(ivy), "org.apache.ivy.Main"),
            *(("-settings", settings) if settings else ()),
            *("-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml"), "-confs", "default"),
            *("-retrieve", str(work / "lib" / "[artifact]-[revision](-[classifier]).[ext]")),
            *("-types", "jar", "bundle"),
        ]
        output = _run_ivy(command, jars, on_progress, timeout_s)
        (work / "lib").mkdir(exist_ok=True)
        wrong = differences(work / "lib", jars.sums)
        if wrong:
            raise JarsUnavailable(
                f"{jars.title} could not be fetched ({'; '.join(wrong[:3])}). {_FETCH_ADVICE}. "
                f"Ivy's last lines:\n{output}"
            )
        shutil.move(work / "lib", directory)


def _run_ivy(
    command: list[str], jars: JarSet, on_progress: OnProgress | None, timeout_s: float
) -> str:
    """Run Ivy, report each jar as it arrives, and return the last lines of its output.

    Raises JarsUnavailable if it takes longer than `timeout_s`.
    """
    lines: list[str] = []
    arrived, total = 0, len(jars.sums)
    late = threading.Event()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:

        def end() -> None:
            late.set()
            ivy.kill()

        # A timer, because Ivy may print nothing for longer than the timeout.
        limit = threading.Timer(timeout_s, end)
        limit.daemon = True
        limit.start()
        try:
            for line in ivy.stdout or ():
                lines = [*lines[-14:], line.rstrip()]
                # Ivy prints one such line per module, once its jar is on disk.
                if "[SUCCESSFUL ]" in line and on_progress is not None:
                    arrived = min(arrived + 1, total)
                    on_progress(arrived, total)
            ivy.wait()
        except BaseException:
            ivy.kill()
            raise
        finally:
            limit.cancel()
    if late.is_set():
        raise JarsUnavailable(
            f"{jars.title} could not be fetched within {timeout_s:.0f} s; {arrived} of "
            f"{total} jars arrived. {_FETCH_ADVICE}."
        )
    return "\n".join(lines)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        for jar in sorted(Path(directory).glob("jars/ivy-*.jar")):
            return jar
    raise JarsUnavailable(
        "Fetching Kafka needs Apache Ivy, which is part of pyspark, and pyspark is not installed: "
        f"{install_command('spark', 'gateway')}."
    )
