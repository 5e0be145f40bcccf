"""The names of pypz, of any characters, made into names that a gateway takes."""

import hashlib
import re

__all__ = ["channel_name", "group_name"]

_CHANNEL = re.compile(r"(?!sluiceway\.)[a-z0-9][a-z0-9._-]{0,199}")
_GROUP = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,199}")
_LONGEST = 180


def channel_name(name: str) -> str:
    """Return the channel's name at the gateway: the same, where it can be a channel's name.

    Others (of capital letters, say) get a mark made of the whole name, so that no two of them
    meet in one channel.
    """
    return name if _CHANNEL.fullmatch(name) else _marked(name, name.lower(), "a-z0-9")


def group_name(name: str) -> str:
    """Return the group's name at the gateway, by the same rule; groups may have capitals."""
    return name if _GROUP.fullmatch(name) else _marked(name, name, "a-zA-Z0-9")


def _marked(name: str, near: str, characters: str) -> str:
    kept = re.sub(rf"[^{characters}._-]", "-", near)[:_LONGEST].lstrip("._-")
    mark = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{kept.replace('sluiceway.', 'sluiceway-', 1) or 'pypz'}-{mark}"
