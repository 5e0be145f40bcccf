import asyncio

import pytest
from pydantic import SecretStr

from gateways import UNREACHABLE, Rig, code
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import InvalidSettings, WrongRevision
from sluiceway_gateway.core.settings import Settings


@pytest.mark.sample
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8900", "[::1]"])
def test_without_tokens_loopback_is_served(shared_rig: Rig, host: str) -> None:
    assert shared_rig.http.get("/v1/channels", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "10.0.0.1"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_page_of_another_origin_is_refused(shared_rig: Rig, headers: dict[str, str]) -> None:
    response = shared_rig.http.get("/v1/channels", headers=headers)
    assert (response.status_code, code(response)) == (403, "forbidden")
    assert shared_rig.http.get("/livez", headers=headers).status_code == 200


@pytest.mark.sample
@pytest.mark.parametrize(
    "headers",
    [
        {"Forwarded": "for=127.0.0.1"},
        {"X-Forwarded-For": "10.0.0.1"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-Host": "127.0.0.1"},
        {"X-Forwarded-Proto": "https"},
        {"X-Real-IP": "127.0.0.1"},
        {"Via": "1.1 proxy"},
    ],
)
def test_without_tokens_a_forwarded_request_is_refused(rig: Rig, headers: dict[str, str]) -> None:
    response = rig.http.get("/v1/channels", headers=headers)
    assert (response.status_code, code(response)) == (403, "forbidden")
    assert "proxy" in response.json()["detail"]
    assert rig.http.get("/livez", headers=headers).status_code == 200
    assert rig.http.get("/v1/channels", headers=headers | rig.token("read")).status_code == 200


def test_a_page_of_a_loopback_origin_is_served(shared_rig: Rig) -> None:
    headers = {"Origin": "http://localhost:3000"}
    assert shared_rig.http.get("/v1/channels", headers=headers).status_code == 200


@pytest.mark.parametrize("value", ["", "Bearer x", f"Bearer slw_{'0' * 16}_{'0' * 64}"])
def test_invalid_credentials_are_refused_in_open_mode_too(shared_rig: Rig, value: str) -> None:
    response = shared_rig.http.get("/v1/channels", headers={"Authorization": value})
    assert response.status_code == 401


def test_the_first_token_ends_open_mode_permanently(rig: Rig) -> None:
    assert rig.http.get("/v1/channels").status_code == 200
    token = rig.token("admin")
    assert rig.http.get("/v1/channels").status_code == 401
    rig.tokens.revoke(token["Authorization"].split("_")[1])
    assert rig.http.get("/v1/channels").status_code == 401


def test_a_gateway_with_tokens_does_not_start_without_their_key(
    database: Database, database_url: str
) -> None:
    Tokens(database, SecretStr("k" * 32)).create(label="x", scopes=["admin"])
    app = create_app(Settings(database_url=database_url, kafka_bootstrap_servers=UNREACHABLE))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            raise AssertionError

    with pytest.raises(InvalidSettings, match="SLUICEWAY_TOKEN_KEY"):
        asyncio.run(start())


def test_a_gateway_does_not_start_on_a_database_that_is_not_migrated(
    empty_database_url: str,
) -> None:
    app = create_app(Settings(database_url=empty_database_url, kafka_bootstrap_servers=UNREACHABLE))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            raise AssertionError

    with pytest.raises(WrongRevision, match="sluiceway migrate"):
        asyncio.run(start())
