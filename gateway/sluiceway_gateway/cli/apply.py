"""`sluiceway apply` and `export`: channels from files, after showing a plan, and as files.

The gateway computes the plan by dry runs, so the plan has its real refusals. Every change is
conditional on the planned state (`If-Match` or `If-None-Match`): if somebody else has changed the
channel since, the run stops.
"""

import json
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import yaml

from sluiceway.api.arguments import channel_path
from sluiceway.api.channels import Control
from sluiceway.api.models import ChannelResource
from sluiceway.api.transport import Transport
from sluiceway.errors import (
    ChannelNotFound,
    GatewayError,
    GatewayUnavailable,
    IncompatibleGateway,
    SluicewayError,
    Unauthenticated,
)
from sluiceway.schema import Schema
from sluiceway.schema.compatibility import possible_renames
from sluiceway_gateway.cli import entry
from sluiceway_gateway.cli.documents import (
    Document,
    Source,
    document_of,
    document_schema,
    read_documents,
)
from sluiceway_gateway.cli.entry import (
    confirm,
    gateway_at,
    gateway_option,
    json_text,
    message_of,
    printable,
    waiting_for,
    yes_option,
)

#: Exit status of a dry run that found something to change.
WOULD_CHANGE = 2
_DRY = {"dry_run": "true"}


class StepKind(StrEnum):
    """The planned action for a channel."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    KEEP = "leave as it is"
    REFUSED = "refused"


_SHOWN = {
    StepKind.CREATE: ("+", "to create"),
    StepKind.CHANGE: ("~", "to change"),
    StepKind.DELETE: ("-", "to delete"),
    StepKind.KEEP: ("=", "unchanged"),
    StepKind.REFUSED: ("!", "refused"),
}
"""The sign of a step, and the word for its number."""
_DONE = {StepKind.CREATE: "created", StepKind.CHANGE: "changed", StepKind.DELETE: "being deleted"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """The plan for one channel; `send` makes the change, conditional on the planned state."""

    name: str
    kind: StepKind
    lines: tuple[str, ...] = ()
    """Changes of fields, or reasons of the refusal."""
    send: Callable[[], object] | None = None


class _Apply(click.Command):
    """A command that exits with 1 for wrong usage, because 2 means pending changes."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **extra)
        except click.UsageError as error:
            raise _misused(error.format_message()) from None


def _misused(message: str) -> click.ClickException:
    return click.ClickException(f"{message} See `sluiceway apply --help`.")


@click.command(cls=_Apply)
@click.option(
    "--file",
    "-f",
    "paths",
    multiple=True,
    metavar="PATH",
    help="YAML or JSON file, folder, or - for standard input; can be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only show the plan; exit with 2 if it has changes.")
@click.option(
    "--prune", is_flag=True, help="Delete channels that the selector matches and no file contains."
)
@click.option("--selector", "-l", help="Label selector of --prune, such as team=ops.")
@click.option(
    "--force", is_flag=True, help="Let --prune delete channels in use or with messages too."
)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of documents, for editors.")
@yes_option
@gateway_option
def apply(
    paths: tuple[str, ...],
    dry_run: bool,
    prune: bool,
    selector: str | None,
    force: bool,
    schema: bool,
    yes: bool,
    url: str | None,
) -> int:
    """Create and change channels from files, after showing the plan.

    Nothing is changed if the gateway refuses any part. Exits with 0 if all channels match the
    files, with 1 after a refusal or failure, and with 2 if a dry run has found changes.
    """
    if schema:
        click.echo(json.dumps(document_schema(), indent=2))
        return 0
    if not paths:
        raise _misused("Missing option '-f'.")
    if prune != bool(selector and selector.strip()):
        raise _misused("--prune needs a selector (-l), and the selector is for --prune only.")
    if force and not prune:
        raise _misused("--force is for --prune only.")
    documents = read_documents(paths)
    with closing(Transport(url, timeout_s=entry.retry_s())) as transport:
        with waiting_for(gateway_at(url)):
            steps = [_planned(transport, document) for document in documents]
            if prune:
                named = {document.name for document in documents}
                steps += _pruned(transport, named, selector, force=force)
        _show(steps)
        refused = sum(step.kind is StepKind.REFUSED for step in steps)
        if refused:
            raise click.ClickException(
                f"{refused} of {len(steps)} channels are refused, see above; nothing was changed"
            )
        changes = [step for step in steps if step.send is not None]
        if dry_run or not changes:
            return WOULD_CHANGE if changes else 0
        if not yes:
            _ask(len(changes), from_stdin="-" in paths)
        _carry_out(changes)
    return 0


