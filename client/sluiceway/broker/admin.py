"""Groups and topics as a whole: who is in the ones, making and deleting the others."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.names import ByName, in_bytes, in_text
from sluiceway.broker.responses import MemberAssignment
from sluiceway.channel import Channel
from sluiceway.errors import OptionError
from sluiceway.rest.endpoint_models import Endpoint

__all__ = [
    "Administering",
    "ApiVersionsResponse",
    "ApiVersionsSpec",
    "CreateTopicRequest",
    "DescribeGroupResponse",
    "DescribeGroupsResponse",
    "GroupListing",
    "GroupMember",
    "ListGroupsResponse",
]

_PROTOCOL_TYPE = b"consumer"


@dataclass(frozen=True)
class GroupListing:
    """A group that somebody was in, or committed for."""

    group_id: bytes
    protocol_type: bytes = _PROTOCOL_TYPE


@dataclass(frozen=True)
class ListGroupsResponse:
    """Groups by name, whichever channel they read."""

    groups: ByName[GroupListing]
    error: int = 0


@dataclass(frozen=True)
class GroupMember:
    """A reader that is at work; `member_assignment` names its channel, and no partitions."""

    member_id: bytes
    client_id: bytes
    client_host: bytes
    member_metadata: Any
    member_assignment: MemberAssignment


@dataclass(frozen=True)
class DescribeGroupResponse:
    """A group: `Stable` with its members at work, `Empty` without, `Dead` if there is none."""

    error_code: int
    group_id: bytes
    state: bytes
    protocol_type: bytes
    protocol: bytes
    members: dict[bytes, GroupMember]


@dataclass(frozen=True)
class DescribeGroupsResponse:
    """Groups by name."""

    groups: ByName[DescribeGroupResponse]


@dataclass(frozen=True)
class CreateTopicRequest:
    """A channel to be made, of the format `bytes`."""

    name: bytes | str
    num_partitions: int = 1
    replication_factor: int = -1
    replica_assignment: Any = ()
    config_entries: Any = ()


@dataclass(frozen=True)
class ApiVersionsSpec:
    """The versions of a request that are understood."""

    key: int
    min: int = 0
    max: int = 0


@dataclass(frozen=True)
class ApiVersionsResponse:
    """What a Broker understands, by the numbers that Kafka gives to requests."""

    api_versions: dict[int, ApiVersionsSpec] = field(
        default_factory=lambda: {
            key: ApiVersionsSpec(key) for key in (*range(4), 8, 9, *range(11, 17), 18, 19, 20)
        }
    )


class Administering:
    """What one Broker asks about groups and topics; what is refused is raised, as in pykafka."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._control = handler.control

    def groups(self) -> ListGroupsResponse:
        """List the groups of all channels that the token may see."""
        found: ByName[GroupListing] = ByName()
        for channel in self._handler.ask(lambda: list(self._control.channels())):
            for name in self._names(channel.name):
                found[name.encode()] = GroupListing(name.encode())
        return ListGroupsResponse(found)

    def described(self, group_ids: Iterable[Any]) -> DescribeGroupsResponse:
        """Describe groups, with their readers that are at work."""
        names = [in_bytes(each, "group") for each in group_ids]
        known: set[bytes] = set()
        members: dict[bytes, dict[bytes, GroupMember]] = {}
        for channel in self._handler.ask(lambda: list(self._control.channels())):
            topic = channel.name.encode()
            known |= {name.encode() for name in self._names(channel.name)}
            for each in self._readers(channel.name):
                mine = members.setdefault((each.group or "").encode(), {})
                mine[each.id.encode()] = GroupMember(
                    each.id.encode(), b"", b"", None, MemberAssignment([(topic, [])])
                )
        found: ByName[DescribeGroupResponse] = ByName()
        for name in names:
            there = members.get(name, {})
            state = b"Stable" if there else b"Empty" if name in known else b"Dead"
            found[name] = DescribeGroupResponse(0, name, state, _PROTOCOL_TYPE, b"", there)
        return DescribeGroupsResponse(found)

    def create(self, requests: Iterable[Any], timeout_s: float) -> None:
        """Make channels of the format `bytes`; wait until they are ready, if there is time to."""
        deadline_s = time.monotonic() + timeout_s
        for each in list(requests):
            if each.replica_assignment:
                raise OptionError(
                    "replica_assignment is Kafka's to decide: leave it out, and say how many by "
                    "replication_factor"
                )
            spec: dict[str, Any] = {"format": "bytes", "partitions": each.num_partitions}
            if each.replication_factor > 0:
                spec["replication"] = each.replication_factor
            spec |= _settings(each.config_entries)
            name = in_text(each.name, "topic")
            made = self._handler.ask(
                lambda name=name, spec=spec: self._control.create(name, spec=spec, labels={})  # type: ignore[misc]
            )
            if timeout_s > 0:
                Channel(self._control, made).wait_until_ready(deadline_s - time.monotonic())

    def delete(self, topics: Iterable[Any], timeout_s: float) -> None:
        """Delete channels with their records; wait until they are gone, if there is time to."""
        deadline_s = time.monotonic() + timeout_s
        for name in [in_text(each, "topic") for each in topics]:
            channel = Channel(
                self._control,
                self._handler.ask(lambda name=name: self._control.channel(name)),  # type: ignore[misc]
            )
            self._handler.ask(
                lambda channel=channel: self._control.delete(  # type: ignore[misc]
                    channel.name, uid=channel.uid, keep_topic=False
                )
            )
            self._handler.forget(name)
            if timeout_s > 0:
                channel.wait_until_gone(deadline_s - time.monotonic())

    def _names(self, channel: str) -> Iterator[str]:
        report = self._handler.ask(lambda: self._control.status(channel))
        return (each.group for each in (report.groups if report is not None else ()))

    def _readers(self, channel: str) -> list[Endpoint]:
        found, _ = self._handler.ask(lambda: self._control.endpoints.endpoints(channel))
        return [each for each in found or () if each.role == "reader" and each.lives and each.group]


def _settings(entries: Iterable[Any]) -> dict[str, Any]:
    """Return a topic's settings as a channel has them, which keeps retention apart."""
    config = {in_text(key, "setting"): in_text(value, "setting's value") for key, value in entries}
    retention = {}
    for word in ("ms", "bytes"):
        given = config.pop(f"retention.{word}", None)
        if given is not None:
            try:
                retention[word] = int(given)
            except ValueError as error:
                raise OptionError(f"retention.{word} is {given!r}; it takes a number") from error
    return ({"retention": retention} if retention else {}) | ({"config": config} if config else {})
