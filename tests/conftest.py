"""Shared fixtures: a real Kafka broker, PostgreSQL, SQLite, a gateway."""

import gc
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import hypothesis
import pytest
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from databases import Databases, Postgres, SQLite, running_postgres
from leftovers import clean_up_after
from relay import Relay
from shared_kafka import SharedKafka, broker_of, gateway_of, start_gateway
from sluiceway_gateway.core.db.engine import Database

# For short-lived Java processes (brokers, Spark's executors): optimization and verification of code
# would cost more than they save.
os.environ["JAVA_TOOL_OPTIONS"] = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)

# In memory, because brokers and databases sync to disk, and no test needs the data after a power
# loss.
_MEMORY = Path("/dev/shm")  # noqa: S108 - only `mkdtemp` creates names in it
_FREE_BYTES = 10 << 30
if "PYTEST_XDIST_WORKER" not in os.environ:
    _roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _FREE_BYTES
    _directory = tempfile.mkdtemp(prefix="sluiceway-run-", dir=_MEMORY if _roomy else None)
    # PostgreSQL, started by root, runs as another user, who has to enter the directory.
    Path(_directory).chmod(0o711)
    os.environ["TMPDIR"] = tempfile.tempdir = _directory

# Objects of collected tests live until the end, so frequent collections would free nothing.
gc.set_threshold(50_000, 20, 20)

_HERE = Path(__file__).parent
_TOGETHER = ("client/spark", "security", "cluster")
_LONG = (
    *_TOGETHER,
    "gateway/dev/demo",
    "gateway/cli",
    "gateway/endpoints/test_schedules.py",
    "gateway/test_openapi.py",
    "client/pypz/test_ports.py",
    "client/test_writer_faults.py",
    "client/test_reader_faults.py",
)


#: Parameters on which code does not branch, and where `make test-all` repeats tests with them:
#: HTTP runs on SQLite, stores and races on both databases; ledgers and Spark's jobs run on Avro,
#: codecs and every type on both formats; fetching and its faults on own and shared connections.
#: In a listed file, the first test runs with both.
_REPEATED = {
    "postgres": (
        "tests/gateway/core/auth/test_open_mode.py",
        "tests/gateway/channels/test_adopting.py",
        "tests/gateway/channels/test_connection.py",
        "tests/gateway/channels/test_put_with_kafka.py",
        "tests/gateway/core/db/test_database_away.py",
        "tests/gateway/api/",
        "tests/gateway/core/kafka/test_cluster_identity.py",
        "tests/gateway/status/lag_history/test_resolutions.py",
        "tests/gateway/ledger/test_pruning.py",
        "tests/gateway/status/test_metrics.py",
        "tests/gateway/endpoints/test_pruning.py",
        "tests/gateway/endpoints/test_reaping.py",
        "tests/gateway/offsets/test_importing.py",
        "tests/gateway/ledger/test_repairs.py",
        "tests/gateway/status/test_sampling.py",
        "tests/gateway/status/test_sampling_commits.py",
        "tests/gateway/status/test_status_events.py",
        "tests/gateway/endpoints/groups/test_slow_members.py",
        "tests/gateway/core/auth/test_tokens.py",
        "tests/gateway/provisioning/test_idling.py",
        "tests/gateway/provisioning/test_reconcile.py",
        "tests/tracing/",
    ),
    "arrow": (
        "tests/client/ledger/test_bad_input.py",
        "tests/client/ledger/test_committed_reading.py",
        "tests/client/ledger/test_transactions.py",
        "tests/client/ledger/test_writer_batches.py",
        "tests/client/spark/test_batch_jobs.py",
        "tests/client/spark/test_micro_batches.py",
        "tests/client/spark/test_spark_writing.py",
        "tests/client/spark/test_stream_sink.py",
        "tests/client/test_error_causes.py",
        "tests/client/test_group_reader.py",
        "tests/client/test_reader_faults.py",
        "tests/client/test_reader_memory.py",
        "tests/client/test_threads.py",
        "tests/client/test_writer_faults.py",
    ),
    "shared": (
        "tests/client/ledger/test_committed_reading.py",
        "tests/client/ledger/test_committed_stream.py",
        "tests/client/test_group_reader.py",
        "tests/client/test_reader_memory.py",
        "tests/client/test_reader_until_finished.py",
    ),
}


#: Fixtures of services; a test without any is a unit test.
_SERVICES = {
    "kafka",
    "databases",
    "postgres",
    "sqlite",
    "shared_rig",
    "gateway_url",
    "spark_session",
}


#: Fixtures of gateways that get HTTP requests, and stores and races that use these fixtures too.
_HTTP = {"audited", "ledger", "orders", "rig", "shared_rig"}
_STORES = (
    "tests/gateway/ledger/test_constraints.py",
    "tests/gateway/ledger/test_loops.py",
    "tests/gateway/ledger/test_lost_tails.py",
    "tests/gateway/ledger/test_schedules.py",
    "tests/gateway/lifecycle/test_usage.py",
    "tests/gateway/provisioning/",
)