def _ask(count: int, *, from_stdin: bool) -> None:
    if from_stdin or not sys.stdin.isatty():
        raise click.ClickException(
            "nothing was changed: cannot ask for confirmation without a terminal; use --yes"
        )
    confirm(
        f"Make these {count} changes?" if count > 1 else "Make this change?", "change", "changed"
    )


def _planned(transport: Transport, document: Document) -> Step:
    """Return the plan for one document, from the gateway's dry run."""
    path = channel_path(document.name)
    try:
        before, guard = _read(transport, document.name)
        response = transport.request("PUT", path, params=_DRY, headers=guard, body=document.body)
        after = transport.parse(ChannelResource, response)
    except GatewayError as error:
        return _refused(document.name, error, document.source)

    def send() -> None:
        transport.request("PUT", path, headers=guard | _key(), body=document.body)

    if before is None:
        fields = _fields(document_of(after.document))
        lines = tuple(f"+ {path}: {value}" for path, value in fields.items())
        return Step(name=document.name, kind=StepKind.CREATE, lines=lines, send=send)
    if before.generation == after.generation:
        return Step(name=document.name, kind=StepKind.KEEP)
    return Step(
        name=document.name,
        kind=StepKind.CHANGE,
        lines=(
            *_differences(before.document, after.document),
            *(f"warning: {rename}" for rename in _renames(before, after)),
        ),
        send=send,
    )


def _renames(before: ChannelResource, after: ChannelResource) -> tuple[str, ...]:
    schemas = (Schema.parse(channel.schema_definition) for channel in (after, before))
    return possible_renames(*schemas)


def _pruned(
    transport: Transport, named: set[str], selector: str | None, *, force: bool
) -> Iterator[Step]:
    """Yield the deletion of each channel that matches and is in no file."""
    for listed in list(Control(transport).channels(selector)):
        if listed.name not in named and listed.status.phase != "deleting":
            yield _deletion(transport, listed.name, force=force)


def _deletion(transport: Transport, name: str, *, force: bool) -> Step:
    path = channel_path(name)
    try:
        channel, guard = _read(transport, name)
        if channel is None:
            return Step(name=name, kind=StepKind.KEEP, lines=("deleted meanwhile",))
        params = {"uid": channel.uid} | ({"force": "true"} if force else {"if_empty": "true"})
        transport.request("DELETE", path, params=params | _DRY, headers=guard)
    except GatewayError as error:
        return _refused(name, error)

    def send() -> None:
        transport.request("DELETE", path, params=params, headers=guard | _key())

    fate = "stays" if channel.adopted_topic is not None else "is deleted too"
    lines = (f"its topic {channel.status.topic.name} {fate}",)
    return Step(name=name, kind=StepKind.DELETE, lines=lines, send=send)


def _read(transport: Transport, name: str) -> tuple[ChannelResource | None, dict[str, str]]:
    """Return the channel, None without one, and the precondition of a change of this state."""
    try:
        channel = Control(transport).channel(name)
    except ChannelNotFound:
        return None, {"If-None-Match": "*"}
    # An empty tag, where a proxy has removed it, matches no state.
    return channel, {"If-Match": channel.etag or ""}


def _key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


def _refused(name: str, error: GatewayError, source: Source | None = None) -> Step:
    """Return the step of a refusal; raises errors that do not concern this channel."""
    aborts = isinstance(error, GatewayUnavailable | Unauthenticated | IncompatibleGateway)
    if aborts or error.status is None or error.status >= 500:
        raise error
    # The error itself explains headers of HTTP.
    what = _CHANGING if error.code == _PRECONDITION_FAILED else message_of(error)
    lines = [f"{error.code}: {what}"]
    if source is not None and not error.errors:
        lines.append(f"at {source.place()}")
    elif source is not None:
        pointers = [violation["pointer"] for violation in error.errors]
        lines += [
            f"at {source.place(pointer)}: {source.explained(pointer)}" for pointer in pointers
        ]
    return Step(name=name, kind=StepKind.REFUSED, lines=tuple(lines))


