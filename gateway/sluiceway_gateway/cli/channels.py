"""`sluiceway channels`: create, show, change and delete channels through the gateway."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from typing import IO, Any

import click

from sluiceway import Gateway, Heartbeat, Retention
from sluiceway.api.ledger import CommitPage, LedgerEvent, OpenBatch, Repair
from sluiceway.errors import SluicewayTimeout
from sluiceway.schema import Schema
from sluiceway_gateway.cli import entry
from sluiceway_gateway.cli.actions import abort, reset, resize
from sluiceway_gateway.cli.entry import (
    confirm,
    duration,
    format_time,
    gateway_at,
    gateway_option,
    json_text,
    print_table,
    waiting_for,
    yes_option,
)
from sluiceway_gateway.cli.search import search
from sluiceway_gateway.cli.status import (
    dismiss,
    open_channel,
    open_control,
    repair,
    status,
    transfer,
)
from sluiceway_gateway.core.clock import system_clock

#: Interval at which `close --wait` reports progress.
_REPORT_EVERY_S = 10.0
_COMPATIBILITY = click.Choice(["none", "backward", "forward", "full"])
_FORMAT = click.Choice(["avro", "arrow", "json", "protobuf", "bytes"])
_SCHEMA = click.option(
    "--schema",
    type=click.File(encoding="utf-8"),
    help="Avro schema as JSON, or a .proto file; - reads Avro from stdin.",
)
_MESSAGE = click.option(
    "--message", help="Full name of the records' message in a .proto file that has several."
)
_JSON_LINES = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line."
)
_PATIENCE = click.option(
    "--patience",
    type=click.FloatRange(0.3, 3600),
    metavar="SECONDS",
    help="Time without a heartbeat after which a reader or writer is lost; 120 in a new channel.",
)
_INTERVAL = click.option(
    "--heartbeat-interval",
    "interval",
    type=click.FloatRange(0.1, 60),
    metavar="SECONDS",
    help="Time between heartbeats; 2 in a new channel, and at most a sixth of the patience.",
)
_MIRRORED = "Also commit the groups' positions to Kafka's consumer groups."


@click.group()
def channels() -> None:
    """Create, show, change and delete channels."""


@channels.command("list")
@click.option("--selector", "-l", help="Label selector, such as team=ops,stage!=test.")
@_JSON_LINES
@gateway_option
def list_(selector: str | None, as_json: bool, url: str | None) -> None:
    """List the channels that the token can see."""
    with open_control(url) as control, waiting_for(gateway_at(url)):
        visible = list(control.channels(selector))
    if as_json:
        for channel in visible:
            click.echo(json_text(channel.document))
        return
    print_table(
        ("NAME", "PHASE", "FORMAT", "DELIVERY", "PARTITIONS", "CREATED", "LABELS"),
        [
            (
                channel.name,
                channel.status.phase,
                channel.format,
                channel.delivery,
                str(channel.status.topic.partitions or channel.partitions),
                format_time(channel.created_at),
                ",".join(f"{key}={value}" for key, value in sorted(channel.labels.items())),
            )
            for channel in visible
        ],
    )


@contextmanager
def _channel_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Collect warnings about a channel; those of libraries, such as DeprecationWarning, are not."""
    with warnings.catch_warnings(record=True) as collected:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        yield collected


@channels.command()
@click.argument("name")
@gateway_option
def show(name: str, url: str | None) -> None:
    """Show the channel NAME as JSON."""
    with open_control(url) as control, waiting_for(gateway_at(url)):
        channel = control.channel(name)
    click.echo(json_text(channel.document, indent=2))


channels.add_command(gateway_option(status))
for _command in (search, dismiss, reset, resize, abort, repair, transfer):
    channels.add_command(_command)


