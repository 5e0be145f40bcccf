"""`sluiceway channels search`: print messages that contain a text as JSON lines."""

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from sluiceway.api.channels import Control
from sluiceway_gateway.cli.actions import zoned_time
from sluiceway_gateway.cli.entry import gateway_at, gateway_option, json_text, waiting_for
from sluiceway_gateway.cli.status import open_control


@click.command()
@click.argument("name")
@click.argument("text", required=False)
@click.option("--regex", help="Regular expression of RE2; (?i) ignores case.")
@click.option("--field", help="Only in this field, such as address.city, @key or @header.NAME.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option("--since", callback=zoned_time, metavar="TIME", help="From this time on.")
@click.option("--until", callback=zoned_time, metavar="TIME", help="Up to this time.")
@click.option("--oldest-first", is_flag=True, help="Start at the oldest message, not the newest.")
@click.option("--number", "-n", type=click.IntRange(min=1), help="Stop after so many matches.")
@click.option("--follow", "-f", is_flag=True, help="Print new messages only, until Ctrl-C.")
@click.option("--uncommitted", is_flag=True, help="Of exactly-once channels also uncommitted ones.")
@gateway_option
def search(
    name: str,
    text: str | None,
    regex: str | None,
    field: str | None,
    partition: int | None,
    since: datetime | None,
    until: datetime | None,
    oldest_first: bool,
    number: int | None,
    follow: bool,
    uncommitted: bool,
    url: str | None,
) -> None:
    """Print the messages of the channel NAME that contain TEXT, one JSON object per line.

    The gateway searches, newest first; case is ignored. Without TEXT and --regex, all messages
    match. Offset, key, headers and schema are printed with the records.
    """
    params: dict[str, Any] = {
        "text": text,
        "regex": regex,
        "field": field,
        "partition": partition,
        "since": None if since is None else since.isoformat(),
        "until": None if until is None else until.isoformat(),
        "start": "earliest" if oldest_first else None,
        "follow": follow or None,
        "uncommitted": uncommitted or None,
    }
    matches = scanned = 0
    gaps: list[str] = []
    with open_control(url) as control:
        with waiting_for(gateway_at(url)):
            # Repeated while the gateway does not answer; a search is not.
            control.channel(name)
        for line in _lines(control, name, params, number, gaps):
            if "message" in line:
                click.echo(json_text(line["message"]))
                matches += 1
            else:
                scanned += line["progress"]["scanned"]
    click.echo(f"sluiceway: {matches:,} matches in {scanned:,} messages", err=True)
    if gaps:
        raise click.ClickException("; ".join(gaps))


def _lines(
    control: Control,
    name: str,
    params: Mapping[str, Any],
    number: int | None,
    gaps: list[str],
) -> Iterator[Mapping[str, Any]]:
    """Yield matches, and the last progress of each search: one after the other, until the end.

    `gaps` gets what was not searched; one that follows prints it.
    """
    left = number
    while True:
        limit = {} if left is None else {"limit": min(left, 1_000)}
        progress: Mapping[str, Any] = {}
        end: Mapping[str, Any] = {}
        for line in control.search(name, {"limit": 1_000, **params, **limit}):
            if "message" in line:
                if left != 0:
                    left = None if left is None else left - 1
                    yield line
            elif "progress" in line:
                progress = line
                _show(line["progress"])
                # One that follows has no end of its own.
                if left == 0 and params["follow"]:
                    break
            else:
                end = line["end"]
        if progress:
            yield progress
        # What a cursor leaves out is in the next one.
        if end and "cursor" not in params:
            if params["follow"]:
                # It goes on without them, and would tell nobody at its end.
                for gap in _gaps(end):
                    click.echo(f"sluiceway: {gap}", err=True)
            else:
                gaps += _gaps(end)
        if left == 0:
            return
        if end.get("reason") in ("error", "stopped"):
            raise click.ClickException(f"the search ended: {end['message'] or 'the gateway stops'}")
        if not end:
            raise click.ClickException("the gateway broke the search off; run it again")
        if end["next_cursor"] is None:
            return
        params = {**params, "cursor": end["next_cursor"], "partition": None, "start": None}


def _gaps(end: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about partitions that a search has left out."""
    if unavailable := end["partitions_unavailable"]:
        listed = ", ".join(map(str, unavailable))
        yield (
            f"partitions {listed} were not searched, because their leaders do not answer: repeat "
            "the search when they are back"
        )
    if left_out := end["partitions_left_out"]:
        yield f"{left_out:,} further partitions with messages were not searched: give --partition"


def _show(progress: Mapping[str, Any]) -> None:
    """Overwrite the progress in a terminal's line."""
    if sys.stderr.isatty() and progress["total"]:
        share = 100 * progress["passed"] // progress["total"]
        click.echo(f"\r{progress['scanned']:,} messages searched, {share} %\r", err=True, nl=False)