class _Together(pytest.Package):
    """A directory whose tests share a large fixture, such as a Spark session.

    One process runs them all, because starting and warming up a second session takes as much CPU
    time as the tests. The fixture ends after the last test (scope "package"), because an idle one
    slows down other tests.
    """

    def setup(self) -> None:
        """Set nothing up: the directory has no `__init__` module."""


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Keep the tests of a directory in `_TOGETHER` in one process."""
    if path.is_relative_to(_HERE) and path.relative_to(_HERE).as_posix() in _TOGETHER:
        together: _Together = _Together.from_parent(parent, path=path)
        return together
    return None


class _Sharing(LoadFileScheduling):
    """Gives each process whole files, or whole directories listed in `_TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((folder for folder in _TOGETHER if file.startswith(f"tests/{folder}/")), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Sharing:
    """Distribute the tests to processes."""
    return _Sharing(config, log)


# Before markers select tests.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark repetitions as long, and sort the files: the longest first.

    So the processes end at about the same time. The other files are mixed, because some keep a
    processor busy while others wait.
    """
    for places in _REPEATED.values():
        assert all((_HERE.parent / place).exists() for place in places), places
    first: dict[tuple[str, str], str] = {}
    sampled: dict[str, pytest.Item] = {}
    for item in items:
        if not _SERVICES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.unit)
        callspec = getattr(item, "callspec", None)
        if callspec is None:
            continue
        function = item.nodeid.partition("[")[0]
        if item.get_closest_marker("sample") and sampled.setdefault(function, item) is not item:
            item.add_marker(pytest.mark.long)
        chosen = {parameter for parameter in callspec.params.values() if isinstance(parameter, str)}
        listed = item.nodeid.startswith((*_STORES, *_REPEATED["postgres"]))
        if "postgres" in chosen and not listed and _HTTP.intersection(item.fixturenames):
            item.add_marker(pytest.mark.long)
        for value, places in _REPEATED.items():
            place = next((place for place in places if item.nodeid.startswith(place)), None)
            if place is None or value not in chosen:
                continue
            if place.endswith("/") or first.setdefault((value, place), function) != function:
                item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: _turn(item.path))


def pytest_collection_finish() -> None:
    """Exclude all objects so far, which live to the end, from garbage collection."""
    gc.freeze()


@pytest.hookimpl
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the browser tests in `make test`: all are long, and importing the driver is slow."""
    long = config.option.markexpr != "not long"
    return None if long or collection_path != _HERE / "browser" else True


@cache
def _turn(path: Path) -> tuple[int, int]:
    file = path.relative_to(_HERE).as_posix()
    turns = (
        turn for turn, place in enumerate(_LONG) if file == place or file.startswith(f"{place}/")
    )
    return next(turns, len(_LONG)), zlib.crc32(file.encode())


# `make test` is the same every time. `make test-all` draws other examples, with the profile "many".
# A loaded machine fails no test.
for _profile, _examples in (("few", 10), ("many", 100)):
    hypothesis.settings.register_profile(
        _profile,
        max_examples=_examples,
        derandomize=_profile == "few",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("few")


@pytest.fixture(scope="session", autouse=True)
def _logs() -> None:
    """Send structured logs to the standard logging, which pytest shows for failed tests."""
    structlog.configure(
        processors=[structlog.stdlib.render_to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Remove the run's directory at its end, also when this process is killed."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.add_cleanup(clean_up_after(tempfile.gettempdir()).communicate)


def pytest_configure_node(node: WorkerController) -> None:
    """Start the broker and the gateway that the test processes share.

    The first process starts before the broker, so that it compiles bytecode for all others.
    """
    alone = len(node.config.getoption("tx")) == 1
    if alone or node.workerinput["workerid"] != "gw0":
        broker_of(node.config)
        start_gateway(node.config)


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> SharedKafka:
    """A real broker for the whole run; `.bootstrap_servers` is its address."""
    return broker_of(request.config)


@pytest.fixture(scope="session")
def _kafka_relay(kafka: SharedKafka, worker_id: str) -> Iterator[Relay]:
    number = 0 if worker_id == "master" else int(worker_id.removeprefix("gw"))
    with closing(Relay(*kafka.listeners[number])) as relay:
        yield relay


@pytest.fixture
def fragile_kafka(_kafka_relay: Relay) -> Relay:
    """A separate relay to the broker for this process, which the test can cut."""
    _kafka_relay.restore()
    return _kafka_relay


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL for the whole run."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> SQLite:
    """Databases in files, for the whole run."""
    return SQLite(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest) -> Databases:
    """Factory of databases: once on SQLite, once on PostgreSQL."""
    factory: Databases = request.getfixturevalue(request.param)
    return factory


@pytest.fixture
def database_url(databases: Databases) -> str:
    """The URL of a migrated database without rows, on SQLite and on PostgreSQL."""
    return databases.migrated()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A migrated database, on SQLite and on PostgreSQL."""
    with closing(Database(database_url)) as database:
        yield database


@pytest.fixture
def empty_database_url(databases: Databases) -> str:
    """The URL of a database without tables, on SQLite and on PostgreSQL."""
    return databases.empty()


@pytest.fixture(scope="session")
def gateway_url(request: pytest.FixtureRequest) -> str:
    """A gateway with SQLite and the run's broker, for the whole run."""
    return gateway_of(request.config)
