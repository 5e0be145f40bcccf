"""A TCP relay to a local server that can be cut, stalled, or made to drop data."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


def held_port(port: int = 0) -> socket.socket:
    """Reserve a loopback port (0: a free one) for a listener with SO_REUSEPORT.

    Until then, connections to it are refused.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", port))
    return held


class Relay:
    """Forwards connections from its `port` (0: a free one) to `to`.

    `to` is a port, or the path of a Unix socket.

    While the relay is cut, open connections end and new ones are refused, as if the server were
    down. While it is `deaf`, a connection ends instead of forwarding a response.
    """

    def __init__(self, to: int | Path, port: int = 0) -> None:
        self._to = to
        self._held = held_port(port)
        self.port = self._held.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        self.deaf = False
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._lost: set[socket.socket] = set()
        self._lose_at: tuple[bytes, bool] | None = None
        self._threads: list[threading.Thread] = []
        self.mend()

    def cut(self) -> None:
        """End all connections, and refuse new ones; may be repeated."""
        with self._lock:
            listener, self._listener = self._listener, None
            for each in (listener, *self._open):
                if each is not None:
                    _end(each)
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        if listener is not None:
            listener.close()

    def mend(self) -> None:
        """Accept connections again; may be repeated."""
        with self._lock:
            if self._listener is None:
                self._listener = held_port(self.port)
                self._listener.listen()
                self._start(self._listener)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Accept connections and data in the block, but forward them only afterwards."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def lose(self) -> None:
        """Drop all data, in both directions, of the open connections; new ones work."""
        with self._lock:
            self._lost |= self._open

    def lose_at(self, word: bytes, *, arrives: bool) -> None:
        """Drop all data of the next connection that sends `word`; `arrives`: forward the word."""
        self._lose_at = (word, arrives)

    def lose_nothing(self) -> None:
        """Cancel `lose_at`."""
        self._lose_at = None

    @property
    def waits_to_lose(self) -> bool:
        """Whether no connection has sent the word of `lose_at` yet."""
        return self._lose_at is not None

    def close(self) -> None:
        """End all connections, and the relay."""
        self.cut()
        self._held.close()

    def _start(self, listener: socket.socket, near: socket.socket | None = None) -> None:
        """Start a thread that accepts connections, or forwards one; the caller holds the lock."""
        thread = threading.Thread(
            target=self._take if near is None else self._carry,
            args=(listener,) if near is None else (listener, near),
            daemon=True,
        )
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _take(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                with self._lock:
                    if self._listener is not listener:
                        near.close()
                        return
                    self._start(listener, near)

    def _carry(self, listener: socket.socket, near: socket.socket) -> None:
        # Refuse as the server does.
        with contextlib.suppress(OSError), near, self._server() as far:
            with self._lock:
                if self._listener is not listener:
                    return
                self._open |= {near, far}
            back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
            back.start()
            self._pass(near, far, responses=False)
            back.join()
            with self._lock:
                self._open -= {near, far}
                self._lost -= {near, far}

    def _server(self) -> socket.socket:
        if isinstance(self._to, int):
            return socket.create_connection(("127.0.0.1", self._to))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._to))
        return server

    def _pass(self, source: socket.socket, sink: socket.socket, *, responses: bool = True) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                if responses and self.deaf:
                    break
                arrives = source not in self._lost
                lose_at = self._lose_at
                if not responses and lose_at is not None and lose_at[0] in data:
                    arrives, self._lose_at = lose_at[1], None
                    with self._lock:
                        self._lost |= {source, sink}
                if arrives:
                    sink.sendall(data)
        _end(source)
        _end(sink)


def _end(connection: socket.socket) -> None:
    """Shut the connection down, to wake waiting threads at both ends."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
