"""The run's broker by its secured listeners: their users, and what clients need for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from certificates import Authority, Certificate
from secured_listeners import FOREIGN, OURS
from shared_kafka import SharedKafka
from sluiceway.rest.models import Connection

PASSWORDS = {"gateway": "pw-gateway-5f3a", "job": "pw-job-71cc"}


@dataclass(frozen=True, kw_only=True)
class SecuredKafka:
    """The broker, whom it trusts, and what each kind of client needs to be let in."""

    broker: SharedKafka
    authority: Authority
    foreign: Authority
    client: Certificate

    def scram(self, user: str = "job", **others: str) -> dict[str, str]:
        """Return what a user needs; keywords are further properties, `_` for `.`."""
        return {
            "bootstrap.servers": self.broker.secured["SCRAM"],
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
            "bootstrap.servers": self.broker.secured[listener],
            "security.protocol": "SSL",
            "ssl.ca.pem": self.authority.pem,
            **{name.replace("_", "."): value for name, value in others.items()},
        }

    def mutual(self) -> dict[str, str]:
        """Return what reaches MUTUAL."""
        return self.tls("MUTUAL", ssl_certificate_pem=self.client.pem, ssl_key_pem=self.client.key)


def secured_kafka(broker: SharedKafka) -> SecuredKafka:
    """Make the users at the run's broker, and find what it was given for its clients."""
    _make_users(broker.bootstrap_servers)
    directory = Path(broker.certificates)
    ours = Authority(directory / OURS)
    return SecuredKafka(
        broker=broker,
        authority=ours,
        foreign=Authority(directory / FOREIGN),
        client=ours.issue("client"),
    )


def _make_users(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users = [
        UserScramCredentialUpsertion(user, scram, password.encode())
        for user, password in PASSWORDS.items()
    ]
    for made in admin.alter_user_scram_credentials(users).values():
        made.result(30)


def connection(kafka: Mapping[str, str]) -> Connection:
    """Return the connection to a topic that nobody will reach."""
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    return Connection(
        channel_name="readings",
        channel_uid="0" * 32,
        generation=1,
        format="avro",
        schema_id=1,
        schema_definition=definition,
        topic_name="t",
        topic_id=None,
        partitions=1,
        max_message_bytes=1_000_000,
        kafka=kafka,
    )


#: Properties with which Kafka refuses a client, and what the error says.
MISFITS: dict[str, tuple[Callable[[SecuredKafka], Mapping[str, str]], str]] = {
    "wrong password": (
        lambda kafka: kafka.scram(sasl_password="wrong"),
        "invalid credentials.*check sasl.username, sasl.password",
    ),
    "unknown mechanism": (
        lambda kafka: kafka.scram(sasl_mechanism="PLAIN"),
        "supported mechanisms: SCRAM-SHA-512.*check .*sasl.mechanism",
    ),
    "expired certificate": (
        lambda kafka: kafka.tls("EXPIRED"),
        "has expired; renew it",
    ),
    "certificate of a foreign authority": (
        lambda kafka: kafka.tls("FOREIGN"),
        "not signed by a trusted authority; set ssl.ca.pem",
    ),
    "another authority trusted": (
        lambda kafka: kafka.scram(ssl_ca_pem=kafka.foreign.pem),
        "not signed by a trusted authority",
    ),
    "certificate of another host": (
        lambda kafka: kafka.tls("ELSEWHERE"),
        "is for another host; use a name in it",
    ),
    "no certificate of its own": (
        lambda kafka: kafka.tls("MUTUAL"),
        "requires a client certificate.*ssl.certificate.pem and ssl.key.pem",
    ),
    "no password": (
        lambda kafka: kafka.tls("SCRAM"),
        "requires a user and a password, and security.protocol is SSL; set it to SASL_SSL",
    ),
    "TLS to a port without it": (
        lambda kafka: kafka.tls("SCRAM") | {"bootstrap.servers": kafka.broker.bootstrap_servers},
        "speaks without TLS, and security.protocol is SSL; .*set it to PLAINTEXT",
    ),
    "no TLS to a port with it": (
        lambda kafka: {"bootstrap.servers": kafka.broker.secured["SCRAM"]},
        "speaks TLS, and security.protocol is PLAINTEXT; set it to SSL, or to SASL_SSL",
    ),
    "a password without TLS to a port with it": (
        lambda kafka: kafka.scram(security_protocol="SASL_PLAINTEXT"),
        "speaks TLS, and security.protocol is SASL_PLAINTEXT; set it to SASL_SSL",
    ),
}
