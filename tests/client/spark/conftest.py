"""A Spark session with an executor process, as on a cluster, and channels."""

import gc
import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import sluiceway.spark
from processes import spark_environment
from relay import Relay
from sluiceway.rest.models import Connection
from spark_tasks import Measure, Produce, connection_at
from topics import Topics

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of PySpark: unclosed sockets, and on 4.3 a newer pandas."""
    known = (
        "ignore:unclosed <socket:ResourceWarning",
        "ignore:PySpark does not yet fully support pandas:FutureWarning",
    )
    for item in items:
        if item.nodeid.startswith("tests/client/spark/"):
            for each in known:
                item.add_marker(pytest.mark.filterwarnings(each))


@pytest.fixture(scope="package", autouse=True)
def no_sockets_left() -> Iterator[None]:
    """Collect PySpark's unclosed sockets before tests that do not ignore the warning."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="package")
def spark_session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session with an executor process, so that objects are pickled and imported."""
    directory = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment(directory).items():
            patch.setenv(name, value)
        builder = (
            SparkSession.builder.master("local-cluster[1,2,1024]")
            .appName("sluiceway tests")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "OFF")
            .config("spark.sql.session.timeZone", "America/New_York")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .config("spark.task.maxFailures", "1")
            # Idle queries look for data a hundred times a second by default.
            .config("spark.sql.streaming.pollingDelay", "50ms")
        )
        if any(item.path.stem == "test_connect" for item in request.session.items):
            builder = (
                builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
                .config("spark.connect.grpc.binding.address", "127.0.0.1")
                .config("spark.connect.grpc.binding.port", "0")
            )
        session = builder.getOrCreate()
    yield session
    session.stop()
    # PySpark keeps its JVM for the next session.
    jvm = SparkContext._gateway
    assert jvm is not None
    jvm.shutdown()
    jvm.proc.stdin.close()
    jvm.proc.wait(timeout=240)
    os.environ.pop("PYSPARK_GATEWAY_PORT", None)


@pytest.fixture
def spark(spark_session: SparkSession, gateway_url: str) -> SparkSession:
    """The session, registered with the tests' gateway."""
    sluiceway.spark.register(spark_session, gateway=gateway_url)
    return spark_session


@pytest.fixture(autouse=True)
def _patient_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for the gateway than queries and tasks do, except for one that is away."""
    for constant in (
        "sluiceway.spark.worker._TIMEOUT_S",
        "sluiceway.spark.microbatch._GATEWAY_TIMEOUT_S",
        "sluiceway.spark.ledger_batches._ABORT_TIMEOUT_S",
        "sluiceway.ledger.write_batch._ABORT_TIMEOUT_S",
    ):
        # There are no options for them.
        monkeypatch.setattr(constant, 60.0)


@pytest.fixture
def name() -> str:
    """A unique channel name."""
    return f"spark-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def produce() -> Produce:
    """Produce raw messages to a channel's topic, in order."""

    def produce(connection: Connection, *values: bytes | None, partition: int = 0) -> None:
        topics = Topics(connection.kafka["bootstrap.servers"])
        topics.produce(connection.topic_name, partition, values)

    return produce


@pytest.fixture
def fragile(fragile_kafka: Relay, name: str) -> Connection:
    """A connection to a new topic of the broker behind the relay."""
    Topics(fragile_kafka.address).create(name)
    return connection_at(fragile_kafka.address, name)


_MEASURED = """
import pickle, resource, sys
from pathlib import Path

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

task = pickle.loads(Path(sys.argv[1]).read_bytes())
{prepared}
before = peak_mb()
records = {work}
print(records, peak_mb() - before)
"""


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Evaluate an expression over a pickled `task` in a new process.

    Returns its result, a number of records, and the growth of the process in megabytes.
    """

    def measure(task: bytes, work: str, prepared: str = "") -> tuple[int, int]:
        path = tmp_path / "task"
        path.write_bytes(task)
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED.format(prepared=prepared, work=work), str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=480,
        )
        records, grown_mb = map(int, done.stdout.split())
        return records, grown_mb

    return measure
