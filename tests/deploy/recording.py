"""Records requests of this version's client and the gateway's responses.

    python tests/deploy/recording.py tests/deploy/recorded/client-X.Y.Z.json

Run at a release; `test_older_client.py` replays every recording against today's gateway. Recorded
is what goes through any of the client's connections, those of its endpoints too, but for the beats
that come of themselves: when these come, and how many, is chance. What differs from run to run is
replaced: `<uid N>` and its first 8 digits `<uid8 N>` for the Nth uid that is seen, `<etag>` for the
ETag of the path's last response, `<topic id>` for the id of the topic that was seen last, and
`<time>`, `<text>`, `<number>`, `<address>` for what only has a form.
"""

import json
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from gateways import serving
from sluiceway import Gateway
from sluiceway.errors import GatewayError
from sluiceway.rest.models import Heartbeat, Retention
from sluiceway.rest.transport import Transport
from sluiceway_gateway.app import create_app
from sluiceway_gateway.db.revision import migrate
from sluiceway_gateway.embedded import KafkaServer
from sluiceway_gateway.settings import Settings

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
    """Notes each exchange; of waiting reads in a row only the last one."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self._uids: list[str] = []

    def note(self, response: httpx.Response) -> None:
        """Take one exchange, when its response has come."""
        request = response.request
        if threading.current_thread().name == "sluiceway-heartbeat":
            return
        response.read()
        content = response.json() if response.content else None
        self._learn(content)
        exchange = {
            "method": request.method,
            "path": request.url.path,
            "query": {name: self._named(value) for name, value in request.url.params.items()},
            "headers": {
                name: "<etag>" if request.headers[name][0] == '"' else request.headers[name]
                for name in SENT
                if name in request.headers
            },
            "body": self._general(json.loads(request.content)) if request.content else None,
            "response": {
                "status": response.status_code,
                "etag": "etag" in response.headers,
                "json": self._general(content),
            },
        }
        if self.exchanges and _waits(exchange) and _waits(self.exchanges[-1]):
            self.exchanges.pop()
        self.exchanges.append(exchange)

    def _learn(self, value: Any) -> None:
        if isinstance(value, dict):
            uid = value.get("uid")
            if isinstance(uid, str) and uid not in self._uids:
                self._uids.append(uid)
            for each in value.values():
                self._learn(each)
        elif isinstance(value, list):
            for each in value:
                self._learn(each)

    def _general(self, value: Any, key: str = "", parent: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self._general(each, name, key) for name, each in value.items()}
        if isinstance(value, list):
            return [self._general(each, key, parent) for each in value]
        if value is None or (key not in FORMS and not isinstance(value, str)):
            return value
        if parent == "topic" and key == "id":
            return "<topic id>"
        return FORMS.get(key) or self._named(value)

    def everywhere(self) -> None:
        """Take the exchanges of all connections that are made from now on."""
        connected = Transport._connected

        def hooked(transport: Transport) -> httpx.Client:
            client = connected(transport)
            client.event_hooks = {"response": [self.note]}
            return client

        Transport._connected = hooked  # type: ignore[method-assign]

    def _named(self, text: str) -> str:
        for number, uid in enumerate(self._uids, 1):
            text = text.replace(uid, f"<uid {number}>").replace(uid[:8], f"<uid8 {number}>")
        return text


def _waits(exchange: dict[str, Any]) -> bool:
    return "wait" in exchange["query"]


def work(gateway: Gateway) -> None:
    """Make the requests of jobs, refused ones included."""
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
    assert [each.name for each in gateway.channels()] == ["delays", "departures"]
    assert [each.name for each in gateway.channels("team=ops")] == ["departures"]
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


def work_together(gateway: Gateway) -> None:
    """Make the requests of endpoints: attach, heartbeat, commit, fail, detach."""
    channel = gateway.channel(
        "arrivals", SCHEMA, partitions=2, heartbeat=Heartbeat(interval_ms=1000)
    )
    with channel.writer(group="load") as writer:
        writer.write([{"carrier": "UA", "delay": None}, {"carrier": "B6", "delay": 2.5}])
    with channel.reader(group="boards", index=0, size=2, until="now") as reader:
        assert len(list(reader)) == 1
        reader.commit()
        session = reader._handle.session  # type: ignore[union-attr]
        session.send(session.calls)
        assert len(reader.committed()) == 1
    with suppress(ZeroDivisionError), channel.writer(group="load"):
        raise ZeroDivisionError
    (failed,) = (each for each in channel.endpoints() if each.state == "error")
    channel.dismiss(failed.id)
    channel.reset("boards", reason="to be read again")
    assert channel.committed("boards") == {}
    channel.close(wait_s=30)
    channel.delete(force=True)


def main(path: Path) -> None:
    """Run a broker and a gateway, work, and write the recording."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as directory:
        database = f"sqlite:///{directory}/gateway.db"
        migrate(database)
        with KafkaServer.start(Path(directory) / "kafka") as kafka:
            settings = Settings(
                database_url=database, kafka_bootstrap_servers=kafka.bootstrap_servers
            )
            recorder.everywhere()
            with serving(create_app(settings)) as url, Gateway(url) as gateway:
                work(gateway)
                work_together(gateway)
    path.write_text(json.dumps(recorder.exchanges, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
