"""A real server for an application."""

import threading
import time
from collections.abc import Callable

import uvicorn


class serving:  # noqa: N801 - reads as a verb where it is used
    """Serves an ASGI application on a free loopback port, in a thread, while the block runs."""

    def __init__(self, factory: Callable[[], object]) -> None:
        config = uvicorn.Config(
            factory, factory=True, host="127.0.0.1", port=0, log_config=None, lifespan="on"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the gateway did not start")
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the gateway did not stop"