@channels.command()
@click.argument("name")
@_SCHEMA
@_MESSAGE
@click.option("--topic", help="Adopt this existing topic; it is never changed or deleted.")
@click.option(
    "--compatibility",
    type=_COMPATIBILITY,
    help="Allowed changes of the schema.  [default: backward]",
)
@click.option("--partitions", type=int, help="Number of partitions.  [default: 1]")
@click.option("--format", "format_", type=_FORMAT, help="Format of messages.  [default: avro]")
@click.option(
    "--pinned", is_flag=True, default=None, help="Forbid changes of the number of partitions."
)
@click.option(
    "--max-partitions",
    type=int,
    help="Let groups that attach grow the channel up to this number without manage.",
)
@click.option("--replication", type=int, help="Replication factor.  [default: the broker's]")
@click.option("--retention-ms", type=int, help="Retention time; -1 keeps records forever.")
@click.option("--retention-bytes", type=int, help="Retained bytes per partition.")
@click.option(
    "--delivery",
    type=click.Choice(["at_least_once", "exactly_once"]),
    help="Guarantee for records; fixed at creation.  [default: at_least_once]",
)
@click.option(
    "--partitioner",
    type=click.Choice(["murmur2", "consistent_random", "fnv1a"]),
    help="Partitions of keys: as Java's, librdkafka's or Sarama's producers; fixed at creation.  "
    "[default: murmur2]",
)
@_PATIENCE
@_INTERVAL
@click.option("--mirrored", is_flag=True, default=None, help=_MIRRORED)
@click.option(
    "--idle",
    callback=duration,
    help="Close it after this time without use, such as 7d; delete it after as long again.",
)
@click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label; can be repeated."
)
@click.option(
    "--config", multiple=True, metavar="KEY=VALUE", help="Topic setting; can be repeated."
)
@gateway_option
def create(
    name: str,
    schema: IO[str] | None,
    message: str | None,
    topic: str | None,
    format_: str | None,
    retention_ms: int | None,
    retention_bytes: int | None,
    patience: float | None,
    interval: float | None,
    labels: tuple[str, ...],
    config: tuple[str, ...],
    url: str | None,
    **spec: Any,
) -> None:
    """Create the channel NAME and wait until it is ready.

    An existing channel is not changed; options that differ from it are reported.
    """
    if schema is None and topic is None and format_ != "bytes":
        raise click.UsageError(
            "Missing option '--schema': a channel needs one unless its format is bytes, "
            "or it adopts the topic of a forgotten channel."
        )
    with (
        _channel_warnings() as differences,
        Gateway(url, timeout_s=entry.retry_s()) as gateway,
        waiting_for(f"{gateway_at(url)} to make the channel {name} ready"),
    ):
        channel = gateway.channel(
            name,
            _schema_of(schema, message),
            topic=topic,
            format=format_,
            retention=_retention(retention_ms, retention_bytes, Retention()),
            heartbeat=_heartbeat(patience, interval, Heartbeat()),
            labels=_pairs(labels, "--label"),
            config=_pairs(config, "--config"),
            **spec,
        )
    for difference in differences:
        click.echo(f"sluiceway: {difference.message}: `sluiceway channels update {name}`", err=True)
    click.echo(f"channel {channel.name} is ready, its topic is {channel.status.topic.name}")


