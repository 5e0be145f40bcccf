"""Channel connections of a Spark plan: resolved once, refreshed on demand."""

import logging
import time
from dataclasses import replace
from typing import Final

from sluiceway.channel import Channel
from sluiceway.errors import Conflict, GatewayUnavailable
from sluiceway.gateway import Gateway
from sluiceway.rest.channels import Access
from sluiceway.rest.models import Connection

LOGGER = logging.getLogger(__name__)

_TIMEOUT_S: Final = 3.0
_RETRY_AFTER_S: Final = 15.0


class RefreshableConnection:
    """A channel's Connection, requested again when it may have changed. Picklable.

    `connection` is the latest one. While the gateway does not answer, it stays in use, and the
    gateway is not asked again for 15 s. A reader keeps the schema of its first Connection, since
    Spark's plan has its columns. Without a `gateway_url` the Connection never changes.
    """

    def __init__(
        self, connection: Connection, access: Access, *, gateway_url: str | None = None
    ) -> None:
        self.connection = connection
        self.gateway_url = gateway_url
        self._access: Access = access
        self._refreshed_s = float("-inf")
        self._retry_at_s = float("-inf")
        self._gateway: Gateway | None = None
        self._channel: Channel | None = None

    def refresh(self, *, max_age_s: float = 0.0) -> bool:
        """Request a Connection unless the present one is younger than `max_age_s`.

        Returns whether `connection` is now that recent; False while the gateway does not answer,
        when the channel may have new schemas. Raises ChannelNotFound, Conflict (another channel
        has the name now) and other errors of the gateway.
        """
        before, now_s = self.connection, time.monotonic()
        if self.gateway_url is None or now_s < self._refreshed_s + max_age_s:
            return True
        if now_s < self._retry_at_s:
            return False
        try:
            found = self._open(self.gateway_url).connection(self._access)
        except GatewayUnavailable as error:
            LOGGER.warning(
                "channel %r: %s. The query continues with the last known connection",
                before.channel_name,
                error,
            )
            self._retry_at_s = now_s + _RETRY_AFTER_S
            return False
        if self._access == "read":
            found = replace(
                found, schema_id=before.schema_id, schema_definition=before.schema_definition
            )
        self.connection = found
        self._refreshed_s = now_s
        return True

    def close(self) -> None:
        """Close the connection to the gateway; `refresh` reopens it."""
        if self._gateway is not None:
            self._gateway.close()
        self._gateway = self._channel = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the objects of this process."""
        return vars(self) | {"_gateway": None, "_channel": None}

    def _open(self, gateway_url: str) -> Channel:
        if self._channel is None:
            self._gateway = self._gateway or Gateway(gateway_url, timeout_s=_TIMEOUT_S)
            name, uid = self.connection.channel_name, self.connection.channel_uid
            found = self._gateway.channel(name, wait_s=_TIMEOUT_S)
            if found.uid != uid:
                raise Conflict(
                    f"the channel {name!r} was deleted and recreated while this query ran: its "
                    f"uid was {uid} and is {found.uid} now, with other records. Restart the query",
                    code="uid_mismatch",
                )
            self._channel = found
        return self._channel
