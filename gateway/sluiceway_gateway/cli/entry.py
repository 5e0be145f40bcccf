"""The root command: loads subcommands, turns errors into exit statuses; options and tables."""

import errno
import importlib
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import click

from sluiceway import __version__
from sluiceway.errors import SluicewayError
from sluiceway_gateway.core.errors import DatabaseUnavailable, EmbeddedError, SluicewayGatewayError

#: The modules of commands, imported on use so that no command waits for the imports of another.
COMMANDS = {
    "up": "sluiceway_gateway.dev.up:up",
    "serve": "sluiceway_gateway.cli.serve:serve",
    "migrate": "sluiceway_gateway.cli.migrate:migrate",
    "token": "sluiceway_gateway.cli.token:token",
    "channels": "sluiceway_gateway.cli.channels:channels",
    "apply": "sluiceway_gateway.cli.apply:apply",
    "export": "sluiceway_gateway.cli.apply:export",
    "offsets": "sluiceway_gateway.cli.offsets:offsets",
    "tail": "sluiceway_gateway.cli.tail:tail",
    "demo": "sluiceway_gateway.dev.demo.command:demo",
}
#: Raised by click 8.2 and later for a group without a command; its message is the help.
_HELP: type[click.UsageError] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
FAILED, MISUSED, INTERRUPTED = 1, 2, 130
#: Time after which a waiting command prints the reason.
NOTICE_S = 2.0
#: A row is one line for programs. For terminals, its last cell is folded.
_TABLE_WIDTH = 100_000
_LEAST_FOLDED = 30
_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_FLAG = re.compile(r"\b(force|keep_topic)=[Tt]rue\b")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_DURATION = re.compile(r"([0-9]{1,9})([smhd])\Z")

gateway_option = click.option(
    "--url", help="URL of the gateway.  [default: SLUICEWAY_URL, or http://127.0.0.1:8900]"
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


class _Commands(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader, such as `head`, has enough. click would make this exit status 1. Keep the
            # interpreter from flushing into the pipe again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:
            if error.errno not in _NOT_WRITTEN:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.ClickException(
                f"a file or the output cannot be written: {error.strerror}. Free space, and run it "
                "again"
            ) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sluiceway", message="%(prog)s %(version)s")
def sluiceway() -> None:
    """Typed data channels on Kafka.

    `sluiceway up` runs a broker and a gateway on this machine. `channels`, `apply`, `export`,
    `offsets` and `tail` call the gateway at SLUICEWAY_URL with the token in SLUICEWAY_TOKEN.
    """


def main(arguments: Sequence[str] | None = None, *, timeout_s: float = 10.0) -> int:
    """Run a command and return the exit status: 0, 1 failure, 2 wrong usage, 130 interrupted.

    A failure prints one line on standard error that says what to do. While the gateway does not
    answer, a request is repeated for `timeout_s`: shorter than in programs.
    """
    try:
        outcome = sluiceway.main(
            args=None if arguments is None else list(arguments),
            prog_name="sluiceway",
            standalone_mode=False,
            obj=timeout_s,
        )
    except click.UsageError as error:
        if isinstance(error, _HELP):
            click.echo(error.format_message(), err=True)
            return MISUSED
        path = error.ctx.command_path if error.ctx else "sluiceway"
        return _fail(f"{error.format_message().rstrip('.')}. See `{path} --help`.", MISUSED)
    except click.ClickException as error:
        return _fail(error.format_message(), FAILED)
    except DatabaseUnavailable as error:
        return _fail(_database_failure(error), FAILED)
    except (SluicewayError, SluicewayGatewayError, EmbeddedError) as error:
        return _fail(message_of(error), FAILED)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return outcome if isinstance(outcome, int) else 0


def _database_failure(error: DatabaseUnavailable) -> str:
    """Return the message with the cause, which responses to requests leave out."""
    # Imported on use: most commands need no database.
    from sluiceway_gateway.core.db.failures import cause_of

    cause = cause_of(error)
    if cause is None:
        return str(error)
    return f"{str(error).rstrip('.')}. Check SLUICEWAY_DATABASE_URL. Cause: {cause}"


def message_of(error: Exception) -> str:
    """Return an error's message with the names of options in place of parameters' names."""
    return _FLAG.sub(lambda match: f"--{match[1].replace('_', '-')}", str(error))


def _fail(message: str, status: int) -> int:
    lines = "\n".join(map(printable, message.split("\n")))
    click.echo(f"sluiceway: {lines}", err=True)
    return status


def printable(text: str) -> str:
    """Return the text with control characters escaped as in JSON.

    Causes and keys are chosen by jobs: they must not control the operator's terminal.
    """
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return the value as JSON, with control characters escaped, as in `printable`."""
    lines = json.dumps(value, indent=indent, ensure_ascii=False).split("\n")
    return "\n".join(map(printable, lines))


def duration(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> timedelta | None:
    """Parse a duration such as 90s or 7d; the callback of an option."""
    if text is None:
        return None
    match = _DURATION.match(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 45m, 12h or 30d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Print the reason of the wait on standard error, if the block takes longer than 2 s."""

    def notify() -> None:
        click.echo(f"sluiceway: waiting for {what}; Ctrl-C stops", err=True)

    notice = threading.Timer(NOTICE_S, notify)
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


def retry_s() -> float:
    """Return the time for which the current command repeats a request (see `main`)."""
    seconds: float = click.get_current_context().obj
    return seconds


def gateway_at(url: str | None) -> str:
    """Return the gateway's description in messages, for this value of `--url`."""
    # Imported on use: most of the commands that run a gateway need no HTTP client.
    from sluiceway.api.transport import DEFAULT_URL

    return f"the gateway at {url or os.environ.get('SLUICEWAY_URL') or DEFAULT_URL}"


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows under the names of their columns."""
    # Imported on use: most commands print no table.
    from rich.console import Console
    from rich.table import Column, Table

    cells = [tuple(map(printable, row)) for row in rows]
    *others, last = columns
    folded = None
    if sys.stdout.isatty():
        widths = [max(map(len, column)) + 2 for column in zip(columns, *cells, strict=True)]
        left = shutil.get_terminal_size().columns - sum(widths[:-1])
        folded = max(left, _LEAST_FOLDED)
    table = Table(
        *others, Column(last, max_width=folded, overflow="fold"), box=None, pad_edge=False
    )
    for row in cells:
        table.add_row(*row)
    Console(width=_TABLE_WIDTH, highlight=False, markup=False, emoji=False).print(table)


def format_time(time: datetime | None, default: str = "") -> str:
    """Format a time in UTC; without one, return `default`."""
    return default if time is None else time.strftime("%Y-%m-%d %H:%M:%SZ")


def confirm(question: str, verb: str, done: str) -> None:
    """Raise ClickException unless the answer is yes."""
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise click.ClickException(f"nothing was {done}; --yes {verb}s without asking")
