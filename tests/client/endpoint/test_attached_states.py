"""The states of an attached endpoint: every transition of the table happens, and no other."""

import gc
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any

from faults import at_call
from scripted_gateway import CHANNEL, Script
from sluiceway.api.endpoints import EndpointCalls, HeartbeatResult
from sluiceway.endpoint.attached import ENDPOINT_TRANSITIONS, AttachedEndpoint, EndpointState
from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import SluicewayError
from waiting import until

ATTACHED: dict[str, Any] = {
    "endpoint": {"epoch": 1, "generation": 1, "partitions": [0]},
    "heartbeat": {"interval_ms": 3_600_000, "timeout_ms": 10_800_000},
    "positions": [],
    "connection": {
        "channel": {"name": "flights", "uid": "0" * 32, "generation": 2},
        "format": "avro",
        "schema": {"id": 1, "version": 1, "definition": CHANNEL["spec"]["schema"]},
        "topic": {"name": "t", "id": "id", "partitions": 1, "max_message_bytes": 1000},
        "kafka": {"bootstrap.servers": "127.0.0.1:9092"},
    },
}


class WatchedEndpoint(AttachedEndpoint):
    """An endpoint that keeps its changes of state, with a session that sends no heartbeats."""

    def __init__(self, script: Script) -> None:
        self.changes: list[tuple[EndpointState, EndpointState]] = []
        control = script.control()
        super().__init__(control, channel="flights", uid="0" * 32, role="writer", membership=None)
        self.session = HeartbeatSession(control.endpoints, grace_s=60, initial_interval_s=3600)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "state" and hasattr(self, "state"):
            self.changes.append((self.state, EndpointState(value)))
        super().__setattr__(name, value)


def attach(endpoint: WatchedEndpoint) -> None:
    if endpoint.state is EndpointState.NEW:
        endpoint.attach(timeout_s=0)


def beat(status: str) -> Callable[[WatchedEndpoint], None]:
    return lambda endpoint: endpoint.on_heartbeat(HeartbeatResult(status=status))


def detach_later(endpoint: WatchedEndpoint) -> None:
    """As the session does in the background."""
    if endpoint.session.due:
        endpoint.session.detach_due(endpoint.session.calls)


Call = Callable[[WatchedEndpoint], object]
Response = tuple[int, str | None]
"""Its status and, if it is a problem, the code."""

ACCEPTED: Response = (200, None)
RESPONSES: list[Response] = [
    ACCEPTED,
    (401, "unauthenticated"),
    (404, "endpoint_not_found"),
    (409, "fenced"),
    (409, "illegal_transition"),
]
REQUESTS: list[Call] = [
    attach,
    AttachedEndpoint.detach,
    lambda endpoint: endpoint.fail(ValueError()),
    detach_later,
]
OTHERS: list[Call] = [
    *(beat(status) for status in ("ok", "refused", "fenced", "gone")),
    lambda endpoint: endpoint.record_cycle(1),
    AttachedEndpoint.end,
]
STEPS = [*product(REQUESTS, RESPONSES), *((call, ACCEPTED) for call in OTHERS)]


def after(script: Script, steps: tuple[tuple[Call, Response], ...]) -> WatchedEndpoint:
    """Return an endpoint after these calls, each with its response of the gateway."""
    endpoint = WatchedEndpoint(script)
    for step, (status, code) in steps:
        if code is None:
            script.response(status, ATTACHED if step is attach else {})
        else:
            script.problem(status, code)
        with suppress(SluicewayError):
            step(endpoint)
        script.responses.clear()
    return endpoint


def situation(endpoint: WatchedEndpoint) -> tuple[object, ...]:
    """Return what decides how an endpoint goes on."""
    try:
        endpoint.check()
    except SluicewayError as error:
        return (endpoint.state, bool(endpoint.session.due), type(error))
    return (endpoint.state, bool(endpoint.session.due), None)


def test_each_transition_of_the_table_happens_and_no_other(script: Script) -> None:
    """Each call in each situation, with each response that a call may get."""
    changes: set[tuple[EndpointState, EndpointState]] = set()
    seen: set[tuple[object, ...]] = set()
    paths: deque[tuple[tuple[Call, Response], ...]] = deque([()])
    while paths:
        path = paths.popleft()
        for step in STEPS:
            endpoint = after(script, (*path, step))
            assert step[0] is not AttachedEndpoint.end or not endpoint.is_open
            changes.update(endpoint.changes)
            reached = situation(endpoint)
            endpoint.session.unregister(endpoint)
            if reached not in seen:
                seen.add(reached)
                paths.append((*path, step))
    assert changes == {
        (state, following) for state, others in ENDPOINT_TRANSITIONS.items() for following in others
    }


def test_an_endpoint_that_is_dropped_while_it_attaches_is_not_reported(script: Script) -> None:
    def attach_and_drop() -> HeartbeatSession:
        endpoint = WatchedEndpoint(script)
        script.response(200, ATTACHED)
        with at_call(EndpointCalls, "attach", lambda *_, **__: endpoint.end(), arrives=True):
            endpoint.attach(timeout_s=0)
        assert (endpoint.state, endpoint.report()) == (EndpointState.ENDED, None)
        return endpoint.session

    session = attach_and_drop()
    until(lambda: gc.collect() >= 0 and not session.ids)
    assert session.due == []
