"""Requests about endpoints and their positions."""

import uuid
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from sluiceway.errors import Conflict
from sluiceway.rest.endpoint_models import (
    AttachResult,
    CommitProgress,
    Endpoint,
    HeartbeatReply,
    Membership,
    Position,
    Role,
    SyncResult,
    position_json,
    read_positions,
)
from sluiceway.rest.ledger import LedgerCalls
from sluiceway.rest.parsing import JsonNode, Page, parse
from sluiceway.rest.transport import Transport, channel_path, group_path

__all__ = ["EndpointCalls"]

_LIMIT = 200


class EndpointCalls:
    """Requests to attach, to send heartbeats and to commit.

    Every request can be repeated: an endpoint instance has one id, and heartbeats and commits are
    numbered. Each call raises GatewayError and its subclasses.
    """

    def __init__(self, transport: Transport, *, listener: str | None = None) -> None:
        self._transport = transport
        self._listener = listener

    @property
    def identity(self) -> Hashable:
        """A key that is equal for calls to one gateway, as one principal, through one listener."""
        return (self._transport.identity, self._listener)

    @property
    def ledger(self) -> LedgerCalls:
        """Requests to ledgers, by the same connections."""
        return LedgerCalls(self._transport)

    def clone(self) -> "EndpointCalls":
        """Return a copy with its own connections."""
        return EndpointCalls(self._transport.clone(), listener=self._listener)

    def attach(
        self,
        channel: str,
        *,
        uid: str,
        instance: str,
        session: str,
        role: Role,
        membership: Membership | None,
        title: str | None = None,
        heartbeat: Mapping[str, int] | None = None,
        spark: Mapping[str, str] | None = None,
    ) -> AttachResult:
        """Attach an endpoint instance to the channel; `title` describes it to people.

        `spark` has the `application`, `query` and `ui` of a Spark job, as far as they are known.

        `heartbeat` has its own `timeout_ms` or `interval_ms`, or both.
        """
        body: dict[str, Any] = {"uid": uid, "id": instance, "session": session, "role": role}
        if membership is not None and membership.dynamic:
            body |= {"group": membership.group, "dynamic": True}
            if membership.static_id is not None:
                body["static_id"] = membership.static_id
        elif membership is not None:
            body |= {"group": membership.group, "index": membership.index}
            body |= {"size": membership.size}
            body |= {"mode": membership.mode} if role == "reader" else {}
        if title is not None:
            body["title"] = title
        if heartbeat:
            body["heartbeat"] = dict(heartbeat)
        if spark:
            body["spark"] = dict(spark)
        params = {"listener": self._listener} if self._listener else None
        response = self._post(f"{channel_path(channel)}/endpoints", body, params=params)
        return parse(AttachResult, response)

    def detach(
        self, channel: str, instance: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> None:
        """Report the end of an endpoint instance."""
        path = f"{channel_path(channel)}/endpoints/{instance}/detach"
        self._transport.request("POST", path, body=dict(body), timeout_s=timeout_s)

    def sync(self, channel: str, instance: str, body: Mapping[str, Any]) -> SyncResult:
        """Request the partitions of a dynamic group's member, or take them."""
        path = f"{channel_path(channel)}/endpoints/{instance}/sync"
        return parse(SyncResult, self._post(path, body))

    def resize(self, channel: str, group: str, *, uid: str, size: int) -> None:
        """Change the size of a group."""
        generation = self._offsets(channel, group).read(int, "generation")
        body = {"uid": uid, "size": size, "generation": generation}
        self._transport.request("POST", f"{group_path(channel, group)}/resize", body=body)

    def remove(self, channel: str, instance: str, *, uid: str) -> None:
        """Remove an endpoint instance; it is fenced from then on."""
        path = f"{channel_path(channel)}/endpoints/{instance}"
        self._transport.request("DELETE", path, params={"uid": uid})

    def heartbeat(
        self,
        session: str,
        number: int,
        reports: Sequence[Mapping[str, Any]],
        *,
        extra: Mapping[str, Any] | None = None,
        timeout_s: float,
    ) -> HeartbeatReply:
        """Report the state of a session's endpoints; `extra` has additional fields of the body."""
        body = {"session": session, "beat": number, "endpoints": list(reports), **(extra or {})}
        return parse(HeartbeatReply, self._post("/v1/heartbeats", body, timeout_s=timeout_s))

    def endpoints(
        self,
        channel: str,
        *,
        group: str | None = None,
        seen: str | None = None,
        wait_s: float = 0.0,
    ) -> tuple[tuple[Endpoint, ...] | None, str | None]:
        """Return all endpoints, or those of a group, and the ETag.

        With the ETag `seen`, wait up to `wait_s` for a change; the endpoints are None without one.
        """
        path = f"{channel_path(channel)}/endpoints"
        params = {"limit": str(_LIMIT)} | ({} if group is None else {"group": group})
        response = self._transport.poll(path, params=params, seen=seen, wait_s=wait_s)
        if response is None:
            return None, seen
        page = parse(Page, self._transport.json(response))
        found = list(page.items)
        if page.next_cursor is not None:
            found += self._transport.items(path, {**params, "cursor": page.next_cursor})
        return tuple(each.read(Endpoint) for each in found), response.headers.get("ETag")

    def committed(
        self, channel: str, group: str, *, index: int | None, timeout_s: float | None = None
    ) -> dict[int, Position]:
        """Return the committed positions of a group, or of one member of a broadcast group.

        They are empty for a group that does not exist.
        """
        try:
            found = self._offsets(channel, group, index=index, timeout_s=timeout_s)
        except Conflict as error:
            if error.code != "group_not_found":
                raise
            return {}
        return read_positions(found.at("positions"))

    def commit(
        self,
        channel: str,
        group: str,
        body: Mapping[str, Any],
        *,
        positions: Mapping[int, Position],
    ) -> None:
        """Commit positions, all or none."""
        path = f"{group_path(channel, group)}/offsets"
        self._transport.request("PUT", path, body={**body, "positions": _to_json(positions)})

    def advance(
        self,
        channel: str,
        group: str,
        body: Mapping[str, Any],
        *,
        positions: Mapping[int, Position],
        before: Mapping[int, Position],
    ) -> None:
        """Commit positions without membership, all or none, if the stored ones are `before`."""
        path = f"{group_path(channel, group)}/offsets/advance"
        moves = {"positions": _to_json(positions), "before": _to_json(before)}
        self._transport.request("POST", path, body={**body, **moves})

    def commit_progress(
        self, channel: str, group: str, body: Mapping[str, Any], *, wait_s: float
    ) -> CommitProgress:
        """Return whether a group has committed past given offsets; wait for it up to `wait_s`."""
        response = self._post(
            f"{group_path(channel, group)}/offsets/passed",
            body,
            params={"wait": f"{wait_s:.3f}"},
            wait_s=wait_s,
        )
        return parse(CommitProgress, response)

    def reset(
        self,
        channel: str,
        group: str,
        body: Mapping[str, Any],
        *,
        positions: Mapping[int, Position] | None,
    ) -> None:
        """Reset a group to other positions; None removes its positions."""
        self._transport.request(
            "POST",
            f"{group_path(channel, group)}/offsets/reset",
            headers={"Idempotency-Key": uuid.uuid4().hex},
            body={**body, "positions": None if positions is None else _to_json(positions)},
        )

    def close(self) -> None:
        """Close the connections to the gateway."""
        self._transport.close()

    def _offsets(
        self, channel: str, group: str, *, index: int | None = None, timeout_s: float | None = None
    ) -> JsonNode:
        params = None if index is None else {"index": str(index)}
        path = f"{group_path(channel, group)}/offsets"
        response = self._transport.request("GET", path, params=params, timeout_s=timeout_s)
        return self._transport.json(response)

    def _post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        params: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> JsonNode:
        response = self._transport.request(
            "POST", path, params=params, body=dict(body), wait_s=wait_s, timeout_s=timeout_s
        )
        return self._transport.json(response)


def _to_json(positions: Mapping[int, Position]) -> list[dict[str, Any]]:
    return [
        {"partition": partition, **position_json(position)}
        for partition, position in sorted(positions.items())
    ]
