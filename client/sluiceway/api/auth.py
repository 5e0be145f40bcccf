"""Bearer tokens: checks, and their sources."""

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sluiceway.errors import OptionError

__all__ = ["Token", "TokenSource"]


@dataclass(frozen=True)
class Token:
    """A bearer token. Its `repr` hides the text, because error reporters render locals."""

    _text: str = field(repr=False)

    @classmethod
    def of(cls, token: "str | Token | None") -> "Token | None":
        """Return the argument as a token, unchecked. Raises OptionError for another type."""
        if token is None or isinstance(token, Token):
            return token
        if not isinstance(token, str):
            raise OptionError(f"token is of the type {type(token).__name__}; it takes a str")
        return Token(token)

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
    """The caller's token, or else the one of SLUICEWAY_TOKEN or SLUICEWAY_TOKEN_FILE.

    `current` is the token to send, or None. `refresh` reads it again, because token files may be
    replaced while jobs run.
    """

    def __init__(self, token: Token | None = None) -> None:
        self.argument = token
        self.current = self._read()

    @property
    def origin(self) -> Hashable:
        """The source of the token; it stays equal when the content of a file changes."""
        variable = Token.of(os.environ.get("SLUICEWAY_TOKEN"))
        return (self.argument, variable, os.environ.get("SLUICEWAY_TOKEN_FILE"))

    def refresh(self, rejected: Token | None) -> bool:
        """Read the token again; return whether it differs from the rejected one."""
        self.current = self._read()
        return self.current != rejected

    def _read(self) -> Token | None:
        if self.argument is not None:
            return self.argument.checked("token")
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
