"""Storage of tokens."""

from collections.abc import Collection
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, select, update

from sluiceway_gateway.core.auth.model import Scope, Token
from sluiceway_gateway.core.auth.tables import tokens
from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import CachedSelect

_MOST_KEPT = 10_000
# Executed for each request without a token.
_ANY = select(tokens.c.id).limit(1)


def of_ids(tx: ReadTransaction, ids: Collection[str]) -> dict[str, Token]:
    """Return the tokens of these ids, valid or not, by id."""
    return {token.id: token for token in tx.look_up(_OF_IDS, list(ids))}


def exist(tx: ReadTransaction) -> bool:
    """Whether a token was ever created."""
    return tx.execute(_ANY).first() is not None


def every(tx: ReadTransaction) -> list[Token]:
    """Return all tokens, the oldest first."""
    rows = tx.execute(select(tokens).order_by(tokens.c.created_at, tokens.c.id))
    return [_token_of(row) for row in rows]


def insert(tx: WriteTransaction, token: Token) -> None:
    """Add a token."""
    scopes = [str(scope) for scope in token.scopes]
    tx.execute(tokens.insert(), asdict(token) | {"scopes": scopes})


def revoke(tx: WriteTransaction, token_id: str, now: datetime) -> bool:
    """Revoke a token; False for an unknown id. A revoked token keeps its time of revocation."""
    revoked = tx.execute(
        update(tokens)
        .where(tokens.c.id == token_id)
        .values(revoked_at=func.coalesce(tokens.c.revoked_at, now))
    )
    return revoked.rowcount == 1


def _token_of(row: Row[Any]) -> Token:
    scopes = tuple(Scope.parse(text) for text in row.scopes)
    return Token(**row._asdict() | {"scopes": scopes})


# Executed for each request: always reads the row, and parses it only after a change.
_OF_IDS = CachedSelect(
    select(tokens).where(tokens.c.id.in_(bindparam("ids", expanding=True))),
    keys="ids",
    make=_token_of,
    max_entries=_MOST_KEPT,
)
