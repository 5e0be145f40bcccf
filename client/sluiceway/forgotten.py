"""Endpoints that a program let go of without closing them: the gateway is told that they failed."""

import logging
import os
import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sluiceway.errors import GatewayError, GatewayUnavailable
from sluiceway.rest.endpoints import EndpointCalls

__all__ = ["Farewell", "Forgotten"]

LOGGER = logging.getLogger("sluiceway.endpoint.heartbeat")

_TIMEOUT_S = 5.0
_CAUSE = "forgotten: the program let go of it without closing it"


class Leaver(Protocol):
    """An endpoint, as far as its farewell needs it; `name` is for people."""

    id: str
    channel: str
    uid: str

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Farewell:
    """What there is to say of an endpoint of which nothing else is left.

    `done`: it is a reader that has read all there was for it to read, which is no failure.
    `pristine`: it is a writer that has handed no message to Kafka.
    """

    name: str
    channel: str
    id: str
    uid: str
    epoch: int
    done: bool = False
    pristine: bool = False

    @classmethod
    def of(cls, leaver: Leaver, epoch: int) -> "Farewell":
        """Return that of an endpoint with this epoch."""
        return cls(
            name=leaver.name, channel=leaver.channel, id=leaver.id, uid=leaver.uid, epoch=epoch
        )

    @property
    def body(self) -> dict[str, Any]:
        """How it ended, as it is sent."""
        ending: dict[str, Any] = {"state": "closed"}
        if not self.done:
            ending = {"state": "error", "cause": _CAUSE, "ends": {} if self.pristine else None}
        return {"uid": self.uid, "epoch": self.epoch, **ending}


class Forgotten:
    """The endpoints of a session that Python collected while they were open.

    That happens in the middle of whatever some thread does, which may hold any lock. So it is only
    noted then, and told by the thread of the beats.
    """

    def __init__(self) -> None:
        self._noted: deque[Farewell] = deque()
        self._minded: dict[str, Any] = {}

    @property
    def any_left(self) -> bool:
        """Whether there is a member that has not left, or one to tell of."""
        return bool(self._minded)

    def mind(self, member: object, farewell: Farewell) -> None:
        """Note the farewell when `member` is collected before it is released."""
        minded = weakref.finalize(member, _note, self._noted, farewell, os.getpid())
        # A process that ends is silent as a whole, and found lost by that.
        minded.atexit = False
        self._minded[farewell.id] = minded

    def amend(self, id_: str, **known: bool) -> None:
        """Change what the farewell of a member says: `done`, `pristine`."""
        minded = self._minded.get(id_)
        # It lives, as it is its own reader or writer that says so.
        if minded is not None and (kept := minded.detach()) is not None:
            self.mind(kept[0], replace(kept[2][1], **known))

    def release(self, id_: str) -> None:
        """Forget about a member, which has come to its end."""
        minded = self._minded.pop(id_, None)
        if minded is not None:
            minded.detach()

    def tell(self, calls: EndpointCalls) -> None:
        """Tell the gateway of those that were noted; with the next beat where it is away."""
        for _ in range(len(self._noted)):
            farewell = self._noted.popleft()
            try:
                calls.detach(farewell.channel, farewell.id, farewell.body, timeout_s=_TIMEOUT_S)
            except GatewayUnavailable:
                self._noted.append(farewell)
                return
            except GatewayError as error:
                if error.code == "members_open":
                    # The first of a group, which closes last.
                    self._noted.append(farewell)
                    continue
                # Fenced, or gone with its channel.
                LOGGER.debug("%s was forgotten, and had ended before: %s", farewell.name, error)
            else:
                if not farewell.done:
                    LOGGER.warning(
                        "%s failed: the program let go of it without closing it. Use `with`, or "
                        "close it; its counterparts were told",
                        farewell.name,
                    )
            self._minded.pop(farewell.id, None)


def _note(noted: deque[Farewell], farewell: Farewell, process: int) -> None:
    if os.getpid() == process:
        noted.append(farewell)
