"""A real broker with a listener for each way to be let in, or not."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from certificates import Authority, Certificate
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from shared_kafka import SharedKafka
from sluiceway_gateway.embedded import KafkaServer

PASSWORDS = {"gateway": "pw-gateway-5f3a", "job": "pw-job-71cc"}


@dataclass(frozen=True, kw_only=True)
class SecuredKafka:
    """The broker, whom it trusts, and what each kind of client needs to be let in.

    Listeners: SCRAM (a password over TLS), MUTUAL (a client's certificate), and, over TLS alone,
    those whose certificates are no good: EXPIRED, FOREIGN, ELSEWHERE.
    """

    server: KafkaServer
    authority: Authority
    foreign: Authority
    client: Certificate

    def scram(self, user: str = "job", **others: str) -> dict[str, str]:
        """Return what a user needs; keywords are further properties, `_` for `.`."""
        return {
            "bootstrap.servers": self.server.listeners["SCRAM"],
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
            "ssl.ca.pem": self.authority.pem,
            **{name.replace("_", "."): value for name, value in others.items()},
        }

    def tls(self, listener: str, **others: str) -> dict[str, str]:
        """Return what reaches a listener by TLS alone."""
        return {
            "bootstrap.servers": self.server.listeners[listener],
            "security.protocol": "SSL",
            "ssl.ca.pem": self.authority.pem,
            **{name.replace("_", "."): value for name, value in others.items()},
        }

    def mutual(self) -> dict[str, str]:
        """Return what reaches MUTUAL."""
        return self.tls("MUTUAL", ssl_certificate_pem=self.client.pem, ssl_key_pem=self.client.key)


@contextmanager
def secured_kafka(kafka: SharedKafka, directory: Path) -> Iterator[SecuredKafka]:
    """Run the broker while the block runs."""
    ours, foreign = Authority(directory / "ours", "ours"), Authority(directory / "other", "other")
    certificates = {
        "SCRAM": ours.issue("scram"),
        "MUTUAL": ours.issue("mutual"),
        "EXPIRED": ours.issue("expired", expired=True),
        "FOREIGN": foreign.issue("foreign"),
        "ELSEWHERE": ours.issue("elsewhere", host="elsewhere.example"),
    }
    protocols = {name: "SASL_SSL" if name == "SCRAM" else "SSL" for name in certificates}
    properties = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.mutual.ssl.client.auth": "required",
    }
    for name, certificate in certificates.items():
        properties |= _stores(f"listener.name.{name.lower()}.", certificate, ours)
    with kafka.another(directory / "broker", listeners=protocols, properties=properties) as server:
        _make_users(server.bootstrap_servers)
        yield SecuredKafka(
            server=server, authority=ours, foreign=foreign, client=ours.issue("client")
        )


def _stores(prefix: str, certificate: Certificate, trusted: Authority) -> Mapping[str, str]:
    return {
        f"{prefix}ssl.keystore.type": "PEM",
        f"{prefix}ssl.keystore.location": str(certificate.bundle),
        f"{prefix}ssl.truststore.type": "PEM",
        f"{prefix}ssl.truststore.location": str(trusted.file),
    }


def _make_users(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users = [
        UserScramCredentialUpsertion(user, scram, password.encode())
        for user, password in PASSWORDS.items()
    ]
    for made in admin.alter_user_scram_credentials(users).values():
        made.result(30)
