"""The gateway's paths."""

import re

from sluiceway.errors import InvalidRequest, OptionError

__all__ = ["channel_path", "group_path"]

_NAME = re.compile(r"[a-z0-9._-]+")
_GROUP = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,199}")


def channel_path(name: str) -> str:
    """Return the path of a channel. Raises InvalidRequest."""
    # What is none of these characters could become another path on the way.
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(
            "a channel's name is made of a-z, 0-9, '.', '_' and '-' and begins with a letter or a "
            f"digit; it is {name!r}"
        )
    return f"/v1/channels/{name}"


def group_path(channel: str, group: str) -> str:
    """Return the path of a group at a channel. Raises InvalidRequest, OptionError."""
    if not isinstance(group, str) or not _GROUP.fullmatch(group):
        raise OptionError(
            "a group's name is made of a-z, A-Z, 0-9, '.', '_' and '-', 200 at most, and begins "
            f"with a letter or a digit; it is {group!r}"
        )
    return f"{channel_path(channel)}/groups/{group}"
