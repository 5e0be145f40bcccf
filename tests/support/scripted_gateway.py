"""An HTTP server with scripted responses."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from sluiceway.api.channels import Control
from sluiceway.api.transport import Transport

#: A channel as the gateway describes it.
CHANNEL: dict[str, Any] = {
    "metadata": {
        "name": "flights",
        "uid": "0" * 32,
        "labels": {"team": "fares"},
        "generation": 2,
        "created_at": "2026-01-02T03:04:05.678Z",
    },
    "spec": {
        "schema": {"type": "record", "name": "F", "fields": [{"name": "id", "type": "long"}]},
        "format": "arrow",
        "partitions": 4,
        "pinned": False,
        "replication": None,
        "retention": {"ms": 1000, "bytes": None},
        "config": {"cleanup.policy": "delete"},
    },
    "status": {
        "phase": "provisioning",
        "observed_generation": 1,
        "conditions": [],
        "topic": {"name": "sluiceway.flights-00000000", "id": None, "partitions": None},
        "schema": {"id": 1, "version": 1},
    },
}


class _PatientTransport(Transport):
    """Waits long for a response, whatever the timeout of its request, which a header has.

    A repeated request would take the response to the next one.
    """

    def _new_client(self) -> httpx.Client:
        client = super()._new_client()
        client.event_hooks = {"request": [_wait_long]}
        return client


def _wait_long(request: httpx.Request) -> None:
    request.headers["Timeout-S"] = str(request.extensions["timeout"]["read"])
    request.extensions["timeout"] = httpx.Timeout(60).as_dict()


class Script:
    """The responses in order, and the received requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.responses: list[tuple[int, dict[str, str], bytes]] = []
        self.last: tuple[int, dict[str, str], bytes] | None = None
        """The response once there are no others; None closes the connection."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[Any] = []
        self.pauses_s: list[float] = []
        self._now_s = 0.0

    def response(self, status: int, body: object = None, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.responses.append((status, {k.replace("_", "-"): v for k, v in headers.items()}, data))

    def problem(self, status: int, code: str, *, retriable: bool = False, **headers: str) -> None:
        body = {"status": status, "code": code, "detail": f"it is {code}", "retriable": retriable}
        self.response(status, body, **headers)

    def refuse(self, status: int, code: str | None) -> None:
        """Refuse each request from now on; without a `code`, as a proxy does."""
        if code is None:
            self.response(status, b"<html>")
        else:
            self.problem(status, code, Retry_After="60")
        self.last = self.responses.pop()

    def control(self, **options: Any) -> Control:
        return Control(self.transport(**options))

    def transport(self, **options: Any) -> Transport:
        """Return a transport with a fake sleep."""

        def sleep(pause_s: float) -> None:
            self.pauses_s.append(pause_s)
            self._now_s += pause_s

        return _PatientTransport(self.url, sleep=sleep, monotonic=lambda: self._now_s, **options)


@contextmanager
def scripted() -> Iterator[Script]:
    """Serve while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body_sent = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            script.bodies.append(json.loads(body_sent) if body_sent else None)
            script.requests.append((self.command, self.path, dict(self.headers)))
            response = script.responses.pop(0) if script.responses else script.last
            if response is None:
                return
            status, headers, body = response
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script = Script(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield script
        finally:
            server.shutdown()
