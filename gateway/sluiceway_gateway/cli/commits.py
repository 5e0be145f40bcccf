"""`sluiceway channels commits`: the commits of an exactly-once channel, and what is open."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import click

from sluiceway.rest.ledger_models import LedgerEvent, OpenBatch
from sluiceway_gateway.cli.entry import format_time, print_table
from sluiceway_gateway.cli.status import open_control
from sluiceway_gateway.clock import system_clock

_STATES = {"commit": "committed", "abort": "aborted", "reap": "aborted: its lease ended"}


@click.command()
@click.argument("name")
@click.option(
    "--number", "-n", type=click.IntRange(1, 1000), default=20, help="How many.  [default: 20]"
)
@click.option("--before", type=click.IntRange(min=1), help="Those with a smaller number.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def commits(name: str, number: int, before: int | None, as_json: bool, url: str | None) -> None:
    """List the commits and aborts of the channel NAME, newest first.

    Open batches come before them: readers see no record behind the begin of one. A number is what
    `snapshot` takes to read the channel as it was after that commit.
    """
    with open_control(url) as control:
        page = control.ledger.commits(name, limit=number, before=before)
    if as_json:
        for batch in page.open if before is None else ():
            click.echo(_json({"state": "open", **asdict(batch)}))
        for event in page.events:
            click.echo(_json(asdict(event)))
        return
    now = system_clock()
    rows = [_open_row(each, now) for each in page.open] if before is None else []
    print_table(
        ("NUMBER", "STATE", "KEY", "WRITER", "RECORDS", "ENDED", "OPEN FOR"),
        [*rows, *_event_rows(page.events)],
    )


def _open_row(batch: OpenBatch, now: datetime) -> tuple[str, ...]:
    return ("", "open", batch.key, batch.owner, "", "", _duration(now - batch.since))


def _event_rows(events: Iterable[LedgerEvent]) -> list[tuple[str, ...]]:
    return [
        (
            str(each.number),
            _STATES.get(each.kind, each.state),
            each.key,
            each.owner,
            "" if each.records is None else str(each.records),
            format_time(each.at),
            "" if each.opened_at is None else _duration(each.at - each.opened_at),
        )
        for each in events
    ]


def _duration(time: timedelta) -> str:
    """Return a time to one decimal below a minute, and to whole units above."""
    seconds = max(0.0, time.total_seconds())
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=datetime.isoformat)
