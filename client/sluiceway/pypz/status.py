"""pypz's channel statuses and messages, their payload in heartbeats, and the status loop."""

import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from sluiceway import Endpoint
from sluiceway.spi import EndpointMetrics, Signal

__all__ = [
    "ChannelStatus",
    "ChannelStatusMessage",
    "NameSeparator",
    "OwnChannelStatus",
    "StatusLoop",
    "StatusPayload",
    "cycle_figures",
    "received_status",
]

LOGGER = logging.getLogger("sluiceway.pypz")

NameSeparator = "@"
"""Separator between a channel's name and the full name of its port."""


class OwnChannelStatus(Enum):
    """The statuses of a channel, with pypz's names."""

    Opened = "Opened"
    Started = "Started"
    Stopped = "Stopped"
    Closed = "Closed"
    HealthCheck = "HealthCheck"
    Error = "Error"
    WaitingForSchema = "WaitingForSchema"
    Acknowledged = "Acknowledged"


@dataclass(eq=False, repr=False)
class OwnStatusMessage:
    """A status of one side of a channel, with pypz's fields.

    `timestamp` is the Unix time of creation or receipt in milliseconds, for display only.
    """

    channel_name: str
    channel_context_name: str
    channel_group_name: str | None = None
    channel_group_index: int = 0
    status: Any = None
    payload: Any = None
    timestamp: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.status, OwnChannelStatus):
            self.status = OwnChannelStatus[str(self.status)]
        if self.timestamp is None:
            self.timestamp = int(time.time() * 1000)

    def get_channel_unique_name(self) -> str:
        """Return `channel@port`."""
        return f"{self.channel_name}{NameSeparator}{self.channel_context_name}"

    @classmethod
    def create_from_json(cls, source: str | dict[str, Any]) -> Self:
        """Read the JSON of `str()`, as text or dict. Raises TypeError for anything else."""
        if isinstance(source, str):
            source = json.loads(source)
        if not isinstance(source, dict):
            raise TypeError(f"a status message is JSON text or a dict, not {type(source).__name__}")
        return cls(**source)

    def __str__(self) -> str:
        return json.dumps(vars(self) | {"status": self.status.value})


# With pypz installed, user code gets pypz's own classes, so comparisons with them work.
if TYPE_CHECKING:
    ChannelStatus = OwnChannelStatus
    ChannelStatusMessage = OwnStatusMessage
else:
    try:
        from pypz.core.channels.status import ChannelStatus, ChannelStatusMessage
    except ImportError:
        ChannelStatus, ChannelStatusMessage = OwnChannelStatus, OwnStatusMessage


_KEY = "pypz"
_MAX_MESSAGES = 8
_MAX_BYTES = 4000
"""A payload takes 4,096 bytes at most."""


class StatusPayload:
    """The payload of one endpoint: its latest statuses, numbered, and its health figures."""

    def __init__(self, context: str, group: str | None) -> None:
        self._context = context
        self._group = group
        self._lock = threading.Lock()
        self._number = 0
        self._messages: list[tuple[int, str, Any]] = []
        self._health: Mapping[str, Any] | None = None

    def add(self, status: OwnChannelStatus, payload: Any) -> dict[str, Any]:
        """Return the payload with this status added; the oldest statuses are dropped."""
        with self._lock:
            self._number += 1
            message = (self._number, status.name, payload)
            self._messages = [*self._messages, message][-_MAX_MESSAGES:]
            return self._document()

    def set_health(self, health: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the payload with these health figures; None if they have not changed."""
        with self._lock:
            if health == self._health:
                return None
            self._health = None if health is None else dict(health)
            return self._document()

    def _document(self) -> dict[str, Any]:
        while True:
            document = {
                _KEY: {
                    "context": self._context,
                    "group": self._group,
                    "messages": [list(message) for message in self._messages],
                    "health": self._health,
                }
            }
            # Values that are not JSON, or too large, are refused when the payload is set.
            size = len(json.dumps(document, default=str, ensure_ascii=False).encode())
            if size <= _MAX_BYTES or len(self._messages) < 2:
                return document
            del self._messages[0]


@dataclass(frozen=True, kw_only=True)
class ReceivedStatus:
    """The content of a pypz endpoint's payload."""

    context: str
    group: str | None
    messages: tuple[tuple[int, OwnChannelStatus, Any], ...]
    health: Mapping[str, Any] | None


def received_status(endpoint: Endpoint) -> ReceivedStatus | None:
    """Read an endpoint's payload; None if it has another form, as those of native clients."""
    document = (endpoint.payload or {}).get(_KEY)
    if not isinstance(document, Mapping):
        return None
    context, group = document.get("context"), document.get("group")
    health, messages = document.get("health"), document.get("messages")
    if not isinstance(context, str) or not isinstance(messages, list):
        return None
    return ReceivedStatus(
        context=context,
        group=group if isinstance(group, str) else None,
        messages=tuple(message for entry in messages if (message := _message(entry)) is not None),
        health=health if isinstance(health, Mapping) else None,
    )


def _message(entry: Any) -> tuple[int, OwnChannelStatus, Any] | None:
    match entry:
        case [int(number), str(name), payload] if name in OwnChannelStatus.__members__:
            return number, OwnChannelStatus[name], payload
    return None


_END_TIMEOUT_S = 5.0


class StatusLoop:
    """Calls a method every `interval_s` until it ends, or the method's object is collected.

    It runs in `executor`, or in a daemon thread. Exceptions are logged, and the loop continues.
    """

    def __init__(
        self, turn: Callable[[], None], *, name: str, interval_s: float, executor: Executor | None
    ) -> None:
        self._turn = weakref.WeakMethod(turn)
        self._name = name
        self._interval_s = interval_s
        self._ended = Signal()
        self._left = Signal()
        self._thread: threading.Thread | None = None
        self._future: Future[None] | None = None
        if executor is not None:
            self._future = executor.submit(self._run)
        else:
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def end(self) -> None:
        """End the loop, and wait briefly for a running call."""
        self._ended.set()
        unstarted = self._future is not None and self._future.cancel()
        if not unstarted and self._thread is not threading.current_thread():
            self._left.wait(_END_TIMEOUT_S)

    def _run(self) -> None:
        self._thread = threading.current_thread()
        while not self._ended.wait(self._interval_s):
            turn = self._turn()
            if turn is None:
                break
            try:
                turn()
            except Exception:
                LOGGER.exception("a status of %s was not sent; the loop continues", self._name)
            del turn
        self._left.set()


def cycle_figures(metrics: EndpointMetrics) -> dict[str, float]:
    """Return a channel's figures by pypz's names; 0 before the second call."""
    averages, kind = metrics.averages(), metrics.kind
    names = (
        f"averageTimePer{kind}CycleMs",
        f"averageTimePer{kind}RecordMs",
        f"averageRecordPer{kind}Cycle",
    )
    elapsed = {f"elapsedTimeSinceLast{kind}CycleMs": round(1000 * metrics.elapsed_s)}
    return elapsed | {name: averages.get(name, 0) for name in names}
