"""How a plan gets from a channel's name to its Connection, and to a newer one later."""

import functools
import logging
import os
import time
from dataclasses import replace
from typing import Final

from sluiceway.channel import Channel
from sluiceway.control import Access
from sluiceway.errors import Conflict, GatewayUnavailable
from sluiceway.gateway import Gateway
from sluiceway.protocol import Connection

LOGGER = logging.getLogger(__name__)

_TIMEOUT_S: Final = 3.0
_AFTER_FAILURE_S: Final = 15.0


class Link:
    """A channel's Connection, asked for again when it may have changed.

    The records flow without the gateway: while it does not answer, the last Connection is as
    good as any, and the gateway is left alone for a while. A reader's schema stays that of the
    first Connection, since Spark's plan has its columns. Plain data; can be pickled. `gateway_url`
    None: there is no gateway to ask, the Connection stays as it is.
    """

    def __init__(
        self, connection: Connection, access: Access, *, gateway_url: str | None = None
    ) -> None:
        self._connection = connection
        self._access: Access = access
        self._gateway_url = gateway_url
        self._due_s = 0.0

    @property
    def last(self) -> Connection:
        """The Connection that was given last."""
        return self._connection

    def connection(self, *, max_age_s: float = 0.0) -> Connection:
        """Return a Connection no older than `max_age_s`, or the last one there was.

        Raises ChannelNotFound, Conflict (the name is another channel's now) and whatever else the
        gateway says.
        """
        now_s = time.monotonic()
        if self._gateway_url is None or now_s < self._due_s + max_age_s:
            return self._connection
        try:
            last = self._connection
            channel = _channel(self._gateway_url, last.channel_name, last.channel_uid, os.getpid())
            found = channel.connection(self._access)
            if self._access == "read":
                found = replace(
                    found,
                    schema_id=last.schema_id,
                    schema_definition=last.schema_definition,
                )
            self._connection = found
            self._due_s = now_s
        except GatewayUnavailable as error:
            LOGGER.warning(
                "channel %r: %s. The query goes on with what it knows of the channel",
                self._connection.channel_name,
                error,
            )
            self._due_s = now_s + _AFTER_FAILURE_S
        return self._connection


@functools.lru_cache(maxsize=64)
def _channel(gateway_url: str, name: str, uid: str, pid: int) -> Channel:
    """Return this process's own handle: connections to the gateway are not for forked children."""
    del pid
    channel = Gateway(gateway_url, timeout_s=_TIMEOUT_S).channel(name, wait_s=_TIMEOUT_S)
    if channel.uid != uid:
        raise Conflict(
            f"the channel {name!r} was deleted and made anew under this query: it was {uid} and "
            f"is {channel.uid} now, with other records. Stop the query and start it again",
            code="uid_mismatch",
        )
    return channel
