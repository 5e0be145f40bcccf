"""The way from a channel of pypz's to its endpoint's beats."""

import threading
from collections.abc import Mapping
from typing import Any

from sluiceway.endpoint import Endpoint, Heard
from sluiceway.presence import Presence

__all__ = ["Link"]


class Link:
    """Tells with an endpoint's beats, and hears its counterparts by them, in the order of beats."""

    def __init__(self, endpoint: Presence) -> None:
        self._attachment = endpoint._endpoint()  # noqa: SLF001 - the one place that reaches there
        self._answers = threading.Condition()
        self._answered = 0
        self._counterparts: tuple[Endpoint, ...] = ()
        self._attachment.on_heard = self._hear
        self._attachment.listen()

    @property
    def counterparts(self) -> tuple[Endpoint, ...]:
        """The endpoints of the other side, as the last beats told."""
        return self._counterparts

    def tell(self, payload: Mapping[str, Any]) -> None:
        """Let the counterparts know this at once. Raises OptionError, Fenced, EndpointClosed."""
        self._attachment.payload = payload
        self._attachment.session.hurry()

    def refresh(self, timeout_s: float) -> None:
        """Beat now, and return when the gateway has answered, or after `timeout_s`."""
        with self._answers:
            before = self._answered
            self._attachment.session.hurry()
            self._answers.wait_for(lambda: self._answered > before, timeout_s)

    def await_news(self, seen: tuple[Endpoint, ...], timeout_s: float) -> None:
        """Return when the counterparts are others than these, or after `timeout_s`."""
        with self._answers:
            self._answers.wait_for(lambda: self._counterparts is not seen, timeout_s)

    def _hear(self, heard: Heard) -> None:
        with self._answers:
            self._answered += 1
            if heard.counterparts is not None:
                self._counterparts = heard.counterparts
            self._answers.notify_all()
