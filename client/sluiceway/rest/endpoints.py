"""Requests about endpoints and positions, one method each."""

import math
import uuid
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluiceway.errors import Conflict
from sluiceway.rest.endpoint_models import (
    Attached,
    CommitProgress,
    Endpoint,
    HeartbeatResult,
    Membership,
    Position,
    Role,
    ShareAnswer,
    positions,
)
from sluiceway.rest.models import Answer
from sluiceway.rest.transport import Transport, channel_path, group_path

__all__ = ["BeatAnswer", "EndpointCalls"]

_LIMIT = 200


@dataclass(frozen=True, kw_only=True)
class BeatAnswer:
    """When to beat again, the word to each endpoint, and the answer as it came."""

    next_ms: int
    newest: int
    """The number of the session's newest beat that counted."""
    heard: Mapping[str, HeartbeatResult]
    answer: Answer = field(compare=False)


class EndpointCalls:
    """Attaching, beating, committing. Each call raises GatewayError and its subclasses.

    All can be repeated: an instance has one id, beats and commits have numbers.
    """

    def __init__(self, transport: Transport, *, listener: str | None = None) -> None:
        self._transport = transport
        self._listener = listener

    @property
    def identity(self) -> Hashable:
        """What is equal for those who ask one gateway, as one principal, in one way."""
        return (self._transport.identity, self._listener)

    def another(self) -> "EndpointCalls":
        """Return the same calls on connections of their own."""
        return EndpointCalls(self._transport.another(), listener=self._listener)

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
    ) -> Attached:
        """Attach an instance to the channel; `title` says to people what it is."""
        body: dict[str, Any] = {"uid": uid, "id": instance, "session": session, "role": role}
        if membership is not None and membership.dynamic:
            body |= {"group": membership.group, "dynamic": True}
        elif membership is not None:
            body |= {"group": membership.group, "index": membership.index}
            body |= {"size": membership.size}
            body |= {"mode": membership.mode} if role == "reader" else {}
        if title is not None:
            body["title"] = title
        response = self._transport.request(
            "POST",
            f"{channel_path(channel)}/endpoints",
            params={"listener": self._listener} if self._listener else None,
            body=body,
        )
        return Attached.parse(self._transport.answer(response))

    def detach(
        self, channel: str, instance: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> None:
        """Report an instance's end."""
        path = f"{channel_path(channel)}/endpoints/{instance}/detach"
        self._transport.request("POST", path, body=dict(body), timeout_s=timeout_s)

    def sync(self, channel: str, instance: str, body: Mapping[str, Any]) -> ShareAnswer:
        """Take a share of a dynamic group's partitions, or ask for it."""
        path = f"{channel_path(channel)}/endpoints/{instance}/sync"
        response = self._transport.request("POST", path, body=dict(body))
        return ShareAnswer.parse(self._transport.answer(response))

    def resize(self, channel: str, group: str, *, uid: str, size: int) -> None:
        """Give a group another size, from the one that it has now."""
        path = group_path(channel, group)
        response = self._transport.request("GET", f"{path}/offsets")
        generation = Answer(self._transport.answer(response), "offsets").number("generation")
        body = {"uid": uid, "size": size, "generation": generation}
        self._transport.request("POST", f"{path}/resize", body=body)

    def dismiss(self, channel: str, instance: str, *, uid: str) -> None:
        """Take somebody's endpoint away."""
        path = f"{channel_path(channel)}/endpoints/{instance}"
        self._transport.request("DELETE", path, params={"uid": uid})

    def beat(
        self,
        session: str,
        number: int,
        reports: Sequence[Mapping[str, Any]],
        *,
        also: Mapping[str, Any] | None = None,
        timeout_s: float,
    ) -> BeatAnswer:
        """Tell how endpoints stand, and what `also` has, by the names of the body's fields."""
        response = self._transport.request(
            "POST",
            "/v1/heartbeats",
            body={"session": session, "beat": number, "endpoints": list(reports), **(also or {})},
            timeout_s=timeout_s,
        )
        read = Answer(self._transport.answer(response), "beat")
        newest = read.given("beat")
        return BeatAnswer(
            next_ms=read.number("next_ms"),
            newest=0 if newest is None else newest.number(),
            heard={
                each.text("id"): HeartbeatResult.parse(each) for each in read.items("endpoints")
            },
            answer=read,
        )

    def endpoints(
        self,
        channel: str,
        *,
        group: str | None = None,
        seen: str | None = None,
        wait_s: float = 0.0,
    ) -> tuple[tuple[Endpoint, ...] | None, str | None]:
        """Return all endpoints, or a group's, with the ETag; None where they are as at `seen`."""
        every = {"limit": str(_LIMIT)} | ({} if group is None else {"group": group})
        params, headers = dict(every), {}
        if seen is not None:
            params["wait"] = str(max(1, min(60, math.ceil(wait_s))))
            headers["If-None-Match"] = seen
        found: list[Endpoint] = []
        etag = seen
        while True:
            response = self._transport.request(
                "GET",
                f"{channel_path(channel)}/endpoints",
                params=params,
                headers=headers,
                wait_s=wait_s,
            )
            if response.status_code == 304:
                return None, seen
            etag = etag if found else response.headers.get("ETag")
            page = Answer(self._transport.answer(response), "endpoints")
            found += map(Endpoint.parse, page.items("items"))
            cursor = page.optional(page.text, "next_cursor")
            if cursor is None:
                return tuple(found), etag
            params, headers = {**every, "cursor": cursor}, {}

    def committed(self, channel: str, group: str, *, index: int | None) -> dict[int, Position]:
        """Return what a group has committed, or one member of a broadcast group; or nothing."""
        try:
            response = self._transport.request(
                "GET",
                f"{group_path(channel, group)}/offsets",
                params=None if index is None else {"index": str(index)},
            )
        except Conflict as error:
            if error.code != "group_not_found":
                raise
            return {}
        return positions(Answer(self._transport.answer(response), "offsets"))

    def commit(
        self, channel: str, group: str, body: Mapping[str, Any], *, places: Mapping[int, Position]
    ) -> None:
        """Commit positions, all or none."""
        path = f"{group_path(channel, group)}/offsets"
        self._transport.request("PUT", path, body={**body, "positions": _listed(places)})

    def advance(
        self,
        channel: str,
        group: str,
        body: Mapping[str, Any],
        *,
        places: Mapping[int, Position],
        before: Mapping[int, Position],
    ) -> None:
        """Commit positions without being a member, all or none, from where they are known to be."""
        path = f"{group_path(channel, group)}/offsets/advance"
        moves = {"positions": _listed(places), "before": _listed(before)}
        self._transport.request("POST", path, body={**body, **moves})

    def passed(
        self, channel: str, group: str, body: Mapping[str, Any], *, wait_s: float
    ) -> CommitProgress:
        """Ask whether a group has committed so far; the answer waits for it, up to `wait_s`."""
        response = self._transport.request(
            "POST",
            f"{group_path(channel, group)}/offsets/passed",
            params={"wait": f"{wait_s:.3f}"},
            body=dict(body),
            wait_s=wait_s,
        )
        return CommitProgress.parse(self._transport.answer(response))

    def reset(
        self,
        channel: str,
        group: str,
        body: Mapping[str, Any],
        *,
        places: Mapping[int, Position] | None,
    ) -> None:
        """Put a group's positions elsewhere; None: forget them."""
        self._transport.request(
            "POST",
            f"{group_path(channel, group)}/offsets/reset",
            headers={"Idempotency-Key": uuid.uuid4().hex},
            body={**body, "positions": None if places is None else _listed(places)},
        )

    def close(self) -> None:
        """Close the connections to the gateway."""
        self._transport.close()


def _listed(places: Mapping[int, Position]) -> list[dict[str, int]]:
    return [
        {"partition": partition, "offset": place.offset, "record": place.records}
        for partition, place in sorted(places.items())
    ]
