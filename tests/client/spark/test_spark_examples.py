"""Examples that use Spark, run in the tests' Spark session."""

import runpy
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from processes import EXAMPLES, run_example


@pytest.fixture
def run(
    spark: SparkSession,
    gateway_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[[str], list[str]]]:
    """Run an example and return the printed lines; restores the session's configuration."""
    monkeypatch.setenv("SLUICEWAY_URL", gateway_url)
    # The examples stop the session that all tests share.
    monkeypatch.setattr(SparkSession, "stop", lambda _session: None)
    before = spark.conf.getAll

    def run(name: str) -> list[str]:
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    yield run
    for name, value in spark.conf.getAll.items():
        if value != before.get(name) and spark.conf.isModifiable(name):
            if name in before:
                spark.conf.set(name, before[name])
            else:
                spark.conf.unset(name)


@pytest.mark.long
def test_the_examples_of_readings_work_together(
    run: Callable[[str], list[str]], gateway_url: str
) -> None:
    assert run_example("write_readings.py", gateway_url, "500") == ["500 readings written"]
    *stations, total = run_example("read_readings.py", gateway_url)
    assert stations == [f"station-{number} 50" for number in range(10)]
    assert total == "500 readings read"
    assert run("spark_maximum.py") == [
        "10 stations written",
        "its writer is closed after 10 records",
    ]


@pytest.mark.long
def test_a_restarted_stream_counts_every_departure(
    run: Callable[[str], list[str]],
) -> None:
    *hours, total = run("streaming_delays.py")
    assert total == "24 hours, 720 departures"
    assert hours[0] == "00:00  30 departures, 1.0 minutes late"
    assert hours[-1] == "23:00  30 departures, 24.0 minutes late"
