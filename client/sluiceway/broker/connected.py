"""A Broker's connections: how they are made, what stands for them, and how they end."""

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from sluiceway.broker.admin import Administering, Looking
from sluiceway.broker.connection import GatewayAddress, RequestHandler, gateway_address
from sluiceway.broker.exceptions import SocketDisconnectedError
from sluiceway.broker.fetch import Fetching
from sluiceway.broker.groups import Members
from sluiceway.broker.offsets import Offsets
from sluiceway.broker.produce import Outlets, Producing
from sluiceway.broker.requests import checked_count
from sluiceway.errors import SluicewayError
from sluiceway.rest.auth import Token

__all__ = ["Connected"]

LOGGER = logging.getLogger("sluiceway.broker")

R = TypeVar("R")


class Connected:
    """What a Broker is made with, and what it is connected by."""

    def __init__(
        self,
        id_: int,
        host: str,
        port: int,
        handler: Any = None,
        socket_timeout_ms: int = 30_000,
        offsets_channel_socket_timeout_ms: int = 10_000,
        buffer_size: int = 1024 * 1024,
        source_host: str = "",
        source_port: int = 0,
        ssl_config: Any = None,
        broker_version: str = "0.9.0",
        api_versions: Any = None,
        *,
        url: str | None = None,
        token: str | Token | None = None,
        listener: str | None = None,
        raise_errors: bool = False,
        gateway: GatewayAddress | None = None,
    ) -> None:
        """Connect to the gateway at `host` and `port`, or at `url`.

        `id_` is what `id` gives, no more. The timeouts are how long a request is tried. With
        `ssl_config` the way is HTTPS, and its `cafile` is trusted; a token is taken from
        SLUICEWAY_TOKEN unless it is given. `handler`, `buffer_size`, `source_host`, `source_port`,
        `broker_version` and `api_versions` are taken and not needed. `gateway` is for metadata.

        Where nobody answers, the log says so, and `connected` is False. Raises OptionError.
        """
        del handler, buffer_size, source_host, source_port, broker_version, api_versions
        given = Token.of(token)
        del token
        self._id, self._host, self._port = int(id_), host, int(port)
        self._way = gateway or gateway_address(
            host, self._port, url=url, ssl_config=ssl_config, token=given, listener=listener
        )
        self._timeouts_s = (
            checked_count(socket_timeout_ms, "socket_timeout_ms") / 1000,
            checked_count(offsets_channel_socket_timeout_ms, "offsets_channel_socket_timeout_ms")
            / 1000,
        )
        self._raises = raise_errors
        self._lock = threading.Lock()
        self._offsets_turn = threading.Lock()
        self._handler: RequestHandler | None = None
        self._offsets_handler: RequestHandler | None = None
        self._outlets: Outlets | None = None
        self._close_failure: SluicewayError | None = None
        self._fetching: Fetching
        self._producing: Producing
        try:
            self.connect()
        except SocketDisconnectedError as error:
            LOGGER.warning("the broker %s is not connected: %s", self, error)

    @classmethod
    def from_metadata(
        cls,
        metadata: Any,
        handler: Any = None,
        socket_timeout_ms: int = 30_000,
        offsets_channel_socket_timeout_ms: int = 10_000,
        buffer_size: int = 64 * 1024,
        source_host: str = "",
        source_port: int = 0,
        ssl_config: Any = None,
        broker_version: str = "0.9.0",
        api_versions: Any = None,
        **more: Any,
    ) -> Self:
        """Return a Broker by what `request_metadata` said of it; it goes by the same gateway.

        Of metadata from elsewhere, host and port are taken as the gateway's.
        """
        # Error reporters render the locals of frames.
        more["token"] = Token.of(more.get("token"))
        return cls(
            metadata.id,
            metadata.host,
            metadata.port,
            handler,
            socket_timeout_ms,
            offsets_channel_socket_timeout_ms,
            buffer_size=buffer_size,
            source_host=source_host,
            source_port=source_port,
            ssl_config=ssl_config,
            broker_version=broker_version,
            api_versions=api_versions,
            **{"gateway": getattr(metadata, "gateway", None), **more},
        )

    @property
    def connected(self) -> bool:
        """Whether the gateway answered when it was asked last."""
        return self._handler is not None and self._handler.connected

    @property
    def offsets_channel_connected(self) -> bool:
        """The same of the connection by which offsets are committed and fetched."""
        return self._offsets_handler is not None and self._offsets_handler.connected

    @property
    def id(self) -> int:
        """The number that it was given."""
        return self._id

    @property
    def host(self) -> str:
        """The host that it was given."""
        return self._host

    @property
    def port(self) -> int:
        """The port that it was given."""
        return self._port

    @property
    def handler(self) -> RequestHandler | None:
        """The connections for all but committing and fetching offsets; None: not connected."""
        return self._handler

    @property
    def offsets_channel_handler(self) -> RequestHandler | None:
        """The connections for committing and fetching offsets; None: not connected."""
        return self._offsets_handler

    def connect(self, attempts: int = 3) -> None:
        """Connect, anew if it was before; raises SocketDisconnectedError after `attempts`.

        Raises Unauthenticated for a token that the gateway does not know.
        """
        fresh = RequestHandler(self._way, timeout_s=self._timeouts_s[0])
        fresh.greet(attempts)
        with self._lock:
            before, self._handler = self._handler, fresh
            self._close_failure = None
            if before is not None:
                self._producing.flush()
                self._fetching.close()
                before.stop()
            if self._outlets is None:
                self._outlets = Outlets(fresh)
            self._outlets.handler = fresh
            self._looking = Looking(fresh, known_as=self._way)
            self._fetching = Fetching(fresh)
            self._producing = Producing(fresh, self._outlets)
            self._members = Members(fresh)
            self._administering = Administering(fresh)

    def connect_offsets_channel(self, attempts: int = 3) -> None:
        """Connect for offsets; the calls that need it do it by themselves.

        Raises SocketDisconnectedError after `attempts`.
        """
        fresh = RequestHandler(self._way, timeout_s=self._timeouts_s[1])
        fresh.greet(attempts)
        with self._lock:
            before, self._offsets_handler = self._offsets_handler, fresh
            self._offsets = Offsets(fresh)
        if before is not None:
            before.stop()

    def close(self, error: BaseException | None = None) -> None:
        """Say where what was produced ends, or with which error, and let go. May be repeated.

        What it raises, it raises again when it is repeated without an `error`.
        Members of groups leave by `leave_group`, or are lost when they beat no more.
        """
        with self._lock:
            handler, self._handler = self._handler, None
            offsets, self._offsets_handler = self._offsets_handler, None
        if handler is None and error is None and self._close_failure is not None:
            raise self._close_failure
        try:
            if handler is not None and self._outlets is not None:
                self._outlets.close(error)
        except SluicewayError as failure:
            self._close_failure = failure
            raise
        finally:
            if handler is not None:
                self._fetching.close()
                handler.stop()
            if offsets is not None:
                offsets.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception readers of what was produced hear that it failed."""
        self.close(error)

    def __repr__(self) -> str:
        kind = type(self)
        where = f"host={self._host}, port={self._port}, id={self._id}"
        return f"<{kind.__module__}.{kind.__name__} at {id(self):#x} ({where})>"

    def _online(self) -> RequestHandler:
        """Return what requests go by; raises SocketDisconnectedError."""
        return _running(self._handler, "connect()")

    def _online_for_offsets(self) -> RequestHandler:
        """Connect for offsets if it is not; raises SocketDisconnectedError."""
        # Another thread may be doing so, and is not to be cut off.
        with self._offsets_turn:
            handler = self._offsets_handler
            if handler is None or not handler.running:
                self.connect_offsets_channel()
        return _running(self._offsets_handler, "connect_offsets_channel()")

    def _asked(self, handler: RequestHandler, request: Callable[[], R]) -> R:
        """Return the answer to a request, and note whether there was one."""
        try:
            answer = request()
        except SocketDisconnectedError:
            handler.connected = False
            raise
        handler.connected = True
        return answer


def _running(handler: RequestHandler | None, connect: str) -> RequestHandler:
    if handler is None or not handler.running:
        raise SocketDisconnectedError(f"the Broker is not connected: call {connect}")
    return handler
