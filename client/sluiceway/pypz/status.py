"""The words that channels of pypz say to each other: states, and the messages that tell them."""

import json
import time
from enum import Enum
from typing import Any, Self

__all__ = ["ChannelStatus", "ChannelStatusMessage", "NameSeparator", "now_ms"]

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
