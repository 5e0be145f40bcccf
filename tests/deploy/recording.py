"""Records requests of this version's client and the gateway's responses.

    python tests/deploy/recording.py tests/deploy/recorded/client-X.Y.Z.json

Run it at a release; `test_older_client.py` replays every recording against the current gateway. A
recording has the exchanges of all connections, except for periodic heartbeats, whose number varies.
Placeholders replace values that differ between runs: `<uid N>` and its first 8 digits `<uid8 N>`
the Nth uid, `<etag>` the ETag of the path's last response, `<topic id>` the id of the last topic,
and `<time>`, `<text>`, `<number>` and `<address>` any value of that kind.
"""

import json
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from gateways import serving
from sluiceway import Gateway
from sluiceway.api.models import Heartbeat, Retention
from sluiceway.errors import GatewayError
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.dev.embedded import KafkaServer
from sluiceway_gateway.migration import migrate

SCHEMA = {
    "type": "record",
    "name": "Departure",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "double"], "default": None},
    ],
}
FORMS = {
    "created_at": "<time>",
    "at": "<time>",
    "attached_at": "<time>",
    "changed_at": "<time>",
    "committed_at": "<time>",
    "topic_id": "<topic id>",
    "endpoints_revision": "<number>",
    "last_transition_at": "<time>",
    "message": "<text>",
    "detail": "<text>",
    "title": "<text>",
    "bootstrap.servers": "<address>",
}
SENT = ("If-Match", "If-None-Match", "Idempotency-Key")


class Recorder:
    """Records each exchange; of consecutive long polls only the last one."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self._uids: list[str] = []
        self._has_heartbeat = threading.Event()
        self._has_heartbeat.set()

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return the application with its exchanges recorded."""

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            sent, received, start = bytearray(), bytearray(), dict[str, Any]()

            async def receiving() -> Message:
                message = await receive()
                sent.extend(message.get("body", b""))
                return message

            async def sending(message: Message) -> None:
                start.update(message if message["type"] == "http.response.start" else {})
                received.extend(message.get("body", b""))
                await send(message)

            await app(scope, receiving, sending)
            if scope["type"] == "http":
                url = f"http://gateway{scope['path']}?{scope['query_string'].decode()}"
                request = httpx.Request(
                    scope["method"], url, headers=scope["headers"], content=bytes(sent)
                )
                self._note(
                    httpx.Response(
                        start["status"],
                        headers=start["headers"],
                        content=bytes(received),
                        request=request,
                    )
                )

        return recorded

    def await_heartbeat(self) -> None:
        """Record the next heartbeat, of all."""
        self._has_heartbeat.clear()
        assert self._has_heartbeat.wait(60)

    def _note(self, response: httpx.Response) -> None:
        """Record an exchange after its response."""
        request = response.request
        is_heartbeat = request.url.path == "/v1/heartbeats"
        if is_heartbeat and self._has_heartbeat.is_set():
            return
        content = response.json() if response.content else None
        self._collect_uids(content)
        exchange = {
            "method": request.method,
            "path": request.url.path,
            "query": {
                name: self._with_placeholders(value) for name, value in request.url.params.items()
            },
            "headers": {
                name: "<etag>" if request.headers[name][0] == '"' else request.headers[name]
                for name in SENT
                if name in request.headers
            },
            "body": self._generalized(json.loads(request.content)) if request.content else None,
            "response": {
                "status": response.status_code,
                "etag": "etag" in response.headers,
                "json": self._generalized(content),
            },
        }
        if self.exchanges and _waits(exchange) and _waits(self.exchanges[-1]):
            self.exchanges.pop()
        self.exchanges.append(exchange)
        if is_heartbeat:
            self._has_heartbeat.set()

    def _collect_uids(self, value: Any) -> None:
        if isinstance(value, dict):
            uid = value.get("uid")
            if isinstance(uid, str) and uid not in self._uids:
                self._uids.append(uid)
            for child in value.values():
                self._collect_uids(child)
        elif isinstance(value, list):
            for child in value:
                self._collect_uids(child)

    def _generalized(self, value: Any, key: str = "", parent: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self._generalized(child, name, key) for name, child in value.items()}
        if isinstance(value, list):
            return [self._generalized(child, key, parent) for child in value]
        if value is None or (key not in FORMS and not isinstance(value, str)):
            return value
        if parent == "topic" and key == "id":
            return "<topic id>"
        return FORMS.get(key) or self._with_placeholders(value)

    def _with_placeholders(self, text: str) -> str:
        for number, uid in enumerate(self._uids, 1):
            text = text.replace(uid, f"<uid {number}>").replace(uid[:8], f"<uid8 {number}>")
        return text


