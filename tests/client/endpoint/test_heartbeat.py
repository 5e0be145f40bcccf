"""Heartbeats of a session, with a scripted gateway."""

import gc
import logging
import socket
import threading
import weakref
from contextlib import closing
from typing import Any

import httpx
import pytest

from faults import at_call, no_threads
from relay import Relay
from scripted_gateway import Script
from sluiceway.api.endpoints import (
    EndpointCalls,
    EndpointEnd,
    EndpointReport,
    HeartbeatReply,
    HeartbeatResult,
    SessionReport,
)
from sluiceway.api.transport import Transport
from sluiceway.endpoint.heartbeat import DetachRequest, HeartbeatSession
from sluiceway.errors import GatewayError, GatewayUnavailable
from waiting import until


class RecordingEndpoint:
    """An endpoint that keeps the results of its heartbeats."""

    def __init__(self, number: int) -> None:
        self.id = f"{number:032x}"
        self.results: list[HeartbeatResult] = []
        self.silent = False

    def report(self) -> EndpointReport | None:
        return None if self.silent else EndpointReport(id=self.id, epoch=1, state="opened")

    def on_heartbeat(self, result: HeartbeatResult) -> None:
        self.results.append(result)

    def on_detached(self, refusal: GatewayError | None) -> None:
        """Do nothing."""


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def word(member: RecordingEndpoint, **facts: Any) -> dict[str, Any]:
    reported = {"reason": None, "health": "healthy", "asked": None, "counterparts": None}
    return {"id": member.id, "status": "ok", "endpoints_revision": 1} | reported | facts


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def calls(script: Script) -> EndpointCalls:
    return EndpointCalls(script.transport())


@pytest.fixture
def session(calls: EndpointCalls, clock: Clock) -> HeartbeatSession:
    """A session whose heartbeats are sent by the test."""
    return HeartbeatSession(calls, grace_s=60, initial_interval_s=60, monotonic=clock)


