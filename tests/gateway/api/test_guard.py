import asyncio
import re
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from pydantic import SecretStr
from starlette.routing import Route

from gateways import SCHEMA, Rig, code, serving
from sluiceway_gateway.api.auth import PUBLIC
from sluiceway_gateway.api.route import GatewayRoute
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.settings import Settings

BODY = {"spec": {"schema": SCHEMA}}


def requests_of_private_routes(rig: Rig) -> list[tuple[str, str]]:
    """Return the method and path of each non-public route."""
    found = []
    for route in rig.app.routes:
        assert isinstance(route, Route), "a mount would need a guard and a test of its own"
        if route.path in PUBLIC:
            continue
        path = re.sub(r"\{[^}]*\}", "1", route.path)
        found += [(method, path) for method in sorted(route.methods or ())]
    assert len(found) > 10
    return found


def foreign_token(rig: Rig) -> str:
    """Return a token that was created with another gateway's key."""
    other = Tokens(rig.database, SecretStr("another key, another key, another"), clock=rig.clock)
    return other.create(label="foreign", scopes=["admin"]).text.get_secret_value()


@pytest.mark.long
def test_every_route_requires_a_valid_token(rig: Rig) -> None:
    valid = rig.token("admin")["Authorization"]
    expired = rig.token("admin", expires_in=timedelta(seconds=1))["Authorization"]
    revoked = rig.token("admin")["Authorization"]
    rig.tokens.revoke(revoked.split("_")[1])
    rig.clock.advance(timedelta(seconds=1))
    id_, secret = valid.split("_")[1:]
    refused: list[list[tuple[str, str]]] = [
        [],
        *(
            [("Authorization", value)]
            for value in (
                "",
                "Bearer",
                "Bearer x",
                "Bearer  x",
                f"Basic {valid.split()[1]}",
                valid.split()[1],
                f"Bearer slw_{id_}_{secret[:-1]}",
                f"Bearer slw_{id_}_{'0' * 64}",
                f"Bearer slw_{'0' * 16}_{secret}",
                f"{valid}x",
                f"{valid}, {valid}",
                expired,
                revoked,
                f"Bearer {foreign_token(rig)}",
                "Bearer \xe9",
            )
        ),
        [("Authorization", valid), ("Authorization", valid)],
    ]
    for method, path in requests_of_private_routes(rig):
        for headers in refused:
            encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
            response = rig.http.request(method, path, headers=encoded)
            assert response.status_code == 401, (method, path)
            if path.startswith("/registry"):
                assert method == "HEAD" or response.json()["error_code"] == 40101
                assert response.headers["www-authenticate"].startswith("Basic")
                continue
            assert method == "HEAD" or code(response) == "unauthenticated"
            assert response.headers["www-authenticate"].startswith("Bearer")
        # Some responses never end.
        with rig.http.stream(method, path, headers={"Authorization": valid}) as response:
            assert response.status_code not in (401, 403), (method, path)


def test_only_health_documentation_and_the_files_of_the_dashboard_are_public() -> None:
    documentation = {"/openapi.json", "/docs", "/docs/errors", "/docs/{file}"}
    dashboard = {"/", "/ui/{file:path}"}
    assert {"/livez", "/readyz"} | documentation | dashboard == PUBLIC


@pytest.mark.long
def test_documentation_needs_no_token_and_shows_no_data(rig: Rig) -> None:
    rig.put("secret-name")
    rig.token("admin")
    for path in ("/", "/openapi.json", "/docs", "/docs/errors", "/docs/start.js"):
        response = rig.http.get(path)
        assert response.status_code == 200, path
        assert "secret-name" not in response.text


def test_every_private_route_declares_its_scope(rig: Rig) -> None:
    for route in rig.app.routes:
        assert isinstance(route, GatewayRoute)
        assert (route.access is None) == (route.path in PUBLIC), route.path


