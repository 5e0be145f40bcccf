"""Bearer tokens: their sources, and the Authorization header."""

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sluiceway.errors import OptionError


@dataclass(frozen=True)
class Token:
    """A bearer token. Its text is in no `repr`, as error reporters render the locals of frames."""

    _text: str = field(repr=False)

    @classmethod
    def of(cls, given: "str | Token | None") -> "Token | None":
        """Return the argument as a token, unchecked."""
        return Token(given) if isinstance(given, str) else given

    def checked(self, name: str) -> "Token":
        """Return the token without surrounding space. Raises OptionError if it cannot be one."""
        bare = Token(self._text.strip())
        if not bare._is_valid():
            raise OptionError(f"{name} does not contain a token, such as slw_ID_SECRET")
        return bare

    def authorize(self, request: httpx.Request) -> httpx.Request:
        """Add the Authorization header to a request."""
        request.headers["Authorization"] = f"Bearer {self._text}"
        return request

    def _is_valid(self) -> bool:
        text = self._text
        return bool(text) and text.isascii() and text.isprintable() and " " not in text


class TokenSource:
    """The caller's token, or else that of SLUICEWAY_TOKEN or SLUICEWAY_TOKEN_FILE.

    `refresh()` reads it again, as tokens in files are replaced while jobs run.
    """

    def __init__(self, token: Token | None = None) -> None:
        self.given = token
        self._token = self._found()

    @property
    def origin(self) -> Hashable:
        """The source of the token; it stays equal when the content of a file changes."""
        variable = Token.of(os.environ.get("SLUICEWAY_TOKEN"))
        return (self.given, variable, os.environ.get("SLUICEWAY_TOKEN_FILE"))

    def current(self) -> Token | None:
        """Return the token to send, or None."""
        return self._token

    def refresh(self) -> bool:
        """Read the token again; return whether it changed."""
        before, self._token = self._token, self._found()
        return self._token != before

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


__all__ = ["Token", "TokenSource", "clear_tracebacks"]
