"""Abandoned readers and writers: garbage-collected without being closed."""

import gc
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scripted_gateway import Script
from sluiceway import Channel, ChannelReader, ChannelWriter
from sluiceway.api.endpoints import (
    Endpoint,
    EndpointCalls,
    EndpointEnd,
    EndpointReport,
    HeartbeatResult,
)
from sluiceway.endpoint.heartbeat import DetachRequest, HeartbeatSession
from sluiceway.errors import Fenced, GatewayError, WriterFailed
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]
ABANDONED = EndpointEnd(uid="2" * 32, epoch=3, state="error", cause="abandoned")
CLOSED = EndpointEnd(uid="2" * 32, epoch=3, state="closed")
FAREWELL = DetachRequest(name="the writer x", channel="a", id="1" * 32, if_abandoned=ABANDONED)


_PROGRAM = """
import sys
from sluiceway import Gateway
channel = Gateway(sys.argv[1]).channel(sys.argv[2])
open_, closed, failed = channel.writer(), channel.writer(), channel.writer()
open_.write({})
open_.flush()
closed.close()
failed.abort(ValueError())
"""


def test_a_writer_that_is_open_at_the_end_of_the_process_is_logged(
    channel: Channel, gateway_url: str
) -> None:
    program = _PROGRAM.replace("{}", repr(readings(1)))
    command = [sys.executable, "-c", program, gateway_url, channel.name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = f"a writer of the channel {channel.name!r} was not closed before the process ended"
    assert done.stderr.count(expected) == 1
    assert done.stderr.count("was not closed") == 1


def writer(channel: Channel) -> ChannelWriter:
    made = channel.writer(group="load")
    made.write(readings(3))
    return made


def reader(channel: Channel) -> ChannelReader:
    made = channel.reader(group="delays")
    made.read(1, timeout=None)
    return made


def member(channel: Channel) -> ChannelReader:
    made = channel.reader(group="shares", dynamic=True)
    made.on_status(lambda _: None)
    made.read(1, timeout=None)
    return made


def failed(channel: Channel, role: str) -> Endpoint:
    def absent(endpoints: Any) -> list[str]:
        members = [endpoint for endpoint in endpoints if endpoint.role == role and endpoint.group]
        return [] if members and members[0].state == "error" else ["the one that failed"]

    return next(e for e in channel.wait_until(absent, timeout_s=60) if e.role == role and e.group)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "role"),
    [(writer, "writer"), (reader, "reader"), (member, "reader")],
    ids=["writer", "reader", "member"],
)
def test_an_abandoned_writer_is_reported_while_its_process_runs(
    new_channel: NewChannel, make: Callable[[Channel], Any], role: str
) -> None:
    channel = new_channel()
    with channel.writer() as other:
        other.write(readings(2))
        other.flush()
        made = make(channel)
        # It is in no reference cycle, so it is freed at once.
        gc.disable()
        try:
            del made
            endpoint = failed(channel, role)
        finally:
            gc.enable()
        assert (endpoint.health, str(endpoint.cause)[:10]) == ("healthy", "abandoned:")
        assert other.endpoint_id is not None


@pytest.mark.long
@pytest.mark.usefixtures("brief_replacement")
def test_a_reader_raises_writer_failed_for_an_abandoned_writer(channel: Channel) -> None:
    with channel.reader(group="delays") as waiting:
        made = writer(channel)
        made.flush()
        assert len(waiting.read(3, timeout=None)) == 3
        del made
        with pytest.raises(WriterFailed, match="abandoned"):
            waiting.read(1, timeout=None)


@pytest.mark.sample
@pytest.mark.parametrize("options", [{}, {"group": "g"}, {"group": "g", "dynamic": True}])
def test_an_abandoned_reader_that_has_read_everything_is_closed(
    new_channel: NewChannel, options: dict[str, Any]
) -> None:
    channel = new_channel()
    with channel.writer() as other:
        other.write(readings(3))
    assert len(list(channel.reader(**options))) == 3
    (closed_endpoint,) = channel.wait_for(readers=1, state="closed")[:1]
    assert {endpoint.state for endpoint in channel.endpoints()} == {"closed"}
    assert closed_endpoint.cause is None


@pytest.mark.long
def test_an_endpoint_held_by_its_own_callback_is_reported_after_garbage_collection(
    new_channel: NewChannel,
) -> None:
    channel = new_channel()
    made = writer(channel)
    made.on_status(lambda _, held=made: held.payload)  # type: ignore[misc]
    gone = weakref.ref(made)
    del made

    def is_collected() -> bool:
        gc.collect()
        return gone() is None

    # A heartbeat in flight holds a reference.
    until(is_collected, 60)
    assert failed(channel, "writer").cause is not None


class Thing:
    """An endpoint that may be abandoned, or whose end is reported later."""

    def __init__(self) -> None:
        self.id = FAREWELL.id
        self.refusals: list[GatewayError | None] = []

    def report(self) -> EndpointReport | None:
        return None

    def on_heartbeat(self, result: HeartbeatResult) -> None:
        """Do nothing."""

    def on_detached(self, refusal: GatewayError | None) -> None:
        self.refusals.append(refusal)


