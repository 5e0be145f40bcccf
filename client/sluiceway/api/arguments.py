"""Arguments of callers, checked: the URL, seconds, and names as parts of URL paths."""

import operator
import re
from typing import Any, Final
from urllib.parse import quote

from sluiceway.errors import InvalidRequest, OptionError

__all__ = ["channel_path", "check_seconds", "checked_url", "group_path", "whole_number"]

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_GROUP = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,249}")

_MAX_PORT: Final = 65_535


def checked_url(url: str) -> str:
    """Return the gateway's URL, without `/v1` at its end. Raises OptionError."""
    # The gateway checks names and numbers without it.
    import httpx

    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise OptionError(f"the gateway's URL {url!r} is not valid: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        shown = parsed.copy_with(username=None, password=None)
        raise OptionError(
            f"the gateway's URL is '{shown}'; it must be http://HOST:PORT or https://HOST:PORT, "
            "without a user"
        )
    if parsed.port is not None and not 1 <= parsed.port <= _MAX_PORT:
        raise OptionError(f"the gateway's URL is '{parsed}'; its port must be 1 to {_MAX_PORT}")
    # Request paths already begin with /v1.
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def check_seconds(name: str, seconds: object, least: float = 0) -> None:
    """Raise OptionError unless an argument is a number of seconds, at most a day."""
    if not isinstance(seconds, int | float) or not least <= seconds <= 86_400:
        raise OptionError(f"{name} is {seconds!r}; it takes seconds from {least:g} to 86400")


def whole_number(value: Any, least: int = 0, below: float = float("inf")) -> int | None:
    """Return a whole number as an int, also one of NumPy; None for others, and out of range."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
    return number if number is not None and least <= number < below else None


def channel_path(name: str) -> str:
    """Return the URL path of a channel. Raises InvalidRequest."""
    # Other characters could change the path of the URL.
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(
            f"the channel name is {name!r}; it may contain a-z, A-Z, 0-9, '.', '_' and '-', and "
            "must not be '.' or '..'"
        )
    return f"/v1/channels/{name}"


def group_path(channel: str, group: str) -> str:
    """Return the URL path of a group. Raises InvalidRequest, OptionError."""
    if not isinstance(group, str) or not _GROUP.fullmatch(group):
        raise OptionError(
            f"the group name is {group!r}; it must have 1 to 249 characters, and no control "
            "characters"
        )
    # Proxies and clients resolve "." and ".." in a path.
    segment = group.replace(".", "%2E") if group in (".", "..") else quote(group, safe="")
    return f"{channel_path(channel)}/groups/{segment}"
