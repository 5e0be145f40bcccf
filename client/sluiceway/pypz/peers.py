"""Peers of a pypz channel: the endpoints of the other side."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sluiceway import Endpoint
from sluiceway.errors import CounterpartError
from sluiceway.pypz.config import ChannelLogger
from sluiceway.pypz.status import (
    ChannelStatus,
    ChannelStatusMessage,
    NameSeparator,
    OwnChannelStatus,
    received_status,
)
from sluiceway.spi import AttachResult, LostWriterPolicy, OnLostWriter, writers_outcome

__all__ = ["ChannelStatusMonitor", "FailedWriters", "Filter", "Peers"]

_STATES = {
    "opened": OwnChannelStatus.Opened,
    "started": OwnChannelStatus.Started,
    "stopped": OwnChannelStatus.Stopped,
    "closed": OwnChannelStatus.Closed,
    "error": OwnChannelStatus.Error,
}
_FINAL_STATES = ("closed", "error")
_STATE_NAMES = frozenset(status.name for status in _STATES.values())
_AFTER_ERROR = ("Opened", "Started")


class ChannelStatusMonitor:
    """One channel of the other side: state from its messages, health from the gateway.

    The gateway uses a monotonic clock; the timestamps here are for display.
    """

    ValidPatienceTimeInMs = 120_000
    """The heartbeat timeout of channels created by this side."""

    def __init__(
        self,
        channel_name: str,
        channel_context_name: str,
        channel_group_name: str | None = None,
        logger: ChannelLogger | None = None,
    ) -> None:
        self.channel_name = channel_name
        self.channel_context_name = channel_context_name
        self.channel_group_name = channel_group_name
        self.logger = logger
        self.status_update_map: dict[ChannelStatus, int] = {}
        self.current_status: ChannelStatus | None = None
        self.last_status_change_timestamp_ms = 0
        self.last_update_sent_timestamp_ms = 0
        self.status_update_callback: Callable[[ChannelStatusMessage], object] | None = None
        self.acknowledged: Mapping[str, int] | None = None
        self._healthy = True

    def get_channel_unique_name(self) -> str:
        """Return `channel@port`."""
        return f"{self.channel_name}{NameSeparator}{self.channel_context_name}"

    def get_channel_context_name(self) -> str:
        """Return the full name of its port."""
        return self.channel_context_name

    def get_channel_group_name(self) -> str | None:
        """Return the name of its port's group."""
        return self.channel_group_name

    def is_channel_healthy(self) -> bool:
        """Whether it is neither lost nor failed."""
        return self._healthy

    def is_channel_not_initialised(self) -> bool:
        """Whether its state is still unknown."""
        return self.current_status is None

    def is_channel_opened(self) -> bool:
        """Whether its state is Opened."""
        return self.current_status == ChannelStatus.Opened

    def is_channel_started(self) -> bool:
        """Whether its state is Started."""
        return self.current_status == ChannelStatus.Started

    def is_channel_stopped(self) -> bool:
        """Whether its state is Stopped."""
        return self.current_status == ChannelStatus.Stopped

    def is_channel_closed(self) -> bool:
        """Whether its state is Closed."""
        return self.current_status == ChannelStatus.Closed

    def is_channel_error(self) -> bool:
        """Whether its state is Error."""
        return self.current_status == ChannelStatus.Error

    def on_status_update(self, callback: Callable[[ChannelStatusMessage], object]) -> None:
        """Call `callback` with each message of this channel."""
        self.status_update_callback = callback

    def update(self, message: ChannelStatusMessage) -> None:
        """Process a message. Only Opened and Started may follow the state Error."""
        if message.get_channel_unique_name() != self.get_channel_unique_name():
            raise AttributeError(
                f"a message of {message.get_channel_unique_name()} does not belong to "
                f"{self.get_channel_unique_name()}"
            )
        self.last_update_sent_timestamp_ms = message.timestamp
        name = message.status.name
        stays = self.is_channel_error() and name not in _AFTER_ERROR
        if name in _STATE_NAMES and not stays and message.status != self.current_status:
            if self.logger is not None:
                before = self.current_status.name if self.current_status else "none"
                self.logger.debug(f"{before} -> {name}")
            self.current_status = message.status
            self.last_status_change_timestamp_ms = message.timestamp
        self.status_update_map[message.status] = message.timestamp
        if self.status_update_callback is not None:
            self.status_update_callback(message)

    def set_health(self, *, healthy: bool) -> None:
        """Set the health that the gateway reported."""
        self._healthy = healthy


class _Peer:
    """A place on the other side, and the received messages of its current endpoint."""

    def __init__(self, monitor: ChannelStatusMonitor) -> None:
        self.monitor = monitor
        self.reset("")

    def reset(self, id_: str) -> None:
        """Start with another endpoint in the same place."""
        self.id = id_
        self.number = 0
        self.state: OwnChannelStatus | None = None
        self.health: Mapping[str, Any] | None = None


Filter = Callable[[ChannelStatusMonitor], bool]


