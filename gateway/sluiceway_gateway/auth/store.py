"""Storage of tokens."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, select, update

from sluiceway_gateway.auth.model import Scope, Token
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import tokens
from sluiceway_gateway.db.statements import CachedSelect

_MOST_KEPT = 10_000
# Asked with every request, so it is put together once.
_ANY = select(tokens.c.id).limit(1)


def of_ids(tx: ReadTransaction, ids: Collection[str]) -> dict[str, Token]:
    """Return the tokens of these ids, valid or not, by id."""
    return {each.id: each for each in tx.look_up(_OF_IDS, list(ids))}


def exist(tx: ReadTransaction) -> bool:
    """Whether a token was ever created."""
    return tx.execute(_ANY).first() is not None


def every(tx: ReadTransaction) -> list[Token]:
    """Return all tokens, the oldest first."""
    rows = tx.execute(select(tokens).order_by(tokens.c.created_at, tokens.c.id))
    return [_token_of(row) for row in rows]


def insert(tx: WriteTransaction, token: Token) -> None:
    """Add a token."""
    tx.execute(
        tokens.insert().values(
            id=token.id,
            label=token.label,
            hash=token.hash,
            scopes=[str(scope) for scope in token.scopes],
            created_at=token.created_at,
            expires_at=token.expires_at,
            revoked_at=token.revoked_at,
        )
    )


def revoke(tx: WriteTransaction, token_id: str, now: datetime) -> bool:
    """Revoke a token, once; False for an unknown id.

    A token that was revoked before keeps the time of that.
    """
    revoked = tx.execute(
        update(tokens)
        .where(tokens.c.id == token_id)
        .values(revoked_at=func.coalesce(tokens.c.revoked_at, now))
    )
    return revoked.rowcount == 1


def _token_of(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        label=row.label,
        hash=row.hash,
        scopes=tuple(Scope.parse(text) for text in row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )


# Asked with every request too: a row is read each time, and made into a token when it is not as it
# was.
_OF_IDS = CachedSelect(
    select(tokens).where(tokens.c.id.in_(bindparam("ids", expanding=True))),
    keys="ids",
    make=_token_of,
    max_entries=_MOST_KEPT,
)
