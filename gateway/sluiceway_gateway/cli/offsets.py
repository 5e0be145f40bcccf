"""`sluiceway offsets`: take over the committed offsets of Kafka's groups."""

from collections.abc import Iterator

import click

from sluiceway.api.endpoints import OffsetsImport, PartitionImport
from sluiceway_gateway.cli.entry import (
    confirm,
    gateway_at,
    gateway_option,
    print_table,
    waiting_for,
    yes_option,
)
from sluiceway_gateway.cli.status import open_channel


@click.group()
def offsets() -> None:
    """Take over the committed offsets of Kafka's groups."""


@offsets.command("import")
@click.argument("channel")
@click.option("--group", "groups", multiple=True, required=True, help="Group; can be repeated.")
@click.option(
    "--from-kafka",
    is_flag=True,
    required=True,
    help="Take the offsets that Kafka's own groups have committed in the channel's topic.",
)
@click.option("--kafka-group", help="Name of the group in Kafka, if it is another one.")
@yes_option
@gateway_option
def import_(
    channel: str,
    groups: tuple[str, ...],
    from_kafka: bool,  # noqa: ARG001 - the only source, which a user shall name
    kafka_group: str | None,
    yes: bool,
    url: str | None,
) -> None:
    """Store the offsets of Kafka's groups as positions of the groups of CHANNEL.

    Shows what becomes of each partition before it asks. Positions never move back, and a repeat
    changes nothing. Stop the groups' consumers before.
    """
    if kafka_group is not None and len(groups) > 1:
        raise click.UsageError("--kafka-group is the name of one group: give one --group.")
    with open_channel(channel, url) as opened:
        with waiting_for(gateway_at(url)):
            plans = [opened.plan_import(group, kafka_group=kafka_group) for group in groups]
        print_table(
            ("GROUP", "PARTITION", "IN KAFKA", "HERE", "AFTER", "LAG", "NOTE"),
            [row for plan in plans for row in _rows(plan)],
        )
        for plan in plans:
            if plan.refusal is not None:
                raise click.ClickException(plan.refusal.detail)
        if not any(plan.changes for plan in plans):
            click.echo("there is nothing to import")
            return
        if not yes:
            confirm("Import these positions?", "import", "imported")
        with waiting_for(gateway_at(url)):
            for group in groups:
                opened.import_offsets(group, kafka_group=kafka_group)
    click.echo(f"imported the positions of {', '.join(groups)} in the channel {channel}")


def _rows(plan: OffsetsImport) -> Iterator[tuple[str, ...]]:
    for partition in plan.partitions:
        yield (
            plan.group,
            str(partition.partition),
            "" if partition.kafka_offset is None else str(partition.kafka_offset),
            "" if partition.before is None else str(partition.before.offset),
            "" if partition.after is None else str(partition.after.offset),
            "" if partition.lag_messages is None else str(partition.lag_messages),
            _note(partition),
        )


def _note(partition: PartitionImport) -> str:
    if partition.result == "absent":
        return "no offset in Kafka"
    if partition.result == "kept":
        return "kept: read as far here"
    if partition.expired_messages:
        return f"{partition.expired_messages} messages have expired unread"
    return ""
