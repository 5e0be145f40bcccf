"""The run's broker by its secured listeners: their users, and what clients need for each."""

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
