"""A Spark session with an executor process, as on a cluster, and channels."""

import gc
import itertools
import os
import warnings
from collections.abc import Iterator

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import sluiceway.spark
from processes import spark_environment
from relay import Relay
from sluiceway.api.models import Connection
from sluiceway.schema import Schema
from spark_tasks import SCHEMA
from topics import Topics

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of PySpark: unclosed sockets, and on 4.3 a newer pandas."""
    warning_filters = (
        "ignore:unclosed <socket:ResourceWarning",
        "ignore:PySpark does not yet fully support pandas:FutureWarning",
    )
    for item in items:
        if item.nodeid.startswith("tests/client/spark/"):
            for warning_filter in warning_filters:
                item.add_marker(pytest.mark.filterwarnings(warning_filter))


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
def fragile(fragile_kafka: Relay) -> Connection:
    """A connection to a new topic of the broker behind the relay."""
    definition = Schema.of(SCHEMA).definition
    return Topics(fragile_kafka.address).connect(partitions=1, schema_definition=definition)
