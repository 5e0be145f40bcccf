"""`sluiceway token`: create, list and revoke tokens in the gateway's database."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import click

from sluiceway_gateway.cli.entry import duration, format_time, print_table, waiting_for
from sluiceway_gateway.core.auth.model import Token
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.db.revision import open_database
from sluiceway_gateway.core.logs import configure_logs
from sluiceway_gateway.core.settings import Settings


@click.group()
def token() -> None:
    """Create, list and revoke tokens.

    Works on the database at SLUICEWAY_DATABASE_URL, with the key in SLUICEWAY_TOKEN_KEY or in the
    file SLUICEWAY_TOKEN_KEY_FILE. Once there is a token, the gateway rejects requests without one.
    """


@token.command()
@click.argument("label")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    metavar="SCOPE",
    help="read, write, manage (each optionally with :PREFIX of channel names) or admin; can be "
    "repeated.",
)
@click.option(
    "--expires-in",
    callback=duration,
    metavar="TIME",
    help="Lifetime, such as 12h or 90d.  [default: no expiry]",
)
def create(label: str, scopes: tuple[str, ...], expires_in: timedelta | None) -> None:
    """Create a token described by LABEL and print it.

    The token is printed only once; the database stores a hash.
    """
    with _tokens() as tokens:
        created = tokens.create(label=label, scopes=scopes, expires_in=expires_in)
        now = datetime.now(UTC)
        others = sum(
            stored.valid_at(now) and tokens.has_other_key(stored) for stored in tokens.every()
        )
    click.echo(created.text.get_secret_value())
    until = format_time(created.token.expires_at, "it is revoked")
    click.echo(f"id {created.token.id}, valid until {until}. It is not shown again.", err=True)
    if others:
        click.echo(
            f"warning: {others} valid {'token was' if others == 1 else 'tokens were'} created with "
            "another SLUICEWAY_TOKEN_KEY: a gateway accepts only the tokens of its own key",
            err=True,
        )


@token.command("list")
def list_() -> None:
    """List all tokens without their secrets."""
    with _tokens() as tokens:
        all_tokens = tokens.every()
        now = datetime.now(UTC)
        states = {stored.id: _state(tokens, stored, now) for stored in all_tokens}
    print_table(
        ("ID", "LABEL", "SCOPES", "CREATED", "EXPIRES", "STATE"),
        [
            (
                stored.id,
                stored.label,
                " ".join(str(scope) for scope in stored.scopes),
                format_time(stored.created_at),
                format_time(stored.expires_at, "never"),
                states[stored.id],
            )
            for stored in all_tokens
        ],
    )


@token.command()
@click.argument("token_id", metavar="ID")
def revoke(token_id: str) -> None:
    """Revoke the token ID, at once and permanently."""
    with _tokens() as tokens:
        tokens.revoke(token_id)
    click.echo(f"token {token_id} is revoked")


@contextmanager
def _tokens() -> Iterator[Tokens]:
    settings = Settings.load()
    # Standard output is for the token.
    configure_logs(level="error", format="console")
    with ExitStack() as stack:
        with waiting_for("the database"):
            url = settings.database_url.get_secret_value()
            database = stack.enter_context(open_database(url))
        yield Tokens(database, settings.token_key)


def _state(tokens: Tokens, stored: Token, now: datetime) -> str:
    if stored.revoked_at is not None:
        return "revoked"
    if not stored.valid_at(now):
        return "expired"
    return "of another key" if tokens.has_other_key(stored) else "valid"
