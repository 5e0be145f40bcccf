"""Report of the demo: progress bars while it runs, then its summary as tables or JSON."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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

Record = Mapping[str, Any]

_DAY = {
    "night": range(6),
    "morning": range(6, 12),
    "afternoon": range(12, 18),
    "evening": range(18, 24),
}


@dataclass(frozen=True, kw_only=True)
class ChannelCount:
    """Rows and order-independent checksums of what was written to a channel and read from it."""

    format: str
    partitions: int
    rows_written: int
    rows_read: int
    checksum_in: str
    checksum_out: str

    @property
    def agrees(self) -> bool:
        """Whether everything that was written was read."""
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
                "seconds": round(self.seconds, 3),
                "write_mb_per_second": round(self.write_mb_per_second, 3),
                "read_mb_per_second": round(self.read_mb_per_second, 3),
                "agrees": self.agrees,
            }
        )


class StepBars(Progress):
    """One progress bar per step of each part of the demo.

    Where a terminal cannot move bars, as in a log, it prints a line with the elapsed seconds for
    each step that begins.
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
    """Print the mean delays, the counts and checksums, the rates, and what to try next."""
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
        table.add_row(carrier, *_row([each for each in records if each["carrier"] == carrier]))
    table.add_section()
    table.add_row("all", *_row(records))
    return table


def _row(records: Sequence[Record]) -> list[str]:
    def mean(includes: Callable[[int], bool]) -> str:
        chosen = [each for each in records if includes(each["hour"]) and each["departed"]]
        departed = sum(each["departed"] for each in chosen)
        if not departed:
            return "–"
        minutes = sum(each["mean_delay_minutes"] * each["departed"] for each in chosen)
        return f"{minutes / departed:.1f}"

    return [
        f"{sum(record['flights'] for record in records):,}",
        mean(lambda _: True),
        *(mean(hours.__contains__) for hours in _DAY.values()),
    ]


def _channels(summary: Summary) -> Table:
    table = Table(title="What went through the channels")
    for name in ("channel", "format"):
        table.add_column(name)
    for name in ("partitions", "rows in", "rows out", "checksum in", "checksum out"):
        table.add_column(name, justify="right", overflow="fold")
    for name, count in (("flights", summary.flights), ("delays", summary.delays)):
        rows = f"{count.rows_written:,}", f"{count.rows_read:,}"
        checksums = count.checksum_in, count.checksum_out
        style = "" if count.agrees else "bold red"
        table.add_row(name, count.format, str(count.partitions), *rows, *checksums, style=style)
    return table
