"""The counterparts of a pypz channel, as the gateway reports them."""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sluiceway.endpoint.stop_condition import LostWriterPolicy, OnLostWriter, writers_outcome
from sluiceway.errors import CounterpartError
from sluiceway.pypz.config import ChannelLogger
from sluiceway.pypz.status import ChannelStatus as OurStatus
from sluiceway.pypz.status import NameSeparator, said
from sluiceway.pypz.statuses import ChannelStatus, ChannelStatusMessage
from sluiceway.rest.endpoint_models import Endpoint

_STATES = {
    "opened": OurStatus.Opened,
    "started": OurStatus.Started,
    "stopped": OurStatus.Stopped,
    "closed": OurStatus.Closed,
    "error": OurStatus.Error,
}
_ENDED = ("closed", "error")
_CHANGES = frozenset(each.name for each in _STATES.values())
_LEAVE_ERROR = ("Opened", "Started")


class ChannelStatusMonitor:
    """One channel on the other side: its state is its own word, its health the gateway's.

    Beats are counted by the gateway, on a clock that only goes forward; the timestamps here are
    of when something was heard of.
    """

    ValidPatienceTimeInMs = 120_000
    """How long a channel may be silent, for channels that are made by this side."""

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
        """Whether it lives, as far as the gateway knows, or has ended well."""
        return self._healthy

    def is_channel_not_initialised(self) -> bool:
        """Whether nothing was heard of its state yet."""
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
        """Take a message. An error is left by Opened and Started alone."""
        if message.get_channel_unique_name() != self.get_channel_unique_name():
            raise AttributeError(
                f"a message of {message.get_channel_unique_name()} is none of "
                f"{self.get_channel_unique_name()}"
            )
        self.last_update_sent_timestamp_ms = message.timestamp
        name = message.status.name
        stays = self.is_channel_error() and name not in _LEAVE_ERROR
        if name in _CHANGES and not stays and message.status != self.current_status:
            if self.logger is not None:
                self.logger.debug(f"{self.current_status} -> {message.status}")
            self.current_status = message.status
            self.last_status_change_timestamp_ms = message.timestamp
        self.status_update_map[message.status] = message.timestamp
        if self.status_update_callback is not None:
            self.status_update_callback(message)

    def judge(self, *, healthy: bool) -> None:
        """Take the gateway's word on its health."""
        self._healthy = healthy


class _Seen:
    """What was taken in of one place's endpoint."""

    def __init__(self, monitor: ChannelStatusMonitor) -> None:
        self.monitor = monitor
        self.id = ""
        self.number = 0
        self.state: OurStatus | None = None
        self.health: Mapping[str, Any] | None = None


class Connected:
    """All that were ever seen on the other side, each place once, with the latest who had it."""

    def __init__(
        self,
        channel_name: str,
        logger: ChannelLogger,
        on_new: Callable[[ChannelStatusMonitor], object],
    ) -> None:
        self._channel_name = channel_name
        self._logger = logger
        self._on_new = on_new
        self._seen: dict[Hashable, _Seen] = {}

    @property
    def monitors(self) -> list[ChannelStatusMonitor]:
        """Those that are known now."""
        return [each.monitor for each in list(self._seen.values())]

    def take(self, endpoints: Iterable[Endpoint]) -> list[ChannelStatusMessage]:
        """Take in how they stand, and return what is new as messages, in order for each."""
        return [message for each in endpoints for message in self._take(each)]

    def _take(self, endpoint: Endpoint) -> list[ChannelStatusMessage]:
        told = said(endpoint)
        context = _guessed(endpoint) if told is None else told.context
        group = endpoint.group if told is None else told.group
        seen = self._known(endpoint, context, group)
        monitor = seen.monitor
        new: list[tuple[OurStatus, Any]] = []
        for number, status, payload in () if told is None else told.messages:
            if number > seen.number:
                seen.number = number
                new.append((status, payload))
        state = _STATES.get(endpoint.state)
        if state not in (None, seen.state) and (told is None or endpoint.state in _ENDED):
            new.append((_STATES[endpoint.state], None))
            seen.state = state
        if told is not None and told.health is not None and told.health != seen.health:
            seen.health = told.health
            new.append((OurStatus.HealthCheck, dict(told.health)))
        monitor.judge(healthy=endpoint.health != "lost" and endpoint.state != "error")
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
            monitor.update(message)
        return messages

    def _known(self, endpoint: Endpoint, context: str, group: str | None) -> _Seen:
        place: Hashable = (endpoint.role, endpoint.group, endpoint.index)
        if endpoint.group is None:
            place = endpoint.id
        seen = self._seen.get(place)
        if seen is None:
            monitor = ChannelStatusMonitor(self._channel_name, context, group, self._logger)
            seen = self._seen[place] = _Seen(monitor)
            self._on_new(monitor)
        if seen.id != endpoint.id:
            # Another instance: what it says begins anew.
            seen.id, seen.number, seen.state, seen.health = endpoint.id, 0, None, None
        # Its full name comes with its first beat, after its place.
        seen.monitor.channel_context_name, seen.monitor.channel_group_name = context, group
        return seen