@dataclass(eq=False, repr=False)
class Peers:
    """All places ever seen on the other side, each with a monitor for its latest endpoint."""

    _channel_name: str
    _logger: ChannelLogger
    _on_new: Callable[[ChannelStatusMonitor], object]

    def __post_init__(self) -> None:
        self._peers: dict[Hashable, _Peer] = {}
        self.monitors: tuple[ChannelStatusMonitor, ...] = ()
        """The monitors of all places; replaced when a place is added."""

    def any_healthy(self, matches: Filter = lambda _: True) -> bool:
        """Whether a healthy monitor matches."""
        return any(monitor.is_channel_healthy() and matches(monitor) for monitor in self.monitors)

    def update(self, endpoints: Iterable[Endpoint]) -> list[ChannelStatusMessage]:
        """Process endpoints; return their new messages, in order for each endpoint."""
        return [message for endpoint in endpoints for message in self._update(endpoint)]

    def _update(self, endpoint: Endpoint) -> list[ChannelStatusMessage]:
        received = received_status(endpoint)
        context = _context_of(endpoint) if received is None else received.context
        group = endpoint.group if received is None else received.group
        peer = self._peer(endpoint, context, group)
        new: list[tuple[OwnChannelStatus, Any]] = []
        for number, status, payload in () if received is None else received.messages:
            if number > peer.number:
                peer.number = number
                new.append((status, payload))
        state = _STATES.get(endpoint.state)
        final = endpoint.state in _FINAL_STATES
        if state is not None and state != peer.state and (received is None or final):
            peer.state = state
            new.append((state, None))
        health = None if received is None else received.health
        if health is not None and health != peer.health:
            peer.health = health
            new.append((OwnChannelStatus.HealthCheck, dict(health)))
        monitor = peer.monitor
        monitor.set_health(healthy=endpoint.health != "lost" and endpoint.state != "error")
        messages = [
            ChannelStatusMessage(
                self._channel_name, context, group, endpoint.index, status.name, payload
            )
            for status, payload in new
        ]
        for message in messages:
            if message.status == ChannelStatus.Acknowledged:
                at = message.payload.get("at") if isinstance(message.payload, dict) else None
                monitor.acknowledged = at if isinstance(at, dict) else None
            try:
                monitor.update(message)
            except Exception:
                # The later messages are received all the same.
                self._logger.exception("Error at status message callback")
        return messages

    def _peer(self, endpoint: Endpoint, context: str, group: str | None) -> _Peer:
        place: Hashable = endpoint.id
        if endpoint.group is not None:
            place = (endpoint.role, endpoint.group, endpoint.index)
        peer = self._peers.get(place)
        if peer is None:
            monitor = ChannelStatusMonitor(self._channel_name, context, group, self._logger)
            peer = self._peers[place] = _Peer(monitor)
            self.monitors = (*self.monitors, monitor)
            self._on_new(monitor)
        if peer.id != endpoint.id:
            peer.reset(endpoint.id)
        # The first heartbeat, which has the full name, may follow after the endpoint is listed.
        peer.monitor.channel_context_name, peer.monitor.channel_group_name = context, group
        return peer


def _context_of(endpoint: Endpoint) -> str:
    """Name an endpoint without a pypz payload: native, or before its first heartbeat."""
    alone = endpoint.group is not None and endpoint.size == 1
    return endpoint.title or (str(endpoint.group) if alone else endpoint.place)


class FailedWriters:
    """Policy for a channel without live writers of which not all have finished.

    pypz starts readers and writers together, each writer in its own place. So the reader waits for
    the successor of a failed writer by `LostWriterPolicy`, also if the writer ended before this
    reader was opened, or wrote nothing. The latter is no error, but its successor may still write.
    """

    def __init__(
        self,
        channel: str,
        on_lost_writer: OnLostWriter,
        *,
        patience_s: float,
        reader: AttachResult | None = None,
    ) -> None:
        self._channel = channel
        self._policy = LostWriterPolicy(
            on_lost_writer, heartbeat_timeout_s=patience_s, reader=reader
        )

    def observe(self, endpoints: Iterable[Endpoint]) -> None:
        """Record which writers are live."""
        self._policy.observe(endpoints)

    def was_read(self, endpoint: Endpoint) -> bool:
        """Whether it is a writer of an earlier run, which this place has read to its end."""
        return endpoint.role == "writer" and self._policy.was_read(endpoint)

    def finished_through(self, endpoints: Iterable[Endpoint]) -> int | None:
        """Return the highest number of the writers once all have ended; None before."""
        outcome = writers_outcome(endpoints, self._policy, channel=self._channel, writers=1)
        return None if outcome is None else outcome.through

    def check(self, endpoints: Iterable[Endpoint]) -> tuple[bool, CounterpartError | None]:
        """Return whether to wait for a successor, and if not, the error or None."""
        writers = [
            endpoint
            for endpoint in endpoints
            if endpoint.role == "writer" and not self.was_read(endpoint)
        ]
        self.observe(writers)
        if any(writer.lives for writer in writers):
            return False, None
        left = [writer for writer in writers if writer.state != "closed"]
        if self._policy.waits_for(writer for writer in left if not self._policy.is_settled(writer)):
            return True, None
        outcome = writers_outcome(writers, self._policy, channel=self._channel, writers=0)
        if outcome is None or outcome.error is None:
            return False, None
        fault = outcome.error
        advice = "In a port's channelConfig, set onLostWriter='go_on' or 'wait'"
        return False, type(fault)(f"{fault}. {advice}", endpoints=fault.endpoints)
