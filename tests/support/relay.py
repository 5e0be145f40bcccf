"""A TCP relay to a local server: tests can cut it, stall it, or make it drop data."""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil


def reserve_port(port: int = 0) -> socket.socket:
    """Bind a loopback port (0: a free one), without listening, so that connections are refused.

    A listener with SO_REUSEPORT can bind the port, too.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", port))
    return reserved


class Relay:
    """Forwards connections from `port` (0: a free one) to `target`, a port or a Unix socket.

    A `target` that is set later is that of new connections. After `cut`, connections are closed and
    refused, as if the server were down. While `closes_at_response` is set, a connection is closed
    instead of forwarding a response.
    """

    def __init__(self, target: int | Path, port: int = 0) -> None:
        self.target = target
        self._reserved = reserve_port(port)
        self.port = self._reserved.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        self.closes_at_response = False
        self.accepted = 0
        """The number of connections so far."""
        self.sent: Counter[bytes] = Counter()
        """How often clients have sent a word; only of words that are in it."""
        self._flows = threading.Event()
        self._flows.set()
        self._held = threading.Event()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self._dropping: set[socket.socket] = set()
        self._drop_at: tuple[bytes, bool] | None = None
        self._call_at: tuple[bytes, Callable[[], object]] | None = None
        self._threads: list[threading.Thread] = []
        self.restore()

    def cut(self) -> None:
        """Close all connections, and refuse new ones; may be repeated."""
        with self._lock:
            listener, self._listener = self._listener, None
            for open_socket in (listener, *self._open):
                if open_socket is not None:
                    _end(open_socket)
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        if listener is not None:
            listener.close()

    def forward_to(self, port: int) -> None:
        """Close all connections, and replace the server by another one on this machine."""
        self.cut()
        self.target = port
        self.restore()

    def restore(self) -> None:
        """Accept connections again; may be repeated."""
        with self._lock:
            if self._listener is None:
                self._listener = reserve_port(self.port)
                self._listener.listen()
                self._start(self._accept, self._listener)

    @contextlib.contextmanager
    def stalled(self) -> Iterator[threading.Event]:
        """Accept connections and data while the block runs, but forward data only afterwards.

        The event is set once data waits.
        """
        self._held.clear()
        self._flows.clear()
        try:
            yield self._held
        finally:
            self._flows.set()

    def drop(self) -> None:
        """Drop all data of the open connections, in both directions; new connections work."""
        with self._lock:
            self._dropping |= self._open

    def drop_at(self, word: bytes | None, *, forward: bool = False) -> None:
        """Drop all data of the next connection that sends `word`; None cancels it.

        `forward`: forward the word.
        """
        self._drop_at = None if word is None else (word, forward)

    def call_at(self, word: bytes, action: Callable[[], object]) -> None:
        """Call `action` before `word` is forwarded, when the next connection sends it."""
        self._call_at = (word, action)

    @property
    def drop_pending(self) -> bool:
        """Whether no connection has sent the word of `drop_at` yet."""
        return self._drop_at is not None

    @property
    def clients(self) -> int:
        """The number of open connections of this process's clients."""
        connections = psutil.Process().net_connections("tcp")
        return sum(connection.raddr[1:] == (self.port,) for connection in connections)

    def close(self) -> None:
        """Close all connections, and release the port."""
        self.cut()
        self._reserved.close()

    def _start(self, work: Callable[..., None], *sockets: socket.socket) -> None:
        """Start a thread; the caller holds the lock."""
        thread = threading.Thread(target=work, args=sockets, daemon=True)
        self._threads = [earlier for earlier in self._threads if earlier.is_alive()] + [thread]
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with self._lock:
                    self.accepted += 1
                    self._start(self._forward, listener, client)

    def _forward(self, listener: socket.socket, client: socket.socket) -> None:
        # Refuse as the server does.
        with contextlib.suppress(OSError), client, self._connect() as server:
            with self._lock:
                if self._listener is not listener:
                    return
                self._open |= {client, server}
            responses = threading.Thread(target=self._pass, args=(server, client), daemon=True)
            responses.start()
            self._pass(client, server, responses=False)
            responses.join()
            with self._lock:
                self._open -= {client, server}
                self._dropping -= {client, server}

    def _connect(self) -> socket.socket:
        if isinstance(self.target, int):
            return socket.create_connection(("127.0.0.1", self.target))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self.target))
        return server

    def _pass(self, source: socket.socket, sink: socket.socket, *, responses: bool = True) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._flows.is_set():
                    self._held.set()
                self._flows.wait()
                if responses and self.closes_at_response:
                    break
                if not responses:
                    for word in self.sent:
                        self.sent[word] += data.count(word)
                call_at = self._call_at
                if not responses and call_at is not None and call_at[0] in data:
                    self._call_at = None
                    call_at[1]()
                forward = source not in self._dropping
                drop_at = self._drop_at
                if not responses and drop_at is not None and drop_at[0] in data:
                    forward, self._drop_at = drop_at[1], None
                    with self._lock:
                        self._dropping |= {source, sink}
                if forward:
                    sink.sendall(data)
        _end(source)
        _end(sink)


def _end(connection: socket.socket) -> None:
    """Shut the connection down, to wake waiting threads at both ends."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
