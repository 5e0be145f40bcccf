"""`sluiceway serve` as a process, with HTTPS for clients, SASL_SSL to Kafka, and tokens."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from processes import Process, process
from secured_kafka import SecuredKafka
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.db.revision import migrate, open_database

TOKEN_KEY = "token-key-" + "0123456789abcdef" * 2


@dataclass(frozen=True, kw_only=True)
class SecuredGateway:
    """A gateway process (log level debug): its URL, certificate authority and tokens.

    Its Kafka listeners are `scram` (the default, with the password of the user `job`), `mutual`
    (with a client certificate) and `own` (clients add their own user and password).
    """

    url: str
    ca_file: Path
    process: Process
    database_url: str

    def token(self, *scopes: str) -> str:
        """Create a token, and return its text."""
        with open_database(self.database_url) as database:
            tokens = Tokens(database, SecretStr(TOKEN_KEY))
            return tokens.create(label="test", scopes=scopes).text.get_secret_value()

    def revoke(self, token: str) -> None:
        with open_database(self.database_url) as database:
            Tokens(database, SecretStr(TOKEN_KEY)).revoke(token.split("_")[1])

    def environment(self, directory: Path) -> dict[str, str]:
        """Return a client's variables: URL, token file, and certificate authority."""
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
    with process("serve", "--port", "0", **variables) as serving:
        yield SecuredGateway(
            url=serving.until(r"serving on (\S+)"),
            ca_file=kafka.authority.file,
            process=serving,
            database_url=database_url,
        )
        serving.end(signal.SIGTERM)


def _kafka_settings(kafka: SecuredKafka) -> dict[str, str]:
    gateway_user, job_user, mutual = kafka.scram("gateway"), kafka.scram("job"), kafka.mutual()
    without_authority = {
        name: value for name, value in kafka.tls("SCRAM").items() if name != "ssl.ca.pem"
    }
    return {
        "KAFKA_BOOTSTRAP_SERVERS": gateway_user.pop("bootstrap.servers"),
        "KAFKA_PROPERTIES": json.dumps(gateway_user),
        "KAFKA_CLIENT_PROPERTIES": json.dumps({"ssl.ca.pem": kafka.authority.pem}),
        "KAFKA_LISTENERS": json.dumps(
            {
                "scram": job_user,
                "mutual": mutual,
                "own": without_authority | {"security.protocol": "SASL_SSL"},
            }
        ),
        "KAFKA_DEFAULT_LISTENER": "scram",
    }
