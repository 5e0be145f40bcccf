"""Idempotency keys: a repeated request gets the stored response."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select, tuple_, update

from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import by_dialect
from sluiceway_gateway.core.db.tables import requests
from sluiceway_gateway.core.errors import IdempotencyKeyReused

REMEMBERED_FOR = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request with an idempotency key; `digest` covers all its content."""

    key: str
    principal: str
    """The owner of the key."""
    digest: str


@dataclass(frozen=True, kw_only=True)
class StoredResponse:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: str


_CLAIM = by_dialect(
    lambda insert: (
        insert(requests)
        .on_conflict_do_nothing(index_elements=["principal", "key"])
        .returning(requests.c.key)
    )
)


def once(
    tx: WriteTransaction, request: Request | None, now: datetime, act: Callable[[], StoredResponse]
) -> StoredResponse:
    """Act and store the response, or return the stored response of a repeated request.

    Raises IdempotencyKeyReused.
    """
    if request is None:
        return act()
    response = _claim(tx, request, now)
    if response is None:
        response = act()
        tx.execute(
            update(requests)
            .where(*_is(request), requests.c.status.is_(None))
            .values(status=response.status, headers=dict(response.headers), body=response.body)
        )
    return response


def _claim(tx: WriteTransaction, request: Request, now: datetime) -> StoredResponse | None:
    """Return the stored response of a repeated request; None for a new one.

    A repeat waits for the first request's transaction. Raises IdempotencyKeyReused if the key was
    used with other content.
    """
    # Only this key, so that a request does not wait for the deletion of others.
    expired = requests.c.created_at < now - REMEMBERED_FOR
    tx.execute(delete(requests).where(*_is(request), expired))
    claimed = tx.execute(_CLAIM[tx.dialect], asdict(request) | {"created_at": now})
    # SQLAlchemy has no reliable row count for inserts.
    if claimed.first() is not None:
        return None
    row = tx.execute(select(requests).where(*_is(request))).one()
    if row.digest != request.digest:
        raise IdempotencyKeyReused(
            f"The idempotency key {request.key!r} was used for another request; "
            "use a new key for a new request."
        )
    return StoredResponse(status=row.status, headers=row.headers, body=row.body)


def forget(tx: WriteTransaction, *, before: datetime, limit: int) -> int:
    """Delete up to `limit` responses older than `before`, oldest first; return the number."""
    oldest = (
        select(requests.c.principal, requests.c.key)
        .where(requests.c.created_at < before)
        .order_by(requests.c.created_at)
        .limit(limit)
    )
    is_old = tuple_(requests.c.principal, requests.c.key).in_(oldest)
    return tx.execute(delete(requests).where(is_old)).rowcount


def _is(request: Request) -> tuple[Any, Any]:
    return requests.c.principal == request.principal, requests.c.key == request.key


def known(tx: ReadTransaction, request: Request) -> bool:
    """Return whether the key was used before."""
    return tx.execute(select(requests.c.key).where(*_is(request))).first() is not None
