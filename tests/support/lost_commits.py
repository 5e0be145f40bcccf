"""Commits of exactly-once channels whose request or response is lost."""

from typing import Any

import httpx
import pytest

from relay import Relay
from sluiceway.rest.transport import Transport
from waiting import until

__all__ = ["LOST_COMMIT", "shorten_lost_commits"]

#: For `Relay.drop_at`. Only a commit's body has this field. The path may be sent, and lost, before
#: the body.
LOST_COMMIT = b'"digest"'


def shorten_lost_commits(monkeypatch: pytest.MonkeyPatch, relay: Relay) -> None:
    """Give a commit a short timeout while the relay is about to lose it, and other requests not."""
    request = Transport.request

    def request_briefly(
        transport: Transport, method: str, path: str, **options: Any
    ) -> httpx.Response:
        if not (path.endswith("/commit") and relay.drop_pending):
            return request(transport, method, path, **options)
        try:
            return request(transport, method, path, **{**options, "timeout_s": 1.0})
        finally:
            until(lambda: not relay.drop_pending)

    # There is no option for the limit of one request.
    monkeypatch.setattr(Transport, "request", request_briefly)
