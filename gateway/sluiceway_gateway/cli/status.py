"""`sluiceway channels status`: who writes and reads, how far, and how that gets on."""

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from sluiceway.rest.channels import Control, watch_status, watch_summaries
from sluiceway.rest.status import ChannelSummary, EndpointCounts, StatusReport
from sluiceway.rest.transport import Transport
from sluiceway_gateway.cli.format import print_table

_UNKNOWN = "?"
_TIMEOUT_S = 10.0


@click.command()
@click.argument("name", required=False)
@click.option("--watch", "-w", is_flag=True, help="Show it whenever it changes, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def status(name: str | None, watch: bool, as_json: bool, url: str | None) -> None:
    """Show who writes and reads the channel NAME, how far they are and how they get on.

    Without NAME, a line for each channel. What is not known is a question mark.
    """
    control = Control(Transport(url, timeout_s=_TIMEOUT_S))
    try:
        if name is None:
            for lines in _all(control, watch=watch):
                _print([each.document for each in lines], watch=watch, as_json=as_json)
                if not as_json:
                    _print_lines(lines)
        else:
            for report in _one(control, name, watch=watch):
                _print([report.document], watch=watch, as_json=as_json)
                if not as_json:
                    _print_report(report)
    finally:
        control.close()


def _print(documents: list[Mapping[str, Any]], *, watch: bool, as_json: bool) -> None:
    """Print JSON, if it is asked for; else make room for the next tables."""
    if as_json:
        for each in documents:
            click.echo(json.dumps(each))
    elif watch:
        click.clear()


def _all(control: Control, *, watch: bool) -> Iterator[tuple[ChannelSummary, ...]]:
    if watch:
        return watch_summaries(control, sleep=time.sleep)
    return iter([tuple(control.statuses())])


def _one(control: Control, name: str, *, watch: bool) -> Iterator[StatusReport]:
    states = watch_status(control, name, sleep=time.sleep)
    return states if watch else itertools.islice(states, 1)


def _print_lines(lines: Iterable[ChannelSummary]) -> None:
    print_table(
        ("NAME", "PHASE", "WRITERS", "READERS", "LAG", "BEHIND", "WRITTEN/S", "PROGRESS"),
        [
            (
                each.name,
                each.phase,
                _crew(each.writers),
                _crew(each.readers),
                _number(each.lag_messages),
                _seconds(each.lag_seconds),
                _number(each.write_rate),
                each.progress or _UNKNOWN,
            )
            for each in lines
        ],
    )


def _print_report(report: StatusReport) -> None:
    looked = report.sampled_at
    when = "not looked at yet" if looked is None else f"as of {looked:%Y-%m-%d %H:%M:%SZ}"
    written = f"{_number(report.write_rate)} messages written/s"
    click.echo(f"channel {report.name} is {report.phase}, {written}, {when}")
    if report.groups:
        click.echo()
        print_table(
            ("GROUP", "MEMBERS", "LAG", "RECORDS", "BEHIND", "READ/S", "DRAINED IN", "PROGRESS"),
            [
                (
                    each.name,
                    f"{each.members} of {each.size}" if each.size else str(each.members),
                    _number(each.lag_messages),
                    _number(each.lag_records),
                    _seconds(each.lag_seconds),
                    _number(each.read_rate),
                    _seconds(each.drain_s),
                    each.progress or _UNKNOWN,
                )
                for each in report.groups
            ],
        )
    endpoints = [
        *((each, "", "") for each in report.writers),
        *((e.endpoint, _number(e.lag_messages), e.progress or _UNKNOWN) for e in report.readers),
    ]
    if endpoints:
        click.echo()
        print_table(
            ("ENDPOINT", "ROLE", "STATE", "HEALTH", "RECORDS", "LAG", "PROGRESS", "CAUSE"),
            [
                (
                    each.place,
                    each.role,
                    each.state,
                    each.health,
                    _number(each.counters.get("records")),
                    lag,
                    progress,
                    # A row is a line.
                    " ".join((each.cause or "").split()),
                )
                for each, lag, progress in endpoints
            ],
        )


def _crew(crew: EndpointCounts) -> str:
    """Return how many there are, with what there is to worry about."""
    troubles = [f"{n} {word}" for n, word in ((crew.lost, "lost"), (crew.failed, "failed")) if n]
    return ", ".join([str(crew.living), *troubles])


def _number(number: float | None) -> str:
    return _UNKNOWN if number is None else f"{round(number, 1):,}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
