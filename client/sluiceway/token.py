"""Where the client's bearer token comes from."""

import os
from pathlib import Path

from sluiceway.errors import OptionError

__all__ = ["TokenSource"]


class TokenSource:
    """A token given by the caller, or found in SLUICEWAY_TOKEN or SLUICEWAY_TOKEN_FILE.

    `current()` is what to send, None for no token. `refresh()` looks again, since tokens in files
    are replaced while jobs run, and tells whether there is another one now.
    """

    def __init__(self, token: str | None = None) -> None:
        self._given = token
        self._token = self._found()

    def current(self) -> str | None:
        """Return the token."""
        return self._token

    def refresh(self) -> bool:
        """Look for the token again; True: it is not the one from before."""
        before, self._token = self._token, self._found()
        return self._token != before

    def __repr__(self) -> str:
        return f"TokenSource({'**********' if self._token else None})"

    def _found(self) -> str | None:
        if self._given is not None:
            return _checked(self._given, "token")
        if token := os.environ.get("SLUICEWAY_TOKEN"):
            return _checked(token, "SLUICEWAY_TOKEN")
        path = os.environ.get("SLUICEWAY_TOKEN_FILE")
        if not path:
            return None
        try:
            return _checked(Path(path).read_text(encoding="utf-8"), "SLUICEWAY_TOKEN_FILE")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(
                f"the file {path} of SLUICEWAY_TOKEN_FILE cannot be read: {error}"
            ) from error


def _checked(token: str, name: str) -> str:
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise OptionError(f"{name} holds no token; one looks like slw_ID_SECRET")
    return token
