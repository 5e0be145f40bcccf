"""Watching the status of channels, with a scripted gateway except in the last test."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from scripted_gateway import Script
from sluiceway import Channel, Gateway
from sluiceway.api.channels import watch_status, watch_summaries
from sluiceway.errors import ChannelNotFound, Conflict, OptionError

CREW = {"live": 1, "lost": 0, "failed": 0, "finished": 0}


def status(uid: str = "0" * 32, phase: str = "ready") -> dict[str, Any]:
    return {
        "channel": {"name": "a", "uid": uid, "phase": phase},
        "sampled_at": None,
        "writers": [],
        "readers": [],
        "groups": [],
        "partitions": [],
        "write_rate": None,
    }


def page(*names: str, following: str | None = None, lag: int | None = None) -> dict[str, Any]:
    items = [
        {
            "channel": {"name": name, "uid": "0" * 32, "phase": "ready"},
            "sampled_at": None,
            "writers": CREW,
            "readers": CREW,
            "lag_messages": lag,
            "lag_seconds": None,
            "progress": None,
            "write_rate": None,
        }
        for name in names
    ]
    return {"items": items, "next_cursor": following}


def asked(script: Script) -> list[tuple[str, str | None]]:
    """Return the requested paths and ETags."""
    return [(path, headers.get("If-None-Match")) for _, path, headers in script.requests]


def test_each_state_of_a_channel_is_yielded_once(script: Script) -> None:
    script.response(200, status(), ETag='W/"1"')
    script.response(304, b"")
    script.response(200, status(phase="closed"), ETag='W/"2"')
    script.response(304, b"")
    script.problem(404, "channel_not_found")
    pauses_s: list[float] = []
    states = watch_status(script.control(), "a", every_s=3, sleep=pauses_s.append)
    assert next(states).phase == "ready"
    assert pauses_s == []
    assert next(states).phase == "closed"
    with pytest.raises(ChannelNotFound):
        next(states)
    path = "/v1/channels/a/status"
    assert asked(script) == [
        (path, None),
        *[(f"{path}?wait=20", 'W/"1"')] * 2,
        *[(f"{path}?wait=20", 'W/"2"')] * 2,
    ]
    assert pauses_s == [3, 3]


def test_a_list_of_one_page_is_long_polled(script: Script) -> None:
    script.response(200, page("a"), ETag='W/"1"')
    script.response(304, b"")
    script.response(200, page("a", lag=5), ETag='W/"2"')
    pauses_s: list[float] = []
    states = watch_summaries(script.control(), sleep=pauses_s.append)
    assert [[summary.lag_messages for summary in next(states)] for _ in range(2)] == [[None], [5]]
    assert asked(script) == [
        ("/v1/status?limit=100", None),
        *[("/v1/status?limit=100&wait=20", 'W/"1"')] * 2,
    ]
    assert pauses_s == [1.0]


def test_a_list_of_many_pages_is_polled_page_by_page(script: Script) -> None:
    script.response(200, page("a", following="c"), ETag='W/"1"')
    script.response(200, page("b"), ETag='W/"2"')
    for _ in range(2):
        script.response(304, b"")
    script.response(304, b"")
    script.response(200, page("b", lag=5), ETag='W/"3"')
    pauses_s: list[float] = []
    states = watch_summaries(script.control(), sleep=pauses_s.append)
    assert [summary.name for summary in next(states)] == ["a", "b"]
    assert [(summary.name, summary.lag_messages) for summary in next(states)] == [
        ("a", None),
        ("b", 5),
    ]
    first, second = "/v1/status?limit=100", "/v1/status?limit=100&cursor=c"
    assert asked(script) == [
        *[(first, None), (second, None)],
        *[(first, 'W/"1"'), (second, 'W/"2"')] * 2,
    ]
    assert pauses_s == [1.0, 2.0, 2.0]


def test_a_new_cursor_is_followed(script: Script) -> None:
    script.response(200, page("a", following="c"), ETag='W/"1"')
    script.response(200, page("c"), ETag='W/"2"')
    script.response(200, page("a", "b"), ETag='W/"3"')
    states = watch_summaries(script.control(), sleep=lambda _: None)
    seen = [[summary.name for summary in next(states)] for _ in range(2)]
    assert seen == [["a", "c"], ["a", "b"]]


@pytest.mark.parametrize("every_s", [-1, "soon", 1e9])
def test_an_invalid_interval_is_rejected(script: Script, every_s: Any) -> None:
    with pytest.raises(OptionError, match="every_s"):
        next(watch_status(script.control(), "a", every_s=every_s, sleep=lambda _: None))
    assert script.requests == []


def test_a_watcher_sees_changes_and_is_not_an_endpoint(
    new_channel: Callable[..., Channel], gateway_url: str
) -> None:
    channel = new_channel()
    with Gateway(gateway_url) as gateway:
        states = gateway.channel(channel.name).watch(every_s=0)
        lines = gateway.watch(every_s=0)
        assert next(states).writers == ()
        assert channel.name in {summary.name for summary in next(lines)}
        with channel.writer(group="load"):
            came = next(report for report in states if report.writers)
        assert (came.writers[0].place, came.writers[0].state) == ("load[0]", "opened")
        left = next(report for report in states if report.writers[0].state == "closed")
        assert (left.readers, left.groups) == ((), ())
        for seen in itertools.islice(lines, 50):
            line = next(summary for summary in seen if summary.name == channel.name)
            if line.writers.finished:
                break
        else:
            raise AssertionError(line)
        assert line.readers.live == 0
        assert [endpoint.role for endpoint in channel.endpoints()] == ["writer"]
        channel.delete()
        with pytest.raises((ChannelNotFound, Conflict)):
            for _ in states:
                pass
