"""`sluiceway channels status`, `dismiss` and `repair`: writers, readers, lag, halted channels."""

import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain
from typing import Any, TypeVar

import click

from sluiceway.api.channels import Control, watch_status, watch_summaries
from sluiceway.api.endpoints import Endpoint, Role
from sluiceway.api.ledger import RepairPlan
from sluiceway.api.status import ChannelSummary, EndpointCounts, LedgerReport, StatusReport
from sluiceway.api.transport import Transport
from sluiceway.channel import Channel
from sluiceway_gateway.cli import entry
from sluiceway_gateway.cli.entry import (
    confirm,
    format_time,
    gateway_at,
    gateway_option,
    print_table,
    printable,
    waiting_for,
    yes_option,
)

_UNKNOWN = "?"


@click.command()
@click.argument("name", required=False)
@click.option("--watch", "-w", is_flag=True, help="Print again after each change, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def status(name: str | None, watch: bool, as_json: bool, url: str | None) -> None:
    """Show the writers, readers, lag and rates of the channel NAME.

    Without NAME, prints a line per channel. A question mark is an unknown value, and > a lower
    bound.
    """
    with open_control(url) as control:
        if name is None:
            lists: Iterator[tuple[ChannelSummary, ...]]
            if watch:
                lists = watch_summaries(control, sleep=time.sleep)
            else:
                lists = (tuple(summaries) for summaries in [control.statuses()])
            for lines in _announced(lists, url):
                _print([summary.document for summary in lines], watch=watch, as_json=as_json)
                if not as_json:
                    _print_lines(lines)
        else:
            states = watch_status(control, name, sleep=time.sleep)
            reports = states if watch else itertools.islice(states, 1)
            for report in _announced(reports, url):
                _print([report.document], watch=watch, as_json=as_json)
                if not as_json:
                    _print_report(report)


T = TypeVar("T")


def _announced(states: Iterator[T], url: str | None) -> Iterator[T]:
    """Return the states; prints the reason of the wait if the first one is late."""
    with waiting_for(gateway_at(url)):
        first = list(itertools.islice(states, 1))
    return chain(first, states)


def open_control(url: str | None) -> closing[Control]:
    """Return the client's calls to the gateway, closed at the end of a `with` block."""
    return closing(Control(Transport(url, timeout_s=entry.retry_s())))


@contextmanager
def open_channel(name: str, url: str | None) -> Iterator[Channel]:
    """Give the channel, whether it is ready or not."""
    with open_control(url) as control:
        with waiting_for(gateway_at(url)):
            resource = control.channel(name)
        yield Channel(control, resource)


def _print(documents: list[Mapping[str, Any]], *, watch: bool, as_json: bool) -> None:
    """Print JSON, or clear the terminal for the tables that follow."""
    if as_json:
        for document in documents:
            click.echo(json.dumps(document))
    elif watch:
        click.clear()


def _print_lines(lines: Iterable[ChannelSummary]) -> None:
    print_table(
        (
            "NAME",
            "PHASE",
            "WRITERS",
            "READERS",
            "LAG",
            "BEHIND",
            "WRITTEN/S",
            "PROGRESS",
            "PROBLEM",
        ),
        [
            (
                summary.name,
                summary.phase,
                counts_text(summary.writers),
                counts_text(summary.readers),
                number_text(summary.lag_messages),
                seconds_text(summary.lag_seconds, at_least=summary.lag_seconds_at_least),
                number_text(summary.write_rate),
                summary.progress or _UNKNOWN,
                next((problem.code for problem in summary.problems), ""),
            )
            for summary in lines
        ],
    )


def _print_report(report: StatusReport) -> None:
    sampled = report.sampled_at
    when = "not sampled yet" if sampled is None else f"as of {format_time(sampled)}"
    written = f"{number_text(report.write_rate)} messages written/s"
    click.echo(f"channel {report.name} is {report.phase}, {written}, {when}")
    if report.ledger is not None:
        _print_ledger(report.name, report.ledger)
    for problem in report.problems:
        since = "" if problem.since is None else f" (since {format_time(problem.since)})"
        click.echo(f"{problem.severity}: {printable(str(problem))}{since}")
        if problem.advice is not None:
            click.echo(f"  {printable(problem.advice)}")
    if report.groups:
        click.echo()
        print_table(
            ("GROUP", "MEMBERS", "LAG", "RECORDS", "BEHIND", "READ/S", "DRAINED IN", "PROGRESS"),
            [
                (
                    group.name,
                    f"{group.members} of {group.size}" if group.size else str(group.members),
                    number_text(group.lag_messages),
                    number_text(group.lag_records),
                    seconds_text(group.lag_seconds, at_least=group.lag_seconds_at_least),
                    number_text(group.read_rate),
                    seconds_text(group.drain_s),
                    group.progress or _UNKNOWN,
                )
                for group in report.groups
            ],
        )
    endpoints = [
        *((writer, "", "") for writer in report.writers),
        *(
            (
                reader.endpoint,
                number_text(reader.lag_messages),
                reader.progress or (_UNKNOWN if reader.endpoint.lives else ""),
            )
            for reader in report.readers
        ),
    ]
    if endpoints:
        click.echo()
        print_table(
            ("ENDPOINT", "ROLE", "STATE", "HEALTH", "RECORDS", "LAG", "PROGRESS", "CAUSE"),
            [
                (
                    endpoint.place,
                    endpoint.role,
                    endpoint.state,
                    endpoint.health,
                    number_text(endpoint.counters.get("records")),
                    lag,
                    progress,
                    # Causes may have line breaks.
                    " ".join((endpoint.cause or "").split()),
                )
                for endpoint, lag, progress in endpoints
            ],
        )


def _print_ledger(name: str, ledger: LedgerReport) -> None:
    click.echo(
        f"commit {ledger.number}, open batches: {ledger.open_batches}, "
        f"{number_text(ledger.uncommitted_messages)} messages of no commit"
    )
    if ledger.halted is not None:
        click.echo(f"`sluiceway channels repair {name}` shows the lost records, and repairs it")


def counts_text(counts: EndpointCounts) -> str:
    """Return the number of live endpoints, and of lost and failed ones if there are any."""
    troubles = [
        f"{number} {state}"
        for number, state in ((counts.lost, "lost"), (counts.failed, "failed"))
        if number
    ]
    return ", ".join([str(counts.live), *troubles])


def number_text(number: float | None) -> str:
    """Return a number with separators of thousands, `?` for None."""
    return _UNKNOWN if number is None else f"{round(number, 1):,}"


def seconds_text(seconds: float | None, *, at_least: bool = False) -> str:
    """Return a duration in words, `?` for None; `at_least`: it is a lower bound."""
    if seconds is None:
        return _UNKNOWN
    if at_least:
        # Rounded down, to stay a lower bound.
        return f"> {seconds_text(math.floor(seconds))}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@click.command()
@click.argument("name")
@click.option("--failed", is_flag=True, help="Dismiss all failed writers.")
@click.option("--lost", is_flag=True, help="Dismiss all lost writers; any that still runs stops.")
@click.option("--endpoint", "ids", multiple=True, metavar="ID", help="Dismiss it; can be repeated.")
@gateway_option
def dismiss(name: str, failed: bool, lost: bool, ids: tuple[str, ...], url: str | None) -> None:
    """Treat failed or lost writers of the channel NAME as finished.

    Readers no longer raise errors for them, and their records stay readable. Without an option,
    lists these writers.
    """
    with open_channel(name, url) as channel:
        with waiting_for(gateway_at(url)):
            endpoints = channel.endpoints()
        ended = [
            endpoint
            for endpoint in endpoints
            if endpoint.role == "writer" and _has_failed(endpoint)
        ]
        chosen = [writer for writer in ended if failed and writer.state == "error"]
        chosen += [writer for writer in ended if lost and writer.state != "error"]
        chosen += [_dismissible(endpoints, id_, name) for id_ in ids]
        if not (failed or lost or ids):
            if not ended:
                click.echo(f"no writer of the channel {name} failed or is lost")
                return
            _print_failed(ended)
            raise click.ClickException(
                "no endpoint was dismissed; choose them with --failed, --lost or --endpoint ID"
            )
        for id_ in dict.fromkeys(writer.id for writer in chosen):
            with waiting_for(gateway_at(url)):
                channel.dismiss(id_)
            click.echo(f"endpoint {id_} is dismissed")
        if not chosen:
            states = [word for word, on in (("failed", failed), ("is lost", lost)) if on]
            click.echo(f"no writer of the channel {name} {' or '.join(states)}")


def _has_failed(endpoint: Endpoint) -> bool:
    """Whether it failed or is lost."""
    return endpoint.state != "closed" and not endpoint.lives


def _dismissible(endpoints: Iterable[Endpoint], id_: str, name: str) -> Endpoint:
    endpoint = next((endpoint for endpoint in endpoints if endpoint.id == id_), None)
    if endpoint is None:
        raise click.ClickException(
            f"the channel {name} has no endpoint {id_}, or it was dismissed before"
        )
    if not _has_failed(endpoint):
        raise click.ClickException(
            f"{endpoint.place} ({id_}) is {endpoint.state} and {endpoint.health}: only a failed or "
            "lost endpoint can be dismissed"
        )
    return endpoint


def _print_failed(endpoints: Iterable[Endpoint]) -> None:
    print_table(
        ("ENDPOINT", "WRITER", "STATE", "SINCE", "CAUSE"),
        [
            (
                endpoint.id,
                endpoint.place,
                "failed" if endpoint.state == "error" else "lost",
                format_time(endpoint.changed_at) if endpoint.state == "error" else "",
                (endpoint.cause or "") + (" (wrote nothing)" if endpoint.wrote_nothing else ""),
            )
            for endpoint in endpoints
        ],
    )


@click.command()
@click.argument("name")
@click.option(
    "--reason",
    default="repaired by the command line",
    show_default=True,
    help="Recorded with the repair; `channels commits` shows it.",
)
@yes_option
@gateway_option
def repair(name: str, reason: str, yes: bool, url: str | None) -> None:
    """Repair the halted channel NAME: give up the committed records that Kafka has lost.

    Shows the lost records first. All open batches are aborted; restart their queries and writers.
    Committed keys stay committed: write lost records again under other keys.
    """
    with open_control(url) as control:
        with waiting_for(gateway_at(url)):
            uid = control.channel(name).uid
            plan = control.ledger.repair_plan(name, uid=uid)
        _print_plan(name, plan)
        messages = sum(lost.messages for lost in plan.lost)
        if not yes:
            confirm(f"Give up {messages} committed messages, for good?", "repair", "changed")
        with waiting_for(f"{gateway_at(url)} to repair the channel {name}"):
            done = control.ledger.repair(name, plan, uid=uid, reason=reason)
    click.echo(f"channel {name} is repaired, by number {done.number} of its commits")


@click.command()
@click.argument("name")
@click.argument("label")
@click.option("--group", help="The group of readers.")
@click.option("--writers", help="The group of writers.")
@click.option("--batches", help="The WRITER of batches, as `channels commits` shows it.")
@click.option("--key", help="A key of the batches.")
@click.option("--reason", help="For the audit trail.")
@gateway_option
def transfer(
    name: str,
    label: str,
    group: str | None,
    writers: str | None,
    batches: str | None,
    key: str | None,
    reason: str | None,
    url: str | None,
) -> None:
    """Give a group, or batches with their keys, of the channel NAME to tokens with LABEL.

    The LABEL * shares it with every label. Needs a token with the scope manage.
    """
    named = [target for target in (group, writers, batches, key) if target is not None]
    if len(named) != 1:
        raise click.UsageError("Give one of --group, --writers, --batches and --key.")
    with open_control(url) as control, waiting_for(gateway_at(url)):
        uid = control.channel(name).uid
        if batches is not None or key is not None:
            control.ledger.transfer(
                name, uid=uid, owner=label, writer=batches, key=key, reason=reason
            )
        else:
            role: Role = "reader" if group is not None else "writer"
            control.endpoints.transfer(
                name, named[0], uid=uid, role=role, owner=label, reason=reason
            )
    click.echo(
        f"{named[0]} of the channel {name} is shared with every label"
        if label == "*"
        else f"{named[0]} of the channel {name} belongs to {label}"
    )


def _print_plan(name: str, plan: RepairPlan) -> None:
    click.echo(f"channel {name} is halted: {plan.cause}")
    click.echo()
    print_table(
        ("PARTITION", "LOST FROM", "COMMITTED UP TO", "COMMITTED MESSAGES"),
        [
            (str(lost.partition), str(lost.first), str(lost.end), str(lost.messages))
            for lost in plan.lost
        ],
    )
    click.echo()
    if plan.open:
        print_table(
            ("ABORTED BATCH", "WRITER", "OPEN SINCE"),
            [(batch.key, batch.owner, format_time(batch.since)) for batch in plan.open],
        )
        click.echo()