def _waits(exchange: dict[str, Any]) -> bool:
    return "wait" in exchange["query"]


def work(gateway: Gateway) -> None:
    """Send the requests of jobs, including some that are refused."""
    channel = gateway.channel(
        "departures",
        SCHEMA,
        partitions=2,
        labels={"team": "ops"},
        retention=Retention(ms=86_400_000),
        config={"min.insync.replicas": "1"},
    )
    with channel.writer() as writer:
        writer.write([{"carrier": "UA", "delay": None}, {"carrier": "B6", "delay": 2.5}])
    with channel.reader(until="now") as reader:
        assert len(list(reader)) == 2
    gateway.channel("delays", SCHEMA, format="arrow", pinned=True)
    gateway.channel("departures", SCHEMA)
    assert [listed.name for listed in gateway.channels()] == ["delays", "departures"]
    assert [listed.name for listed in gateway.channels("team=ops")] == ["departures"]
    channel.update(partitions=3, labels={"team": "ops", "tier": "1"})
    channel.update(retention=Retention(bytes=1_000_000), config={})
    channel.refresh()
    with suppress(GatewayError):
        channel.update(partitions=1)
    with suppress(GatewayError):
        gateway.channel("delays").update(partitions=2)
    with suppress(GatewayError):
        channel.update(config={"nonsense": "1"})
    with suppress(GatewayError):
        gateway.channel("nowhere")
    gateway.channel("delays").delete(keep_topic=True)
    channel.delete()
    with suppress(GatewayError):
        channel.update(partitions=4)


def work_together(gateway: Gateway, recorder: Recorder) -> None:
    """Send the requests of endpoints: attach, heartbeat, commit, failure, detach."""
    channel = gateway.channel(
        "arrivals", SCHEMA, partitions=2, heartbeat=Heartbeat(interval_ms=1000)
    )
    with channel.writer(group="load") as writer:
        writer.write([{"carrier": "UA", "delay": None}, {"carrier": "B6", "delay": 2.5}])
    with channel.reader(group="boards", index=0, size=2, until="now") as reader:
        assert len(list(reader)) == 1
        reader.commit()
        recorder.await_heartbeat()
        assert len(reader.committed()) == 1
    with suppress(ZeroDivisionError), channel.writer(group="load"):
        raise ZeroDivisionError
    (failed,) = (endpoint for endpoint in channel.endpoints() if endpoint.state == "error")
    channel.dismiss(failed.id)
    channel.reset("boards", reason="to be read again")
    assert channel.committed("boards") == {}
    channel.close(wait_s=30)
    channel.delete(force=True)


def main(path: Path) -> None:
    """Run a broker, a gateway and the work, and write the recording."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as directory:
        database = f"sqlite:///{directory}/gateway.db"
        migrate(database)
        with KafkaServer.start(Path(directory) / "kafka") as kafka:
            settings = Settings(
                database_url=database, kafka_bootstrap_servers=kafka.bootstrap_servers
            )
            app = create_app(settings)
            app.add_middleware(recorder.wrap)
            with serving(app) as url, Gateway(url) as gateway:
                work(gateway)
                work_together(gateway, recorder)
    path.write_text(json.dumps(recorder.exchanges, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
