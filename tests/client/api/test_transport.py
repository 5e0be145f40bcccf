"""Transport: requests, retries and errors, with a scripted gateway."""

import os
import random
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import pytest

from faults import at_call
from relay import Relay
from scripted_gateway import CHANNEL, Script
from sluiceway.api.auth import TokenSource
from sluiceway.api.models import ChannelSpec
from sluiceway.api.transport import Transport
from sluiceway.errors import (
    Conflict,
    Forbidden,
    GatewayError,
    GatewayUnavailable,
    IncompatibleGateway,
    InvalidRequest,
    OptionError,
    Unauthenticated,
)
from sluiceway.gateway import Gateway
from sluiceway.tracing import request_ids


def test_transient_failures_are_retried_as_one_change(script: Script) -> None:
    script.problem(503, "database_unavailable", retriable=True, Retry_After="1")
    script.response(502, b"<html>bad gateway</html>")
    script.response(201, CHANNEL, ETag='"e"')
    made = script.control().create("flights", spec=ChannelSpec())
    assert made.etag == '"e"'
    assert len({headers["Idempotency-Key"] for *_, headers in script.requests}) == 1
    assert len(script.requests) == 3
    assert script.pauses_s[0] >= 0.8


def test_the_jitter_of_retries_ignores_the_jobs_random_seed(script: Script) -> None:
    random.seed(7)
    before = random.getstate()
    script.problem(503, "database_unavailable", retriable=True)
    script.response(200, CHANNEL)
    script.control().channel("flights")
    assert len(script.pauses_s) == 1
    assert random.getstate() == before


def test_each_call_has_its_own_idempotency_key(script: Script) -> None:
    control = script.control()
    for _ in range(2):
        script.response(202, CHANNEL)
        control.delete("flights", uid="u", keep_topic=True)
    assert len({headers["Idempotency-Key"] for *_, headers in script.requests}) == 2
    assert script.requests[0][1] == "/v1/channels/flights?uid=u&topic=keep"


def test_all_attempts_of_a_request_have_its_id(script: Script) -> None:
    script.problem(503, "unavailable", retriable=True)
    for _ in range(2):
        script.response(200, CHANNEL)
    control = script.control()
    control.channel("flights")
    control.channel("flights")
    ids = [headers["X-Request-Id"] for _, _, headers in script.requests]
    assert ids[0] == ids[1] != ids[2]
    assert {len(request_id) for request_id in ids} == {32}


def test_requests_of_a_forked_child_have_their_own_ids(script: Script) -> None:
    for _ in range(3):
        script.response(200, CHANNEL)
    control = script.control()
    control.channel("flights")
    child = get_context("fork").Process(target=control.channel, args=["flights"])
    child.start()
    child.join()
    assert child.exitcode == 0
    control.channel("flights")
    ids = [headers["X-Request-Id"] for _, _, headers in script.requests]
    assert len(ids) == len(set(ids)) == 3


def test_threads_that_share_request_ids_get_unique_ones() -> None:
    ids = request_ids()
    with ThreadPoolExecutor(8) as pool:
        made = [
            request_id
            for part in pool.map(lambda _: list(islice(ids, 2000)), range(8))
            for request_id in part
        ]
    assert len(set(made)) == 16_000
    assert all(re.fullmatch("(?!0{32})[0-9a-f]{32}", request_id) for request_id in made)
    assert next(request_ids())[:16] != made[0][:16]


