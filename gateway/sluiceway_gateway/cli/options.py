"""Options and output formats that several commands share."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from sluiceway.channel import Channel
from sluiceway.rest.channels import Control
from sluiceway.rest.transport import Transport

#: How long commands retry while the gateway does not answer; less than what programs wait.
TIMEOUT_S = 10.0
#: Rows are never cut or folded, because programs read them as well.
_TABLE_WIDTH = 100_000
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])\Z")
_F = TypeVar("_F", bound=Callable[..., Any])


def gateway_option(function: _F) -> _F:
    """Add the option --url."""
    return click.option(
        "--url", help="URL of the gateway.  [default: SLUICEWAY_URL, or http://127.0.0.1:8900]"
    )(function)


@contextmanager
def open_control(url: str | None) -> Iterator[Control]:
    """Give the client's calls to the gateway, and close their connections at the end."""
    control = Control(Transport(url, timeout_s=TIMEOUT_S))
    try:
        yield control
    finally:
        control.close()


def duration(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> timedelta | None:
    """Parse a duration such as 90s or 7d; the callback of an option."""
    if text is None:
        return None
    found = _DURATION.match(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 45m, 12h or 30d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows under the names of their columns."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(width=_TABLE_WIDTH, highlight=False, markup=False, emoji=False).print(table)


def format_time(time: datetime | None, default: str = "") -> str:
    """Format a time in UTC; without one, return `default`."""
    return default if time is None else time.strftime("%Y-%m-%d %H:%M:%SZ")


def channel_json(channel: Channel, *, indent: int | None = None) -> str:
    """Return a channel's metadata, spec and status as JSON."""
    document = {
        "metadata": {
            "name": channel.name,
            "uid": channel.uid,
            "labels": dict(channel.labels),
            "generation": channel.generation,
            "created_at": channel.created_at,
        },
        "spec": {
            "schema": channel.schema.definition,
            "compatibility": channel.compatibility,
            "format": channel.format,
            "partitions": channel.partitions,
            "pinned": channel.pinned,
            "replication": channel.replication,
            "retention": asdict(channel.retention),
            "config": dict(channel.config),
            "mirrored": channel.mirrored,
            "idle_ms": None if channel.idle is None else channel.idle // timedelta(milliseconds=1),
            "topic": {"name": channel.status.topic.name} if channel.adopted else None,
        },
        "status": asdict(channel.status),
    }
    return json.dumps(document, indent=indent, ensure_ascii=False, default=datetime.isoformat)
