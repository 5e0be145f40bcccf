"""Read access to the status of channels."""

from dataclasses import dataclass

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.store import Tag
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.errors import ChannelNotFound
from sluiceway_gateway.status import store as status_store
from sluiceway_gateway.status.store import ChannelSummary, Status, StatusVersion


@dataclass(frozen=True, kw_only=True)
class StatusPage:
    """A part of the list; `following` is the name to go on after, None at the end."""

    lines: tuple[ChannelSummary, ...]
    following: str | None
    overall: Tag
    """Tells two states of all channels apart."""


class Statuses:
    """The status of one database's channels."""

    def __init__(self, database: Database, tokens: Tokens) -> None:
        self._database = database
        self._tokens = tokens

    def head(self, name: str, *, by: Principal) -> StatusVersion:
        """Return what tells whether the status has changed.

        Raises Unauthenticated and ChannelNotFound.
        """
        with self._database.read() as tx:
            self._tokens.require_valid(tx, by)
            found = status_store.head(tx, name)
        if found is None:
            raise ChannelNotFound(f"There is no channel {name!r}.")
        return found

    def status(self, name: str) -> Status:
        """Return the whole status; raises ChannelNotFound."""
        with self._database.read() as tx:
            found = status_store.status(tx, name)
        if found is None:
            raise ChannelNotFound(f"There is no channel {name!r}.")
        return found

    def page(self, *, limit: int, after: str, prefixes: tuple[str, ...]) -> StatusPage:
        """Return channels by name in one line each, those whose names begin with a prefix."""
        with self._database.read() as tx:
            overall = channels_store.overall(tx)
            found = status_store.page(tx, limit=limit + 1, after=after, prefixes=prefixes)
        more = len(found) > limit
        return StatusPage(
            lines=found[:limit],
            following=found[limit - 1].head.channel.name if more else None,
            overall=overall,
        )