@channels.command()
@click.argument("name")
@_SCHEMA
@_MESSAGE
@click.option("--compatibility", type=_COMPATIBILITY, help="Allowed changes of the schema.")
@click.option("--partitions", type=int, help="Number of partitions; can only grow.")
@click.option(
    "--pinned/--not-pinned",
    default=None,
    help="Forbid or allow changes of the number of partitions.",
)
@click.option(
    "--max-partitions", type=int, help="As for create; 0 lets only manage grow the channel."
)
@_PATIENCE
@_INTERVAL
@click.option("--mirrored/--not-mirrored", default=None, help=_MIRRORED)
@click.option("--idle", callback=duration, help="As for create; 0s keeps it forever.")
@click.option("--retention-ms", type=int, help="Retention time; -1 keeps records forever.")
@click.option("--retention-bytes", type=int, help="Retained bytes per partition.")
@click.option(
    "--config",
    multiple=True,
    metavar="KEY=VALUE",
    help="Topic setting; together they replace all settings.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Label; together they replace all labels.",
)
@gateway_option
def update(
    name: str,
    schema: IO[str] | None,
    message: str | None,
    patience: float | None,
    interval: float | None,
    retention_ms: int | None,
    retention_bytes: int | None,
    config: tuple[str, ...],
    labels: tuple[str, ...],
    url: str | None,
    **spec: Any,
) -> None:
    """Change the channel NAME; a new schema becomes its newest version."""
    with open_channel(name, url) as channel:
        with _channel_warnings() as renames, waiting_for(gateway_at(url)):
            channel.update(
                schema=_schema_of(schema, message),
                heartbeat=_heartbeat(patience, interval, channel.heartbeat),
                retention=_retention(retention_ms, retention_bytes, channel.retention),
                config=_pairs(config, "--config"),
                labels=_pairs(labels, "--label"),
                **spec,
            )
        for rename in renames:
            click.echo(f"sluiceway: {rename.message}", err=True)
        click.echo(f"channel {name} is at generation {channel.generation}")


@channels.command()
@click.argument("name")
@_JSON_LINES
@gateway_option
def schemas(name: str, as_json: bool, url: str | None) -> None:
    """List the schema versions of the channel NAME, oldest first."""
    with open_channel(name, url) as channel, waiting_for(gateway_at(url)):
        versions = channel.schemas()
    if as_json:
        for version in versions:
            shown = {"version": version.version, "id": version.id, "definition": version.definition}
            click.echo(json.dumps(shown))
        return
    print_table(
        ("VERSION", "ID", "SINCE", "FIELDS"),
        [
            (
                str(version.version),
                str(version.id),
                format_time(version.created_at),
                ", ".join(field["name"] for field in version.definition["fields"]),
            )
            for version in versions
        ],
    )


@channels.command()
@click.argument("name")
@click.option("--limit", "-n", type=click.IntRange(1, 1000), default=20, show_default=True)
@_JSON_LINES
@gateway_option
def commits(name: str, limit: int, as_json: bool, url: str | None) -> None:
    """List the last commits of the channel NAME, newest first, and its open batches.

    Open batches hold readers back. `snapshot` takes the number of a commit. A repair removed
    records that Kafka had lost.
    """
    with open_control(url) as control:
        page = control.ledger.commits(name, limit=limit)
    if as_json:
        shown: list[OpenBatch | LedgerEvent | Repair] = [*page.open, *_by_number(page)]
        for item in shown:
            click.echo(json.dumps(asdict(item), default=datetime.isoformat))
        return
    now = system_clock()
    print_table(
        ("NUMBER", "STATE", "KEY", "WRITER", "RECORDS", "TIME", "OPEN FOR"),
        [
            ("", "open", batch.key, batch.owner, "", "", _seconds(now, batch.since))
            for batch in page.open
        ]
        + [_row_of(event) for event in _by_number(page)],
    )


def _by_number(page: CommitPage) -> list[LedgerEvent | Repair]:
    return sorted([*page.events, *page.repairs], key=lambda event: -event.number)


def _row_of(event: LedgerEvent | Repair) -> tuple[str, ...]:
    if isinstance(event, Repair):
        given_up = f"-{sum(lost.messages for lost in event.lost):,}"
        return (str(event.number), "repair", "", event.by, given_up, format_time(event.at), "")
    return (
        str(event.number),
        "reaped" if event.kind == "reap" else event.state,
        event.key,
        event.owner,
        "" if event.records is None else f"{event.records:,}",
        format_time(event.at),
        "" if event.opened_at is None else _seconds(event.at, event.opened_at),
    )


def _seconds(until: datetime, since: datetime) -> str:
    return f"{(until - since).total_seconds():.1f} s"


