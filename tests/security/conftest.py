"""Kafka's secured listeners, a secured gateway, and an environment without settings."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from pydantic import SecretStr

from processes import process
from secured import PASSWORDS, SecuredGateway, SecuredKafka
from shared_kafka import SharedKafka
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.db.revision import open_database
from sluiceway_gateway.migration import migrate

TOKEN_KEY = "token-key-" + "0123456789abcdef" * 2


@pytest.fixture(scope="package")
def secured(kafka: SharedKafka) -> SecuredKafka:
    """The run's broker, with users."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users = [
        UserScramCredentialUpsertion(user, scram, password.encode())
        for user, password in PASSWORDS.items()
    ]
    for result in admin.alter_user_scram_credentials(users).values():
        result.result(30)
    return SecuredKafka(kafka)


@pytest.fixture(scope="package")
def secured_service(
    secured: SecuredKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredGateway]:
    database_url = f"sqlite:///{tmp_path_factory.mktemp('secured-gateway') / 'gateway.db'}"
    migrate(database_url)
    properties = secured.scram("gateway")
    servers = properties.pop("bootstrap.servers")
    client = {"ssl_certificate_pem": secured.client.pem, "ssl_key_pem": secured.client.key}
    listeners = {
        "scram": secured.scram("job"),
        "mutual": secured.tls("MUTUAL", **client),
        "own": {"bootstrap.servers": servers, "security.protocol": "SASL_SSL"},
    }
    settings = {
        "DATABASE_URL": database_url,
        "TOKEN_KEY": TOKEN_KEY,
        "TLS_CERTIFICATE_FILE": str(secured.gateway.file),
        "TLS_KEY_FILE": str(secured.gateway.key_file),
        "LOG_LEVEL": "debug",
        "RESYNC_S": "1",
        "KAFKA_BOOTSTRAP_SERVERS": servers,
        "KAFKA_PROPERTIES": json.dumps(properties),
        "KAFKA_CLIENT_PROPERTIES": json.dumps({"ssl.ca.pem": secured.authority.pem}),
        "KAFKA_LISTENERS": json.dumps(listeners),
        "KAFKA_DEFAULT_LISTENER": "scram",
    }
    variables = {f"SLUICEWAY_{name}": value for name, value in settings.items()}
    with (
        open_database(database_url) as database,
        process("serve", "--port", "0", **variables) as serving,
    ):
        yield SecuredGateway(
            url=serving.until(r"serving on (\S+)"),
            ca_file=secured.authority.file,
            process=serving,
            tokens=Tokens(database, SecretStr(TOKEN_KEY)),
        )
        serving.end(signal.SIGTERM)


@pytest.fixture(autouse=True)
def _without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SLUICEWAY_") and name not in _EMBEDDED_BROKER:
            monkeypatch.delenv(name)


_EMBEDDED_BROKER = ("SLUICEWAY_IVY_SETTINGS", "SLUICEWAY_CACHE_DIR")


@pytest.fixture
def environment(
    secured_service: SecuredGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> SecuredGateway:
    """The secured gateway, with a client's settings in environment variables."""
    for name, value in secured_service.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return secured_service
