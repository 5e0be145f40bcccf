"""`sluiceway token`: making, listing and revoking tokens, in the gateway's own database."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import click

from sluiceway_gateway.auth.model import Token
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.cli.format import duration, print_table
from sluiceway_gateway.db.revision import open_database
from sluiceway_gateway.settings import Settings


@click.group()
def token() -> None:
    """Make, list and revoke tokens.

    Works on the database at SLUICEWAY_DATABASE_URL, with the key in SLUICEWAY_TOKEN_KEY or the
    file SLUICEWAY_TOKEN_KEY_FILE. The first token closes the gateway to requests without one.
    """


@token.command()
@click.argument("label")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    metavar="SCOPE",
    help="read, write or manage, each also with :PREFIX of channel names, or admin; repeatable.",
)
@click.option(
    "--expires-in",
    callback=duration,
    metavar="TIME",
    help="As 12h or 90d.  [default: it does not expire]",
)
def create(label: str, scopes: tuple[str, ...], expires_in: timedelta | None) -> None:
    """Make a token for LABEL and print it: the only time that it is shown."""
    with _tokens() as tokens:
        made = tokens.create(label=label, scopes=scopes, expires_in=expires_in)
    click.echo(made.text.get_secret_value())
    until = _time(made.token.expires_at, "it is revoked")
    click.echo(f"id {made.token.id}, valid until {until}. It is not shown again.", err=True)


@token.command("list")
def list_() -> None:
    """List all tokens, without their secrets."""
    with _tokens() as tokens:
        found = tokens.every()
    now = datetime.now(UTC)
    print_table(
        ("ID", "LABEL", "SCOPES", "CREATED", "EXPIRES", "STATE"),
        [
            (
                each.id,
                each.label,
                " ".join(str(scope) for scope in each.scopes),
                _time(each.created_at),
                _time(each.expires_at),
                _state(each, now),
            )
            for each in found
        ],
    )


@token.command()
@click.argument("token_id", metavar="ID")
def revoke(token_id: str) -> None:
    """Revoke the token ID at once and for good."""
    with _tokens() as tokens:
        tokens.revoke(token_id)
    click.echo(f"token {token_id} is revoked")


@contextmanager
def _tokens() -> Iterator[Tokens]:
    settings = Settings.load()
    with open_database(settings.database_url.get_secret_value()) as database:
        yield Tokens(database, settings.token_key)


def _state(each: Token, now: datetime) -> str:
    if each.revoked_at is not None:
        return "revoked"
    return "valid" if each.valid_at(now) else "expired"


def _time(moment: datetime | None, without: str = "never") -> str:
    return without if moment is None else moment.strftime("%Y-%m-%d %H:%M:%SZ")
