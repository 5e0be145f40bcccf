"""pypz's channel statuses and status messages."""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from sluiceway.rest.endpoint_models import Endpoint

NameSeparator = "@"
"""Between a channel's name and the full name of the port that reads or writes it."""


class ChannelStatus(Enum):
    """What a channel says of itself."""

    Opened = "Opened"
    Started = "Started"
    Stopped = "Stopped"
    Closed = "Closed"
    HealthCheck = "HealthCheck"
    Error = "Error"
    WaitingForSchema = "WaitingForSchema"
    Acknowledged = "Acknowledged"


class ChannelStatusMessage:
    """What one side of a channel tells the other.

    `timestamp` is in milliseconds of Unix time, when it was made or heard of here; it is for
    people, and nothing is judged by it.
    """

    def __init__(
        self,
        channel_name: str,
        channel_context_name: str,
        channel_group_name: str | None = None,
        channel_group_index: int = 0,
        status: ChannelStatus | str | None = None,
        payload: Any = None,
        timestamp: int | None = None,
    ) -> None:
        self.channel_name = channel_name
        self.channel_context_name = channel_context_name
        self.channel_group_name = channel_group_name
        self.channel_group_index = channel_group_index
        self.status = status if isinstance(status, ChannelStatus) else ChannelStatus[str(status)]
        self.payload = payload
        self.timestamp = now_ms() if timestamp is None else timestamp

    def get_channel_unique_name(self) -> str:
        """Return `channel@port`."""
        return f"{self.channel_name}{NameSeparator}{self.channel_context_name}"

    @classmethod
    def create_from_json(cls, source: str | dict[str, Any]) -> Self:
        """Read the JSON that `str()` gives, or the dict that it is. TypeError for all else."""
        if isinstance(source, str):
            source = json.loads(source)
        if not isinstance(source, dict):
            raise TypeError(f"a status message is JSON text or a dict, not {type(source).__name__}")
        return cls(**source)

    def __str__(self) -> str:
        return json.dumps(vars(self) | {"status": self.status.value})


def now_ms() -> int:
    """Return the wall clock's milliseconds, for dating what is told to people."""
    return int(time.time() * 1000)


_KEY = "pypz"
_KEPT = 8
_ROOM_BYTES = 4000
"""A payload takes 4,096 bytes at most."""


class StatusPayload:
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


__all__ = [
    "ChannelStatus",
    "ChannelStatusMessage",
    "NameSeparator",
    "Said",
    "StatusPayload",
    "now_ms",
    "said",
]
