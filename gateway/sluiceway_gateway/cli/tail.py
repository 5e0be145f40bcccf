"""`sluiceway tail`: a channel's records as JSON lines."""

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Literal

import click

from sluiceway import ChannelReader, Gateway
from sluiceway_gateway.cli.channels import TIMEOUT_S, gateway_option

_READ_RECORDS = 1000
_READ_TIMEOUT_S = 0.2
# JSON has no numbers for these; the strings are those that Arrow and Spark read.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


@click.command()
@click.argument("name")
@click.option("--from-beginning", is_flag=True, help="Start with the oldest record.")
@click.option("--number", "-n", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option("--no-follow", is_flag=True, help="Stop at the end of what is there now.")
@click.option("--skip-corrupt", is_flag=True, help="Pass over messages that cannot be decoded.")
@gateway_option
def tail(
    name: str,
    from_beginning: bool,
    number: int | None,
    no_follow: bool,
    skip_corrupt: bool,
    url: str | None,
) -> None:
    """Print the records of the channel NAME as they come, one JSON object a line.

    Times are ISO 8601 and bytes base64; NaN and the infinities are strings.
    """
    start: Literal["earliest", "latest"] = "earliest" if from_beginning or no_follow else "latest"
    with (
        Gateway(url, timeout_s=TIMEOUT_S) as gateway,
        gateway.channel(name).reader(
            until="now" if no_follow else None,
            start=start,
            on_corrupt="skip" if skip_corrupt else "raise",
        ) as reader,
    ):
        _print(reader, number)


def _print(reader: ChannelReader, number: int | None) -> None:
    """Print up to `number` records, or all there will be."""
    left = math.inf if number is None else number
    while left and not reader.finished:
        records = reader.read(int(min(left, _READ_RECORDS)), timeout=_READ_TIMEOUT_S)
        lines = (
            json.dumps(plain(record), ensure_ascii=False, allow_nan=False) for record in records
        )
        if records:
            click.echo("\n".join(lines))
        left -= len(records)


def plain(value: Any) -> Any:
    """Return the value in JSON's own types."""
    match value:
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case datetime() | date():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return _NOT_FINITE[str(value)]
        case _:
            return value
