"""Base of pypz channel readers and writers: lifecycle and status exchange."""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from sluiceway.channel import Channel
from sluiceway.errors import ChannelNotFound, SluicewayError
from sluiceway.pypz.config import ChannelLogger, level_of, metrics_enabled
from sluiceway.pypz.heartbeats import Link, Loop
from sluiceway.pypz.peers import ChannelCompany, ChannelStatusMonitor, Connected
from sluiceway.pypz.resources import Resources
from sluiceway.pypz.status import ChannelStatus as OurStatus
from sluiceway.pypz.status import NameSeparator, StatusPayload
from sluiceway.pypz.statuses import ChannelStatus, ChannelStatusMessage
from sluiceway.rest.endpoint_models import Endpoint, Role

StatusCallback = Callable[[list[ChannelStatusMessage]], object]
_COUNTED = ("receivedRecordCount", "sentRecordCount")


class StatusExchange(ChannelCompany):
    """Tells statuses with the beats of the channel's endpoint, and hears those of the others."""

    StatusConsumerTimeoutInMs = 1000
    """How long the gateway's answer to one status update is waited for."""

    def __init__(self, channel_name: str, context: Any, *, silent: bool) -> None:
        self._silent_mode = silent
        self._logger = ChannelLogger(
            context.get_logger(), str(context.get_full_name()), str(channel_name)
        )
        self._health_check_payload: dict[str, Any] = {}
        self._metrics_enabled = False
        self._failed = False
        self._channel: Channel | None = None
        self._link: Link | None = None
        self._taking = threading.Lock()
        self._taken_in: tuple[Endpoint, ...] = ()
        self._callbacks: set[StatusCallback] = set()
        self._connected = Connected(
            channel_name, self._logger, lambda monitor: self.on_new_channel_status_monitor(monitor)
        )
        self._telling = StatusPayload(str(context.get_full_name()), context.get_group_name())

    def get_logger(self) -> ChannelLogger:
        """Return the channel's log."""
        return self._logger

    def invoke_sync_send_status_message(self, status: Any, payload: Any = None) -> None:
        """Tell the other side a status, with a payload of JSON's values if there is one."""
        if self._silent_mode:
            return
        known = OurStatus[getattr(status, "name", status)]
        if known is OurStatus.HealthCheck:
            told = self._telling.feel(payload or None)
        else:
            told = self._telling.say(known, payload)
        if known is OurStatus.Error:
            self._failed = True
        elif known in (OurStatus.Opened, OurStatus.Started):
            self._failed = False
        if self._link is not None and told is not None:
            self._link.tell(told)

    def invoke_sync_status_update(self) -> None:
        """Ask how the other side stands, and call the callbacks with what is new."""
        if self._link is not None:
            self._link.refresh(self.StatusConsumerTimeoutInMs / 1000)
        heard = self._heard()
        self._take([*heard, *self._asked()])
        self._taken_in = heard

    def on_status_message_received(self, callback: StatusCallback) -> None:
        """Call `callback` with the list of new messages at each update, also when it is empty."""
        self._callbacks.add(callback)

    def on_new_channel_status_monitor(self, status_monitor: ChannelStatusMonitor) -> None:
        """Do nothing; for subclasses, which may register callbacks."""

    def on_status_message_send(self) -> None:
        """Do nothing; for subclasses, called before `_health_check_payload` is told."""

    def _asked(self) -> Iterable[Endpoint]:
        """Return endpoints that have to be asked for, since no beat tells of them."""
        return ()

    def _present(self, role: Role) -> Sequence[Endpoint]:
        """Ask who of a role is at the channel, or was last."""
        if self._channel is None:
            return ()
        try:
            return [each for each in self._channel.endpoints() if each.role == role]
        except ChannelNotFound:
            return ()

    def _heard(self) -> tuple[Endpoint, ...]:
        return () if self._link is None else self._link.counterparts

    def _turn(self) -> None:
        """Tell and hear once: what the thread does again and again."""
        self.on_status_message_send()
        self.invoke_sync_send_status_message(OurStatus.HealthCheck, self._told_health())
        if self._metrics_enabled:
            self._logger.debug(f"Metrics: {json.dumps(self._health_check_payload, default=str)}")
        heard = self._heard()
        self._take(heard)
        self._taken_in = heard

    def _catch_up(self) -> None:
        """Take in what was heard since the last turn."""
        heard = self._heard()
        if heard is not self._taken_in:
            self._take(heard)
            self._taken_in = heard

    def _told_health(self) -> dict[str, Any] | None:
        """Return what others should know; counters are told by beats, and need no words."""
        if self._metrics_enabled:
            return self._health_check_payload
        return {k: v for k, v in self._health_check_payload.items() if k not in _COUNTED} or None

    def _take(self, endpoints: Iterable[Endpoint]) -> None:
        with self._taking:
            messages = self._connected.take(endpoints)
        for callback in list(self._callbacks):
            try:
                callback(messages)
            except Exception:
                self._logger.exception("Error at status message callback")