@pytest.fixture
def calls(script: Script) -> EndpointCalls:
    return EndpointCalls(script.transport(timeout_s=1))


@pytest.fixture
def session(calls: EndpointCalls) -> HeartbeatSession:
    """A session without heartbeats, whose requests are sent by the test."""
    return HeartbeatSession(calls, grace_s=60)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the client's own log messages."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("sluiceway.endpoint")
    ]


def forget(session: HeartbeatSession) -> None:
    thing = Thing()
    session.track(thing, FAREWELL)
    del thing


def test_an_abandoned_endpoint_is_reported_once_and_after_a_gateway_outage(
    script: Script,
    calls: EndpointCalls,
    session: HeartbeatSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    forget(session)
    for _ in range(30):
        script.problem(503, "database_unavailable", retriable=True)
    session.detach_due(calls)
    assert session.due
    assert said(caplog) == []
    script.responses.clear()
    script.requests.clear()
    script.response(200, {})
    with caplog.at_level(logging.WARNING):
        session.detach_due(calls)
        session.detach_due(calls)
    assert session.due == []
    assert [path for _, path, _ in script.requests] == [
        f"/v1/channels/a/endpoints/{'1' * 32}/detach"
    ]
    assert script.bodies[-1].items() >= {"uid": "2" * 32, "epoch": 3, "state": "error"}.items()
    (line,) = said(caplog)
    assert line.startswith("the writer x failed: it was garbage-collected")


def test_an_abandoned_principal_closes_after_its_group(
    script: Script, calls: EndpointCalls, session: HeartbeatSession
) -> None:
    things = [Thing(), Thing()]
    for number, thing in enumerate(things):
        thing.id = str(number)
        request = replace(FAREWELL, id=thing.id)
        session.track(thing, request)
        request.if_abandoned = CLOSED
    del thing
    things.clear()
    script.problem(409, "members_open")
    for _ in range(2):
        script.response(200, {})
    session.detach_due(calls)
    assert session.due
    session.detach_due(calls)
    assert session.due == []
    reported = [path.split("/")[-2] for _, path, _ in script.requests]
    assert reported == [reported[0], reported[1], reported[0]]
    assert {body["state"] for body in script.bodies} == {"closed"}


@pytest.mark.parametrize("code", ["fenced", "uid_mismatch", "illegal_transition"])
def test_an_abandoned_endpoint_that_had_ended_is_not_reported(
    script: Script,
    calls: EndpointCalls,
    session: HeartbeatSession,
    caplog: pytest.LogCaptureFixture,
    code: str,
) -> None:
    forget(session)
    script.problem(409, code)
    session.detach_due(calls)
    assert session.due == []
    assert said(caplog) == []


def test_an_abandoned_endpoint_is_reported_after_a_refusal_for_a_time(
    script: Script, calls: EndpointCalls, session: HeartbeatSession
) -> None:
    thing = Thing()
    session.track(thing, replace(FAREWELL))
    del thing
    script.problem(401, "unauthenticated")
    session.detach_due(calls)
    assert session.due
    script.response(200, {})
    session.detach_due(calls)
    assert session.due == []


@pytest.mark.parametrize(("status", "code"), [(401, "unauthenticated"), (500, "internal_error")])
def test_an_end_that_the_gateway_does_not_accept_now_is_reported_again(
    script: Script,
    calls: EndpointCalls,
    session: HeartbeatSession,
    caplog: pytest.LogCaptureFixture,
    status: int,
    code: str,
) -> None:
    ended = Thing()
    request = replace(FAREWELL, end=CLOSED, late=True)
    session.track(ended, request)
    script.problem(status, code)
    session.detach_due(calls)
    assert (session.due, ended.refusals) == ([request], [])
    assert "is not reported yet" in caplog.text
    script.response(200, {})
    session.detach_due(calls)
    assert (session.due, ended.refusals) == ([], [None])


def test_an_end_that_the_gateway_refuses_for_good_is_an_error_of_its_endpoint(
    script: Script,
    calls: EndpointCalls,
    session: HeartbeatSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = Thing()
    request = replace(FAREWELL, end=CLOSED, late=True)
    session.track(ended, request)
    script.problem(409, "fenced")
    session.detach_due(calls)
    (refusal,) = ended.refusals
    assert isinstance(refusal, Fenced)
    assert "is refused" in caplog.text


def test_an_abandoned_endpoint_that_was_detached_is_not_reported(session: HeartbeatSession) -> None:
    thing = Thing()
    session.track(thing, FAREWELL)
    session.unregister(thing)
    del thing
    assert session.due == []


def test_a_forked_child_does_not_report_endpoints_of_its_parent(
    script: Script, calls: EndpointCalls, session: HeartbeatSession
) -> None:
    thing = Thing()
    session.track(thing, FAREWELL)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            del thing
            session.detach_due(calls)
            code = len(session.due)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert script.requests == []
