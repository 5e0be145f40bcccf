"""Bearer tokens: where they come from, and how requests carry them."""

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sluiceway.errors import OptionError


@dataclass(frozen=True)
class Token:
    """A bearer token, whose text is in no `repr`: error reporters render the locals of frames."""

    _text: str = field(repr=False)

    @classmethod
    def of(cls, given: "str | Token | None") -> "Token | None":
        """Return what was given as a token, unchecked."""
        return Token(given) if isinstance(given, str) else given

    def checked(self, name: str) -> "Token":
        """Return it without white space around it; OptionError for what cannot be a token."""
        bare = Token(self._text.strip())
        if not bare._fits():
            raise OptionError(f"{name} holds no token; one looks like slw_ID_SECRET")
        return bare

    def authorize(self, request: httpx.Request) -> httpx.Request:
        """Put it into a request."""
        request.headers["Authorization"] = f"Bearer {self._text}"
        return request

    def _fits(self) -> bool:
        text = self._text
        return bool(text) and text.isascii() and text.isprintable() and " " not in text


class TokenSource:
    """A token given by the caller, or found in SLUICEWAY_TOKEN or SLUICEWAY_TOKEN_FILE.

    `current()` is what to send, None for no token. `refresh()` looks again, since tokens in files
    are replaced while jobs run, and tells whether there is another one now.
    """

    def __init__(self, token: Token | None = None) -> None:
        self.given = token
        self._token = self._found()

    @property
    def origin(self) -> Hashable:
        """Where the token comes from, the same while a file's content changes."""
        variable = Token.of(os.environ.get("SLUICEWAY_TOKEN"))
        return (self.given, variable, os.environ.get("SLUICEWAY_TOKEN_FILE"))

    def current(self) -> Token | None:
        """Return the token."""
        return self._token

    def refresh(self) -> bool:
        """Look for the token again; True: it is not the one from before."""
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
                f"the file {path} of SLUICEWAY_TOKEN_FILE cannot be read: {error}"
            ) from error


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of a foreign failure, and of what it came of.

    Reporters render the locals of every frame. Those of HTTP's have the token, as it was sent;
    those of a parser what the gateway answered, and those of Kafka's clients how to get in.
    """
    chain = [error]
    for each in chain:
        each.__traceback__ = None
        chain += [it for it in (each.__cause__, each.__context__) if it and it not in chain]


__all__ = ["Token", "TokenSource", "forget_frames"]
