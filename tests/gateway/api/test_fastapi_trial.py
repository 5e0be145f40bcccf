"""The application is extended and tested as FastAPI's documentation says."""

import asyncio
import operator
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Annotated, Any
from unittest.mock import Mock

import httpx
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from databases import SQLite
from gateways import UNREACHABLE, Rig, code, running
from sluiceway_gateway.api.auth import Administrator, Permission, Viewer
from sluiceway_gateway.api.deps import Service
from sluiceway_gateway.app import create_app
from sluiceway_gateway.channels.deps import ChannelsDep
from sluiceway_gateway.core.auth.model import Action, Principal, parse_scopes
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.settings import Settings


@pytest.fixture
def app(database_url: str) -> Iterator[FastAPI]:
    """A gateway's application that is not served."""
    settings = Settings(
        database_url=database_url, kafka_bootstrap_servers=UNREACHABLE, token_key="k" * 40
    )
    app = create_app(settings)
    yield app
    app.state.parts.database.close()


def request(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    """Send a request without a network, as from this machine."""

    async def respond() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            return await http.request(method, path, **options)

    return asyncio.run(respond())


def test_a_plain_router_has_dependencies_with_yield_and_background_tasks(app: FastAPI) -> None:
    events: list[str] = []

    async def session() -> AsyncIterator[str]:
        events.append("opened")
        yield "the session"
        events.append("closed")

    def prefix_of(session: Annotated[str, Depends(session)]) -> str:
        return f"{session} of"

    router = APIRouter(prefix="/extra")

    @router.get("/{name}")
    async def read(
        name: str,
        prefix: Annotated[str, Depends(prefix_of)],
        tasks: BackgroundTasks,
        limit: int = 10,
    ) -> dict[str, Any]:
        tasks.add_task(events.append, "task")
        events.append("endpoint")
        return {"text": f"{prefix} {name}", "limit": limit}

    app.include_router(router)
    response = request(app, "GET", "/extra/a", params={"limit": 3, "unknown": 1})
    assert (response.status_code, response.json()) == (
        200,
        {"text": "the session of a", "limit": 3},
    )
    assert events == ["opened", "endpoint", "task", "closed"]
    assert "/extra/{name}" in app.openapi()["paths"]


class Item(BaseModel):
    number: int
    secret: str = "hidden"


class ShownItem(BaseModel):
    number: int


class OutOfStock(Exception):
    pass


def test_a_plain_route_has_a_response_model_and_errors_of_fastapi(app: FastAPI) -> None:
    @app.post("/items", response_model=ShownItem, status_code=201)
    def create(item: Item) -> Item:
        if item.number < 0:
            raise OutOfStock
        if item.number == 0:
            raise HTTPException(404, "no such item", {"X-Item": "0"})
        return item

    @app.exception_handler(OutOfStock)
    async def out_of_stock(_request: Request, _error: OutOfStock) -> Response:
        return JSONResponse({"stock": 0}, 410)

    created = request(app, "POST", "/items", json={"number": 1})
    assert (created.status_code, created.json()) == (201, {"number": 1})
    absent = request(app, "POST", "/items", json={"number": 0})
    assert (absent.status_code, absent.json()) == (404, {"detail": "no such item"})
    assert absent.headers["x-item"] == "0"
    assert request(app, "POST", "/items", json={"number": -1}).status_code == 410
    invalid = request(app, "POST", "/items", json={"number": "x"})
    assert (invalid.status_code, code(invalid)) == (422, "invalid_request")
    assert request(app, "GET", "/items").headers["allow"] == "POST"


def test_a_plain_route_has_the_principal_of_the_request_and_services(app: FastAPI) -> None:
    @app.get("/mine")
    async def mine(request: Request, channels: ChannelsDep) -> list[str]:
        return [request.user.display_name, type(channels).__name__]

    @app.get("/clusters/{name}")
    async def of_administrators(by: Administrator) -> str:
        return by.id

    assert request(app, "GET", "/mine").json() == ["loopback", "Channels"]
    assert request(app, "GET", "/clusters/a").json() == "loopback"
    tokens = app.state.parts.tokens
    reader = tokens.create(label="team a", scopes=["read"]).text.get_secret_value()
    headers = {"Authorization": f"Bearer {reader}"}
    assert request(app, "GET", "/mine").status_code == 401
    assert request(app, "GET", "/mine", headers=headers).json()[0] == "team a"
    assert code(request(app, "GET", "/clusters/a", headers=headers)) == "forbidden"


def test_dependencies_are_overridden(app: FastAPI) -> None:
    viewer = Principal(id="test", scopes=parse_scopes(["read:flights"]))
    statuses = Mock(heartbeats=Mock(return_value={}))
    app.dependency_overrides[Service("statuses")] = lambda: statuses
    assert request(app, "GET", "/v1/channels/a/heartbeats").json() == {"heartbeats": {}}

    async def viewing(name: str) -> Principal:
        viewer.require(Action.VIEW, name)
        return viewer

    app.dependency_overrides[Permission(Action.VIEW, channel="name")] = viewing
    refused = request(app, "GET", "/v1/channels/a/heartbeats")
    assert (refused.status_code, code(refused)) == (403, "forbidden")
    assert request(app, "GET", "/v1/channels/flights/heartbeats").status_code == 200
    app.dependency_overrides.clear()
    assert code(request(app, "GET", "/v1/channels/a/heartbeats")) == "channel_not_found"


class Stamped:
    """Middleware that adds a header to responses."""

    def __init__(self, app: ASGIApp, *, stamp: str) -> None:
        self.app = app
        self.stamp = stamp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Stamp"] = self.stamp
            await send(message)

        await self.app(scope, receive, stamped)


def test_middleware_is_added_around_all_routes(app: FastAPI) -> None:
    app.add_middleware(Stamped, stamp="outer")

    @app.get("/failing")
    async def failing() -> None:
        raise ZeroDivisionError

    for path, status in (("/livez", 200), ("/v1/nothing", 404), ("/failing", 500)):
        response = request(app, "GET", path)
        assert (response.status_code, response.headers["x-stamp"]) == (status, "outer")
        assert response.headers["x-request-id"]


def test_a_permission_of_a_plain_route_is_for_its_channel(app: FastAPI) -> None:
    router = APIRouter(prefix="/notes/{name}", tags=["notes"])

    @router.get("")
    async def read(name: str, viewer: Viewer) -> dict[str, str]:
        return {"channel": name, "by": viewer.subject or viewer.id}

    app.include_router(router)
    token = app.state.parts.tokens.create(label="team a", scopes=["read:team-"])
    headers = {"Authorization": f"Bearer {token.text.get_secret_value()}"}
    shown = request(app, "GET", "/notes/team-a", headers=headers)
    assert shown.json() == {"channel": "team-a", "by": "team a"}
    assert request(app, "GET", "/notes/other", headers=headers).status_code == 403


def test_gateways_with_the_same_routes_have_their_own_services(rig: Rig, sqlite: SQLite) -> None:
    def names(rig: Rig) -> list[str]:
        return [
            channel["metadata"]["name"] for channel in rig.http.get("/v1/channels").json()["items"]
        ]

    url = sqlite.migrated()
    with closing(Database(url)) as database, running(database, url, max_body_bytes=1024) as other:
        assert all(map(operator.is_, other.app.routes, rig.app.routes))
        assert rig.put("flights").status_code == 201
        assert (names(rig), names(other)) == (["flights"], [])
        large = {"metadata": {"labels": {"team": "x" * 1024}}}
        assert code(rig.http.put("/v1/channels/delays", json=large)) == "invalid_request"
        assert code(other.http.put("/v1/channels/delays", json=large)) == "body_too_large"
        token = other.token("read", label="team a")
        assert rig.http.get("/v1/channels", headers=token).status_code == 401
        assert other.http.get("/v1/channels", headers=token).status_code == 200
