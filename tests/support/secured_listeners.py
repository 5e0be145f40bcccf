"""Listeners of a broker for each way to be let in, or not, and the certificates that they show."""

from pathlib import Path

from certificates import Authority, Certificate

PROTOCOLS = {
    "SCRAM": "SASL_SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "FOREIGN": "SSL",
    "ELSEWHERE": "SSL",
}
"""SCRAM takes a password over TLS, MUTUAL a client's certificate; the others' own are no good."""

OURS, FOREIGN = "ours", "other"
"""Where the authority is that the broker trusts, and where another one, among its certificates."""


def properties(directory: Path) -> dict[str, str]:
    """Make the certificates in this directory, and return the properties of the listeners."""
    ours = Authority.made(directory / OURS, "ours")
    foreign = Authority.made(directory / FOREIGN, "other")
    certificates = {
        "SCRAM": ours.issue("scram"),
        "MUTUAL": ours.issue("mutual"),
        "EXPIRED": ours.issue("expired", expired=True),
        "FOREIGN": foreign.issue("foreign"),
        "ELSEWHERE": ours.issue("elsewhere", host="elsewhere.example"),
    }
    needed = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.mutual.ssl.client.auth": "required",
    }
    for name, certificate in certificates.items():
        needed |= _stores(f"listener.name.{name.lower()}.", certificate, ours)
    return needed


def _stores(prefix: str, certificate: Certificate, trusted: Authority) -> dict[str, str]:
    return {
        f"{prefix}ssl.keystore.type": "PEM",
        f"{prefix}ssl.keystore.location": str(certificate.bundle),
        f"{prefix}ssl.truststore.type": "PEM",
        f"{prefix}ssl.truststore.location": str(trusted.file),
    }
