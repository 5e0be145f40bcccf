"""The broker's secured listeners: certificates, users, and properties of clients."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shared_kafka import SharedKafka


class Certificate:
    """A certificate with its key: as texts, as two files, and as one `bundle` (key first)."""

    def __init__(self, stem: Path, pem: str, key: str) -> None:
        self.pem, self.key = pem, key
        self.file, self.key_file, self.bundle = (
            stem.with_suffix(suffix) for suffix in (".pem", ".key", ".bundle")
        )
        self.file.write_text(pem)
        self.key_file.write_text(key)
        self.bundle.write_text(key + pem)


class Authority:
    """A certificate authority; `pem` is its certificate, and `file` the path of the certificate.

    Other processes can load it from its directory with its key, and sign certificates.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.file = directory / "authority.pem"
        self.pem = self.file.read_text()
        self._name = x509.load_pem_x509_certificate(self.pem.encode()).subject
        key = serialization.load_pem_private_key((directory / "authority.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    @classmethod
    def create(cls, directory: Path, name: str) -> "Authority":
        """Create an authority with this name in a directory."""
        directory.mkdir(parents=True, exist_ok=True)
        Certificate(directory / "authority", *_signed(name))
        return cls(directory)

    def issue(self, name: str, *, host: str = "127.0.0.1", expired: bool = False) -> Certificate:
        """Sign a certificate of a server at this address or host, or of a client."""
        address = host[0].isdigit()
        alternative = x509.IPAddress(ip_address(host)) if address else x509.DNSName(host)
        pem, key = _signed(
            name,
            x509.SubjectAlternativeName([alternative]),
            issuer=(self._name, self._key),
            lasts_days=-1 if expired else 30,
        )
        return Certificate(self._directory / name, pem + self.pem, key)


def _signed(
    name: str,
    *extensions: x509.ExtensionType,
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
    lasts_days: int = 30,
) -> tuple[str, str]:
    """Return a certificate and its key; without an issuer, that of an authority.

    The key is in PKCS#8, the only form that Kafka reads.
    """
    key, subject = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name.from_rfc4514_string(f"CN={name}"),
    )
    authority = issuer is None
    signer, signing_key = issuer or (subject, key)
    end = datetime.now(UTC) + timedelta(days=lasts_days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=31))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
        .add_extension(
            x509.KeyUsage(not authority, *[False] * 4, authority, authority, *[False] * 2),
            critical=True,
        )
    )
    public, signing = key.public_key(), signing_key.public_key()
    for extension in (
        x509.SubjectKeyIdentifier.from_public_key(public),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signing),
        *extensions,
    ):
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(signing_key, hashes.SHA256())
    encoding = serialization.Encoding.PEM
    pkcs8, clear = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return (
        certificate.public_bytes(encoding).decode(),
        key.private_bytes(encoding, pkcs8, clear).decode(),
    )


PROTOCOLS = {
    "SCRAM": "SASL_SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "FOREIGN": "SSL",
    "ELSEWHERE": "SSL",
}
"""SCRAM needs a password, MUTUAL a client certificate; the others have invalid certificates."""

OURS, FOREIGN = "ours", "other"
"""Directories of the authority that the broker trusts, and of a foreign one."""


def listener_properties(directory: Path) -> dict[str, str]:
    """Create certificates in a directory, and return the properties of the secured listeners."""
    ours = Authority.create(directory / OURS, "ours")
    foreign = Authority.create(directory / FOREIGN, "other")
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


@dataclass(frozen=True, kw_only=True)
class SecuredKafka:
    """The broker, its trusted authority, and the properties of each kind of client."""

    broker: SharedKafka
    authority: Authority
    foreign: Authority
    client: Certificate

    def scram(self, user: str = "job", **others: str) -> dict[str, str]:
        """Return the properties of a user, and `others`, where `_` stands for `.`."""
        return {
            **self.tls("SCRAM"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
            **{name.replace("_", "."): value for name, value in others.items()},
        }

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
    _create_users(broker.bootstrap_servers)
    directory = Path(broker.certificates)
    ours = Authority(directory / OURS)
    foreign = Authority(directory / FOREIGN)
    return SecuredKafka(broker=broker, authority=ours, foreign=foreign, client=ours.issue("client"))


def _create_users(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users = [
        UserScramCredentialUpsertion(user, scram, password.encode())
        for user, password in PASSWORDS.items()
    ]
    for result in admin.alter_user_scram_credentials(users).values():
        result.result(30)
