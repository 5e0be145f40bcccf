"""Base of pypz channel readers and writers: lifecycle and status exchange."""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Generic, TypeVar

from sluiceway import Channel, ChannelReader, ChannelWriter, Endpoint
from sluiceway.errors import (
    ChannelNotFound,
    Conflict,
    EndpointClosed,
    Fenced,
    OptionError,
    SluicewayError,
)
from sluiceway.pypz.config import ChannelLogger, flag, level_of
from sluiceway.pypz.peers import ChannelStatusMonitor, Filter, Peers
from sluiceway.pypz.resources import Resources
from sluiceway.pypz.status import (
    ChannelStatus,
    ChannelStatusMessage,
    NameSeparator,
    OwnChannelStatus,
    StatusLoop,
    StatusPayload,
    cycle_figures,
)
from sluiceway.spi import AttachedEndpoint, EndpointMetrics, Role, call

__all__ = ["ChannelBase", "HookNotCalled", "StatusCallback"]

E = TypeVar("E", bound=ChannelReader | ChannelWriter)

StatusCallback = Callable[[list[ChannelStatusMessage]], object]


_HOOKS_WITHOUT_CALLS = frozenset({"_send_status_message", "_retrieve_status_messages"})
"""Hooks of pypz that send and receive statuses through Kafka."""


class HookNotCalled(OptionError, TypeError):
    """A subclass overrides a hook that is never called."""

    code = "hook_not_called"


class OperatorFailed(SluicewayError, code="operator_failed", public=True):
    """The cause of an endpoint whose port sent the status Error; it is never raised."""