def test_one_heartbeat_reports_all_endpoints_and_each_gets_its_reply(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    first, second, silent = members = [
        RecordingEndpoint(1),
        RecordingEndpoint(2),
        RecordingEndpoint(3),
    ]
    silent.silent = True
    for member in members:
        session.register(member)
    for revision in (4, 5):
        script.response(
            200,
            {
                "next_ms": 700,
                "endpoints": [
                    word(first, endpoints_revision=revision, asked="finish"),
                    word(second, status="fenced", reason="it is another's"),
                ],
            },
        )
        session.send(calls)
    assert [path for _, path, _ in script.requests] == ["/v1/heartbeats"] * 2
    assert [(body["session"], body["beat"]) for body in script.bodies] == [
        (session.id, 1),
        (session.id, 2),
    ]
    assert {endpoint["id"] for endpoint in script.bodies[0]["endpoints"]} == {first.id, second.id}
    assert [(result.revision, result.asked) for result in first.results] == [
        (4, "finish"),
        (5, "finish"),
    ]
    assert [(result.status, result.reason) for result in second.results] == [
        ("fenced", "it is another's")
    ] * 2
    assert silent.results == []


def test_more_endpoints_than_fit_a_request_take_several_requests(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    members = [RecordingEndpoint(number) for number in range(1001)]
    for member in members:
        session.register(member)
    for _ in range(2):
        script.response(200, {"next_ms": 700, "endpoints": [word(member) for member in members]})
    session.send(calls)
    assert [(body["beat"], len(body["endpoints"])) for body in script.bodies] == [(1, 1000), (2, 1)]


def test_endpoints_may_register_while_a_heartbeat_is_sent(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    further = RecordingEndpoint(2)
    registering = threading.Thread(target=session.register, args=(further,))

    class Registering(RecordingEndpoint):
        """An endpoint during whose report another thread registers one."""

        def report(self) -> EndpointReport | None:
            if registering.ident is None:
                registering.start()
                registering.join(60)
            return super().report()

    members = [Registering(number) for number in range(2)]
    for member in members:
        session.register(member)
    script.response(200, {"next_ms": 700, "endpoints": [word(member) for member in members]})
    session.send(calls)
    assert not registering.is_alive()
    assert {endpoint["id"] for endpoint in script.bodies[0]["endpoints"]} == {
        member.id for member in members
    }
    assert session.ids == {member.id for member in (*members, further)}


def test_after_a_start_without_threads_the_next_endpoint_sends_heartbeats(
    calls: EndpointCalls, script: Script
) -> None:
    session = HeartbeatSession(calls, grace_s=60)
    first, second = RecordingEndpoint(1), RecordingEndpoint(2)
    with no_threads(), pytest.raises(RuntimeError, match="new thread"):
        session.register(first)
    script.response(200, {"next_ms": 60_000, "endpoints": [word(second)]})
    session.register(second)
    session.wake()
    until(lambda: second.results)
    assert session.ids == {second.id}
    session.unregister(second)


def test_a_heartbeat_request_is_not_larger_than_the_gateway_accepts(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    class Wide(RecordingEndpoint):
        def report(self) -> EndpointReport | None:
            places = {partition: (2**40 + partition, 0) for partition in range(2_000)}
            return EndpointReport(id=self.id, epoch=1, state="started", positions=places)

    members = [Wide(number) for number in range(50)]
    for member in members:
        session.register(member)
    for _ in range(9):
        script.response(200, {"next_ms": 700, "endpoints": [word(member) for member in members]})
    session.send(calls)
    assert [body["beat"] for body in script.bodies] == list(range(1, 10))
    assert sum(len(body["endpoints"]) for body in script.bodies) == 50
    assert max(int(sent["Content-Length"]) for _, _, sent in script.requests) < 1024 * 1024


def test_a_final_report_waits_for_the_heartbeat_in_flight(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(RecordingEndpoint):
        def report(self) -> EndpointReport | None:
            begun.set()
            assert go_on.wait(60)
            return super().report()

    member = Slow(1)
    session.register(member)
    script.response(200, {"next_ms": 700, "endpoints": [word(member)]})
    beating = threading.Thread(target=session.send, args=(calls,))
    beating.start()
    assert begun.wait(60)
    assert not session.wait_idle(0.05)
    go_on.set()
    assert session.wait_idle(60)
    assert len(script.requests) == 1
    beating.join(60)
    assert session.wait_idle(0)


@pytest.mark.long
def test_a_gateway_outage_is_logged_once_and_raises_after_the_grace_period(
    session: HeartbeatSession,
    calls: EndpointCalls,
    script: Script,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = RecordingEndpoint(1)
    session.register(member)
    caplog.set_level(logging.INFO, "sluiceway")
    for now_s in (0, 60):
        clock.now_s = now_s
        # Longer than the retries of a heartbeat.
        for _ in range(60):
            script.problem(503, "database_unavailable", retriable=True)
        session.send(calls)
        script.responses.clear()
        assert session.outage is None
    clock.now_s = 60.5
    assert isinstance(session.outage, GatewayUnavailable)
    script.response(200, {"next_ms": 700, "endpoints": [word(member)]})
    session.send(calls)
    assert session.outage is None
    assert [
        record.message.split(":")[0]
        for record in caplog.records
        if record.name == "sluiceway.endpoint.heartbeat"
    ] == ["heartbeats fail", "the gateway accepts heartbeats again, after 60.5 s"]
    assert len(member.results) == 1


def test_a_single_failed_heartbeat_is_not_logged(
    session: HeartbeatSession,
    calls: EndpointCalls,
    script: Script,
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = RecordingEndpoint(1)
    session.register(member)
    caplog.set_level(logging.INFO, "sluiceway")
    for _ in range(2):
        for _ in range(60):
            script.problem(503, "database_unavailable", retriable=True)
        session.send(calls)
        script.responses.clear()
        assert session.interruption is not None
        script.response(200, {"next_ms": 700, "endpoints": [word(member)]})
        session.send(calls)
        assert session.interruption is None
    # Other clients of the process may log that their broker is gone.
    assert not [record for record in caplog.records if record.name.startswith("sluiceway.endpoint")]


def test_an_abandoned_endpoint_sends_no_heartbeats(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    kept, forgotten = RecordingEndpoint(1), RecordingEndpoint(2)
    session.register(kept)
    session.register(forgotten)
    del forgotten
    gc.collect()
    script.response(200, {"next_ms": 700, "endpoints": [word(kept)]})
    session.send(calls)
    assert [endpoint["id"] for endpoint in script.bodies[0]["endpoints"]] == [kept.id]


@pytest.mark.long
def test_an_endpoint_abandoned_during_an_outage_is_garbage_collected(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    member = RecordingEndpoint(1)
    session.register(member)
    for _ in range(60):
        script.problem(503, "database_unavailable", retriable=True)
    session.send(calls)
    gone = weakref.ref(member)
    del member
    gc.collect()
    assert gone() is None


def test_an_endpoint_that_detaches_during_a_heartbeat_leaves_no_connection(
    gateway_url: str,
) -> None:
    connects, left = threading.Event(), threading.Event()

    def hold(address: tuple[str, int], *_: object, **__: object) -> None:
        if address[1] == relay.port:
            connects.set()
            assert left.wait(60)

    before = set(threading.enumerate())
    member = RecordingEndpoint(1)
    with (
        closing(Relay(httpx.URL(gateway_url).port or 0)) as relay,
        # The system decides how long a connection takes.
        at_call(socket, "create_connection", hold),
    ):
        session = HeartbeatSession(EndpointCalls(Transport(relay.url)), grace_s=60)
        session.register(member)
        session.wake()
        assert connects.wait(60)
        started = set(threading.enumerate()) - before
        (beating,) = (thread for thread in started if thread.name == "sluiceway-heartbeat")
        session.unregister(member)
        left.set()
        beating.join(60)
        assert not beating.is_alive()
        assert (relay.accepted, relay.clients) == (1, 0)


def test_one_process_has_one_session_with_a_gateway_as_one_principal(script: Script) -> None:
    def of(**options: Any) -> HeartbeatSession:
        return HeartbeatSession.of(script.control(**options))

    assert of() is of()
    assert of(token="slw_a_b") is of(token="slw_a_b")
    assert of(token="slw_a_b") is not of()
    assert of(token="slw_a_b") is not of(token="slw_c_d")


class RecordingExtension:
    """An extension that keeps the responses."""

    def __init__(self) -> None:
        self.next: SessionReport | None = SessionReport(renews=("run",))
        self.received: list[HeartbeatReply] = []
        self.refusals: list[GatewayError] = []

    def report(self) -> SessionReport | None:
        return self.next

    def on_response(self, response: HeartbeatReply) -> None:
        self.received.append(response)

    def on_rejected(self, error: GatewayError) -> None:
        self.refusals.append(error)


def test_extensions_report_with_and_without_endpoints(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    extension = RecordingExtension()
    session.add_extension(extension)
    task = {"endpoint": "1" * 32, "status": "ok", "reason": None}
    response = {"next_ms": 700, "endpoints": [], "tasks": [task]}
    script.response(200, response)
    session.send(calls)
    member = RecordingEndpoint(1)
    session.register(member)
    script.response(200, response | {"endpoints": [word(member)]})
    session.send(calls)
    extension.next = None
    script.response(200, response | {"endpoints": [word(member)]})
    session.send(calls)
    session.unregister(member)
    session.send(calls)
    assert [(len(body["endpoints"]), body.get("renews")) for body in script.bodies] == [
        (0, ["run"]),
        (1, ["run"]),
        (1, None),
    ]
    session.remove_extension(extension)
    assert [[*reply.results] for reply in extension.received] == [[], [member.id]]
    assert [reply.tasks["1" * 32].status for reply in extension.received] == ["ok", "ok"]
    assert len(member.results) == 2


def test_fields_refused_by_an_older_gateway_are_omitted_and_heartbeats_continue(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    extension, member = RecordingExtension(), RecordingEndpoint(1)
    session.add_extension(extension)
    session.register(member)
    script.problem(422, "invalid_request")
    session.send(calls)
    script.response(200, {"next_ms": 700, "endpoints": [word(member)]})
    session.send(calls)
    assert [error.code for error in extension.refusals] == ["invalid_request"]
    assert ["renews" in body for body in script.bodies] == [True, False]
    assert (len(member.results), session.outage) == (1, None)


def test_an_extension_continues_during_a_gateway_outage(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    extension = RecordingExtension()
    session.add_extension(extension)
    for _ in range(60):
        script.problem(503, "database_unavailable", retriable=True)
    session.send(calls)
    script.responses.clear()
    script.response(200, {"next_ms": 700, "endpoints": []})
    session.send(calls)
    session.remove_extension(extension)
    assert (extension.refusals, len(extension.received)) == ([], 1)


@pytest.mark.parametrize(
    ("status", "code"), [(401, "unauthenticated"), (500, "internal_error"), (404, "not_found")]
)
def test_an_extension_continues_while_heartbeats_are_refused(
    session: HeartbeatSession, calls: EndpointCalls, script: Script, status: int, code: str
) -> None:
    extension = RecordingExtension()
    session.add_extension(extension)
    script.problem(status, code)
    session.send(calls)
    assert session.interruption is not None
    script.response(200, {"next_ms": 700, "endpoints": []})
    session.send(calls)
    session.remove_extension(extension)
    assert ["renews" in body for body in script.bodies] == [True, True]
    assert (extension.refusals, len(extension.received)) == ([], 1)


def test_heartbeat_numbers_continue_above_the_last_accepted_one(
    session: HeartbeatSession, calls: EndpointCalls, script: Script
) -> None:
    member = RecordingEndpoint(1)
    session.register(member)
    for newest in (500, 501):
        script.response(200, {"next_ms": 700, "beat": newest, "endpoints": [word(member)]})
        session.send(calls)
    assert [body["beat"] for body in script.bodies] == [1, 501]


def test_heartbeats_do_not_wait_for_the_ends_of_abandoned_endpoints(
    script: Script,
) -> None:
    detaching, proceed, closed = threading.Event(), threading.Event(), threading.Event()
    beats: list[int] = []

    class Calls(EndpointCalls):
        """A gateway that takes long to detach endpoints."""

        def clone(self) -> EndpointCalls:
            return self

        def detach(self, *_: object, **__: object) -> None:
            detaching.set()
            assert proceed.wait(60)

        def heartbeat(self, *_: object, **__: object) -> HeartbeatReply:
            beats.append(1)
            return HeartbeatReply(next_ms=50, results={})

        def close(self) -> None:
            closed.set()

    session = HeartbeatSession(Calls(script.transport()), grace_s=60)
    member, abandoned = RecordingEndpoint(1), RecordingEndpoint(2)
    end = EndpointEnd(uid="2" * 32, epoch=3, state="error")
    request = DetachRequest(name="it", channel="a", id=abandoned.id, if_abandoned=end)
    for endpoint in (member, abandoned):
        session.register(endpoint)
    session.track(abandoned, request)
    session.require_interval(50)
    del abandoned, endpoint
    try:
        assert detaching.wait(60)
        sent = len(beats)
        until(lambda: len(beats) >= sent + 3)
    finally:
        proceed.set()
    # Until then it goes on for the abandoned endpoint.
    session.unregister(member)
    assert closed.wait(60)
