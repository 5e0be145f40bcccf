"""The root command: loads subcommands, and turns errors into messages and exit statuses."""

import importlib
import os
import sys
from collections.abc import Sequence

import click

from sluiceway import __version__
from sluiceway.errors import SluicewayError
from sluiceway_gateway.embedded import EmbeddedError
from sluiceway_gateway.errors import SluicewayGatewayError

#: The modules of commands, imported on use so that no command waits for the imports of another.
COMMANDS = {
    "up": "sluiceway_gateway.cli.up:up",
    "serve": "sluiceway_gateway.cli.serve:serve",
    "migrate": "sluiceway_gateway.cli.serve:migrate",
    "token": "sluiceway_gateway.cli.token:token",
    "channels": "sluiceway_gateway.cli.channels:channels",
    "tail": "sluiceway_gateway.cli.tail:tail",
    "demo": "sluiceway_gateway.demo.command:demo",
}
#: Raised by click 8.2 and later for a group without a command; its message is the help.
_HELP: type[click.UsageError] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
FAILED, MISUSED, INTERRUPTED = 1, 2, 130


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


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sluiceway", message="%(prog)s %(version)s")
def sluiceway() -> None:
    """Typed data channels on Kafka.

    `sluiceway up` runs a broker and a gateway on this machine. `channels` and `tail` call the
    gateway at SLUICEWAY_URL with the token in SLUICEWAY_TOKEN.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0, 1 failure, 2 wrong usage, 130 interrupted.

    A failure prints one line on standard error that says what to do.
    """
    try:
        outcome = sluiceway.main(
            args=None if arguments is None else list(arguments),
            prog_name="sluiceway",
            standalone_mode=False,
        )
    except click.UsageError as error:
        if isinstance(error, _HELP):
            click.echo(error.format_message(), err=True)
            return MISUSED
        path = error.ctx.command_path if error.ctx else "sluiceway"
        return _fail(f"{error.format_message()} See `{path} --help`.", MISUSED)
    except click.ClickException as error:
        return _fail(error.format_message(), FAILED)
    except (SluicewayError, SluicewayGatewayError, EmbeddedError) as error:
        return _fail(str(error), FAILED)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return outcome if isinstance(outcome, int) else 0


def _fail(message: str, status: int) -> int:
    click.echo(f"sluiceway: {message}", err=True)
    return status
