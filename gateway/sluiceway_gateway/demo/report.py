"""What the demo shows at its end."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from sluiceway_gateway.demo.summary import ChannelCount, Summary

_DAY = {
    "night": range(6),
    "morning": range(6, 12),
    "afternoon": range(12, 18),
    "evening": range(18, 24),
}


def show(summary: Summary, console: Console) -> None:
    """Print the table of delays, what was counted, and what to try next."""
    console.print(_delays(summary.records))
    console.print(_channels(summary))
    console.print(
        f"Spark took {summary.write_seconds:.1f} s from the file into the channel "
        f"({summary.write_mb_per_second:.1f} MB/s of CSV) and {summary.read_seconds:.1f} s out of "
        f"it again ({summary.read_mb_per_second:.1f} MB/s). "
        f"All of it took {summary.seconds:.1f} s."
    )
    if summary.agrees:
        console.print("[bold green]Every count and checksum agrees.[/] Nothing is left running.")
    else:
        console.print("[bold red]Counts or checksums do not agree.[/] This is a defect: report it.")
    console.print(
        "Next: [bold]make up[/] starts a broker and a gateway that stay; the README shows a "
        "writer, a reader and a Spark job of your own."
    )


def _delays(records: Iterable[Mapping[str, Any]]) -> Table:
    records = list(records)
    table = Table(title="Mean departure delay in minutes, by carrier and time of day")
    table.add_column("carrier")
    table.add_column("flights", justify="right")
    table.add_column("all day", justify="right", style="bold")
    for part, hours in _DAY.items():
        table.add_column(f"{part} {hours[0]}–{hours[-1]} h", justify="right")
    for carrier in sorted({record["carrier"] for record in records}):
        mine = [record for record in records if record["carrier"] == carrier]
        table.add_row(carrier, *_row(mine))
    table.add_section()
    table.add_row("all", *_row(records))
    return table


def _row(records: list[Mapping[str, Any]]) -> list[str]:
    def mean(chosen: Callable[[int], bool]) -> str:
        some = [each for each in records if chosen(each["hour"]) and each["departed"]]
        departed = sum(each["departed"] for each in some)
        if not departed:
            return "–"
        return f"{sum(e['mean_delay_minutes'] * e['departed'] for e in some) / departed:.1f}"

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
        table.add_row(name, *_cells(count), style="" if count.agrees else "bold red")
    return table


def _cells(count: ChannelCount) -> list[str]:
    return [
        count.format,
        str(count.partitions),
        f"{count.rows_written:,}",
        f"{count.rows_read:,}",
        count.checksum_in,
        count.checksum_out,
    ]
