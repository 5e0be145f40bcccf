"""Kafka's secured listeners and a secured gateway: certificates, users, properties of clients."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from processes import Process
from shared_kafka import SharedKafka
from sluiceway_gateway.core.auth.service import Tokens


class Certificate:
    """A certificate, and its key in another file, before a copy of the certificate."""

    def __init__(self, stem: Path) -> None:
        self.file, self.key_file = stem.with_suffix(".pem"), stem.with_suffix(".key")

    @property
    def pem(self) -> str:
        return self.file.read_text()

    @property
    def key(self) -> str:
        return self.key_file.read_text().removesuffix(self.pem)


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
        certificate = Certificate(self._directory / name)
        issued.cert_chain_pems[0].write_to_path(certificate.file)
        # Kafka reads this form only, and both from one file.
        pkcs8, clear = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key_pem = key.private_bytes(serialization.Encoding.PEM, pkcs8, clear)
        certificate.key_file.write_bytes(key_pem + certificate.file.read_bytes())
        return certificate


PROTOCOLS = {
    "SCRAM": "SASL_SSL",
    **dict.fromkeys(("MUTUAL", "EXPIRED", "FOREIGN", "ELSEWHERE"), "SSL"),
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
        for store, file in (("keystore", certificate.key_file), ("truststore", ours.file)):
            prefix = f"listener.name.{name.lower()}.ssl.{store}"
            properties |= {f"{prefix}.type": "PEM", f"{prefix}.location": str(file)}
    return properties


PASSWORDS = {"gateway": "pw-gateway-5f3a", "job": "pw-job-71cc"}


class SecuredKafka:
    """The run's broker, its certificates, and the properties of each kind of client."""

    def __init__(self, broker: SharedKafka) -> None:
        self.broker = broker
        directory = Path(broker.certificates)
        self.authority = Certificate(directory / "ours" / "authority")
        self.client = Certificate(directory / "ours" / "client")
        self.gateway = Certificate(directory / "ours" / "gateway")
        self.foreign = Certificate(directory / "other" / "authority")

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
