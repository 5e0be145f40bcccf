"""`sluiceway channels`: looking after channels through the gateway."""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import IO, Any, TypeVar

import click

from sluiceway import Gateway, Retention
from sluiceway.channel import Channel
from sluiceway.errors import SluicewayTimeout
from sluiceway.rest.channels import Control
from sluiceway.rest.endpoint_models import Endpoint
from sluiceway.rest.transport import Transport
from sluiceway_gateway.cli.format import described, duration, print_table
from sluiceway_gateway.cli.status import status

#: How long to go on asking a gateway that does not answer; people wait for less than programs.
TIMEOUT_S = 10.0
#: How often to say who is waited for.
_TOLD_EVERY_S = 10.0
_COMPATIBILITY = click.Choice(["none", "backward", "forward", "full"])
_FORMAT = click.Choice(["avro", "arrow", "bytes"])
_MIRRORED = "Write groups' positions to Kafka's own group offsets too."
_F = TypeVar("_F", bound=Callable[..., Any])


def gateway_option(function: _F) -> _F:
    """Add the option that names the gateway."""
    return click.option(
        "--url", help="The gateway.  [default: SLUICEWAY_URL, or http://127.0.0.1:8900]"
    )(function)


@click.group()
def channels() -> None:
    """List, show, create, update, close, forget, delete channels, dismiss their failed writers."""


@channels.command("list")
@click.option("--selector", "-l", help="Labels to choose by: team=ops,stage!=test")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@gateway_option
def list_(selector: str | None, as_json: bool, url: str | None) -> None:
    """List the channels that the token may see, by name."""
    with Gateway(url, timeout_s=TIMEOUT_S) as gateway:
        found = gateway.channels(selector)
        if as_json:
            for each in found:
                click.echo(json.dumps(described(each)))
            return
        print_table(
            ("NAME", "PHASE", "FORMAT", "PARTITIONS", "CREATED", "LABELS"),
            [
                (
                    each.name,
                    each.status.phase,
                    each.format,
                    str(each.status.topic.partitions or each.partitions),
                    each.created_at.strftime("%Y-%m-%d %H:%M:%SZ"),
                    ",".join(f"{key}={value}" for key, value in sorted(each.labels.items())),
                )
                for each in found
            ],
        )


@channels.command()
@click.argument("name")
@gateway_option
def show(name: str, url: str | None) -> None:
    """Show the channel NAME as JSON."""
    with _found(name, url) as channel:
        click.echo(json.dumps(described(channel), indent=2, ensure_ascii=False))


channels.add_command(gateway_option(status))


@channels.command()
@click.argument("name")
@click.option("--schema", type=click.File(encoding="utf-8"), help="Avro JSON; - reads stdin.")
@click.option("--topic", help="Adopt this topic of Kafka's: it is never deleted or changed.")
@click.option("--compatibility", type=_COMPATIBILITY, help="[default: backward]")
@click.option("--partitions", type=int, help="[default: 1]")
@click.option("--format", "format_", type=_FORMAT, help="[default: avro]")
@click.option("--pinned", is_flag=True, default=None, help="Never change the partitions.")
@click.option("--replication", type=int, help="Copies.  [default: the broker's]")
@click.option("--retention-ms", type=int, help="How long records are kept; -1 for ever.")
@click.option("--retention-bytes", type=int, help="How much of a partition is kept.")
@click.option("--mirrored", is_flag=True, default=None, help=_MIRRORED)
@click.option("--idle", callback=duration, help="Remove it when unused for so long twice: 7d.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--config", "config", multiple=True, metavar="KEY=VALUE", help="Topic settings.")
@gateway_option
def create(
    name: str,
    schema: IO[str] | None,
    topic: str | None,
    compatibility: str | None,
    partitions: int | None,
    format_: str | None,
    pinned: bool | None,
    replication: int | None,
    retention_ms: int | None,
    retention_bytes: int | None,
    mirrored: bool | None,
    idle: timedelta | None,
    labels: tuple[str, ...],
    config: tuple[str, ...],
    url: str | None,
) -> None:
    """Create the channel NAME and wait until it is ready; one that is there is left as it is."""
    if schema is None and topic is None and format_ != "bytes":
        raise click.UsageError(
            "Missing option '--schema': a channel needs one, unless its format is "
            "bytes, or it adopts a topic that another channel had."
        )
    retention = None
    if retention_ms is not None or retention_bytes is not None:
        retention = Retention(ms=retention_ms, bytes=retention_bytes)
    with (
        warnings.catch_warnings(record=True) as differences,
        Gateway(url, timeout_s=TIMEOUT_S) as gateway,
    ):
        warnings.simplefilter("always")
        channel = gateway.channel(
            name,
            None if schema is None else schema.read(),
            topic=topic,
            compatibility=compatibility,
            partitions=partitions,
            format=format_,
            pinned=pinned,
            replication=replication,
            retention=retention,
            mirrored=mirrored,
            idle=idle,
            labels=_pairs(labels, "--label"),
            config=_pairs(config, "--config"),
        )
    for each in differences:
        click.echo(f"sluiceway: {each.message}", err=True)
    click.echo(f"channel {channel.name} is ready, its topic is {channel.status.topic.name}")