def _fields(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a document's labels and spec by their paths, as JSON."""
    values: dict[str, str] = {}
    _collect(values, "labels", document["metadata"].get("labels", {}))
    for name, value in document["spec"].items():
        _collect(values, name, value)
    return values


def _collect(values: dict[str, str], path: str, value: Any) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            _collect(values, f"{path}.{name}", part)
    elif (
        isinstance(value, list)
        and value
        and all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in value)
    ):
        for item in value:
            rest = {name: part for name, part in item.items() if name != "name"}
            shown = rest["type"] if rest.keys() == {"type"} else rest
            values[f"{path}.{item['name']}"] = json.dumps(shown)
    else:
        values[path] = json.dumps(value)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line per field that differs."""
    was, becomes = _fields(before), _fields(after)
    for path in dict.fromkeys((*was, *becomes)):
        if path not in becomes:
            yield f"- {path}: {was[path]}"
        elif path not in was:
            yield f"+ {path}: {becomes[path]}"
        elif was[path] != becomes[path]:
            yield f"~ {path}: {was[path]} -> {becomes[path]}"
    if was == becomes:
        yield "~ schema: the order of its fields"


def _show(steps: Sequence[Step]) -> None:
    for step in steps:
        click.echo(f"{_SHOWN[step.kind][0]} {step.name}: {step.kind}")
        for line in step.lines:
            click.echo(f"    {printable(line)}")
    numbers = Counter(step.kind for step in steps)
    counts = [f"{numbers[kind]} {word}" for kind, (_, word) in _SHOWN.items()]
    click.echo(f"plan: {', '.join(counts)}")


def _carry_out(steps: Sequence[Step]) -> None:
    """Make the changes in order. Raises ClickException at the first failure, naming the rest."""
    for index, step in enumerate(steps):
        assert step.send is not None  # noqa: S101 - only these are carried out
        try:
            step.send()
        except (SluicewayError, KeyboardInterrupt) as error:
            rest = _state_of(steps, index)
            if isinstance(error, KeyboardInterrupt):
                click.echo(f"sluiceway: {step.name}: interrupted, {_UNKNOWN}. {rest}", err=True)
                raise
            raise click.ClickException(f"{step.name}: {_reason(error)}. {rest}") from error
        click.echo(f"channel {step.name} is {_DONE[step.kind]}")


_PRECONDITION_FAILED = "precondition_failed"
_CHANGING = "somebody else creates, changes or deletes it at the same time; apply again"
_UNKNOWN = "it may or may not be done"


def _reason(error: SluicewayError) -> str:
    if isinstance(error, GatewayError) and error.code == _PRECONDITION_FAILED:
        return "changed by somebody else since the plan, and not changed again"
    text = printable(message_of(error).rstrip("."))
    if isinstance(error, GatewayUnavailable):
        return f"{_UNKNOWN}: {text}"
    return f"refused: {text}"


def _state_of(steps: Sequence[Step], index: int) -> str:
    done = ", ".join(step.name for step in steps[:index]) or "none"
    rest = ", ".join(step.name for step in steps[index + 1 :]) or "none"
    return f"Done: {done}; not started: {rest}. Apply again for a new plan"


def dump_document(document: Mapping[str, Any], *, as_json: bool) -> str:
    """Return the text of a document, with a trailing line break."""
    if as_json:
        return json_text(document, indent=2) + "\n"
    # PyYAML would write Unicode's line breaks as they are, and read them as spaces.
    breaks = any(char in json.dumps(document, ensure_ascii=False) for char in "\x85\u2028\u2029")
    text: str = yaml.safe_dump(
        document, sort_keys=False, allow_unicode=not breaks, width=100, default_flow_style=False
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
    with (
        closing(Transport(url, timeout_s=entry.retry_s())) as transport,
        waiting_for(gateway_at(url)),
    ):
        control = Control(transport)
        named = [control.channel(name) for name in dict.fromkeys(names)]
        channels = named or list(control.channels(selector))
    texts: dict[str, str] = {}
    for channel in channels:
        if channel.status.phase == "deleting":
            click.echo(
                f"sluiceway: the channel {channel.name} is being deleted; left out", err=True
            )
        else:
            document = document_of(channel.document)
            texts[channel.name] = dump_document(document, as_json=format_ == "json")
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
        # A write that fails has no file name.
        raise click.ClickException(
            f"{error.filename or output} cannot be written: {error.strerror}; give another folder"
        ) from None
