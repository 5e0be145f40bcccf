"""Idle TTL: from the client to the condition with the time of closing."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sluiceway import Channel
from sluiceway.errors import OptionError
from waiting import until

NewChannel = Callable[..., Channel]
WEEK = timedelta(days=7)


def test_the_idle_ttl_is_set_and_shown_and_removed(
    new_channel: NewChannel,
) -> None:
    channel = new_channel(idle=WEEK)
    assert channel.idle == WEEK
    reported = until(lambda: channel.refresh().status.condition("Idle"))
    assert "After 7 days without use it is closed" in reported.message
    channel.update(idle=2 * WEEK)
    assert channel.idle == 2 * WEEK
    channel.update(idle=timedelta(0))
    assert channel.idle is None
    assert channel.status.condition("Idle") is None
    assert new_channel().idle is None


@pytest.mark.parametrize("idle", [timedelta(seconds=59), timedelta(days=4000), -WEEK, 60])
def test_an_invalid_idle_ttl_is_refused(new_channel: NewChannel, idle: Any) -> None:
    with pytest.raises(OptionError, match="from a minute to ten years"):
        new_channel(idle=idle)
    channel = new_channel()
    with pytest.raises(OptionError, match="from a minute to ten years"):
        channel.update(idle=idle)
