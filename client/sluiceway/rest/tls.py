"""Explanations of refused TLS certificates, of the gateway and of Kafka's brokers.

Loads no httpx, as the gateway imports it.
"""

import socket
import ssl

__all__ = ["certificate_fault", "speaks_tls"]

_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
_OTHER_HOST = frozenset({62, 64})


def certificate_fault(error: ssl.SSLCertVerificationError, host: str, trust: str) -> str:
    """Explain a refused certificate of `host`; `trust` names the setting for CA certificates."""
    match error.verify_code:
        case code if code == _EXPIRED:
            return f"the certificate of {host} has expired; renew it on the server"
        case code if code == _NOT_YET_VALID:
            return f"the certificate of {host} is not valid yet; compare the clocks"
        case code if code in _UNKNOWN_AUTHORITY:
            return (
                f"the certificate of {host} is not signed by a trusted authority; set {trust} to "
                "the authority that signed it"
            )
        case code if code in _OTHER_HOST:
            return (
                f"the certificate of {host} is for another host; use a name in it, or have it "
                "issued for this one"
            )
    return f"the certificate of {host} is refused: {error.verify_message}"


def speaks_tls(host: str, port: int, timeout_s: float) -> bool | None:
    """Return whether the server uses TLS, with any certificate; None on a timeout.

    Nothing is sent after the handshake.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout_s) as plain, context.wrap_socket(plain):
            return True
    except TimeoutError:
        return None
    except OSError:
        return False
