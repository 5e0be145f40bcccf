"""Endpoints of a channel over HTTP, as a client asks for them."""

import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway_rig import Rig
from sluiceway_gateway.channels.model import Phase

TOPIC_ID = "dG9waWM"


def fresh_id() -> str:
    return uuid.uuid4().hex


@dataclass
class Site:
    """A channel that is ready, and the session of a client that attaches to it."""

    rig: Rig
    name: str
    uid: str
    session: str = field(default_factory=fresh_id)
    beats: int = 0

    @property
    def path(self) -> str:
        return f"/v1/channels/{self.name}"

    def ask(self, role: str = "reader", **body: Any) -> httpx.Response:
        """Attach; `body` goes over what is asked by default."""
        asked = {"uid": self.uid, "id": fresh_id(), "session": self.session, "role": role}
        return self.rig.http.post(f"{self.path}/endpoints", json=asked | body)

    def attach(self, role: str = "reader", **body: Any) -> Any:
        """Attach, and return the endpoint."""
        answer = self.ask(role, **body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()["endpoint"]

    def member(
        self, index: int = 0, size: int = 1, role: str = "reader", group: str = "g", **body: Any
    ) -> Any:
        """Attach a member of a group, and return the endpoint."""
        return self.attach(role, group=group, index=index, size=size, **body)

    def join(self, group: str = "d", **body: Any) -> Any:
        """Attach a member of a dynamic group, and return the endpoint."""
        return self.attach(group=group, dynamic=True, **body)

    def sync(
        self, endpoint: Any, take: int | None = None, has: int | None = None, **body: Any
    ) -> httpx.Response:
        """Take the share of a generation, or only ask."""
        asked = {"uid": self.uid, "epoch": endpoint["epoch"], "take": take, "has": has}
        return self.rig.http.post(f"{self.path}/endpoints/{endpoint['id']}/sync", json=asked | body)

    def resize(self, size: int, generation: int, group: str = "g", **body: Any) -> httpx.Response:
        asked = {"uid": self.uid, "size": size, "generation": generation}
        return self.rig.http.post(f"{self.path}/groups/{group}/resize", json=asked | body)

    def depart(self, endpoint: Any, state: str = "closed", **body: Any) -> httpx.Response:
        asked = {"uid": self.uid, "epoch": endpoint["epoch"], "state": state}
        return self.rig.http.post(
            f"{self.path}/endpoints/{endpoint['id']}/detach", json=asked | body
        )

    def send(self, *reports: Any, beat: int | None = None, **body: Any) -> httpx.Response:
        """Send a heartbeat: the next one, or the one of this number."""
        if beat is None:
            self.beats += 1
            beat = self.beats
        asked = {"session": self.session, "beat": beat, "endpoints": reports}
        return self.rig.http.post("/v1/heartbeats", json=asked | body)

    def beat(self, *reports: Any, beat: int | None = None) -> Any:
        """Send a heartbeat, and return the replies."""
        answer = self.send(*reports, beat=beat)
        assert answer.status_code == 200, answer.text
        return answer.json()["endpoints"]

    def commit(
        self, endpoint: Any, number: int, *positions: tuple[int, int, int], **body: Any
    ) -> httpx.Response:
        """Commit positions, each a partition, an offset and a record in it."""
        asked = {
            "uid": self.uid,
            "id": endpoint["id"],
            "epoch": endpoint["epoch"],
            "generation": endpoint["generation"],
            "topic_id": TOPIC_ID,
            "number": number,
            "positions": _positions(positions),
        }
        return self.rig.http.put(self.offsets_path(endpoint["group"] or "g"), json=asked | body)

    def committed(self, group: str = "g", **query: Any) -> list[tuple[int, int, int]]:
        """Return the positions of a group, as `commit` takes them."""
        answer = self.rig.http.get(self.offsets_path(group), params=query)
        assert answer.status_code == 200, answer.text
        found = answer.json()["positions"]
        return [(each["partition"], each["offset"], each["record"]) for each in found]

    def reset(
        self, *positions: tuple[int, int, int], group: str = "g", headers: Any = None, **body: Any
    ) -> httpx.Response:
        asked = {
            "uid": self.uid,
            "topic_id": TOPIC_ID,
            "positions": _positions(positions) or None,
            "reason": "read again",
        }
        path = f"{self.offsets_path(group)}/reset"
        return self.rig.http.post(path, json=asked | body, headers=headers)

    def offsets_path(self, group: str) -> str:
        return f"{self.path}/groups/{group}/offsets"

    def get(self, endpoint: Any) -> Any:
        answer = self.rig.http.get(f"{self.path}/endpoints/{endpoint['id']}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def listed(self, **query: Any) -> Any:
        return self.rig.http.get(f"{self.path}/endpoints", params=query).json()["items"]


def site(rig: Rig, name: str = "flights", **spec: Any) -> Site:
    """Make a channel that is ready."""
    uid = rig.put(name, **spec).json()["metadata"]["uid"]
    rig.observe(name, Phase.READY)
    return Site(rig=rig, name=name, uid=uid)


def _positions(positions: tuple[tuple[int, int, int], ...]) -> list[dict[str, int]]:
    return [{"partition": p, "offset": offset, "record": r} for p, offset, r in positions]


def report(endpoint: Any, state: str | None = None, **body: Any) -> Any:
    """How an endpoint says that it stands."""
    return {
        "id": endpoint["id"],
        "epoch": endpoint["epoch"],
        "state": state or endpoint["state"],
    } | body
