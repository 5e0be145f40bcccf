"""`sluiceway channels reset`, `resize` and `abort`: actions on groups and batches."""

import re
from collections.abc import Mapping
from datetime import datetime

import click

from sluiceway.api.channels import TopicOffsets
from sluiceway.api.endpoints import Position
from sluiceway.channel import Channel
from sluiceway_gateway.cli.entry import (
    confirm,
    gateway_at,
    gateway_option,
    print_table,
    waiting_for,
    yes_option,
)
from sluiceway_gateway.cli.status import open_control

_OFFSET = re.compile(r"([0-9]{1,6}):([0-9]{1,18})\Z")
_ENDS = ("earliest", "latest")


def zoned_time(
    _context: click.Context, parameter: click.Parameter, text: str | None
) -> datetime | None:
    """Parse a time with its zone; the callback of an option."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} is not a time in ISO 8601 with a zone; write 2026-01-31T12:00:00Z",
            param=parameter,
        )
    return time


def _target(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> str | datetime | None:
    """Parse a target of a reset: an end of the channel, or a time."""
    return text if text in _ENDS else zoned_time(context, parameter, text)


def _offsets(
    _context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[int, int]:
    """Parse offsets by partition."""
    offsets: dict[int, int] = {}
    for text in texts:
        match = _OFFSET.match(text)
        if match is None:
            raise click.BadParameter(
                f"{text!r} is not of the form PARTITION:OFFSET", param=parameter
            )
        if int(match[1]) in offsets:
            raise click.BadParameter(f"partition {match[1]} is given twice", param=parameter)
        offsets[int(match[1])] = int(match[2])
    return offsets


@click.command()
@click.argument("name")
@click.argument("group")
@click.option(
    "--to",
    "target",
    callback=_target,
    metavar="earliest|latest|TIME",
    help="The first record, the end, or the first record of a time such as 2026-01-31T12:00:00Z.",
)
@click.option(
    "--offset",
    "offsets",
    multiple=True,
    callback=_offsets,
    metavar="PARTITION:OFFSET",
    help="Offset of a partition; can be repeated. Other partitions stay.",
)
@click.option("--index", type=click.IntRange(min=0), help="Member of a broadcast group.")
@click.option(
    "--reason", default="reset by the command line", show_default=True, help="For the history."
)
@click.option("--force", is_flag=True, help="Reset despite live members, and fence them.")
@yes_option
@gateway_option
def reset(
    name: str,
    group: str,
    target: str | datetime | None,
    offsets: Mapping[int, int],
    index: int | None,
    reason: str,
    force: bool,
    yes: bool,
    url: str | None,
) -> None:
    """Set the positions of the group GROUP in the channel NAME.

    Shows by partition how many messages will be read again or skipped, and asks.
    """
    if (target is None) == (not offsets):
        raise click.UsageError("Give either --to or --offset.")
    with open_control(url) as control:
        with waiting_for(gateway_at(url)):
            channel = Channel(control, control.channel(name))
            committed = channel.committed(group, index)
            if target is not None:
                since = target if isinstance(target, datetime) else None
                offsets = _offsets_at(target, control.offsets(name, since=since), name)
        _print_plan(offsets, committed)
        if not yes:
            confirm(f"Reset the group {group} of the channel {name}?", "reset", "reset")
        with waiting_for(gateway_at(url)):
            channel.reset(group, offsets, reason=reason, index=index, force=force)
    click.echo(f"group {group} of the channel {name} is reset")


def _offsets_at(target: str | datetime, bounds: TopicOffsets, name: str) -> dict[int, int]:
    if bounds.unavailable:
        partitions = ", ".join(map(str, bounds.unavailable[:10]))
        raise click.ClickException(
            f"Kafka did not return the offsets of partitions {partitions} of the channel {name}: "
            "repeat it when their leaders are back, or reset the others with --offset"
        )
    return {
        partition: offsets.begin_offset if target == "earliest" else offsets.offset
        for partition, offsets in bounds.partitions.items()
    }


def _print_plan(offsets: Mapping[int, int], committed: Mapping[int, Position]) -> None:
    rows = []
    for partition, offset in sorted(offsets.items()):
        before = committed.get(partition)
        rows.append(
            (
                str(partition),
                "none" if before is None else str(before.offset),
                str(offset),
                "" if before is None else _effect(before.offset - offset),
            )
        )
    print_table(("PARTITION", "FROM", "TO", "EFFECT"), rows)
    click.echo()


def _effect(again: int) -> str:
    if again == 0:
        return "unchanged"
    return f"{again:,} read again" if again > 0 else f"{-again:,} skipped"


@click.command()
@click.argument("name")
@click.argument("group")
@click.argument("size", type=click.IntRange(min=1))
@yes_option
@gateway_option
def resize(name: str, group: str, size: int, yes: bool, url: str | None) -> None:
    """Change the size of the group GROUP of the channel NAME to SIZE members.

    Its members stop (fenced) and its positions stay: start its members again with the new size.
    """
    with open_control(url) as control:
        with waiting_for(gateway_at(url)):
            channel = Channel(control, control.channel(name))
        if not yes:
            confirm(f"Resize the group {group} and stop its members?", "resize", "resized")
        with waiting_for(gateway_at(url)):
            channel.resize(group, size)
    click.echo(f"group {group} of the channel {name} has the size {size}")


@click.command()
@click.argument("name")
@click.argument("key")
@click.option(
    "--reason", default="aborted by the command line", show_default=True, help="For the history."
)
@yes_option
@gateway_option
def abort(name: str, key: str, reason: str, yes: bool, url: str | None) -> None:
    """Abort the open batch KEY of the channel NAME, so that readers go on without it.

    None of its records become visible, and its writer is refused. `channels commits NAME` lists
    open batches.
    """
    with open_control(url) as control:
        with waiting_for(gateway_at(url)):
            uid = control.channel(name).uid
            page = control.ledger.commits(name, uid=uid, limit=1, key=key)
        batch = next((batch for batch in page.open if batch.key == key), None)
        if batch is None:
            raise click.ClickException(
                f"the channel {name} has no open batch {key}; list them: "
                f"`sluiceway channels commits {name}`"
            )
        if not yes:
            confirm(f"Abort the open batch {key} of {batch.owner}?", "abort", "aborted")
        with waiting_for(gateway_at(url)):
            control.ledger.abort_open(name, batch.id, uid=uid, cause=reason)
    click.echo(f"batch {key} of the channel {name} is aborted")
