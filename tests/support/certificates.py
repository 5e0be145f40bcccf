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
    """A certificate authority; `pem` is what those who trust it are given, `file` its path.

    It is found in its directory, where its key is too: what one process made signs in others.
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
    def made(cls, directory: Path, name: str) -> "Authority":
        """Make an authority of this name in its directory."""
        directory.mkdir(parents=True, exist_ok=True)
        key, own, now = ec.generate_private_key(ec.SECP256R1()), _name(name), datetime.now(UTC)
        certificate = (
            _builder(own, key, issuer=own, issuer_key=key, end=now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        Certificate(directory / "authority", _pem(certificate), _key_pem(key))
        return cls(directory)

    def issue(self, name: str, *, host: str = "127.0.0.1", expired: bool = False) -> "Certificate":
        """Sign a certificate for a server at this address or host, or for a client's name."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(UTC) + (-_DAY if expired else 30 * _DAY)
        try:
            place: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            place = x509.DNSName(host)
        certificate = (
            _builder(_name(name), key, issuer=self._name, issuer_key=self._key, end=end)
            .add_extension(x509.SubjectAlternativeName([place]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return Certificate(self._directory / name, _pem(certificate) + self.pem, _key_pem(key))


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


def _builder(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    end: datetime,
) -> x509.CertificateBuilder:
    by, public = issuer_key.public_key(), key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 31 * _DAY)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by), critical=False)
    )


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
