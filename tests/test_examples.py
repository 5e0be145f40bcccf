"""The examples run as a reader would run them, one after the other, against a real gateway."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def _run(name: str, gateway_url: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env={
            **os.environ,
            "SLUICEWAY_URL": gateway_url,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            # As much as Spark needs for so little.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_readings_are_written_read_in_two_parts_and_summed_up_by_spark(gateway_url: str) -> None:
    assert _run("write_readings.py", gateway_url, "500") == ["500 readings written"]
    *stations, total = _run("read_readings.py", gateway_url)
    assert stations == [f"station-{number} 50" for number in range(10)]
    assert total == "500 readings read"
    assert _run("warmest_by_spark.py", gateway_url) == ["10 stations written"]


def test_a_stream_is_restarted_in_the_middle_and_counts_every_departure(gateway_url: str) -> None:
    *hours, total = _run("delays_as_they_happen.py", gateway_url)
    assert total == "24 hours, 720 departures"
    assert hours[0] == "00:00  30 departures, 1.0 minutes late"
    assert hours[-1] == "23:00  30 departures, 24.0 minutes late"


def test_two_replicas_count_every_reading_once_though_one_is_started_again(
    gateway_url: str,
) -> None:
    before, *stations, total = _run("count_in_two.py", gateway_url)
    assert before == "100 readings counted before the restart"
    assert stations == [f"station-{number} 200" for number in range(10)]
    assert total == "2000 readings counted"


def test_a_writer_waits_until_two_groups_have_read_all(gateway_url: str) -> None:
    late, archived, total = _run("wait_until_read.py", gateway_url)
    assert late.startswith("not yet: after 0.1 s what was written to the channel 'orders'")
    assert "the group 'billing': nobody has been in it yet" in late
    assert archived == "500 orders are billed and shipped, and can be archived"
    assert total == "1000 orders were read in all"


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in text] == []
