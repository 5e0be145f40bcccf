"""`sluiceway channels dismiss`: count failed and lost writers as finished."""

from collections.abc import Iterable

import click

from sluiceway.rest.endpoint_models import Endpoint
from sluiceway_gateway.cli.entry import (
    format_time,
    gateway_at,
    gateway_option,
    print_table,
    waiting_for,
)
from sluiceway_gateway.cli.status import open_channel


@click.command()
@click.argument("name")
@click.option("--failed", is_flag=True, help="Dismiss all failed writers.")
@click.option("--lost", is_flag=True, help="Dismiss all lost writers; any that still runs stops.")
@click.option("--endpoint", "ids", multiple=True, metavar="ID", help="Dismiss it; can be repeated.")
@gateway_option
def dismiss(name: str, failed: bool, lost: bool, ids: tuple[str, ...], url: str | None) -> None:
    """Count failed or lost writers of the channel NAME as finished.

    Readers stop raising errors for them, and what they wrote stays readable. Without an option,
    lists these writers.
    """
    with open_channel(name, url) as channel:
        with waiting_for(gateway_at(url)):
            endpoints = channel.endpoints()
        ended = [each for each in endpoints if each.role == "writer" and _has_failed(each)]
        chosen = [each for each in ended if failed and each.state == "error"]
        chosen += [each for each in ended if lost and each.state != "error"]
        chosen += [_dismissible(endpoints, each, name) for each in ids]
        if not (failed or lost or ids):
            if not ended:
                click.echo(f"no writer of the channel {name} failed or is lost")
                return
            _print_failed(ended)
            raise click.ClickException(
                "no endpoint was dismissed; choose them with --failed, --lost or --endpoint ID"
            )
        for each in dict.fromkeys(each.id for each in chosen):
            with waiting_for(gateway_at(url)):
                channel.dismiss(each)
            click.echo(f"endpoint {each} is dismissed")
        if not chosen:
            states = [word for word, on in (("failed", failed), ("is lost", lost)) if on]
            click.echo(f"no writer of the channel {name} {' or '.join(states)}")


def _has_failed(endpoint: Endpoint) -> bool:
    """Whether it failed or is lost."""
    return endpoint.state != "closed" and not endpoint.lives


def _dismissible(endpoints: Iterable[Endpoint], id_: str, name: str) -> Endpoint:
    found = next((each for each in endpoints if each.id == id_), None)
    if found is None:
        raise click.ClickException(
            f"the channel {name} has no endpoint {id_}, or it was dismissed before"
        )
    if not _has_failed(found):
        raise click.ClickException(
            f"{found.place} ({id_}) is {found.state} and {found.health}: only a failed or lost "
            "endpoint can be dismissed"
        )
    return found


def _print_failed(endpoints: Iterable[Endpoint]) -> None:
    print_table(
        ("ENDPOINT", "WRITER", "STATE", "SINCE", "CAUSE"),
        [
            (
                each.id,
                each.place,
                "failed" if each.state == "error" else "lost",
                format_time(each.changed_at) if each.state == "error" else "",
                (each.cause or "") + (" (wrote nothing)" if each.wrote_nothing else ""),
            )
            for each in endpoints
        ],
    )
