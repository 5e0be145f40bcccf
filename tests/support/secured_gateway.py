"""`sluiceway serve` in a process of its own: HTTPS to clients, SASL_SSL to Kafka, tokens."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from secured_kafka import SecuredKafka
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.db.revision import migrate, open_database

_COMMAND = "from sluiceway_gateway.cli import main; raise SystemExit(main())"
_START_S = 180
TOKEN_KEY = "token-key-" + "0123456789abcdef" * 2


@dataclass(frozen=True, kw_only=True)
class SecuredGateway:
    """The gateway's URL, whom its clients trust, its log (at debug), and its tokens.

    Its listeners of Kafka: `scram` (the default, with the user job's password), `mutual` (with a
    client's certificate) and `own` (where clients bring a user and a password).
    """

    url: str
    ca_file: Path
    log_path: Path
    database_url: str

    def token(self, *scopes: str) -> str:
        """Make a token and return its text."""
        with open_database(self.database_url) as database:
            tokens = Tokens(database, SecretStr(TOKEN_KEY))
            return tokens.create(label="test", scopes=scopes).text.get_secret_value()

    def revoke(self, token: str) -> None:
        with open_database(self.database_url) as database:
            Tokens(database, SecretStr(TOKEN_KEY)).revoke(token.split("_")[1])

    def environment(self, directory: Path) -> dict[str, str]:
        """Return the variables by which a client finds it, the token in a file."""
        token_file = directory / "token"
        token_file.write_text(self.token("admin"))
        return {
            "SLUICEWAY_URL": self.url,
            "SLUICEWAY_TOKEN_FILE": str(token_file),
            "SLUICEWAY_CA_FILE": str(self.ca_file),
        }


@contextmanager
def secured_gateway(kafka: SecuredKafka, directory: Path) -> Iterator[SecuredGateway]:
    """Serve while the block runs."""
    certificate = kafka.authority.issue("gateway")
    database_url = f"sqlite:///{directory / 'gateway.db'}"
    migrate(database_url)
    log_path = directory / "gateway.log"
    settings = {
        "DATABASE_URL": database_url,
        "TOKEN_KEY": TOKEN_KEY,
        "TLS_CERTIFICATE_FILE": str(certificate.file),
        "TLS_KEY_FILE": str(certificate.key_file),
        "LOG_LEVEL": "debug",
        "RESYNC_S": "1",
        **_kafka_settings(kafka),
    }
    variables = {f"SLUICEWAY_{name}": value for name, value in settings.items()}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "serve", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | variables,
        )
    try:
        yield SecuredGateway(
            url=_url(process, log_path),
            ca_file=kafka.authority.file,
            log_path=log_path,
            database_url=database_url,
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(180)


def _kafka_settings(kafka: SecuredKafka) -> dict[str, str]:
    own, shared, mutual = kafka.scram("gateway"), kafka.scram("job"), kafka.mutual()
    bare = {name: value for name, value in kafka.tls("SCRAM").items() if name != "ssl.ca.pem"}
    return {
        "KAFKA_BOOTSTRAP_SERVERS": own.pop("bootstrap.servers"),
        "KAFKA_PROPERTIES": json.dumps(own),
        "KAFKA_CLIENT_PROPERTIES": json.dumps({"ssl.ca.pem": kafka.authority.pem}),
        "KAFKA_LISTENERS": json.dumps(
            {"scram": shared, "mutual": mutual, "own": bare | {"security.protocol": "SASL_SSL"}}
        ),
        "KAFKA_DEFAULT_LISTENER": "scram",
    }


def _url(process: "subprocess.Popen[bytes]", log_path: Path) -> str:
    deadline_s = time.monotonic() + _START_S
    while True:
        found = re.search(r"serving on (\S+)", log_path.read_text())
        if found is not None:
            return found[1]
        assert process.poll() is None, log_path.read_text()
        assert time.monotonic() < deadline_s, log_path.read_text()
        time.sleep(0.05)
