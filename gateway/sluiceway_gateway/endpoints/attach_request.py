"""Attach requests, and their results. Pure."""

from dataclasses import dataclass

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.errors import EndpointIdReused
from sluiceway_gateway.endpoints.groups.model import GroupConfig
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Mode, Place, Role, SparkJob
from sluiceway_gateway.endpoints.positions import Committed
from sluiceway_gateway.schemas.model import SchemaVersion


@dataclass(frozen=True, kw_only=True)
class AttachSpec:
    """The requested endpoint; without index and size, anonymous or a member of a dynamic group."""

    id: str
    session: str
    client: str
    role: Role
    group: str = ANONYMOUS
    index: int | None = None
    size: int | None = None
    mode: Mode = Mode.SHARED
    title: str | None = None
    features: frozenset[str] = frozenset()
    """Features of the client, such as exactly-once delivery."""
    interval_ms: int | None = None
    timeout_ms: int | None = None
    """Its own heartbeat interval and timeout; None for the channel's."""
    static_id: str | None = None
    spark: SparkJob | None = None

    @property
    def config(self) -> GroupConfig:
        """The requested mode and size of its group."""
        return GroupConfig(mode=self.mode, size=self.size, dynamic=self.is_dynamic)

    @property
    def is_dynamic(self) -> bool:
        """Whether the gateway chooses its index."""
        return self.group != ANONYMOUS and self.size is None


@dataclass(frozen=True, kw_only=True)
class AttachRequest:
    """A principal's request to attach an endpoint to a channel."""

    channel: str
    channel_uid: str
    spec: AttachSpec
    principal: Principal

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of the place: a batch has at most one request for it."""
        spec = self.spec
        place: object = spec.id if spec.index is None else spec.index
        if spec.static_id is not None:
            place = ("static", spec.static_id)
        return self.channel, spec.role, spec.group, place


@dataclass(frozen=True, kw_only=True)
class Attached:
    """An attached endpoint, with its partitions, positions and channel."""

    endpoint: Endpoint
    created: bool
    """False for a repeated request."""
    took_over: bool
    """Whether it is a writer, and the previous instance in its place never finished."""
    partitions: range
    positions: tuple[Committed, ...]
    channel: Channel
    versions: tuple[SchemaVersion, ...]
    finished_through: int | None
    """Of a reader of a group: the number of the last writer that its place has read to its end."""
    live_writers: tuple[str, ...]
    """Of a reader: the ids of the channel's live writers."""


def require_same(existing: Endpoint, channel: Channel, spec: AttachSpec) -> None:
    """Raise EndpointIdReused if the endpoint was attached by a different request."""
    place = existing.place
    index = place.index if spec.size is None else spec.index
    before = (
        *(place, existing.size, existing.mode, existing.session, existing.channel_uid),
        existing.static_id,
    )
    requested = Place(role=spec.role, group=spec.group, index=index or 0)
    same = (requested, spec.size, spec.mode, spec.session, channel.uid, spec.static_id)
    if before != same:
        raise EndpointIdReused(
            f"The id {spec.id} is that of {existing.where}, attached by another request. Use a "
            "new id for every instance, and repeat a request unchanged."
        )