@pytest.mark.parametrize("kept", [True, False])
def test_a_well_formed_traceparent_of_the_environment_is_passed_on(
    script: Script, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    trace = f"00-{'4b' * 16}-{'0a' * 8}-01" if kept else "00-\r\nX: y"
    monkeypatch.setenv("TRACEPARENT", trace)
    script.response(200, CHANNEL)
    script.control().channel("flights")
    assert script.requests[0][2].get("traceparent") == (trace if kept else None)


def test_retries_end_in_time_with_the_last_cause(script: Script) -> None:
    for _ in range(50):
        script.problem(503, "kafka_unavailable", retriable=True)
    with pytest.raises(GatewayUnavailable, match="it is kafka_unavailable") as raised:
        script.control(timeout_s=10).channel("flights")
    assert raised.value.code == "kafka_unavailable"
    assert raised.value.retriable
    assert 5 < sum(script.pauses_s) <= 10


def test_each_attempt_gets_the_time_left_and_at_least_a_second(script: Script) -> None:
    for _ in range(50):
        script.problem(503, "kafka_unavailable", retriable=True)
    with pytest.raises(GatewayUnavailable):
        script.control(timeout_s=10).channel("flights")
    timeouts_s = [float(headers["Timeout-S"]) for _, _, headers in script.requests]
    assert timeouts_s[0] == 10
    assert timeouts_s == sorted(timeouts_s, reverse=True)
    assert 1 <= timeouts_s[-1] < 4


def test_an_unreachable_gateway_is_reported_with_its_url() -> None:
    gateway = Gateway("http://127.0.0.1:1", timeout_s=0.3)
    with gateway, pytest.raises(GatewayUnavailable, match=r"127\.0\.0\.1:1 does not answer"):
        gateway.channel("flights")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "unauthenticated", Unauthenticated),
        (403, "forbidden", Forbidden),
        (409, "partitions_shrink", Conflict),
        (422, "invalid_request", InvalidRequest),
        (500, "internal_error", GatewayError),
        (409, "of_a_newer_gateway", Conflict),
        (418, "of_a_newer_gateway", InvalidRequest),
        (599, "of_a_newer_gateway", GatewayError),
    ],
)
def test_problems_become_exceptions_with_their_code_and_are_not_retried(
    script: Script, status: int, code: str, kind: type[GatewayError]
) -> None:
    script.problem(status, code)
    with pytest.raises(kind, match=f"it is {code}") as raised:
        script.control().channel("flights")
    assert type(raised.value) is kind
    assert (raised.value.code, raised.value.status) == (code, status)
    assert len(script.requests) == 1


def test_the_fields_of_an_invalid_request_are_in_the_message(script: Script) -> None:
    errors = [{"pointer": "/spec/partitions", "message": "0 is too few"}]
    body = {"code": "invalid_request", "detail": "malformed", "errors": errors}
    script.response(422, body)
    with pytest.raises(InvalidRequest, match="malformed; /spec/partitions: 0 is too few") as raised:
        script.control().channel("flights")
    assert list(raised.value.errors) == errors
    script.response(422, body | {"detail": "Malformed: /spec/partitions: 0 is too few."})
    with pytest.raises(InvalidRequest) as raised:
        script.control().channel("flights")
    assert str(raised.value) == "Malformed: /spec/partitions: 0 is too few."
    several = [{"pointer": "/spec/schema", "message": f"{name} is missing."} for name in "ab"]
    script.response(409, {"code": "schema_incompatible", "detail": "No.", "errors": several})
    with pytest.raises(Conflict) as refused:
        script.control().channel("flights")
    assert str(refused.value) == "No. /spec/schema: a is missing; b is missing"


@pytest.mark.parametrize(
    ("status", "body"), [(404, b"not here"), (200, b"<html>"), (200, b"[]"), (301, b""), (400, "x")]
)
def test_a_server_that_is_not_a_gateway_is_recognized(
    script: Script, status: int, body: object
) -> None:
    script.response(status, body)
    with pytest.raises(IncompatibleGateway):
        script.control().channel("flights")


@pytest.mark.parametrize("status", [429, 500, 502, 520])
def test_a_request_is_repeated_while_a_proxy_cannot_forward_it(script: Script, status: int) -> None:
    script.response(status, b"<html>", Retry_After="1")
    script.response(200, CHANNEL)
    assert script.control().channel("flights").name == "flights"
    assert script.pauses_s


def test_lists_are_read_page_after_page(script: Script) -> None:
    script.response(200, {"items": [CHANNEL, CHANNEL], "next_cursor": "c/1"})
    script.response(200, {"items": [CHANNEL], "next_cursor": None, "total": 3})
    assert len(list(script.control().channels("team=fares"))) == 3
    assert script.requests[1][1] == "/v1/channels?limit=100&selector=team%3Dfares&cursor=c%2F1"


def test_a_name_cannot_become_another_path(script: Script) -> None:
    for name in ("", ".", "..", "../tokens", "a/b", "a?x=1", "a%2Fb", "a b", "ä", None):
        with pytest.raises(InvalidRequest, match="the channel name is"):
            script.control().channel(name)  # type: ignore[arg-type]
    assert script.requests == []