def _guessed(endpoint: Endpoint) -> str:
    """Name one that has not told its name: it is not of pypz, or has not beaten yet."""
    alone = endpoint.group is not None and endpoint.size == 1
    return endpoint.title or (str(endpoint.group) if alone else endpoint.place)


Filter = Callable[[ChannelStatusMonitor], bool]


class ChannelCompany:
    """What a channel knows of those that it is connected to, by the last update."""

    _connected: Connected

    def retrieve_all_connected_channel_count(self) -> int:
        """Return how many were seen so far."""
        return len(self._connected.monitors)

    def retrieve_connected_channel_unique_names(
        self, filter_function: Filter | None = None
    ) -> set[str]:
        """Return the unique names of those that the filter takes; without one, of all."""
        return {
            each.get_channel_unique_name()
            for each in self._connected.monitors
            if filter_function is None or filter_function(each)
        }

    def retrieve_healthy_connected_channel_count(self) -> int:
        """Return how many of them are healthy."""
        return sum(each.is_channel_healthy() for each in self._connected.monitors)

    def is_any_connected_channel_healthy_and_not_stopped(self) -> bool:
        """Whether somebody is healthy and has not stopped."""
        return self._any(lambda each: not each.is_channel_stopped())

    def is_any_connected_channel_healthy_and_not_closed(self) -> bool:
        """Whether somebody is healthy and has not closed."""
        return self._any(lambda each: not each.is_channel_closed())

    def is_any_connected_channel_healthy_and_not_stopped_and_not_closed(self) -> bool:
        """Whether somebody is healthy and still at work."""
        return self._any(lambda each: not (each.is_channel_stopped() or each.is_channel_closed()))

    def is_any_connected_channels_unhealthy(self) -> bool:
        """Whether somebody was lost, or failed."""
        return any(not each.is_channel_healthy() for each in self._connected.monitors)

    def is_any_connected_channels_healthy(self) -> bool:
        """Whether somebody is healthy."""
        return self._any(lambda _each: True)

    def _any(self, also: Filter) -> bool:
        return any(each.is_channel_healthy() and also(each) for each in self._connected.monitors)


@dataclass(frozen=True, kw_only=True)
class Fate:
    """Nobody writes any more, and not everybody has finished; `fault` None: wait for them."""

    fault: CounterpartError | None


class Fates:
    """Judges the writers of a channel, as often as somebody asks whether more is to come.

    pypz starts readers and writers together, each writer in its own place. So one that failed or
    was lost is waited for by `LostWriterPolicy`, also when it had ended before this reader came,
    and when it wrote nothing; that is no fault, but its successor is yet to write.
    """

    def __init__(
        self,
        channel: str,
        on_lost_writer: OnLostWriter,
        *,
        patience_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._policy = LostWriterPolicy(
            on_lost_writer, heartbeat_timeout_s=patience_s, monotonic=monotonic
        )

    def meet(self, endpoints: Iterable[Endpoint]) -> None:
        """Note who is at work."""
        self._policy.observe(endpoints)

    def judge(self, endpoints: Iterable[Endpoint]) -> Fate | None:
        """Return their fate; None while one is at work, and when all have finished."""
        writers = [each for each in endpoints if each.role == "writer"]
        self.meet(writers)
        if any(each.lives for each in writers):
            return None
        if self._policy.waits_for(each for each in writers if each.state != "closed"):
            return Fate(fault=None)
        found = writers_outcome(writers, self._policy, channel=self._channel, writers=0)
        if found is None or found.error is None:
            return None
        fault = found.error
        advice = "In a port's channelConfig that is onLostWriter='go_on', or 'wait'"
        return Fate(fault=type(fault)(f"{fault}. {advice}", endpoints=fault.endpoints))


__all__ = ["ChannelCompany", "ChannelStatusMonitor", "Connected", "Fate", "Fates", "Filter"]
