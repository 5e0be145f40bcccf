"""Authentication: bearer tokens, and explanations of refused TLS certificates.

Loads no httpx, as the gateway imports it for Kafka's certificates.
"""

import os
import socket
import ssl
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sluiceway.errors import OptionError

if TYPE_CHECKING:
    import httpx

__all__ = ["Token", "TokenSource", "certificate_fault", "clear_tracebacks", "speaks_tls"]


@dataclass(frozen=True)
class Token:
    """A bearer token. Its `repr` hides the text, because error reporters render locals."""

    _text: str = field(repr=False)

    @classmethod
    def of(cls, given: "str | Token | None") -> "Token | None":
        """Return the argument as a token, unchecked. Raises OptionError for another type."""
        if given is None or isinstance(given, Token):
            return given
        if not isinstance(given, str):
            raise OptionError(f"token is of the type {type(given).__name__}; it takes a str")
        return Token(given)

    def checked(self, name: str) -> "Token":
        """Return the token without surrounding space. Raises OptionError if it cannot be one."""
        bare = Token(self._text.strip())
        if not bare._is_valid():
            raise OptionError(f"{name} does not contain a token, such as slw_ID_SECRET")
        return bare

    def authorize(self, request: "httpx.Request") -> "httpx.Request":
        """Add the Authorization header to a request."""
        request.headers["Authorization"] = f"Bearer {self._text}"
        return request

    def _is_valid(self) -> bool:
        text = self._text
        return bool(text) and text.isascii() and text.isprintable() and " " not in text


class TokenSource:
    """The caller's token, or else the one of SLUICEWAY_TOKEN or SLUICEWAY_TOKEN_FILE.

    `current` is the token to send, or None. `refresh` reads it again, because token files may be
    replaced while jobs run.
    """

    def __init__(self, token: Token | None = None) -> None:
        self.given = token
        self.current = self._found()

    @property
    def origin(self) -> Hashable:
        """The source of the token; it stays equal when the content of a file changes."""
        variable = Token.of(os.environ.get("SLUICEWAY_TOKEN"))
        return (self.given, variable, os.environ.get("SLUICEWAY_TOKEN_FILE"))

    def refresh(self, rejected: Token | None) -> bool:
        """Read the token again; return whether it differs from the rejected one."""
        self.current = self._found()
        return self.current != rejected

    def _found(self) -> Token | None:
        if self.given is not None:
            return self.given.checked("token")
        if os.environ.get("SLUICEWAY_TOKEN"):
            return Token(os.environ["SLUICEWAY_TOKEN"]).checked("SLUICEWAY_TOKEN")
        path = os.environ.get("SLUICEWAY_TOKEN_FILE")
        if not path:
            return None
        try:
            return Token(Path(path).read_text(encoding="utf-8")).checked("SLUICEWAY_TOKEN_FILE")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(
                f"the file {path} in SLUICEWAY_TOKEN_FILE cannot be read: {error}"
            ) from error


def clear_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of a foreign exception and of its causes.

    Error reporters render the locals of every frame: those of httpx contain the token, those of a
    parser the response, and those of Kafka clients credentials.
    """
    chain = [error]
    for each in chain:
        each.__traceback__ = None
        chain += [e for e in (each.__cause__, each.__context__) if e and e not in chain]


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