def test_a_route_without_a_declared_scope_refuses_everyone(
    database: Database, database_url: str
) -> None:
    async def forgotten() -> dict[str, str]:
        return {"secret": "x"}

    app = create_app(Settings(database_url=database_url, kafka_bootstrap_servers="127.0.0.1:1"))
    router = APIRouter(route_class=GatewayRoute)
    router.add_api_route("/v1/forgotten", forgotten)
    app.router.routes.extend(router.routes)
    with serving(app) as url:
        response = httpx.get(f"{url}/v1/forgotten", timeout=60)
    assert (response.status_code, code(response)) == (403, "forbidden")


def test_unknown_paths_require_a_token_too(rig: Rig) -> None:
    rig.token("admin")
    for path in (
        "/index",
        "/v1",
        "/v2/channels",
        "/livez/",
        "//livez",
        "/static/x",
        "/metrics/",
    ):
        assert rig.http.get(f"{rig.url}{path}").status_code == 401, path


def test_a_body_is_not_read_before_the_token(rig: Rig) -> None:
    rig.token("admin")
    response = rig.http.put("/v1/channels/a", content=b"{", headers={"content-type": "x"})
    assert response.status_code == 401


ALLOWED = {
    "read": {"view", "read"},
    "write": {"view", "write"},
    "manage": {"view", "read", "write", "put", "delete"},
    "admin": {"view", "read", "write", "put", "delete", "cluster"},
}


@pytest.mark.sample
@pytest.mark.parametrize("scope", ALLOWED)
def test_each_scope_allows_exactly_its_routes(rig: Rig, scope: str) -> None:
    admin = rig.token("admin")
    rig.http.put("/v1/channels/a", json=BODY, headers=admin)
    mine = rig.token(scope)
    calls = {
        "view": ("GET", "/v1/channels/a", None),
        "read": ("GET", "/v1/channels/a/connection?access=read", None),
        "write": ("GET", "/v1/channels/a/connection?access=write", None),
        "put": ("PUT", "/v1/channels/a", BODY),
        "delete": ("DELETE", f"/v1/channels/a?uid={'0' * 32}", None),
        "cluster": ("GET", "/v1/cluster", None),
    }
    for name, (method, path, body) in calls.items():
        response = rig.http.request(method, path, json=body, headers=mine)
        assert (response.status_code != 403) == (name in ALLOWED[scope]), (scope, name)
        if response.status_code == 403:
            assert code(response) == "forbidden"


def test_a_prefix_is_respected_whether_or_not_the_channel_exists(rig: Rig) -> None:
    admin, mine = rig.token("admin"), rig.token("manage:team-")
    for name in ("team-a", "other"):
        rig.http.put(f"/v1/channels/{name}", json=BODY, headers=admin)
    assert rig.http.get("/v1/channels/team-a", headers=mine).status_code == 200
    assert rig.http.put("/v1/channels/team-b", json=BODY, headers=mine).status_code == 201
    for name in ("other", "absent"):
        path = f"/v1/channels/{name}"
        assert rig.http.get(path, headers=mine).status_code == 403
        assert rig.http.put(path, json=BODY, headers=mine).status_code == 403
        assert rig.http.delete(f"{path}?uid={'0' * 32}", headers=mine).status_code == 403
        connection = rig.http.get(f"{path}/connection?access=read", headers=mine)
        assert connection.status_code == 403


def test_protocols_other_than_http_are_not_served(rig: Rig) -> None:
    said: list[Any] = []

    async def say(message: Any) -> None:
        said.append(message)

    async def hear() -> Any:
        return {"type": "websocket.connect"}

    for path in ("/v1/status", *sorted(PUBLIC)):
        scope = {"type": "websocket", "path": path, "headers": []}
        with pytest.raises(NotImplementedError, match="websocket"):
            asyncio.run(rig.app(scope, hear, say))
    assert said == []


def test_the_route_check_detects_an_unguarded_route() -> None:
    async def open_() -> None: ...

    assert GatewayRoute("/x", open_).access is None
