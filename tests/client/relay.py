"""A way to a gateway that can be cut, or swallow its answers."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class Relay:
    """Passes connections on to a gateway, while it is not `cut`; `deaf`: without its answers."""

    def __init__(self, url: str) -> None:
        at = urlsplit(url)
        self._to = (str(at.hostname), int(at.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self.cut = False
        self.deaf = False
        threading.Thread(target=self._accept, daemon=True).start()

    def break_off(self) -> None:
        """Be cut from now on."""
        self.cut = True
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.break_off()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.cut:
                    near.close()
                    continue
                far = socket.create_connection(self._to)
                for one, other, answers in ((near, far, False), (far, near, True)):
                    threading.Thread(
                        target=self._pass, args=(one, other, answers), daemon=True
                    ).start()

    def _pass(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        self._open.add(one)
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                if answers and self.deaf:
                    break
                other.sendall(data)
        self._open.discard(one)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            if each is one:
                each.close()


@contextlib.contextmanager
def relay(url: str) -> Iterator[Relay]:
    made = Relay(url)
    try:
        yield made
    finally:
        made.close()
