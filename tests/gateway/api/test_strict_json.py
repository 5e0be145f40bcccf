"""Strict requests, by the route class alone on a plain application."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Message

from gateways import Rig, code, served
from sluiceway_gateway.api.middleware import BodyLimit
from sluiceway_gateway.api.problems import ErrorResponses, problem_response
from sluiceway_gateway.api.strict_json import StrictJsonRequest, StrictRoute

JSON = {"Content-Type": "application/json"}


class Numbers(BaseModel):
    numbers: list[int]


async def most(limit: Annotated[int, Query(ge=1)] = 10) -> int:
    return limit


@pytest.fixture
def app() -> FastAPI:
    """An application with strict routes, and bodies of up to 1,000 bytes."""
    responses = ErrorResponses(of_registry=problem_response)
    app = FastAPI(exception_handlers=responses.handlers)
    app.add_middleware(BodyLimit, limit_bytes=1000, respond=responses.of)
    router = APIRouter(route_class=StrictRoute)

    @router.post("/sums")
    async def total(body: Numbers, limit: Annotated[int, Depends(most)], start: int = 0) -> int:
        return start + sum(body.numbers[:limit])

    @router.delete("/sums", status_code=204)
    async def forget() -> None: ...

    app.include_router(router)

    @app.post("/plain")
    async def plain(body: Numbers) -> int:
        return sum(body.numbers)

    return app


def post(
    app: FastAPI,
    content: bytes | AsyncIterator[bytes],
    *,
    path: str = "/sums",
    method: str = "POST",
    **headers: str,
) -> httpx.Response:
    async def respond() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.request(method, path, content=content, headers=JSON | headers)

    return asyncio.run(respond())


def test_a_strict_body_reaches_the_endpoint(app: FastAPI) -> None:
    assert post(app, b'{"numbers": [1, 2, 3]}').json() == 6
    assert post(app, b'{"numbers": [1, 2, 3]}', path="/sums?limit=2&start=10").json() == 13


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b'{"numbers": [NaN]}', 400),
        (b'{"numbers": [], "numbers": [1]}', 422),
        (b'{"numbers": [1e999]}', 422),
        (b'{"numbers": [], "a": "\\u0000"}', 422),
        (b'{"numbers": [], "a": "\\ud800"}', 422),
        (b"[" * 200 + b"]" * 200, 422),
        (b"null", 422),
        (b'{"numbers": "x"}', 422),
    ],
)
def test_a_body_that_is_not_strict_json_is_a_problem(
    app: FastAPI, content: bytes, status: int
) -> None:
    response = post(app, content)
    expected = "malformed_json" if status == 400 else "invalid_request"
    assert (response.status_code, code(response)) == (status, expected)


def test_a_body_of_another_type_or_encoding_is_415(app: FastAPI) -> None:
    body = b'{"numbers": []}'
    for headers in ({"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}):
        response = post(app, body, **headers)
        assert (response.status_code, code(response)) == (415, "unsupported_media_type")
        assert response.headers["accept"] == "application/json"


@pytest.mark.parametrize("query", ["unknown=1", "limit=1&limit=2", "Limit=1"])
def test_a_query_has_each_of_the_known_names_once(app: FastAPI, query: str) -> None:
    response = post(app, b'{"numbers": []}', path=f"/sums?{query}")
    assert (response.status_code, code(response)) == (422, "invalid_request")


def test_all_violations_of_parameters_and_body_are_reported_at_once(app: FastAPI) -> None:
    errors = post(app, b'{"numbers": "x"}', path="/sums?start=x&limit=0").json()["errors"]
    assert [error["pointer"] for error in errors] == ["query:limit", "query:start", "/numbers"]


@pytest.mark.parametrize("path", ["/sums", "/plain"])
def test_a_larger_body_is_413_announced_or_not(app: FastAPI, path: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 500

    for content in (b" " * 1001, pieces()):
        response = post(app, content, path=path)
        assert (response.status_code, code(response)) == (413, "body_too_large")
    fitting = b'{"numbers": [1]}'
    assert post(app, fitting + b" " * (1000 - len(fitting)), path=path).json() == 1


def test_a_route_without_a_body_reads_none(app: FastAPI) -> None:
    assert post(app, b"{", method="DELETE").status_code == 204


def test_a_body_is_read_once_and_a_lost_connection_is_reported() -> None:
    messages: list[Message] = [{"type": "http.request", "body": b"[1]"}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def read() -> list[Any]:
        request = StrictJsonRequest({"type": "http", "headers": [*raw.items()]}, receive)
        return [await request.json(), await request.json()]

    raw = {b"content-type": b"application/json"}
    assert asyncio.run(read()) == [[1], [1]]
    with pytest.raises(ClientDisconnect):
        asyncio.run(read())


def test_the_route_class_changes_the_request_only(rig: Rig) -> None:
    assert {type(route.original_route) for _, route in served(rig.app)} == {APIRoute, StrictRoute}
    assert {name for name in vars(StrictRoute) if not name.startswith("__")} == {
        "get_route_handler"
    }
    assert len(inspect.getsource(StrictRoute).splitlines()) <= 20
