"""Status of channels: one read transaction per request."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TypeVar

from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import find_channel
from sluiceway_gateway.channels.store import Tag
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import ChannelNotFound, InvalidRequest
from sluiceway_gateway.endpoints.session_store import beats_of_channel
from sluiceway_gateway.status import store as status_store
from sluiceway_gateway.status.graph import store as graph_store
from sluiceway_gateway.status.graph.model import GraphJob, jobs_of
from sluiceway_gateway.status.lag import Overview
from sluiceway_gateway.status.lag_history import store as history_store
from sluiceway_gateway.status.lag_history.model import LagHistory, history_of, resolution_for
from sluiceway_gateway.status.store import ChannelSummary, StatusReport, StatusVersion

_EPOCH = datetime.fromtimestamp(0, UTC)
_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class StatusPage:
    """A page of the list of channels."""

    channels: tuple[ChannelSummary, ...]
    next_after: str | None
    """The last name of the page; None on the last page."""

    @cached_property
    def etag(self) -> str:
        """The weak tag."""
        tags = "".join(summary.version.etag for summary in self.channels)
        digest = hashlib.sha256(f"{tags}/{self.next_after}".encode()).hexdigest()
        return f'W/"s{digest[:24]}"'


@dataclass(frozen=True, kw_only=True)
class FeedUpdate:
    """Changes for watchers since their last update."""

    refused: frozenset[Principal]
    """Watchers whose tokens are no longer valid."""
    tags: dict[str, Tag] | None
    """Tags of all channels by name; None without watchers of the list."""
    changed: tuple[str, ...]
    """Names of new channels, and of channels with another tag in the list."""
    statuses: Mapping[str, StatusReport]
    """Watched channels with another tag, by name."""
    gone: frozenset[str]
    """Watched channels that do not exist."""


@dataclass(frozen=True, kw_only=True)
class ChannelGraph:
    """The jobs around a channel."""

    channels: tuple[ChannelSummary, ...]
    jobs: tuple[GraphJob, ...]
    truncated: bool


class Statuses:
    """The status of one database's channels."""

    def __init__(self, database: Database, tokens: Tokens, *, clock: Clock) -> None:
        self._database = database
        self._tokens = tokens
        self._clock = clock

    def version(self, name: str, *, by: Principal) -> StatusVersion:
        """Return the version of a channel's status.

        Raises Unauthenticated and ChannelNotFound.
        """
        with self._database.read() as tx:
            self._tokens.require_valid(tx, by)
            return _required(name, status_store.version(tx, name))

    def status(self, name: str) -> StatusReport:
        """Return a channel's status. Raises ChannelNotFound."""
        with self._database.read() as tx:
            return _required(name, status_store.status(tx, name, now=self._clock()))

    def heartbeats(self, name: str) -> dict[str, datetime]:
        """Return the last heartbeats of a channel's endpoints by id. Raises ChannelNotFound."""
        with self._database.read() as tx:
            channel = find_channel(tx, name)
            return beats_of_channel(tx, channel.uid)

    def page(self, *, limit: int, after: str, by: Principal) -> StatusPage:
        """Return a summary of each channel after `after` that the principal may see.

        Raises Unauthenticated.
        """
        prefixes = by.prefixes(Action.VIEW)
        with self._database.read() as tx:
            self._tokens.require_valid(tx, by)
            summaries = status_store.page(
                tx, limit=limit + 1, after=after, prefixes=prefixes, now=self._clock()
            )
        more = len(summaries) > limit
        return StatusPage(
            channels=summaries[:limit],
            next_after=summaries[limit - 1].version.channel.name if more else None,
        )

    def feed_update(
        self,
        *,
        by: Collection[Principal],
        listed: Mapping[str, Tag] | None,
        watched: Mapping[str, Tag | None],
    ) -> FeedUpdate:
        """Return the changes since the tags `listed` (of the list) and `watched`.

        Without `listed`, the list is omitted. No transaction is open while rows are processed:
        PostgreSQL would end one, and with it each read of very many channels.
        """
        with self._database.scan() as tx:
            refused = self._tokens.refusals(tx, by)
            tags = None if listed is None else channels_store.all_tags(tx, known=listed)
            current_tags = channels_store.tags(tx, sorted(watched)) if tags is None else tags
        changed = [n for n, tag in (tags or {}).items() if tag is not (listed or {}).get(n)]
        statuses = {}
        for name, tag in watched.items():
            if name in current_tags and current_tags[name] != tag:
                with self._database.read() as tx:
                    status = status_store.status(tx, name, now=self._clock())
                if status is not None:
                    statuses[name] = status
        return FeedUpdate(
            refused=frozenset(refused),
            tags=tags,
            changed=tuple(changed),
            statuses=statuses,
            gone=frozenset(watched.keys() - current_tags.keys()),
        )

    def summaries(self, names: Sequence[str]) -> tuple[ChannelSummary, ...]:
        """Return the existing channels of these names, of which there are at most some hundred."""
        with self._database.read() as tx:
            return status_store.summaries(tx, names, now=self._clock())

    def history(
        self, name: str, *, since: datetime | None, until: datetime | None
    ) -> tuple[Channel, LagHistory]:
        """Return a channel and its history; by default, of the hour before `until`, or before now.

        Raises ChannelNotFound, and InvalidRequest if it ends before it begins.
        """
        now = self._clock()
        until = now if until is None else max(_EPOCH, min(until, now))
        since = max(_EPOCH, until - timedelta(hours=1) if since is None else since)
        if since > until:
            message = f"it is after the end, {until.isoformat(timespec='seconds')}"
            raise InvalidRequest.at("query:since", message)
        resolution = resolution_for(since, now=now)
        oldest_s = now.timestamp() - resolution.kept_s
        with self._database.read() as tx:
            channel = find_channel(tx, name)
            stored = history_store.points(
                tx,
                channel.uid,
                resolution,
                since_s=resolution.start(max(since.timestamp(), oldest_s)),
                until_s=int(until.timestamp()),
            )
        return channel, history_of(stored, resolution, since=since, until=until)

    def graph(self, name: str, *, by: Principal) -> ChannelGraph:
        """Return the jobs around a channel. Raises ChannelNotFound."""
        with self._database.read() as tx:
            start = find_channel(tx, name)
            prefixes = by.prefixes(Action.VIEW)
            endpoints, truncated = graph_store.surroundings(tx, start, prefixes=prefixes)
            names = {name} | {endpoint.channel for endpoint in endpoints}
            summaries = status_store.summaries(tx, sorted(names), now=self._clock())
        return ChannelGraph(
            channels=tuple(sorted(summaries, key=lambda summary: summary.version.channel.name)),
            jobs=tuple(jobs_of(endpoints)),
            truncated=truncated,
        )

    def overview(self, *, prefixes: tuple[str, ...], max_groups: int) -> Overview:
        """Return the channels in use with one of the prefixes, with up to `max_groups` groups."""
        with self._database.read() as tx:
            return status_store.overview(
                tx, prefixes=prefixes, max_groups=max_groups, now=self._clock()
            )


def _required(name: str, value: _Value | None) -> _Value:
    if value is None:
        raise ChannelNotFound(f"There is no channel {name!r}.")
    return value
