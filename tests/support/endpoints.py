"""Endpoints of a channel: over HTTP, through the services, and as values."""

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from gateways import TOPIC_ID, UNREACHABLE, ManualClock, Rig, insert_channel, observe, result
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.auth.model import OwnershipMode
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.auth.service import LOOPBACK, Tokens
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.endpoints.attach_request import Attached, AttachRequest, AttachSpec
from sluiceway_gateway.endpoints.groups.service import GroupService
from sluiceway_gateway.endpoints.heartbeats import HeartbeatService
from sluiceway_gateway.endpoints.liveness import Reaper
from sluiceway_gateway.endpoints.model import Endpoint, Mode, Place, Role
from sluiceway_gateway.endpoints.service import AttachService, Endpoints
from sluiceway_gateway.ledger import batch_store
from sluiceway_gateway.offsets.service import Offsets


def fresh_id() -> str:
    return uuid.uuid4().hex


@dataclass
class Site:
    """A ready channel, and the session of a client that attaches to it."""

    rig: Rig
    name: str
    uid: str
    session: str = field(default_factory=fresh_id)
    beats: int = 0

    @property
    def path(self) -> str:
        return f"/v1/channels/{self.name}"

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.rig.http.post(f"{self.path}/{path}", json={"uid": self.uid, **body})

    def post_attach(self, role: str = "reader", **body: Any) -> httpx.Response:
        """Attach, and return the response; `body` overrides the default request."""
        default = {"id": fresh_id(), "session": self.session, "role": role}
        return self.post("endpoints", **(default | body))

    def attach(self, role: str = "reader", **body: Any) -> Any:
        """Attach, and return the endpoint."""
        return result(self.post_attach(role, **body))["endpoint"]

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
        """Sync, with or without taking the share of a generation."""
        default = {"epoch": endpoint["epoch"], "take": take, "has": has}
        return self.post(f"endpoints/{endpoint['id']}/sync", **(default | body))

    def resize(self, size: int, generation: int, group: str = "g", **body: Any) -> httpx.Response:
        default = {"size": size, "generation": generation}
        return self.post(f"groups/{group}/resize", **(default | body))

    def detach(self, endpoint: Any, state: str = "closed", **body: Any) -> httpx.Response:
        default = {"epoch": endpoint["epoch"], "state": state}
        return self.post(f"endpoints/{endpoint['id']}/detach", **(default | body))

    def send(self, *reports: Any, beat: int | None = None, **body: Any) -> httpx.Response:
        """Send a heartbeat with the next number, or with `beat`."""
        if beat is None:
            self.beats += 1
            beat = self.beats
        request = {"session": self.session, "beat": beat, "endpoints": reports}
        return self.rig.http.post("/v1/heartbeats", json=request | body)

    def beat(self, *reports: Any, beat: int | None = None) -> Any:
        """Send a heartbeat, and return the replies."""
        return result(self.send(*reports, beat=beat))["endpoints"]

    def commit(
        self, endpoint: Any, number: int, *positions: tuple[int, int, int], **body: Any
    ) -> httpx.Response:
        """Commit positions: partition, offset, and number of the record in its message."""
        request = {key: endpoint[key] for key in ("id", "epoch", "generation")}
        request |= {"uid": self.uid, "topic_id": TOPIC_ID, "number": number}
        request["positions"] = _positions(positions)
        return self.rig.http.put(self.offsets_path(endpoint["group"] or "g"), json=request | body)

    def committed(self, group: str = "g", **query: Any) -> list[tuple[int, int, int]]:
        """Return the positions of a group, as `commit` takes them."""
        positions = result(self.rig.http.get(self.offsets_path(group), params=query))["positions"]
        return [
            (position["partition"], position["offset"], position["record"])
            for position in positions
        ]

    def reset(
        self, *positions: tuple[int, int, int], group: str = "g", headers: Any = None, **body: Any
    ) -> httpx.Response:
        request = {"uid": self.uid, "topic_id": TOPIC_ID, "reason": "read again"}
        request["positions"] = _positions(positions) or None
        path = f"{self.offsets_path(group)}/reset"
        return self.rig.http.post(path, json=request | body, headers=headers)

    def offsets_path(self, group: str) -> str:
        return f"{self.path}/groups/{group}/offsets"

    def get(self, endpoint: Any) -> Any:
        return result(self.rig.http.get(f"{self.path}/endpoints/{endpoint['id']}"))

    def listed(self, **query: Any) -> Any:
        return self.rig.http.get(f"{self.path}/endpoints", params=query).json()["items"]


def site(rig: Rig, name: str = "flights", **spec: Any) -> Site:
    """Create a ready channel."""
    uid = rig.put(name, **spec).json()["metadata"]["uid"]
    rig.observe(name, Phase.READY)
    return Site(rig=rig, name=name, uid=uid)


def _positions(positions: tuple[tuple[int, int, int], ...]) -> list[dict[str, int]]:
    return [{"partition": p, "offset": offset, "record": r} for p, offset, r in positions]


def report(endpoint: Any, state: str | None = None, **body: Any) -> Any:
    """Return an endpoint's report of its state."""
    state = state or endpoint["state"]
    return {"id": endpoint["id"], "epoch": endpoint["epoch"], "state": state} | body


PARTITIONS = 4


@dataclass
class Services:
    """The endpoint services on one database, with manual clocks."""

    database: Database
    clock: ManualClock = field(default_factory=ManualClock)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        database, clock = self.database, self.clock
        tokens, ownership = Tokens(database, None), Ownership(database, mode=OwnershipMode.ENFORCE)
        self.attachment = AttachService(
            database, tokens, ownership=ownership, wake=lambda: None, clock=clock
        )
        settlements = batch_store.settlements
        self.endpoints = Endpoints(
            database,
            kafka=KafkaAdmin(UNREACHABLE, timeout_s=0.1),
            settlements=settlements,
            clock=clock,
        )
        self.beats = HeartbeatService(database, tokens, settlements=settlements, clock=clock)
        self.offsets = Offsets(database, tokens, ownership=ownership, clock=clock)
        self.groups = GroupService(database, ownership)
        self.reaper = Reaper(database=database, monotonic=lambda: self.now_s, clock=clock)

    def channel(self) -> tuple[str, str]:
        """Create a ready channel; return its name and its uid."""
        channel = insert_channel(self.database, self.clock(), partitions=PARTITIONS)
        observe(self.database, self.clock(), channel.name, Phase.READY)
        return channel.name, channel.uid

    def attach(self, name: str, spec: AttachSpec, *, uid: str) -> Attached:
        request = AttachRequest(channel=name, channel_uid=uid, spec=spec, principal=LOOPBACK)
        return self.attachment.submit(request).result(30)

    def pass_time(self, seconds: float) -> None:
        """Advance the time of the reaper, with passes that are not too late to count silence."""
        while seconds > 0:
            self.now_s += min(seconds, 2.9)
            seconds -= 2.9
            self.reaper.run_once()


NOW = datetime(2030, 1, 1, tzinfo=UTC)
ENDPOINT = Endpoint(
    id="e" * 32,
    channel_uid="c" * 32,
    session="s" * 32,
    place=Place(role=Role.READER, group="delays", index=1),
    size=2,
    mode=Mode.SHARED,
    epoch=7,
    generation=1,
    attached_at=NOW,
    changed_at=NOW,
)
