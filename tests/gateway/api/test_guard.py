import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from pydantic import SecretStr

from gateways import SCHEMA, UNREACHABLE, Rig, code, served
from sluiceway_gateway.api import health
from sluiceway_gateway.api.auth import PUBLIC, Permission, permissions
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.auth.model import Action
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.settings import Settings

BODY = {"spec": {"schema": SCHEMA}}


def requests_of_private_routes(rig: Rig) -> list[tuple[str, str]]:
    """Return the method and path of each non-public route."""
    requests = [
        (method, re.sub(r"\{[^}]*\}", "1", str(route.path)))
        for method, route in served(rig.app)
        if route.path not in PUBLIC
    ]
    assert len(requests) > 10
    return requests


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


PERMISSIONS = {
    Permission(): """
        GET /metrics
        GET /v1/channels
        GET /v1/cluster/topics/{topic}
        GET /v1/schemas/{schema_id}
        GET /v1/status
        GET /v1/status/events
        GET /v1/token
        """,
    Permission(authorized_in_transaction=True): "POST /v1/heartbeats",
    Permission(Action.ADMIN): """
        GET /v1/cluster
        GET /v1/cluster/brokers/{broker_id}
        """,
    Permission(Action.VIEW, channel="name"): """
        GET /v1/channels/{name}
        GET /v1/channels/{name}/changes
        GET /v1/channels/{name}/commits
        GET /v1/channels/{name}/committed
        GET /v1/channels/{name}/connection
        GET /v1/channels/{name}/endpoints
        GET /v1/channels/{name}/endpoints/{id}
        POST /v1/channels/{name}/endpoints/{id}/detach
        POST /v1/channels/{name}/endpoints/{id}/sync
        GET /v1/channels/{name}/graph
        GET /v1/channels/{name}/groups/{group}/offsets
        POST /v1/channels/{name}/groups/{group}/offsets/advance
        POST /v1/channels/{name}/groups/{group}/offsets/passed
        POST /v1/channels/{name}/groups/{group}/offsets/reset
        POST /v1/channels/{name}/groups/{group}/resize
        GET /v1/channels/{name}/heartbeats
        GET /v1/channels/{name}/history
        GET /v1/channels/{name}/ledger/repair
        GET /v1/channels/{name}/messages/offsets
        GET /v1/channels/{name}/schemas
        GET /v1/channels/{name}/status/events
        """,
    Permission(Action.VIEW, channel="name", authorized_in_transaction=True): """
        POST /v1/channels/{name}/endpoints
        GET /v1/channels/{name}/status
        """,
    Permission(Action.READ, channel="name"): """
        GET /v1/channels/{name}/groups/{group}/offsets/import
        POST /v1/channels/{name}/groups/{group}/offsets/import
        GET /v1/channels/{name}/messages
        GET /v1/channels/{name}/messages/search
        """,
    Permission(Action.READ, channel="name", authorized_in_transaction=True): (
        "PUT /v1/channels/{name}/groups/{group}/offsets"
    ),
    Permission(Action.WRITE, channel="name"): """
        POST /v1/channels/{name}/batches
        POST /v1/channels/{name}/batches/renew
        POST /v1/channels/{name}/batches/{id}/abort
        POST /v1/channels/{name}/batches/{id}/commit
        PUT /v1/channels/{name}/batches/{id}/manifest/{slice}
        POST /v1/channels/{name}/messages
        """,
    Permission(Action.MANAGE, channel="name"): """
        PUT /v1/channels/{name}
        DELETE /v1/channels/{name}
        POST /v1/channels/{name}/batches/owner
        POST /v1/channels/{name}/close
        DELETE /v1/channels/{name}/endpoints/{id}
        POST /v1/channels/{name}/groups/{group}/owner
        POST /v1/channels/{name}/ledger/repair
        """,
}
"""Of every route that is neither public nor of the registry, whose service authorizes."""


def test_every_private_route_has_one_permission_in_its_signature(rig: Rig) -> None:
    private = {
        f"{method} {route.path_format}": list(permissions(route.dependant))
        for method, route in served(rig.app)
        if method != "HEAD" and route.path not in PUBLIC
    }
    registry = {route for route in private if " /registry" in route}
    expected = {
        f"{method} {path}": [permission]
        for permission, routes in PERMISSIONS.items()
        for method, path in (line.split() for line in routes.strip().splitlines())
    }
    assert private == expected | {route: [Permission()] for route in registry}


def test_the_channel_of_a_permission_is_in_the_path() -> None:
    for permission, routes in PERMISSIONS.items():
        for route in routes.strip().splitlines():
            assert permission.channel is None or f"{{{permission.channel}}}" in route
            # Without a channel only scopes without a prefix would be enough.
            assert permission.channel or permission.action is None or "{name}" not in route


def test_a_route_without_a_permission_stops_the_start(database_url: str) -> None:
    async def forgotten() -> dict[str, str]:
        return {"secret": "x"}

    health.router.add_api_route("/v1/forgotten", forgotten)
    try:
        with pytest.raises(RuntimeError, match="/v1/forgotten has no Permission"):
            create_app(Settings(database_url=database_url, kafka_bootstrap_servers=UNREACHABLE))
    finally:
        health.router.routes.pop()


def test_no_dependency_takes_a_thread(rig: Rig) -> None:
    def dependencies(dependant: Dependant) -> Iterator[Any]:
        for dependency in dependant.dependencies:
            yield dependency.call
            yield from dependencies(dependency)

    for _, route in served(rig.app):
        for call in dependencies(route.dependant):
            assert iscoroutinefunction(call) or iscoroutinefunction(type(call).__call__), call


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


def test_a_body_is_parsed_before_the_permission_is_checked(rig: Rig) -> None:
    rig.http.headers.update(rig.token("read"))
    headers = {"content-type": "application/json"}
    malformed = rig.http.put("/v1/channels/a", content=b"{", headers=headers)
    assert (malformed.status_code, code(malformed)) == (400, "malformed_json")
    unknown = rig.http.put("/v1/channels/a?unknown=1", json=BODY)
    assert (unknown.status_code, code(unknown)) == (422, "invalid_request")
    for body in (BODY, {"no": "channel"}):
        forbidden = rig.http.put("/v1/channels/a", json=body)
        assert (forbidden.status_code, code(forbidden)) == (403, "forbidden")


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