@channels.command()
@click.argument("name")
@click.option("--schema", type=click.File(encoding="utf-8"), help="Avro JSON; - reads stdin.")
@click.option("--compatibility", type=_COMPATIBILITY, help="The rule for new versions.")
@click.option("--partitions", type=int, help="More than there are.")
@click.option("--pinned/--not-pinned", default=None, help="Whether they may never change.")
@click.option("--mirrored/--not-mirrored", default=None, help=_MIRRORED)
@click.option("--idle", callback=duration, help="As when it is created; 0s keeps it for ever.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Replaces all labels.")
@gateway_option
def update(
    name: str,
    schema: IO[str] | None,
    compatibility: str | None,
    partitions: int | None,
    pinned: bool | None,
    mirrored: bool | None,
    idle: timedelta | None,
    labels: tuple[str, ...],
    url: str | None,
) -> None:
    """Change the channel NAME; another schema becomes its newest version."""
    with _found(name, url) as channel:
        channel.update(
            schema=None if schema is None else schema.read(),
            compatibility=compatibility,
            partitions=partitions,
            pinned=pinned,
            mirrored=mirrored,
            idle=idle,
            labels=_pairs(labels, "--label"),
        )
        click.echo(f"channel {name} is at generation {channel.generation}")


@channels.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@gateway_option
def schemas(name: str, as_json: bool, url: str | None) -> None:
    """List the versions of NAME's schema, the oldest first."""
    with _found(name, url) as channel:
        found = channel.schemas()
    if as_json:
        for each in found:
            shown = {"version": each.version, "id": each.id, "definition": each.definition}
            click.echo(json.dumps(shown))
        return
    print_table(
        ("VERSION", "ID", "SINCE", "FIELDS"),
        [
            (
                str(each.version),
                str(each.id),
                each.created_at.strftime("%Y-%m-%d %H:%M:%SZ") if each.created_at else "",
                ", ".join(field["name"] for field in each.definition["fields"]),
            )
            for each in found
        ],
    )