class ChannelBase(StatusExchange, ABC):
    """A channel of one port (`context`), driven by it: created, opened, started, and so on.

    The methods named `invoke_…` return whether they are done; who calls them calls again until
    they are. `executor` runs the thread that tells and hears statuses; it is not shut down here.
    With `silent_mode=True` it tells nobody anything, and leaves no trace.
    """

    DefaultStatusThreadIntervalInMs = 2000
    """How often statuses are told and heard; also the beat of channels that are made here."""
    ControlLoopExceptionTimeoutInMs = 60_000
    """How long it is borne that the gateway is away."""
    ParamKeyLogLevel = "logLevel"
    ParamKeyMetricsEnabled = "metricsEnabled"

    def __init__(
        self, channel_name: str, context: Any, executor: Executor | None = None, **kwargs: Any
    ) -> None:
        if channel_name is None:
            raise ValueError("Channel name must be provided")
        if context is None:
            raise ValueError("Context instance must be provided")
        super().__init__(channel_name, context, silent=bool(kwargs.get("silent_mode", False)))
        self._channel_name = channel_name
        self._context = context
        self._unique_name = f"{channel_name}{NameSeparator}{context.get_full_name()}"
        self._configuration: dict[str, Any] = {}
        self._executor = executor
        self._channel_opened = self._channel_started = self._channel_stopped = False
        self._resources_created = self._resources_deleted = False
        self._logger.set_log_level("DEBUG")
        grace_s = self.ControlLoopExceptionTimeoutInMs / 1000
        self._resources = Resources(channel_name, context, self._logger, grace_s=grace_s)
        self._loop: Loop | None = None

    @abstractmethod
    def _create_resources(self) -> bool:
        """Make what the channel lies in; True: done."""

    @abstractmethod
    def _delete_resources(self) -> bool:
        """Delete what the channel lies in; True: done."""

    @abstractmethod
    def _open_channel(self) -> bool:
        """Open the way to the records; True: done. Again and again, and no harm in it."""

    @abstractmethod
    def _close_channel(self) -> bool:
        """Let go of everything; True: done."""

    def get_channel_name(self) -> str:
        """Return the channel's name, as pypz has it."""
        return self._channel_name

    def get_unique_name(self) -> str:
        """Return `channel@port`."""
        return self._unique_name

    def get_location(self) -> str | None:
        """Return the gateway's address, as it was set."""
        return self._resources.location

    def get_context(self) -> Any:
        """Return the port."""
        return self._context

    def get_configuration(self) -> dict[str, Any]:
        """Return all that was configured."""
        return self._configuration

    def is_channel_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._channel_opened

    def is_channel_started(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._channel_started

    def is_channel_stopped(self) -> bool:
        """Whether it was stopped, and not started since."""
        return self._channel_stopped

    def is_resource_created(self) -> bool:
        """Whether creating the resources was done here."""
        return self._resources_created

    def is_resource_deleted(self) -> bool:
        """Whether deleting the resources was done here; a channel not read to its end is kept."""
        return self._resources_deleted

    def set_location(self, channel_location: str) -> None:
        """Say where the gateway is; without, or with "", it is where SLUICEWAY_URL says."""
        self._resources.location = channel_location

    def start_channel(self, send_status_message: bool = True) -> None:
        """Note that work begins, and tell it."""
        if send_status_message:
            self.invoke_sync_send_status_message(ChannelStatus.Started)
        self._channel_started, self._channel_stopped = True, False

    def stop_channel(self, send_status_message: bool = True) -> None:
        """Note that work has ended, and tell it."""
        self._channel_started, self._channel_stopped = False, True
        if send_status_message:
            self.invoke_sync_send_status_message(ChannelStatus.Stopped)

    def can_close(self) -> bool:
        """Whether nobody needs this channel any more."""
        return not self.is_any_connected_channel_healthy_and_not_closed()

    def invoke_resource_creation(self) -> bool:
        """Make what the channel lies in; False: not there yet."""
        self._resources_created = self._create_resources()
        return self._resources_created

    def invoke_resource_deletion(self) -> bool:
        """Delete what the channel lies in; False: somebody is still at work.

        A channel with records that were not read is kept, which the log says; True all the same.
        """
        self._resources_deleted = self._delete_resources()
        return self._resources_deleted

    def invoke_open_channel(self) -> bool:
        """Open the channel; False: it is not there yet."""
        if not self._open_channel():
            return False
        self.invoke_sync_send_status_message(ChannelStatus.Opened)
        self.invoke_sync_status_update()
        if self._loop is None and not self._silent_mode:
            self._loop = Loop(
                self._turn,
                name=self._unique_name,
                interval_s=self.DefaultStatusThreadIntervalInMs / 1000,
                executor=self._executor,
            )
        self._channel_opened = True
        return True

    def invoke_close_channel(self) -> bool:
        """Stop the channel if it runs, and close it; False: not done yet, call again.

        What Kafka refused is raised when all is closed; then, and after Error was told, the other
        side does not take it for a good end.
        """
        if not self._channel_opened and self._channel is None:
            return True
        if not self._resources.attempt(self._may_leave):
            return False
        failure: SluicewayError | None = None
        try:
            if self._channel_started and not self._channel_stopped:
                self.stop_channel()
        except SluicewayError as error:
            self._logger.exception("not stopped as it should be")
            self.stop_channel(False)
            failure = error
        try:
            done = self._resources.attempt(self._close_channel)
        except BaseException:
            self._part()
            raise
        if done:
            self._part()
        if failure is not None:
            raise failure
        return done

    def invoke_configure_channel(self, channel_configuration: Mapping[str, Any]) -> None:
        """Add to the configuration. Raises OptionError for values that make no sense."""
        configuration = self._configuration | dict(channel_configuration)
        metrics = metrics_enabled(configuration)
        level = level_of(configuration.get(self.ParamKeyLogLevel, "DEBUG"))
        self._configure_channel(configuration)
        self._configuration.update(channel_configuration)
        self._metrics_enabled = metrics
        self._logger.set_log_level(level)

    def _configure_channel(self, configuration: Mapping[str, Any]) -> None:
        """Take what concerns reading or writing."""

    def _may_leave(self) -> bool:
        return True

    def _part(self) -> None:
        """Forget what was open."""
        self._channel_opened = False
        self._link = self._channel = None
        if self._loop is not None:
            self._loop.end()
            self._loop = None
        self._resources.release()


__all__ = ["ChannelBase", "StatusCallback", "StatusExchange"]
