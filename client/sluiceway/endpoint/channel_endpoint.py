"""Base classes of writers and readers: closing by `with`, and the endpoint's handle."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from sluiceway.endpoint.attached import AttachedEndpoint, StatusCallback
from sluiceway.errors import OptionError

__all__ = ["ChannelEndpoint", "ClosesOnExit", "is_success"]


def is_success(error: BaseException | None) -> bool:
    """Whether leaving a block by `error` is its normal end: without one, or by `sys.exit(0)`."""
    if not isinstance(error, SystemExit):
        return error is None
    return error.code is None or (isinstance(error.code, int) and error.code == 0)


class ClosesOnExit(ABC):
    """A context manager: leaving the block closes, leaving it by an exception aborts.

    `sys.exit()` with the code 0 or without one, such as in a handler of SIGTERM, closes.
    """

    @abstractmethod
    def close(self) -> None:
        """Release everything. May be repeated."""

    def abort(self, error: BaseException) -> None:
        """Release everything after a failure; `error` is its reported cause."""
        del error
        self.close()

    def is_unfinished(self, error: BaseException | None) -> bool:
        """Whether `error` left something unfinished, although it is the program's success."""
        del error
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or (is_success(error) and not self.is_unfinished(error)):
            self.close()
        else:
            self.abort(error)


class ChannelEndpoint(ClosesOnExit):
    """Base class of writers and readers, which may be attached as endpoints."""

    def __init__(self, handle: AttachedEndpoint | None) -> None:
        self._handle = handle

    @property
    def endpoint_id(self) -> str | None:
        """The endpoint's id, 32 hexadecimal digits; None if it is not attached."""
        return None if self._handle is None else self._handle.id

    @property
    def handle(self) -> AttachedEndpoint:
        """The endpoint's handle, for libraries on top of readers and writers.

        Raises OptionError if it is not attached.
        """
        if self._handle is None:
            raise OptionError(
                "this reader or writer is not attached to its channel, so it has no status: give "
                "it a group"
            )
        return self._handle

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """The payload that its counterparts see: a JSON object up to 4 KiB, or None."""
        return self.handle.payload

    @payload.setter
    def payload(self, payload: Mapping[str, Any] | None) -> None:
        self.handle.payload = payload

    @property
    def finish_requested(self) -> bool:
        """Whether the channel is closing or being deleted, as of the last heartbeat.

        Then a writer should finish, and no further writer attaches.
        """
        return self._handle is not None and self._handle.finish_requested

    def on_status(self, callback: StatusCallback) -> None:
        """Call `callback` with the counterparts, a tuple of Endpoint: now and after each change.

        It runs in a thread of the client, one call at a time, and heartbeats do not wait for it.
        Changes during a call are combined into the next one. Exceptions are logged.
        """
        self.handle.on_status(callback)