@channels.command()
@click.argument("name")
@click.option("--wait", is_flag=True, help="Until all is written and read.")
@click.option("--force", is_flag=True, help="At once, whoever writes or reads.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@gateway_option
def close(name: str, wait: bool, force: bool, yes: bool, url: str | None) -> None:
    """Let nobody come to write to the channel NAME any more; its records stay readable.

    Those who write are asked to finish, and readers go on: it is closed when they have all.
    """
    with _found(name, url) as channel:
        if not (yes or _confirmed(f"Close the channel {name} to writers, for good?")):
            raise click.ClickException("nothing was closed; --yes closes without asking")
        channel.close(force=force)
        while wait and channel.status.phase != "closed":
            click.echo(f"sluiceway: {channel.status.explain()}", err=True)
            with suppress(SluicewayTimeout):
                channel.wait_until_closed(_TOLD_EVERY_S)
        if channel.status.phase == "closed":
            click.echo(f"channel {name} is closed")
        else:
            click.echo(f"channel {name} is closing: {channel.status.explain()}")


@channels.command()
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@gateway_option
def forget(name: str, yes: bool, url: str | None) -> None:
    """Delete the channel NAME and leave its topic and records in Kafka."""
    with _found(name, url) as channel:
        if not (yes or _confirmed(f"Forget the channel {name}; its topic stays?")):
            raise click.ClickException("nothing was forgotten; --yes forgets without asking")
        topic = channel.status.topic.name
        channel.delete(keep_topic=True)
    click.echo(f"channel {name} is forgotten; `channels create --topic {topic}` adopts its topic")


@channels.command()
@click.argument("name")
@click.option("--keep-topic", is_flag=True, help="Leave the topic and its records in Kafka.")
@click.option("--force", is_flag=True, help="Though it is in use, or not all of it was read.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@gateway_option
def delete(name: str, keep_topic: bool, force: bool, yes: bool, url: str | None) -> None:
    """Delete the channel NAME with its topic and all records."""
    with _found(name, url) as channel:
        what = "; its topic stays" if keep_topic else " with all its records"
        if not (yes or _confirmed(f"Delete the channel {name}{what}?")):
            raise click.ClickException("nothing was deleted; --yes deletes without asking")
        channel.delete(keep_topic=keep_topic, force=force)
    click.echo(f"channel {name} is deleted")


@channels.command()
@click.argument("name")
@click.option("--failed", is_flag=True, help="All writers that failed.")
@click.option("--lost", is_flag=True, help="All writers that are lost: if they live, they stop.")
@click.option("--endpoint", "ids", multiple=True, metavar="ID", help="This one. Repeatable.")
@gateway_option
def dismiss(name: str, failed: bool, lost: bool, ids: tuple[str, ...], url: str | None) -> None:
    """Let readers of NAME take writers that failed or were lost for finished.

    What they wrote stays readable, and readers raise no error for them any more. Without an option
    it lists them, and dismisses nobody.
    """
    with _found(name, url) as channel:
        present = channel.endpoints()
        over = [each for each in present if each.role == "writer" and _is_over(each)]
        chosen = [each for each in over if failed and each.state == "error"]
        chosen += [each for each in over if lost and each.state != "error"]
        chosen += [_named(present, each, name) for each in ids]
        if not (failed or lost or ids):
            if not over:
                click.echo(f"no writer of the channel {name} failed or is lost")
                return
            _print_ended(over)
            raise click.ClickException(
                "nobody was dismissed; choose them by --failed, --lost or --endpoint ID"
            )
        for each in dict.fromkeys(each.id for each in chosen):
            channel.dismiss(each)
            click.echo(f"endpoint {each} is dismissed")
        if not chosen:
            what = " or ".join(w for w, on in (("failed", failed), ("is lost", lost)) if on)
            click.echo(f"no writer of the channel {name} {what}")


def _is_over(endpoint: Endpoint) -> bool:
    return endpoint.state != "closed" and not endpoint.lives


def _named(present: Iterable[Endpoint], id_: str, name: str) -> Endpoint:
    found = next((each for each in present if each.id == id_), None)
    if found is None:
        raise click.ClickException(
            f"the channel {name} has no endpoint {id_}, or it was dismissed before"
        )
    if not _is_over(found):
        raise click.ClickException(
            f"{found.place} ({id_}) is {found.state} and {found.health}: only an endpoint that "
            "failed or is lost can be dismissed"
        )
    return found


def _failed_at(endpoint: Endpoint) -> str:
    if endpoint.state != "error" or endpoint.changed_at is None:
        return ""
    return endpoint.changed_at.strftime("%Y-%m-%d %H:%M:%SZ")


def _print_ended(ended: Iterable[Endpoint]) -> None:
    print_table(
        ("ENDPOINT", "WRITER", "STATE", "SINCE", "CAUSE"),
        [
            (
                each.id,
                each.place,
                "failed" if each.state == "error" else "lost",
                _failed_at(each),
                (each.cause or "") + (" (wrote nothing)" if each.wrote_nothing else ""),
            )
            for each in ended
        ],
    )


@contextmanager
def _found(name: str, url: str | None) -> Iterator[Channel]:
    """Give the channel as it stands, ready or not."""
    control = Control(Transport(url, timeout_s=TIMEOUT_S))
    try:
        yield Channel(control, control.channel(name))
    finally:
        control.close()


def _confirmed(question: str) -> bool:
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


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
