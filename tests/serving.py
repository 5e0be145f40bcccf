"""A real server for a gateway."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from sluiceway_gateway.http.sockets import bound_socket


@contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Serve on a loopback port (0: a free one), in a thread, while the block runs; give the URL."""
    bound = bound_socket("127.0.0.1", port)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the gateway did not start")
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        # Requests that wait for a change would hold up the end, as the server waits for them.
        app.state.parts.watch.close()
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive(), "the gateway did not stop"
