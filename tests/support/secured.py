"""Kafka's secured listeners and a secured gateway: certificates, users, properties of clients."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization
from pydantic import SecretStr

from processes import Process, process
from shared_kafka import SharedKafka
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.db.revision import migrate, open_database


class Certificate:
    """A certificate and its key, as two files, and as one `bundle` (key first)."""

    def __init__(self, stem: Path) -> None:
        self.file, self.key_file, self.bundle = (
            stem.with_suffix(suffix) for suffix in (".pem", ".key", ".bundle")
        )

    @property
    def pem(self) -> str:
        return self.file.read_text()

    @property
    def key(self) -> str:
        return self.key_file.read_text()


class Authority:
    """A certificate authority, which writes its certificates into a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA()
        self.file = directory / "authority.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *, host: str = "127.0.0.1", expired: bool = False) -> Certificate:
        """Sign a certificate of a server at this address or host, or of a client."""
        end = datetime.now(UTC) + timedelta(days=-1 if expired else 30)
        issued = self._ca.issue_cert(host, common_name=name, not_after=end)
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        # The only form that Kafka reads.
        pkcs8, clear = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key_pem = key.private_bytes(serialization.Encoding.PEM, pkcs8, clear)
        certificate = Certificate(self._directory / name)
        issued.cert_chain_pems[0].write_to_path(certificate.file)
        certificate.key_file.write_bytes(key_pem)
        certificate.bundle.write_bytes(key_pem + certificate.file.read_bytes())
        return certificate


PROTOCOLS = {
    "SCRAM": "SASL_SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "FOREIGN": "SSL",
    "ELSEWHERE": "SSL",
}
"""SCRAM needs a password, MUTUAL a client certificate; the others have invalid certificates."""


def listener_properties(directory: Path) -> dict[str, str]:
    """Create certificates in a directory, and return the properties of the secured listeners."""
    ours = Authority(directory / "ours")
    foreign = Authority(directory / "other")
    for user in ("client", "gateway"):
        ours.issue(user)
    certificates = {
        "SCRAM": ours.issue("scram"),
        "MUTUAL": ours.issue("mutual"),
        "EXPIRED": ours.issue("expired", expired=True),
        "FOREIGN": foreign.issue("foreign"),
        "ELSEWHERE": ours.issue("elsewhere", host="elsewhere.example"),
    }
    properties = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.mutual.ssl.client.auth": "required",
    }
    for name, certificate in certificates.items():
        for store, file in (("keystore", certificate.bundle), ("truststore", ours.file)):
            prefix = f"listener.name.{name.lower()}.ssl.{store}"
            properties |= {f"{prefix}.type": "PEM", f"{prefix}.location": str(file)}
    return properties


PASSWORDS = {"gateway": "pw-gateway-5f3a", "job": "pw-job-71cc"}


class SecuredKafka:
    """The run's broker, its certificates, and the properties of each kind of client."""

    def __init__(self, broker: SharedKafka) -> None:
        self.broker = broker
        ours, other = (Path(broker.certificates) / name for name in ("ours", "other"))
        self.authority, self.foreign = (
            Certificate(ours / "authority"),
            Certificate(other / "authority"),
        )
        self.client, self.gateway = Certificate(ours / "client"), Certificate(ours / "gateway")

    def scram(self, user: str = "job", **others: str) -> dict[str, str]:
        """Return the properties of a user, and `others`, where `_` stands for `.`."""
        login = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": user,
            "sasl_password": PASSWORDS[user],
        }
        return self.tls("SCRAM", **(login | others))

    def tls(self, listener: str, **others: str) -> dict[str, str]:
        """Return the properties for a listener without passwords."""
        return {
            "bootstrap.servers": self.broker.secured[listener],
            "security.protocol": "SSL",
            "ssl.ca.pem": self.authority.pem,
            **{name.replace("_", "."): value for name, value in others.items()},
        }

    def mutual(self) -> dict[str, str]:
        """Return the properties for the listener MUTUAL."""
        return self.tls("MUTUAL", ssl_certificate_pem=self.client.pem, ssl_key_pem=self.client.key)


def secured_kafka(broker: SharedKafka) -> SecuredKafka:
    """Create the users at the run's broker, and load its certificates."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users = [
        UserScramCredentialUpsertion(user, scram, password.encode())
        for user, password in PASSWORDS.items()
    ]
    for result in admin.alter_user_scram_credentials(users).values():
        result.result(30)
    return SecuredKafka(broker)


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
    tokens: Tokens

    def token(self, *scopes: str) -> str:
        """Create a token, and return its text."""
        return self.tokens.create(label="test", scopes=scopes).text.get_secret_value()

    def revoke(self, token: str) -> None:
        self.tokens.revoke(token.split("_")[1])

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
    database_url = f"sqlite:///{directory / 'gateway.db'}"
    migrate(database_url)
    settings = {
        "DATABASE_URL": database_url,
        "TOKEN_KEY": TOKEN_KEY,
        "TLS_CERTIFICATE_FILE": str(kafka.gateway.file),
        "TLS_KEY_FILE": str(kafka.gateway.key_file),
        "LOG_LEVEL": "debug",
        "RESYNC_S": "1",
        **_kafka_settings(kafka),
    }
    variables = {f"SLUICEWAY_{name}": value for name, value in settings.items()}
    with (
        open_database(database_url) as database,
        process("serve", "--port", "0", **variables) as serving,
    ):
        yield SecuredGateway(
            url=serving.until(r"serving on (\S+)"),
            ca_file=kafka.authority.file,
            process=serving,
            tokens=Tokens(database, SecretStr(TOKEN_KEY)),
        )
        serving.end(signal.SIGTERM)


def _kafka_settings(kafka: SecuredKafka) -> dict[str, str]:
    properties = kafka.scram("gateway")
    servers = properties.pop("bootstrap.servers")
    listeners = {
        "scram": kafka.scram("job"),
        "mutual": kafka.mutual(),
        "own": {"bootstrap.servers": servers, "security.protocol": "SASL_SSL"},
    }
    return {
        "KAFKA_BOOTSTRAP_SERVERS": servers,
        "KAFKA_PROPERTIES": json.dumps(properties),
        "KAFKA_CLIENT_PROPERTIES": json.dumps({"ssl.ca.pem": kafka.authority.pem}),
        "KAFKA_LISTENERS": json.dumps(listeners),
        "KAFKA_DEFAULT_LISTENER": "scram",
    }
