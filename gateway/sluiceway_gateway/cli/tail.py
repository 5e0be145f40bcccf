"""`sluiceway tail`: print the records of a channel as JSON lines."""

import math
from contextlib import ExitStack, suppress
from typing import Any, Literal

import click

from sluiceway import Channel, ChannelReader, Deleted, Gateway
from sluiceway.errors import ChannelNotFound
from sluiceway.records.json_values import json_value
from sluiceway_gateway.cli import entry

_READ_RECORDS = 1000
_READ_TIMEOUT_S = 0.2


@click.command()
@click.argument("name")
@click.option("--from-beginning", is_flag=True, help="Start at the oldest record, not the end.")
@click.option("--number", "-n", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--no-follow", is_flag=True, help="Print the existing records, then stop.")
@click.option("--key", metavar="FIELD", help="The field whose values the keys of deletes are.")
@click.option(
    "--schema-registry",
    metavar="URL|FILE",
    help="The registry whose ids the messages of an adopted topic have.",
)
@click.option("--skip-corrupt", is_flag=True, help="Skip messages that cannot be decoded.")
@entry.gateway_option
def tail(
    name: str,
    from_beginning: bool,
    number: int | None,
    no_follow: bool,
    key: str | None,
    schema_registry: str | None,
    skip_corrupt: bool,
    url: str | None,
) -> None:
    """Print new records of the channel NAME, one JSON object per line; committed ones only.

    Dates and times are ISO 8601 strings, decimals and UUIDs strings, bytes base64, NaN and
    infinities the strings NaN, Infinity and -Infinity. A delete is {"@deleted": KEY}, with the key
    as text, or in base64.
    """
    start: Literal["earliest", "latest"] = "earliest" if from_beginning or no_follow else "latest"
    with Gateway(url, timeout_s=entry.retry_s()) as gateway, ExitStack() as stack:
        with entry.waiting_for(f"{entry.gateway_at(url)} and the channel {name}"):
            channel = _open(gateway, name)
        with entry.waiting_for("Kafka"):
            reader = stack.enter_context(
                channel.reader(
                    until="now" if no_follow else None,
                    start=start,
                    on_corrupt="skip" if skip_corrupt else "raise",
                    deletes=channel.compacted or key is not None,
                    key=key,
                    schema_registry=schema_registry,
                )
            )
        _print(reader, number, "Kafka" if no_follow else f"records of the channel {name}")


def _open(gateway: Gateway, name: str) -> Channel:
    try:
        return gateway.channel(name)
    except ChannelNotFound as error:
        raise click.ClickException(
            f"there is no channel {name!r}; list the channels: `sluiceway channels list`; "
            f"create it: `sluiceway channels create {name} --schema FILE`"
        ) from error


def _print(reader: ChannelReader, number: int | None, awaited: str) -> None:
    """Print up to `number` records, or all until the reader has finished.

    Prints `awaited` once if the first record is late.
    """
    left = math.inf if number is None else number
    notice = ExitStack()
    notice.enter_context(entry.waiting_for(awaited))
    with notice:
        while left and not reader.finished:
            records = reader.read(int(min(left, _READ_RECORDS)), timeout=_READ_TIMEOUT_S)
            if records:
                notice.close()
                click.echo("\n".join(entry.json_text(_line(record)) for record in records))
            left -= len(records)


def _line(record: Any) -> Any:
    if not isinstance(record, Deleted):
        return json_value(record)
    key = record.key
    if isinstance(key, bytes):
        with suppress(UnicodeDecodeError):
            # Numbers have control characters, which nobody can read.
            key = text if (text := key.decode()).isprintable() else key
    return {"@deleted": json_value(key)}
