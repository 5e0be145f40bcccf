"""What channels of pypz's say to each other, told and heard with the gateway's beats."""

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sluiceway.channel import Channel
from sluiceway.errors import ChannelNotFound
from sluiceway.pypz.company import ChannelCompany
from sluiceway.pypz.link import Link
from sluiceway.pypz.logger import ChannelLogger
from sluiceway.pypz.peers import ChannelStatusMonitor, Connected
from sluiceway.pypz.status import ChannelStatus as OurStatus
from sluiceway.pypz.statuses import ChannelStatusMessage
from sluiceway.pypz.telling import Telling
from sluiceway.rest.endpoint_models import Endpoint, Role

__all__ = ["ChannelVoice", "StatusCallback"]

StatusCallback = Callable[[list[ChannelStatusMessage]], object]
_COUNTED = ("receivedRecordCount", "sentRecordCount")


class ChannelVoice(ChannelCompany):
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
        self._telling = Telling(str(context.get_full_name()), context.get_group_name())

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
