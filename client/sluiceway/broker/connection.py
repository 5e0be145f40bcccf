"""Connections of a Broker to the gateway."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sluiceway.broker.errors import Refusal, of_topic
from sluiceway.broker.exceptions import SocketDisconnectedError, UnknownTopicOrPartition
from sluiceway.broker.requests import in_text
from sluiceway.errors import (
    ChannelNotFound,
    GatewayAccessFailed,
    GatewayUnavailable,
    OptionError,
    SluicewayError,
)
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.rest.auth import Token
from sluiceway.rest.channels import Control
from sluiceway.rest.models import Connection
from sluiceway.rest.transport import Transport


@dataclass(frozen=True)
class SslConfig:
    """The file of certificates that the gateway's is trusted by; it has tokens for the rest."""

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class GatewayAddress:
    """A gateway's address and what it is asked with."""

    url: str
    ca: str | None = None
    token: Token | None = None
    listener: str | None = None

    def transport(self, timeout_s: float) -> Transport:
        """Return connections of their own. Raises OptionError."""
        return Transport(self.url, token=self.token, ca=self.ca, timeout_s=timeout_s)


def gateway_address(
    host: str,
    port: int,
    *,
    url: str | None,
    ssl_config: Any,
    token: Token | None,
    listener: str | None,
) -> GatewayAddress:
    """Return the way to `url`, or to the gateway at this host and port. Raises OptionError."""
    cafile = getattr(ssl_config, "cafile", None)
    if getattr(ssl_config, "certfile", None) is not None:
        raise OptionError(
            "ssl_config has a certfile, and a gateway knows its clients by tokens: leave it out, "
            "and give token=, or set SLUICEWAY_TOKEN"
        )
    if url is None:
        if not isinstance(host, str) or not host:
            raise OptionError(f"host is {host!r}; it takes the gateway's, and port its port")
        scheme = "http" if ssl_config is None else "https"
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return GatewayAddress(
        url=url,
        ca=cafile,
        token=token,
        listener=listener or os.environ.get("SLUICEWAY_LISTENER"),
    )


T = TypeVar("T")


class RequestHandler:
    """Connections to the gateway, and what it said of channels; made by `Broker.connect`.

    `stop()` ends it; what is asked then raises SocketDisconnectedError.
    """

    def __init__(self, way: GatewayAddress, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.control = Control(way.transport(timeout_s), listener=way.listener)
        self.running = True
        self.connected = False
        self._connections: dict[str, Connection] = {}
        self._identities: dict[tuple[str, str | None], TopicIdentity] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Do nothing: it is at work as soon as it is made."""

    def stop(self) -> None:
        """Close the connections. May be repeated."""
        self.running = self.connected = False
        self.control.close()

    def ask(self, question: Callable[[], T]) -> T:
        """Return what the gateway answers; SocketDisconnectedError if it does not answer."""
        try:
            return question()
        except GatewayAccessFailed:
            # It will not heal.
            raise
        except GatewayUnavailable as error:
            raise SocketDisconnectedError(str(error)) from error

    def greet(self, attempts: int) -> None:
        """Ask the gateway for something, so often; ends and raises if there is no answer."""
        try:
            self._greet(attempts)
        except BaseException:
            self.stop()
            raise

    def _greet(self, attempts: int) -> None:
        for left in reversed(range(max(1, attempts))):
            try:
                self.ask(lambda: next(self.control.channels(), None))
            except SocketDisconnectedError:
                if not left:
                    raise
            else:
                self.connected = True
                return

    def connection(self, topic: object, *, fresh: bool = False) -> Connection:
        """Return where a channel's records are; asked for once, unless it is to be `fresh`.

        Raises GatewayError and OptionError.
        """
        name = in_text(topic, "topic")
        known = self._connections.get(name)
        if known is None or fresh:
            known = self.control.connection(name, "read")
            with self._lock:
                self._connections[name] = known
        return known

    def forget(self, topic: object) -> None:
        """Ask anew for a channel the next time."""
        with self._lock:
            self._connections.pop(in_text(topic, "topic"), None)

    def identity(self, connection: Connection) -> TopicIdentity:
        """Return what looks at the topic in Kafka."""
        key = (connection.topic_name, connection.topic_id)
        return self._identities.get(key) or self._identities.setdefault(
            key, TopicIdentity(connection)
        )

    def located(self, topic: object, partition: int) -> Connection | Refusal:
        """Return where a partition is, or why it is nowhere; a channel may have grown.

        Raises SocketDisconnectedError, and OptionError for a topic without a name.
        """
        try:
            known = self.connection(topic)
            if partition >= known.partitions:
                known = self.connection(topic, fresh=True)
        except OptionError:
            raise
        except SluicewayError as error:
            if isinstance(error, ChannelNotFound):
                self.forget(topic)
            return of_topic(error)
        if 0 <= partition < known.partitions:
            return known
        return Refusal.of(
            UnknownTopicOrPartition,
            f"the channel {known.channel_name!r} has the partitions 0 to {known.partitions - 1}, "
            f"and not {partition}",
        )


__all__ = ["GatewayAddress", "RequestHandler", "SslConfig", "gateway_address"]
