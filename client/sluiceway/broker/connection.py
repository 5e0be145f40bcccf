"""Connection of a Broker to the gateway."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient

from sluiceway import Connection
from sluiceway.broker.exceptions import (
    ProtocolClientError,
    SocketDisconnectedError,
    UnknownTopicOrPartition,
    topic_refusal,
)
from sluiceway.broker.protocol import in_text
from sluiceway.errors import (
    ChannelNotFound,
    GatewayAccessFailed,
    GatewayUnavailable,
    OptionError,
    SluicewayError,
)
from sluiceway.spi import (
    Control,
    MaskedProperties,
    Token,
    TopicIdentity,
    Transport,
    Visibility,
    admin_config,
    create_client,
    visibility_of,
)

__all__ = ["GatewayAddress", "RequestHandler", "SslConfig"]


@dataclass(frozen=True)
class SslConfig:
    """The file of trusted certificates; clients are identified by tokens."""

    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class GatewayAddress:
    """A gateway's address, with the token and the listener to use."""

    url: str
    ca: str | None = None
    token: Token | None = None
    listener: str | None = None

    @classmethod
    def of(
        cls,
        host: str,
        port: int,
        *,
        url: str | None,
        ssl_config: Any,
        token: Token | None,
        listener: str | None,
    ) -> "GatewayAddress":
        """Return the address of `url`, or else of this host and port. Raises OptionError."""
        if getattr(ssl_config, "certfile", None) is not None:
            raise OptionError(
                "ssl_config has a certfile, but a gateway identifies clients by tokens: omit it, "
                "and give token=, or set SLUICEWAY_TOKEN"
            )
        if url is None:
            if not isinstance(host, str) or not host:
                raise OptionError(f"host is {host!r}; it takes the gateway's host, port its port")
            scheme = "http" if ssl_config is None else "https"
            url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        return cls(
            url=url,
            ca=getattr(ssl_config, "cafile", None),
            token=token,
            listener=listener or os.environ.get("SLUICEWAY_LISTENER"),
        )

    def control(self, timeout_s: float) -> Control:
        """Return a control plane with its own connections."""
        transport = Transport(self.url, token=self.token, ca=self.ca, timeout_s=timeout_s)
        return Control(transport, listener=self.listener)


class RequestHandler:
    """Connection to the gateway, with a cache of channels; created by `Broker.connect`.

    Every request of a Broker is a function of one. After `stop()`, a Broker refuses requests.
    """

    def __init__(self, address: GatewayAddress, *, timeout_s: float, attempts: int = 3) -> None:
        """Check that the gateway answers. Raises SocketDisconnectedError after `attempts`."""
        self.address = address
        self.timeout_s = timeout_s
        self.control = address.control(timeout_s)
        self.connected = False
        self.running = True
        self._connections: dict[str, Connection] = {}
        self._identities: dict[tuple[str, str | None], TopicIdentity] = {}
        self._admin_clients: dict[MaskedProperties, AdminClient] = {}
        self._greet(attempts)

    def start(self) -> None:
        """Do nothing: the constructor has started the handler."""

    def stop(self) -> None:
        """Close the connection. May be repeated."""
        self.running = self.connected = False
        self.control.close()

    def _greet(self, attempts: int) -> None:
        for left in reversed(range(max(1, attempts))):
            try:
                with self.request():
                    next(self.control.channels(), None)
            except BaseException as error:
                if left and isinstance(error, SocketDisconnectedError):
                    continue
                self.stop()
                raise
            return

    @contextmanager
    def request(self) -> Iterator[None]:
        """Record whether the gateway answers the request in the block.

        Raises SocketDisconnectedError if it does not.
        """
        try:
            yield
        except ProtocolClientError:
            self.connected = True
            raise
        except (GatewayUnavailable, SocketDisconnectedError) as error:
            if isinstance(error, GatewayAccessFailed):
                # Permanent: connecting again does not help.
                raise
            self.connected = False
            if isinstance(error, SocketDisconnectedError):
                raise
            raise SocketDisconnectedError(str(error)) from error
        self.connected = True

    def connection(self, topic: object, *, fresh: bool = False) -> Connection:
        """Return a channel's connection, from the cache unless `fresh`.

        Raises GatewayError, OptionError.
        """
        name = in_text(topic, "topic")
        connection = self._connections.get(name)
        if connection is None or fresh:
            connection = self._connections[name] = self.control.connection(name, "read")
        return connection

    def forget(self, topic: object) -> None:
        """Drop a channel from the cache."""
        self._connections.pop(in_text(topic, "topic"), None)

    def identity(self, connection: Connection) -> TopicIdentity:
        """Return the identity of the topic in Kafka."""
        key = (connection.topic_name, connection.topic_id)
        return self._identities.get(key) or self._identities.setdefault(
            key, TopicIdentity(connection)
        )

    def admin_client(self, connection: Connection) -> AdminClient:
        """Return the admin client of a channel's Kafka."""
        properties = admin_config(connection.kafka)
        return self._admin_clients.get(properties) or self._admin_clients.setdefault(
            properties, create_client(AdminClient, properties)
        )

    def visibility(self, connection: Connection) -> Visibility:
        """Return the visibility of an exactly-once channel.

        Raises ProtocolClientError and SocketDisconnectedError, as `locate` does.
        """
        try:
            visibility = visibility_of(
                self.control.ledger, connection, grace_s=self.control.grace_s
            )
        except SluicewayError as error:
            raise topic_refusal(error) from error
        assert visibility is not None  # noqa: S101 - the channel is exactly_once
        return visibility

    def locate(self, topic: object, partition: int) -> Connection:
        """Return the connection of a partition's channel.

        Raises ProtocolClientError if there is no such partition, SocketDisconnectedError, and
        OptionError for an invalid name.
        """
        try:
            connection = self.connection(topic)
            if partition >= connection.partitions:
                # The channel may have grown.
                connection = self.connection(topic, fresh=True)
        except SluicewayError as error:
            if isinstance(error, ChannelNotFound):
                self.forget(topic)
            raise topic_refusal(error) from error
        if 0 <= partition < connection.partitions:
            return connection
        raise UnknownTopicOrPartition(
            f"the channel {connection.channel_name!r} has the partitions 0 to "
            f"{connection.partitions - 1}, but not {partition}"
        )
