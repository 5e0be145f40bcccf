"""What a channel of pypz's tells with its beats: its name, and the last things that it said."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluiceway.pypz.status import ChannelStatus
from sluiceway.rest.endpoint_models import Endpoint

__all__ = ["Said", "Telling", "said"]

_KEY = "pypz"
_KEPT = 8
_ROOM_BYTES = 4000
"""A payload takes 4,096 bytes at most."""


class Telling:
    """Makes the payload of one endpoint. Statuses are numbered, so that none is heard twice."""

    def __init__(self, context: str, group: str | None) -> None:
        self._context = context
        self._group = group
        self._lock = threading.Lock()
        self._number = 0
        self._messages: list[tuple[int, str, Any]] = []
        self._health: Mapping[str, Any] | None = None

    def say(self, status: ChannelStatus, payload: Any) -> dict[str, Any]:
        """Return the payload that tells of this status too; the oldest are left out for it."""
        with self._lock:
            self._number += 1
            self._messages = [*self._messages, (self._number, status.name, payload)][-_KEPT:]
            return self._document()

    def feel(self, health: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the payload with these figures of its health; None where they are as before."""
        with self._lock:
            if health == self._health:
                return None
            self._health = None if health is None else dict(health)
            return self._document()

    def _document(self) -> dict[str, Any]:
        while True:
            told = {
                _KEY: {
                    "context": self._context,
                    "group": self._group,
                    "messages": [list(each) for each in self._messages],
                    "health": self._health,
                }
            }
            # What cannot be JSON, or is too large alone, is refused where the payload is set.
            size = len(json.dumps(told, default=str, ensure_ascii=False).encode())
            if size <= _ROOM_BYTES or len(self._messages) < 2:
                return told
            del self._messages[0]


@dataclass(frozen=True, kw_only=True)
class Said:
    """What an endpoint's payload tells, if it is of a channel of pypz's."""

    context: str
    group: str | None
    messages: tuple[tuple[int, ChannelStatus, Any], ...]
    health: Mapping[str, Any] | None


def said(endpoint: Endpoint) -> Said | None:
    """Read an endpoint's payload; None for others' endpoints, and for payloads of another form."""
    told = (endpoint.payload or {}).get(_KEY)
    if not isinstance(told, Mapping):
        return None
    context, group, health = told.get("context"), told.get("group"), told.get("health")
    listed = told.get("messages")
    if not isinstance(context, str) or not isinstance(listed, list):
        return None
    return Said(
        context=context,
        group=group if isinstance(group, str) else None,
        messages=tuple(message for each in listed if (message := _message(each)) is not None),
        health=health if isinstance(health, Mapping) else None,
    )


def _message(told: Any) -> tuple[int, ChannelStatus, Any] | None:
    match told:
        case [int(number), str(name), payload] if name in ChannelStatus.__members__:
            return number, ChannelStatus[name], payload
    return None
