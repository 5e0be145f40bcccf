"""A way to a server of this machine that can be cut, stand still, or swallow the answers."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Iterator
from typing import Any

_MOST_S = 60


def held_port(port: int = 0) -> socket.socket:
    """Keep a port of the loopback interface (0: a free one) for whoever listens with SO_REUSEPORT.

    Until then, connections to it are refused.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", port))
    return held


class Relay:
    """Passes connections on to the port `to`, from a `port` of its own (0: a free one).

    For those at its `address`, the server is away while the relay is cut: what they have open is
    reset, and what they open is refused. While it is `deaf`, a connection ends when an answer is
    to pass.
    """

    def __init__(self, to: int, port: int = 0) -> None:
        self._to = to
        self._held = held_port(port)
        self._port = self._held.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self.url = f"http://{self.address}"
        self.deaf = False
        self._carried: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._flow(True)
        self.mend()

    def cut(self) -> None:
        """Have the server away; may be repeated."""
        self._do(self._cut())

    def mend(self) -> None:
        """Have the server back; may be repeated."""
        self._do(self._mend())

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Take connections and whatever comes while the block runs, and pass it on afterwards."""
        self._flow(False)
        try:
            yield
        finally:
            self._flow(True)

    def close(self) -> None:
        """Cut it for good."""
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._held.close()

    def _do(self, work: Awaitable[None]) -> None:
        async def done() -> None:
            await work

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(_MOST_S)

    def _flow(self, flows: bool) -> None:
        self._loop.call_soon_threadsafe(self._flows.set if flows else self._flows.clear)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        carried = list(self._carried)
        for each in carried:
            each.cancel()
        await asyncio.gather(*carried, return_exceptions=True)

    async def _mend(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._carry, "127.0.0.1", self._port, reuse_port=True
            )

    async def _carry(self, asking: asyncio.StreamReader, asker: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        self._carried.add(this)
        writers = [asker]
        try:
            answering, answerer = await asyncio.open_connection("127.0.0.1", self._to)
            writers.append(answerer)
            ways = [self._pass(asking, answerer), self._pass(answering, asker, answers=True)]
            await _first(*ways)
        except BaseException:
            for each in writers:
                each.transport.abort()
            raise
        finally:
            self._carried.discard(this)
            for each in writers:
                each.close()

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                await self._flows.wait()
                if answers and self.deaf:
                    return
                sink.write(data)
                await sink.drain()


async def _first(*works: Any) -> None:
    """Wait for the first of these to end, and end the others."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
