"""Status of channels: one read transaction per request."""

from dataclasses import dataclass

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.store import Tag
from sluiceway_gateway.clock import Clock, system_clock
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.errors import ChannelNotFound
from sluiceway_gateway.status import ledger_store
from sluiceway_gateway.status import store as status_store
from sluiceway_gateway.status.ledger_store import LedgerTotals
from sluiceway_gateway.status.store import ChannelSummary, StatusReport, StatusVersion


@dataclass(frozen=True, kw_only=True)
class StatusPage:
    """A page of the list of channels."""

    channels: tuple[ChannelSummary, ...]
    next_after: str | None
    """The name after which the next page begins; None on the last page."""
    overall: Tag
    """Differs between two states of all channels."""


class Statuses:
    """The status of one database's channels."""

    def __init__(self, database: Database, tokens: Tokens, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._database = database
        self._tokens = tokens

    def version(self, name: str, *, by: Principal) -> StatusVersion:
        """Return the version of a channel's status.

        Raises Unauthenticated and ChannelNotFound.
        """
        with self._database.read() as tx:
            self._tokens.require_valid(tx, by)
            found = status_store.version(tx, name)
        if found is None:
            raise ChannelNotFound(f"There is no channel {name!r}.")
        return found

    def status(self, name: str) -> StatusReport:
        """Return a channel's status. Raises ChannelNotFound."""
        with self._database.read() as tx:
            found = status_store.status(tx, name)
        if found is None:
            raise ChannelNotFound(f"There is no channel {name!r}.")
        return found

    def ledgers(self) -> LedgerTotals:
        """Return the figures of all ledgers."""
        with self._database.read() as tx:
            return ledger_store.totals(tx, self._clock())

    def page(self, *, limit: int, after: str, prefixes: tuple[str, ...]) -> StatusPage:
        """Return a summary of each channel after `after` whose name has one of the prefixes."""
        with self._database.read() as tx:
            overall = channels_store.overall(tx)
            found = status_store.page(tx, limit=limit + 1, after=after, prefixes=prefixes)
        more = len(found) > limit
        return StatusPage(
            channels=found[:limit],
            next_after=found[limit - 1].version.channel.name if more else None,
            overall=overall,
        )
