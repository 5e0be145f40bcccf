"""Places: what an instance asks for, and what it gets."""

from dataclasses import dataclass, replace
from datetime import datetime

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.channels.model import Channel, SchemaVersion
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Health, Mode, Place, Role, State
from sluiceway_gateway.endpoints.session_store import Opening
from sluiceway_gateway.groups.model import Group, assigned
from sluiceway_gateway.offsets.model import Committed


@dataclass(frozen=True, kw_only=True)
class AttachSpec:
    """What an instance asks for; without index and size it is anonymous, or of a dynamic group."""

    id: str
    session: str
    client: str
    role: Role
    group: str = ANONYMOUS
    index: int | None = None
    size: int | None = None
    mode: Mode = Mode.SHARED
    title: str | None = None

    @property
    def dynamic(self) -> bool:
        """Whether the gateway is to number it in its group."""
        return self.group != ANONYMOUS and self.size is None

    def opening(self, principal: Principal) -> Opening:
        """Return the session that it attaches in, as the principal's."""
        return Opening(session=self.session, client=self.client, owner=principal.subject)


@dataclass(frozen=True, kw_only=True)
class Attached:
    """What the instance needs to begin."""

    endpoint: Endpoint
    created: bool
    """Not a repeat."""
    took_over: bool
    """It is a writer whose place was somebody's who never came to the end."""
    partitions: range
    positions: tuple[Committed, ...]
    channel: Channel
    versions: tuple[SchemaVersion, ...]


def new_endpoint(asked: AttachSpec, group: Group, place: Place, *, now: datetime) -> Endpoint:
    """Return the instance at its place, with the epoch that the group has now."""
    return Endpoint(
        id=asked.id,
        channel_uid=group.channel_uid,
        session=asked.session,
        place=place,
        size=asked.size,
        mode=asked.mode,
        title=asked.title,
        epoch=group.epoch,
        generation=group.generation,
        state=State.OPENED,
        health=Health.HEALTHY,
        superseded=False,
        cause=None,
        attached_at=now,
        changed_at=now,
        counters={},
        payload=None,
        ends=None,
        lost_at=None,
        commits=0,
    )


def superseded(endpoint: Endpoint, *, by: str, now: datetime) -> Endpoint:
    """Return the endpoint without its place; `by` says what took it, as part of a sentence."""
    return replace(endpoint, superseded=True, fenced_by=by, changed_at=now)


def taken_by(endpoint: Endpoint) -> str:
    """Say that an instance took a place."""
    at = endpoint.attached_at
    return f"the instance {endpoint.id} took that place at {at:%Y-%m-%d %H:%M:%S} UTC"


def own_partitions(endpoint: Endpoint, channel: Channel) -> range:
    """Return the partitions of the channel that are the endpoint's; of dynamic ones its share."""
    if endpoint.is_dynamic and endpoint.place.role is Role.READER:
        return endpoint.share.of(channel.topic.partitions or 0) if endpoint.share else range(0)
    return assigned(
        endpoint.place,
        mode=endpoint.mode,
        size=endpoint.size,
        partitions=channel.topic.partitions or 0,
    )


def takes_over(place: Place) -> bool:
    """Whether whoever is there goes on with what an earlier instance wrote."""
    return place.role is Role.WRITER and place.group != ANONYMOUS
