"""The way from a channel of pypz's to its endpoint's beats."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from sluiceway.presence import Presence
from sluiceway.rest.endpoint_models import Endpoint, Heard

__all__ = ["Link"]


class Link:
    """Tells with an endpoint's beats, and hears its counterparts by them, in the order of beats."""

    def __init__(self, endpoint: Presence) -> None:
        self._attachment = endpoint.attachment
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
        """Return when the gateway has answered a beat that began after this call, or in vain.

        The first answer that comes may be to one that was on its way; after `timeout_s` it is
        waited for no more.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._answers:
            for _ in range(2):
                self._await_answer(deadline_s)

    def _await_answer(self, deadline_s: float) -> None:
        before = self._answered
        self._attachment.session.hurry()
        left_s = max(0.0, deadline_s - time.monotonic())
        self._answers.wait_for(lambda: self._answered > before, left_s)

    def _hear(self, heard: Heard) -> None:
        with self._answers:
            self._answered += 1
            if heard.counterparts is not None:
                self._counterparts = heard.counterparts
            self._answers.notify_all()