@channels.command()
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until it is closed.")
@click.option("--force", is_flag=True, help="Close at once, regardless of attached endpoints.")
@yes_option
@gateway_option
def close(name: str, wait: bool, force: bool, yes: bool, url: str | None) -> None:
    """Close the channel NAME to writers; its records stay readable.

    New writers are rejected and attached writers are asked to finish. The channel is closed once
    all groups have read everything.
    """
    with open_channel(name, url) as channel:
        if not yes:
            confirm(f"Close the channel {name} to writers, for good?", "close", "closed")
        with waiting_for(gateway_at(url)):
            channel.close(force=force)
        while wait and channel.status.phase != "closed":
            click.echo(f"sluiceway: {channel.status.explain()}", err=True)
            with suppress(SluicewayTimeout):
                channel.wait_until_closed(_REPORT_EVERY_S)
        if channel.status.phase == "closed":
            click.echo(f"channel {name} is closed")
        else:
            click.echo(f"channel {name} is closing: {channel.status.explain()}")


@channels.command()
@click.argument("name")
@yes_option
@gateway_option
def forget(name: str, yes: bool, url: str | None) -> None:
    """Delete the channel NAME, but not its topic and records in Kafka."""
    with open_channel(name, url) as channel:
        if not yes:
            confirm(f"Forget the channel {name} and keep its topic?", "forget", "forgotten")
        topic = channel.status.topic.name
        with waiting_for(f"{gateway_at(url)} to forget the channel {name}"):
            channel.delete(keep_topic=True)
    click.echo(f"channel {name} is forgotten; `channels create --topic {topic}` adopts its topic")


@channels.command()
@click.argument("name")
@click.option("--keep-topic", is_flag=True, help="Keep the topic and its records in Kafka.")
@click.option("--force", is_flag=True, help="Delete even if it is in use or has unread records.")
@yes_option
@gateway_option
def delete(name: str, keep_topic: bool, force: bool, yes: bool, url: str | None) -> None:
    """Delete the channel NAME with its topic and all records."""
    with open_channel(name, url) as channel:
        topic = "keep its topic" if keep_topic else "all its records"
        if not yes:
            confirm(f"Delete the channel {name} and {topic}?", "delete", "deleted")
        with waiting_for(f"{gateway_at(url)} to delete the channel {name}"):
            channel.delete(keep_topic=keep_topic, force=force)
    click.echo(f"channel {name} is deleted")


def _heartbeat(
    patience_s: float | None, interval_s: float | None, present: Heartbeat
) -> Heartbeat | None:
    """Return the channel's heartbeat; None without either option."""
    if patience_s is None and interval_s is None:
        return None
    timeout_ms = present.timeout_ms if patience_s is None else round(patience_s * 1000)
    if interval_s is not None:
        interval_ms = round(interval_s * 1000)
    else:
        interval_ms = min(present.interval_ms, max(100, timeout_ms // 6))
    if 3 * interval_ms > timeout_ms:
        raise click.UsageError(
            f"--heartbeat-interval {interval_ms / 1000:g} is more than a third of the patience, "
            f"which is {timeout_ms / 1000:g} s: give a larger --patience, or a smaller interval."
        )
    return Heartbeat(interval_ms=interval_ms, timeout_ms=timeout_ms)


def _retention(ms: int | None, size: int | None, present: Retention) -> Retention | None:
    """Return the channel's retention; None without either option."""
    if ms is None and size is None:
        return None
    return Retention(
        ms=present.ms if ms is None else ms, bytes=present.bytes if size is None else size
    )


def _schema_of(file: IO[str] | None, message: str | None) -> str | Schema | None:
    if file is not None and file.name.endswith(".proto"):
        return Schema.from_proto(file.name, message)
    if message is not None:
        raise click.UsageError("--message needs a .proto file as --schema, which has messages.")
    try:
        return None if file is None else file.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"--schema: not UTF-8 at byte {error.start + 1}.") from None


def _pairs(texts: tuple[str, ...], option: str) -> dict[str, str] | None:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} {text!r} is not of the form KEY=VALUE.")
        if key in pairs:
            raise click.UsageError(f"{option} {key} is given twice.")
        pairs[key] = value
    return pairs or None