class ChannelBase(ABC, Generic[E]):
    """A channel of one port (`context`), which calls its lifecycle methods.

    Methods named `invoke_…` return whether they are done; call them again until they are.
    `executor` runs the status loop, and is not shut down here. With `silent_mode=True` the channel
    has no endpoint and sends nothing.
    """

    DefaultStatusThreadIntervalInMs = 2000
    """Interval of the status loop, and of heartbeats in channels that are created here."""
    ControlLoopExceptionTimeoutInMs = 60_000
    """The longest tolerated outage of the gateway."""
    StatusConsumerTimeoutInMs = 1000
    """The timeout of a status update."""
    MetricsBufferLength = 10
    """The number of calls for averages."""
    ParamKeyLogLevel = "logLevel"
    ParamKeyMetricsEnabled = "metricsEnabled"

    _role: Role

    def __init__(
        self, channel_name: str, context: Any, executor: Executor | None = None, **kwargs: Any
    ) -> None:
        if channel_name is None:
            raise ValueError("Channel name must be provided")
        if context is None:
            raise ValueError("Context instance must be provided")
        full_name = str(context.get_full_name())
        self._silent_mode = bool(kwargs.get("silent_mode", False))
        self._logger = ChannelLogger(context.get_logger(), full_name, str(channel_name))
        self._logger.set_log_level("DEBUG")
        self._channel_name = channel_name
        self._context = context
        self._unique_name = f"{channel_name}{NameSeparator}{full_name}"
        self._configuration: dict[str, Any] = {}
        self._executor = executor
        self._channel_opened = self._channel_started = self._channel_stopped = False
        self._resources_created = self._resources_deleted = False
        grace_s = self.ControlLoopExceptionTimeoutInMs / 1000
        self._resources = Resources(channel_name, context, self._logger, grace_s=grace_s)
        self._channel: Channel | None = None
        self._endpoint: E | None = None
        self._loop: StatusLoop | None = None
        self._handle: AttachedEndpoint | None = None
        self._failed = False
        self._close_failure: SluicewayError | None = None
        self._metrics = EndpointMetrics(self._role, cycles=self.MetricsBufferLength)
        self._metrics_enabled = False
        self._health_check_payload: dict[str, Any] = {}
        self._status_payload = StatusPayload(full_name, context.get_group_name())
        self._callbacks: set[StatusCallback] = set()
        self._peers = Peers(
            channel_name, self._logger, lambda monitor: self.on_new_channel_status_monitor(monitor)
        )
        # Reentrant: a monitor's callback may request an update.
        self._updating = threading.RLock()
        self._updated_with: tuple[Endpoint, ...] = ()

    @abstractmethod
    def _create_resources(self) -> bool:
        """Create the channel if this side has to; return whether it is done."""

    @abstractmethod
    def _delete_resources(self) -> bool:
        """Delete the channel if this side has to; return whether it is done."""

    @abstractmethod
    def _open_channel(self) -> bool:
        """Open the reader or writer, unless it is open; return whether it is done."""

    def __init_subclass__(cls) -> None:
        """Raise HookNotCalled for a subclass with a hook that no method here would call."""
        super().__init_subclass__()
        for hook in _HOOKS_WITHOUT_CALLS & vars(cls).keys():
            raise HookNotCalled(
                f"{cls.__name__} overrides {hook}, which would never be called: statuses travel in "
                "heartbeats. Override invoke_sync_send_status_message, or register a callback by "
                "on_status_message_received"
            )

    def get_channel_name(self) -> str:
        """Return pypz's name of the channel."""
        return self._channel_name

    def get_unique_name(self) -> str:
        """Return `channel@port`."""
        return self._unique_name

    def get_location(self) -> str | None:
        """Return the configured address of the gateway."""
        return self._resources.location

    def get_context(self) -> Any:
        """Return the port."""
        return self._context

    def get_configuration(self) -> dict[str, Any]:
        """Return the configuration."""
        return self._configuration

    def get_logger(self) -> ChannelLogger:
        """Return the channel's logger."""
        return self._logger

    def is_channel_open(self) -> bool:
        """Whether it is open."""
        return self._channel_opened

    def is_channel_started(self) -> bool:
        """Whether it is started, and not stopped since then."""
        return self._channel_started

    def is_channel_stopped(self) -> bool:
        """Whether it is stopped, and not started since then."""
        return self._channel_stopped

    def is_resource_created(self) -> bool:
        """Whether `invoke_resource_creation` is done."""
        return self._resources_created

    def is_resource_deleted(self) -> bool:
        """Whether `invoke_resource_deletion` is done; a channel with unread records is kept."""
        return self._resources_deleted

    def set_location(self, channel_location: str) -> None:
        """Set the gateway's address; without one, or with "", SLUICEWAY_URL is used."""
        self._resources.location = channel_location

    def start_channel(self, send_status_message: bool = True) -> None:
        """Mark the channel as started, and send that status."""
        if send_status_message:
            self.invoke_sync_send_status_message(ChannelStatus.Started)
        self._channel_started, self._channel_stopped = True, False

    def stop_channel(self, send_status_message: bool = True) -> None:
        """Mark the channel as stopped, and send that status."""
        self._channel_started, self._channel_stopped = False, True
        if send_status_message:
            self.invoke_sync_send_status_message(ChannelStatus.Stopped)

    def can_close(self) -> bool:
        """Whether the other side no longer needs this channel."""
        return not self.is_any_connected_channel_healthy_and_not_closed()

    def invoke_resource_creation(self) -> bool:
        """Create the channel; False: not ready yet."""
        self._resources_created = self._create_resources()
        return self._resources_created

    def invoke_resource_deletion(self) -> bool:
        """Delete the channel; False: it has live endpoints.

        A channel with unread records is kept, which is logged; the result is then also True.
        """
        self._resources_deleted = self._delete_resources()
        return self._resources_deleted

    def invoke_open_channel(self) -> bool:
        """Open the channel; False: it does not exist yet."""
        if not self._resources.attempt(self._open_channel, opening=True):
            return False
        self.invoke_sync_send_status_message(ChannelStatus.Opened)
        self.invoke_sync_status_update()
        call(self._start_loop)
        self._channel_opened = True
        return True

    def invoke_close_channel(self) -> bool:
        """Stop the channel if it runs, and close it; False, and after an interrupt: call again.

        Delivery failures are raised after it is closed. The endpoint fails in this case, and after
        the status Error.
        """
        if not self._channel_opened and self._channel is None:
            return True
        if not self._resources.attempt(self._may_close):
            return False
        failure: SluicewayError | None = None
        try:
            if self._channel_started and not self._channel_stopped:
                self.stop_channel()
        except SluicewayError as error:
            self._logger.exception("the channel was not stopped properly")
            self.stop_channel(False)
            failure = error
        try:
            self._send_last_health()
            done = self._resources.attempt(self._close_channel)
        except Exception:
            self._release()
            raise
        failure = failure or self._close_failure
        if done:
            self._release()
        if failure is not None:
            raise failure
        return done

    def invoke_configure_channel(self, channel_configuration: Mapping[str, Any]) -> None:
        """Add to the configuration. Raises OptionError for invalid values."""
        configuration = self._configuration | dict(channel_configuration)
        metrics = flag(configuration, self.ParamKeyMetricsEnabled)
        level = level_of(configuration.get(self.ParamKeyLogLevel, "DEBUG"))
        self._configure_channel(configuration)
        self._configuration.update(channel_configuration)
        self._metrics_enabled = metrics
        self._logger.set_log_level(level)

    def invoke_sync_send_status_message(self, status: Any, payload: Any = None) -> None:
        """Send a status to the other side, with a payload of JSON values."""
        if self._silent_mode:
            return
        own_status = OwnChannelStatus[getattr(status, "name", status)]
        if own_status is OwnChannelStatus.HealthCheck:
            document = self._status_payload.set_health(payload or None)
        else:
            document = self._status_payload.add(own_status, payload)
        if own_status is OwnChannelStatus.Error:
            self._failed = True
        elif own_status in (OwnChannelStatus.Opened, OwnChannelStatus.Started):
            self._failed = False
        if self._handle is not None and document is not None:
            self._handle.payload = document
            self._handle.session.wake()

    def invoke_sync_status_update(self) -> None:
        """Request the states of the other side, and call the callbacks with new messages."""
        if self._handle is not None:
            with suppress(EndpointClosed, Fenced):
                self._handle.heartbeat_now(self.StatusConsumerTimeoutInMs / 1000)
        self._update_reported(self._unreported_peers())

    def on_status_message_received(self, callback: StatusCallback) -> None:
        """Call `callback` with the list of new messages at each update; it may be empty."""
        self._callbacks.add(callback)

    def on_new_channel_status_monitor(self, status_monitor: ChannelStatusMonitor) -> None:
        """Do nothing; subclasses may register callbacks."""

    def on_status_message_send(self) -> None:
        """Put the averages into `_health_check_payload`, with `metricsEnabled`.

        Called before the payload is sent. From the first record on, the number of records is sent
        with it.
        """
        if self._metrics_enabled:
            self._health_check_payload |= cycle_figures(self._metrics)

    def retrieve_all_connected_channel_count(self) -> int:
        """Return the number of channels seen so far."""
        return len(self._peers.monitors)

    def retrieve_connected_channel_unique_names(
        self, filter_function: Filter | None = None
    ) -> set[str]:
        """Return the unique names of the channels that the filter accepts, or of all."""
        return {
            monitor.get_channel_unique_name()
            for monitor in self._peers.monitors
            if filter_function is None or filter_function(monitor)
        }

    def retrieve_healthy_connected_channel_count(self) -> int:
        """Return the number of healthy channels."""
        return sum(monitor.is_channel_healthy() for monitor in self._peers.monitors)

    def is_any_connected_channel_healthy_and_not_stopped(self) -> bool:
        """Whether a channel is healthy and has not stopped."""
        return self._peers.any_healthy(lambda monitor: not monitor.is_channel_stopped())

    def is_any_connected_channel_healthy_and_not_closed(self) -> bool:
        """Whether a channel is healthy and has not closed."""
        return self._peers.any_healthy(lambda monitor: not monitor.is_channel_closed())

    def is_any_connected_channel_healthy_and_not_stopped_and_not_closed(self) -> bool:
        """Whether a channel is healthy and has neither stopped nor closed."""
        return self._peers.any_healthy(
            lambda monitor: not (monitor.is_channel_stopped() or monitor.is_channel_closed())
        )

    def is_any_connected_channels_unhealthy(self) -> bool:
        """Whether a channel was lost, or failed."""
        return any(not monitor.is_channel_healthy() for monitor in self._peers.monitors)

    def is_any_connected_channels_healthy(self) -> bool:
        """Whether a channel is healthy."""
        return self._peers.any_healthy()

    def _configure_channel(self, configuration: Mapping[str, Any]) -> None:
        """Apply the settings of the reader or writer."""

    def _may_close(self) -> bool:
        return True

    def _unreported_peers(self) -> Iterable[Endpoint]:
        """Request the endpoints that heartbeats do not report."""
        return ()

    @property
    def _counterparts(self) -> tuple[Endpoint, ...]:
        return () if self._handle is None else self._handle.counterparts or ()

    def _opened(self) -> E:
        """Return the open reader or writer. Raises EndpointClosed."""
        if self._endpoint is None:
            silent = self._channel is not None
            reason = "is silent and writes nothing" if silent else "is not open"
            raise EndpointClosed(
                f"the channel {self._unique_name} {reason}: call invoke_open_channel() until it "
                "returns True"
            )
        return self._endpoint

    def _endpoints(self, role: Role) -> Sequence[Endpoint]:
        """Request the endpoints of a role."""
        if self._channel is None:
            return ()
        try:
            return [endpoint for endpoint in self._channel.endpoints() if endpoint.role == role]
        except (ChannelNotFound, Conflict):
            # Deleted; another one may have its name.
            return ()

    @abstractmethod
    def _record_counts(self) -> dict[str, int]:
        """Return the number of records for health payloads; nothing before the first record."""

    def _start_loop(self) -> None:
        """Start the status loop; called where no interrupt comes, or two might run."""
        if self._loop is None and not self._silent_mode:
            self._loop = StatusLoop(
                self._exchange_status,
                name=self._unique_name,
                interval_s=self.DefaultStatusThreadIntervalInMs / 1000,
                executor=self._executor,
            )

    def _exchange_status(self) -> None:
        """Send and receive once; called by the status loop."""
        self._set_health()
        self._update_reported()

    def _send_last_health(self) -> None:
        """Send the figures since the last status, before the endpoint ends."""
        if self._handle is None or not self._handle.is_open:
            return
        before = self._handle.payload
        self._set_health()
        if self._handle.payload != before:
            with suppress(EndpointClosed, Fenced):
                self._handle.heartbeat_now(self.StatusConsumerTimeoutInMs / 1000)

    def _set_health(self) -> None:
        """Put the current figures into the payload of the next heartbeat."""
        self.on_status_message_send()
        health = self._record_counts() | self._health_check_payload
        if self._metrics_enabled:
            self._logger.debug(f"Metrics: {json.dumps(health, default=str)}")
        self.invoke_sync_send_status_message(OwnChannelStatus.HealthCheck, health)

    def _catch_up(self) -> None:
        """Process the states from heartbeats since the last update."""
        if self._counterparts is not self._updated_with:
            self._update_reported()

    def _update_reported(self, unreported: Iterable[Endpoint] = ()) -> None:
        reported = self._counterparts
        self._update([*reported, *unreported])
        self._updated_with = reported

    def _update(self, endpoints: Iterable[Endpoint]) -> None:
        with self._updating:
            messages = self._peers.update(endpoints)
        for callback in list(self._callbacks):
            try:
                callback(messages)
            except Exception:
                self._logger.exception("Error at status message callback")

    def _close_channel(self) -> bool:
        """Close the reader or writer; return whether it is done."""
        if self._endpoint is not None and self._failed:
            error = OperatorFailed(f"{self._context.get_full_name()} sent the status Error")
            self._endpoint.abort(error)
        elif self._endpoint is not None:
            ended = self._handle is not None and not self._handle.is_open
            try:
                self._endpoint.close()
            except SluicewayError as error:
                if not ended:
                    raise
                # Further calls would raise it as well.
                self._close_failure = error
        return True

    def _release(self) -> None:
        """Release the open reader or writer. May be repeated after an interrupt."""
        if self._loop is not None:
            self._loop.end()
        self._resources.release()
        # No call from here on: the interpreter handles interrupts at calls.
        self._channel_opened = False
        self._endpoint = self._handle = self._channel = self._close_failure = self._loop = None
