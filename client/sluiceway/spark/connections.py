"""Connections to a channel from a plan: resolved once, refreshed on demand."""

import logging
import time
from dataclasses import dataclass, replace
from typing import Final

from sluiceway.channel import Channel
from sluiceway.errors import Conflict, GatewayUnavailable
from sluiceway.gateway import Gateway
from sluiceway.rest.channels import Access
from sluiceway.rest.models import Connection

LOGGER = logging.getLogger(__name__)

_TIMEOUT_S: Final = 3.0
_AFTER_FAILURE_S: Final = 15.0


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a channel; `current`: it is as young as it was asked for.

    Otherwise the gateway was away, and the channel may have got schemas that are not in here.
    """

    connection: Connection
    current: bool


class Link:
    """A channel's Connection, asked for again when it may have changed.

    The records flow without the gateway: while it does not answer, the last Connection is as
    good as any, and the gateway is left alone for a while. A reader's schema stays that of the
    first Connection, since Spark's plan has its columns. Can be pickled. `gateway_url`
    None: there is no gateway to ask, the Connection stays as it is.
    """

    def __init__(
        self, connection: Connection, access: Access, *, gateway_url: str | None = None
    ) -> None:
        self._connection = connection
        self._access: Access = access
        self._gateway_url = gateway_url
        self._given_s = float("-inf")
        self._left_alone_until_s = float("-inf")
        self._gateway: Gateway | None = None
        self._channel: Channel | None = None

    @property
    def gateway_url(self) -> str | None:
        """Whom it asks."""
        return self._gateway_url

    @property
    def last(self) -> Connection:
        """The Connection that was given last."""
        return self._connection

    def connection(self, *, max_age_s: float = 0.0) -> Connection:
        """Return a Connection no older than `max_age_s`, or the last one there was.

        Raises what `known` raises.
        """
        return self.known(max_age_s=max_age_s).connection

    def known(self, *, max_age_s: float = 0.0) -> Known:
        """Return a Connection no older than `max_age_s`, or the last one and that it is older.

        Raises ChannelNotFound, Conflict (the name is another channel's now) and whatever else the
        gateway says.
        """
        last = self._connection
        now_s = time.monotonic()
        if self._gateway_url is None or now_s < self._given_s + max_age_s:
            return Known(connection=last, current=True)
        if now_s < self._left_alone_until_s:
            return Known(connection=last, current=False)
        try:
            found = self._open(self._gateway_url).connection(self._access)
        except GatewayUnavailable as error:
            LOGGER.warning(
                "channel %r: %s. The query goes on with what it knows of the channel",
                last.channel_name,
                error,
            )
            self._left_alone_until_s = now_s + _AFTER_FAILURE_S
            return Known(connection=last, current=False)
        if self._access == "read":
            found = replace(
                found, schema_id=last.schema_id, schema_definition=last.schema_definition
            )
        self._connection = found
        self._given_s = now_s
        return Known(connection=found, current=True)

    def close(self) -> None:
        """Let go of the gateway; it may be asked again."""
        if self._gateway is not None:
            self._gateway.close()
        self._gateway = self._channel = None

    def __getstate__(self) -> dict[str, object]:
        """Travel without what belongs to this process."""
        return vars(self) | {"_gateway": None, "_channel": None}

    def _open(self, gateway_url: str) -> Channel:
        """Return the channel, opened once."""
        if self._channel is None:
            self._gateway = self._gateway or Gateway(gateway_url, timeout_s=_TIMEOUT_S)
            name, uid = self._connection.channel_name, self._connection.channel_uid
            found = self._gateway.channel(name, wait_s=_TIMEOUT_S)
            if found.uid != uid:
                raise Conflict(
                    f"the channel {name!r} was deleted and made anew under this query: it was "
                    f"{uid} and is {found.uid} now, with other records. Stop the query and start "
                    "it again",
                    code="uid_mismatch",
                )
            self._channel = found
        return self._channel
