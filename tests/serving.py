"""A real server for a gateway."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from sluiceway_gateway.cli.serve import bound_socket
from sluiceway_gateway.http.server import limited_protocol


class _Server(uvicorn.Server):
    """Ends when it is told, where uvicorn's own looks ten times a second and rests for a tenth."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        told = asyncio.ensure_future(self._told.wait())
        ticking = asyncio.ensure_future(super().main_loop())
        await asyncio.wait([told, ticking], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        ticking.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for each in (*self.servers, *(sockets or ())):
            each.close()
        await self.lifespan.shutdown()

    def end(self) -> None:
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._told.set)


@contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Serve on a loopback port (0: a free one), in a thread, while the block runs; give the URL."""
    bound = bound_socket("127.0.0.1", port)
    protocol = limited_protocol(app.state.parts.settings)
    server = _Server(uvicorn.Config(app, log_config=None, lifespan="on", http=protocol, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 180
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the gateway did not start")
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        # Requests that wait for a change would hold up the end, as the server waits for them.
        app.state.parts.watch.close()
        server.end()
        thread.join(timeout=120)
        assert not thread.is_alive(), "the gateway did not stop"
