"""`sluiceway export`: writes channels as documents for `sluiceway apply`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from sluiceway.rest.transport import Transport, channel_path
from sluiceway_gateway.cli import entry
from sluiceway_gateway.cli.documents import document_of, list_channels
from sluiceway_gateway.cli.entry import gateway_at, gateway_option, waiting_for


def dump_document(document: Mapping[str, Any], *, as_json: bool) -> str:
    """Return the text of a document, with a trailing line break."""
    if as_json:
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    text: str = yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True, width=100, default_flow_style=False
    )
    return text


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--selector", "-l", help="Label selector, such as team=ops,stage!=test.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Format of the documents.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a file per channel to this folder, instead of standard output.",
)
@gateway_option
def export(
    names: tuple[str, ...],
    selector: str | None,
    format_: str,
    output: Path | None,
    url: str | None,
) -> None:
    """Write channels as documents for `apply`. Applying them unchanged changes nothing.

    Without NAME and selector, exports all channels that the token can see.
    """
    if names and selector is not None:
        raise click.UsageError("Give names or a selector, not both.")
    transport = Transport(url, timeout_s=entry.TIMEOUT_S)
    try:
        with waiting_for(gateway_at(url)):
            found = list(_resources(transport, dict.fromkeys(names), selector))
    finally:
        transport.close()
    texts: dict[str, str] = {}
    for each in found:
        name = each["metadata"]["name"]
        if each["status"]["phase"] == "deleting":
            click.echo(f"sluiceway: the channel {name} is being deleted; left out", err=True)
        else:
            texts[name] = dump_document(document_of(each), as_json=format_ == "json")
    if not texts:
        click.echo("sluiceway: there is no such channel; nothing was written", err=True)
    if output is None:
        separator = "---\n" if format_ == "yaml" else ""
        click.echo(separator.join(texts.values()), nl=False)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (output / f"{name}.{format_}").write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(
            f"{error.filename} cannot be written: {error.strerror}; give another folder"
        ) from None


def _resources(
    transport: Transport, names: Iterable[str], selector: str | None
) -> Iterator[dict[str, Any]]:
    if names:
        for name in names:
            yield transport.request("GET", channel_path(name)).json()
    else:
        yield from list_channels(transport, selector)


__all__ = ["dump_document", "export"]
