"""TLS: trusted authorities, and explanations of refused certificates, also of Kafka's brokers.

Loads no httpx, as the gateway imports it.
"""

import socket
import ssl

from sluiceway.errors import OptionError

__all__ = ["certificate_fault", "speaks_tls", "tls_error", "trusted"]

_FAULTS = {
    9: "is not valid yet; compare the clocks",
    10: "has expired; renew it on the server",
    **dict.fromkeys(
        (2, 18, 19, 20, 21),
        "is not signed by a trusted authority; set {trust} to the authority that signed it",
    ),
    **dict.fromkeys(
        (62, 64), "is for another host; use a name in it, or have it issued for this one"
    ),
}
"""The reasons of refused certificates, by OpenSSL's codes."""


def trusted(url: str, ca: str | None) -> ssl.SSLContext | bool:
    """Return what httpx trusts at `url`: the authorities in the file `ca`, by default the system's.

    Raises OptionError.
    """
    if ca is None and url.startswith("http:"):
        # Plain HTTP needs no authorities, and reading the system's ones takes 20 ms.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"the file {ca!r} has no usable CA certificates: {error}") from error


def tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error in the chain of causes, if any."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def certificate_fault(error: ssl.SSLCertVerificationError, host: str, trust: str) -> str:
    """Explain a refused certificate of `host`; `trust` names the setting for CA certificates."""
    template = _FAULTS.get(error.verify_code)
    fault = (
        f"is refused: {error.verify_message}" if template is None else template.format(trust=trust)
    )
    return f"the certificate of {host} {fault}"


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