def test_a_rejected_token_is_read_again_from_its_file(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("slw_a_old\n")
    monkeypatch.setenv("SLUICEWAY_TOKEN_FILE", str(path))
    control = script.control()
    script.response(200, CHANNEL)
    control.channel("flights")
    path.write_text("slw_a_new\n")
    script.problem(401, "unauthenticated")
    script.response(200, CHANNEL)
    control.channel("flights")
    sent = [headers.get("Authorization") for *_, headers in script.requests]
    assert sent == ["Bearer slw_a_old", "Bearer slw_a_old", "Bearer slw_a_new"]
    script.problem(401, "unauthenticated")
    with pytest.raises(Unauthenticated):
        control.channel("flights")
    assert len(script.requests) == 4


def test_each_of_several_threads_retries_with_the_new_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("slw_a_old\n")
    monkeypatch.setenv("SLUICEWAY_TOKEN_FILE", str(path))
    source = TokenSource()
    rejected = source.current
    path.write_text("slw_a_new\n")
    assert [source.refresh(rejected) for _ in range(2)] == [True, True]
    assert not source.refresh(source.current)


def test_no_thread_of_a_forked_child_uses_the_connections_of_its_parent(gateway_url: str) -> None:
    others: list[threading.Thread] = []

    def request() -> None:
        transport.request("GET", "/v1/cluster")

    def request_elsewhere(**_: object) -> None:
        """Let another thread make a request while this one opens a client."""
        if not others:
            others.append(threading.Thread(target=request))
            others[0].start()
            others[0].join(30)

    with (
        closing(Relay(httpx.URL(gateway_url).port or 0)) as relay,
        closing(Transport(relay.url)) as transport,
    ):
        request()
        child = os.fork()
        if child == 0:
            try:
                with at_call(httpx, "Client", request_elsewhere):
                    request()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        # That of the parent, and one of each thread of the child.
        assert relay.accepted == 3


def test_a_given_token_overrides_the_environment(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_TOKEN", "slw_env_x")
    for options, expected in (({}, "slw_env_x"), ({"token": "slw_arg_x"}, "slw_arg_x")):
        script.response(200, CHANNEL)
        script.control(**options).channel("flights")
        assert script.requests[-1][2]["Authorization"] == f"Bearer {expected}"


def test_the_url_comes_from_the_environment_and_has_a_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLUICEWAY_URL", raising=False)
    assert Gateway().url == "http://127.0.0.1:8900"
    monkeypatch.setenv("SLUICEWAY_URL", "https://gateway.example/")
    assert Gateway().url == "https://gateway.example"
    for url in ("http://gateway.example/v1", "http://gateway.example/v1/"):
        assert Gateway(url).url == "http://gateway.example"


def test_tokens_are_not_shown(script: Script) -> None:
    gateway = Gateway(script.url, token="slw_a_hush")
    assert "hush" not in repr(gateway)
    assert "hush" not in repr(vars(Transport(script.url, token="slw_a_hush")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "127.0.0.1:8900"}, "the gateway's URL"),
        ({"url": "ftp://x"}, "the gateway's URL"),
        ({"url": "http://user:hush@x"}, "without a user"),
        ({"url": "localhost:8900"}, "the gateway's URL is 'localhost:8900'"),
        # The system would connect to the port modulo 65,536.
        ({"url": "http://localhost:74436"}, "its port must be 1 to 65535"),
        ({"url": "http://localhost:0"}, "its port must be 1 to 65535"),
        ({"token": b"slw_a_hush"}, "token is of the type bytes; it takes a str"),
        ({"token": "two words"}, "token does not contain a token"),
        ({"token": "   "}, "token does not contain a token"),
        ({"ca": "/nowhere.pem"}, "has no usable CA certificates"),
        ({"timeout_s": 0}, "timeout_s is 0"),
    ],
)
def test_invalid_arguments_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        Gateway(**options)
    assert "hush" not in str(raised.value)


def test_a_missing_token_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICEWAY_TOKEN", raising=False)
    monkeypatch.setenv("SLUICEWAY_TOKEN_FILE", "/nowhere/token")
    with pytest.raises(OptionError, match="/nowhere/token in SLUICEWAY_TOKEN_FILE"):
        Gateway()


def test_closing_while_another_thread_connects_leaves_no_connection(gateway_url: str) -> None:
    connects, closed = threading.Event(), threading.Event()

    def hold(address: tuple[str, int], *_: object, **__: object) -> None:
        if address[1] == relay.port:
            connects.set()
            assert closed.wait(60)

    with (
        closing(Relay(httpx.URL(gateway_url).port or 0)) as relay,
        # The system decides how long a connection takes.
        at_call(socket, "create_connection", hold),
        ThreadPoolExecutor(1) as pool,
    ):
        transport = Transport(relay.url)
        request = pool.submit(transport.request, "GET", "/v1/channels")
        assert connects.wait(60)
        transport.close()
        closed.set()
        assert request.result().status_code == 200
        assert (relay.accepted, relay.clients) == (1, 0)
