"""Bind addresses: loopback without tokens, anything else with tokens and TLS."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from sluiceway_gateway.errors import BindRefused


def check_bind(host: str, *, has_tokens: bool, tls: bool) -> None:
    """Return if the gateway may listen on `host`; raises BindRefused saying what is missing.

    `has_tokens`: a token was ever made. `tls`: it speaks TLS, or a proxy does for it.
    """
    if is_loopback(host):
        return
    if not has_tokens:
        raise BindRefused(
            f"without tokens the gateway listens on loopback only, not on {host!r}: "
            "make one with `sluiceway token create`, or set SLUICEWAY_HOST=127.0.0.1"
        )
    if not tls:
        raise BindRefused(
            f"tokens would go over the network in clear on {host!r}: set "
            "SLUICEWAY_TLS_CERTIFICATE_FILE and SLUICEWAY_TLS_KEY_FILE, or "
            "SLUICEWAY_TLS_BY_PROXY=1 if a proxy speaks TLS"
        )


def is_loopback(host: str) -> bool:
    """Whether this address or name is loopback."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_loopback_authority(authority: str) -> bool:
    """Whether `HOST[:PORT]`, as in a Host header, names loopback.

    A page that a browser loaded from elsewhere keeps its own name here, even
    where that name resolves to 127.0.0.1.
    """
    try:
        parts = urlsplit(f"//{authority}")
        host, _port = parts.hostname, parts.port
    except ValueError:
        return False
    plain = parts.netloc == authority and parts.username is None and not parts.path
    return plain and host is not None and is_loopback(host)
