"""Certificates made for a test: an authority, and what it signs."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


class Authority:
    """A certificate authority; `pem` is what those who trust it are given, `file` its path."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.now(UTC)
        self._certificate = (
            self._builder(self._name, self._key, begin=now - _DAY, end=now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = directory / "authority.pem"
        self.file.write_text(_pem(self._certificate))
        self.pem = self.file.read_text()

    def issue(self, name: str, *, host: str = "127.0.0.1", expired: bool = False) -> "Certificate":
        """Sign a certificate for a server at this address or host, or for a client's name."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(UTC) + (-_DAY if expired else 30 * _DAY)
        try:
            place: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            place = x509.DNSName(host)
        certificate = (
            self._builder(_name(name), key, begin=end - 31 * _DAY, end=end)
            .add_extension(x509.SubjectAlternativeName([place]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return Certificate(self._directory / name, _pem(certificate) + self.pem, _key_pem(key))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        begin: datetime,
        end: datetime,
    ) -> x509.CertificateBuilder:
        issuer, public = self._key.public_key(), key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False
            )
        )


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


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the key as PKCS#8, the one form that Kafka reads."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
