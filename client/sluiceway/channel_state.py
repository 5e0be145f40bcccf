"""The state of a channel as of the gateway's last answer, and the JSON of its spec."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sluiceway.errors import (
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    OptionError,
    SluicewayTimeout,
)
from sluiceway.rest.channels import Control
from sluiceway.rest.models import ChannelResource

__all__ = ["ChannelState", "ResourceField", "checked_idle", "spec_json"]

T = TypeVar("T")

_MAX_WAIT_S = 20.0
_MIN_IDLE, _MAX_IDLE = timedelta(minutes=1), timedelta(days=3650)


class ChannelState:
    """One incarnation of a channel; answers about another incarnation raise Conflict."""

    def __init__(self, control: Control, resource: ChannelResource) -> None:
        self._control = control
        self.resource = resource

    def refresh(self) -> None:
        """Request the channel."""
        self.update(self._control.channel(self.resource.name))

    def update(self, resource: ChannelResource) -> None:
        """Take the gateway's answer."""
        self.check_uid(resource.uid)
        self.resource = resource

    def wait_until(
        self, done: Callable[[ChannelResource], bool], deadline_s: float, unfinished: str
    ) -> None:
        """Wait until `done`; after the deadline raise SluicewayTimeout beginning `unfinished`."""
        while not done(self.resource):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise SluicewayTimeout(f"{unfinished}: {self.resource.status.explain()}")
            self.update(self._control.wait_for_change(self.resource, min(left_s, _MAX_WAIT_S)))

    def wait_until_ready(self, deadline_s: float) -> None:
        """Wait until the channel can be used. Raises ChannelNotReady and SluicewayTimeout."""

        def ready(resource: ChannelResource) -> bool:
            phase = resource.status.phase
            if phase not in ("provisioning", "ready", "closing", "closed"):
                raise ChannelNotReady(
                    f"the channel {resource.name!r} is {phase}: {resource.status.explain()}",
                    retriable=False,
                )
            return phase != "provisioning"

        self.wait_until(ready, deadline_s, f"the channel {self.resource.name!r} is not ready")

    def wait_until_gone(self, deadline_s: float) -> None:
        """Wait until the channel is deleted. Raises SluicewayTimeout."""
        unfinished = f"the channel {self.resource.name!r} is still there"
        try:
            self.wait_until(lambda _: False, deadline_s, unfinished)
        except ChannelNotFound:
            return
        except Conflict as error:
            # A mismatch means that it is gone, and another channel has its name.
            if error.code != "uid_mismatch":
                raise

    def check_uid(self, uid: str) -> None:
        """Raise Conflict `uid_mismatch` for another incarnation."""
        name, own = self.resource.name, self.resource.uid
        if uid != own:
            raise Conflict(
                f"the channel {name!r} was deleted and created again: this one was {own}, the "
                f"current one is {uid}. Open it again with gateway.channel({name!r})",
                code="uid_mismatch",
            )


class ResourceField(Generic[T]):
    """A read-only attribute: a field of the channel's resource, as of the last answer."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, channel: Any, owner: type) -> T:
        if channel is None:
            return self  # type: ignore[return-value]
        value: T = getattr(channel._state.resource, self._name)  # noqa: SLF001
        return value

    def __set__(self, channel: object, value: object) -> None:
        raise AttributeError(f"{self._name} is read-only; use the channel's update()")


def checked_idle(idle: timedelta) -> timedelta | None:
    """Return how long a channel may be idle; None (forever) for 0. Raises OptionError."""
    if not isinstance(idle, timedelta) or not (
        idle == timedelta(0) or _MIN_IDLE <= idle <= _MAX_IDLE
    ):
        raise OptionError(
            f"idle is {idle!r}; it takes a timedelta from a minute to ten years, or 0 for never"
        )
    return idle or None


def spec_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of the fields of a channel's spec that are not None. Raises OptionError."""
    spec = {name: value for name, value in fields.items() if value is not None}
    for name in spec.keys() & {"retention", "heartbeat"}:
        spec[name] = asdict(spec[name])
    if "schema" in spec:
        spec["schema"] = spec["schema"].definition
    if "config" in spec:
        spec["config"] = dict(spec["config"])
    if "idle" in spec:
        idle = checked_idle(spec.pop("idle"))
        spec["idle_ms"] = None if idle is None else idle // timedelta(milliseconds=1)
    return spec
