"""Admin requests: groups and topics."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.requests import ByName, in_bytes, in_text
from sluiceway.broker.responses import MemberAssignment
from sluiceway.channel import Channel
from sluiceway.errors import OptionError
from sluiceway.rest.endpoint_models import Endpoint

__all__ = [
    "AdminRequests",
    "ApiVersionsResponse",
    "ApiVersionsSpec",
    "CreateTopicRequest",
    "DescribeGroupResponse",
    "DescribeGroupsResponse",
    "DescribedMember",
    "GroupListing",
    "ListGroupsResponse",
]

_PROTOCOL_TYPE = b"consumer"


@dataclass(frozen=True)
class GroupListing:
    """A group that has members or committed offsets."""

    group_id: bytes
    protocol_type: bytes = _PROTOCOL_TYPE


@dataclass(frozen=True)
class ListGroupsResponse:
    """Groups of all channels, by name."""

    groups: ByName[GroupListing]
    error: int = 0


@dataclass(frozen=True)
class DescribedMember:
    """A live reader; `member_assignment` names its channel, without partitions."""

    member_id: bytes
    client_id: bytes
    client_host: bytes
    member_metadata: Any
    member_assignment: MemberAssignment


@dataclass(frozen=True)
class DescribeGroupResponse:
    """A group: `Stable` with live members, `Empty` without, `Dead` if it does not exist."""

    error_code: int
    group_id: bytes
    state: bytes
    protocol_type: bytes
    protocol: bytes
    members: dict[bytes, DescribedMember]


@dataclass(frozen=True)
class DescribeGroupsResponse:
    """Groups by name."""

    groups: ByName[DescribeGroupResponse]


@dataclass(frozen=True)
class CreateTopicRequest:
    """A channel to create, of the format `bytes`."""

    name: bytes | str
    num_partitions: int = 1
    replication_factor: int = -1
    replica_assignment: Any = ()
    config_entries: Any = ()


@dataclass(frozen=True)
class ApiVersionsSpec:
    """The supported versions of a request."""

    key: int
    min: int = 0
    max: int = 0


@dataclass(frozen=True)
class ApiVersionsResponse:
    """The supported requests, by Kafka's numbers."""

    api_versions: dict[int, ApiVersionsSpec] = field(
        default_factory=lambda: {
            key: ApiVersionsSpec(key) for key in (*range(4), 8, 9, *range(11, 17), 18, 19, 20)
        }
    )


class AdminRequests:
    """Admin requests of one Broker. Refusals are raised, as in pykafka."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._control = handler.control

    def list_groups(self) -> ListGroupsResponse:
        """List the groups of all channels that the token may see."""
        names = [
            name for each in list(self._control.channels()) for name in self._groups(each.name)
        ]
        return ListGroupsResponse(ByName({name: GroupListing(name) for name in names}))

    def describe_groups(self, group_ids: Iterable[Any]) -> DescribeGroupsResponse:
        """Describe groups, with their live readers."""
        names = [in_bytes(each, "group") for each in group_ids]
        known: set[bytes] = set()
        members: dict[bytes, dict[bytes, DescribedMember]] = {}
        for channel in list(self._control.channels()):
            assignment = MemberAssignment([(channel.name.encode(), [])])
            known.update(self._groups(channel.name))
            for each in self._readers(channel.name):
                id_ = each.id.encode()
                group = members.setdefault((each.group or "").encode(), {})
                group[id_] = DescribedMember(id_, b"", b"", None, assignment)
        found: ByName[DescribeGroupResponse] = ByName()
        for name in names:
            live = members.get(name, {})
            state = b"Stable" if live else b"Empty" if name in known else b"Dead"
            found[name] = DescribeGroupResponse(0, name, state, _PROTOCOL_TYPE, b"", live)
        return DescribeGroupsResponse(found)

    def create_topics(self, requests: Iterable[Any], timeout_s: float) -> None:
        """Create channels of the format `bytes`; with a timeout, wait until they are ready."""
        deadline_s = time.monotonic() + timeout_s
        for each in list(requests):
            if each.replica_assignment:
                raise OptionError(
                    "replica_assignment is Kafka's to decide: leave it out, and set the number of "
                    "replicas by replication_factor"
                )
            spec: dict[str, Any] = {"format": "bytes", "partitions": each.num_partitions}
            if each.replication_factor > 0:
                spec["replication"] = each.replication_factor
            spec |= _settings(each.config_entries)
            created = self._control.create(in_text(each.name, "topic"), spec=spec, labels={})
            if timeout_s > 0:
                Channel(self._control, created).wait_until_ready(deadline_s - time.monotonic())

    def delete_topics(self, topics: Iterable[Any], timeout_s: float) -> None:
        """Delete channels with their records; with a timeout, wait until they are deleted."""
        deadline_s = time.monotonic() + timeout_s
        for name in [in_text(each, "topic") for each in topics]:
            channel = Channel(self._control, self._control.channel(name))
            self._control.delete(name, uid=channel.uid, keep_topic=False)
            self._handler.forget(name)
            if timeout_s > 0:
                channel.wait_until_gone(deadline_s - time.monotonic())

    def _groups(self, channel: str) -> Iterator[bytes]:
        report = self._control.status(channel)
        return (each.group.encode() for each in (report.groups if report is not None else ()))

    def _readers(self, channel: str) -> list[Endpoint]:
        found, _ = self._control.endpoints.endpoints(channel)
        return [each for each in found or () if each.role == "reader" and each.lives and each.group]


def _settings(entries: Iterable[Any]) -> dict[str, Any]:
    """Return a topic's settings as those of a channel, which has a field for retention."""
    config = {in_text(key, "setting"): in_text(value, "setting's value") for key, value in entries}
    retention = {}
    for unit in ("ms", "bytes"):
        given = config.pop(f"retention.{unit}", None)
        if given is not None:
            try:
                retention[unit] = int(given)
            except ValueError as error:
                raise OptionError(f"retention.{unit} is {given!r}; it takes a number") from error
    return ({"retention": retention} if retention else {}) | ({"config": config} if config else {})
