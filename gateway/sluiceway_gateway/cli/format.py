"""Output and input formats of the command line: tables, JSON, durations."""

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sluiceway.channel import Channel

#: Rows are never cut or folded: programs read them too, and a terminal wraps by itself.
_WIDTH = 100_000


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print the rows under their columns' names."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(width=_WIDTH, highlight=False, markup=False, emoji=False).print(table)


def described(channel: Channel) -> dict[str, Any]:
    """Return the channel's metadata, spec and status."""
    return {
        "metadata": {
            "name": channel.name,
            "uid": channel.uid,
            "labels": dict(channel.labels),
            "generation": channel.generation,
            "created_at": channel.created_at.isoformat(),
        },
        "spec": {
            "schema": channel.schema.definition,
            "compatibility": channel.compatibility,
            "format": channel.format,
            "partitions": channel.partitions,
            "pinned": channel.pinned,
            "replication": channel.replication,
            "retention": channel.retention.to_json(),
            "config": dict(channel.config),
            "mirrored": channel.mirrored,
            "idle_ms": None if channel.idle is None else channel.idle // timedelta(milliseconds=1),
            "topic": {"name": channel.status.topic.name} if channel.adopted else None,
        },
        "status": {
            "phase": channel.status.phase,
            "observed_generation": channel.status.observed_generation,
            "conditions": [
                {
                    "type": each.type,
                    "status": each.status,
                    "reason": each.reason,
                    "message": each.message,
                    "last_transition_at": each.last_transition_at.isoformat(),
                }
                for each in channel.status.conditions
            ],
            "topic": {
                "name": channel.status.topic.name,
                "id": channel.status.topic.id,
                "partitions": channel.status.topic.partitions,
            },
        },
    }


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])\Z")


def duration(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> timedelta | None:
    """Read an option's value; the callback of options that take a length of time."""
    if text is None:
        return None
    found = _DURATION.match(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no length of time; write 90s, 45m, 12h or 30d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
