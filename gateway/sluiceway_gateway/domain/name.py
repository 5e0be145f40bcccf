"""The rules for channel names."""

import re

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
NAME_LENGTH = 200
RESERVED_PREFIX = "sluiceway."

_NAME = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")


def check_name(name: str) -> str:
    """Return `name` if a channel may have it.

    Raises ValueError saying which rule it breaks.
    """
    if not name:
        raise ValueError("a channel's name cannot be empty")
    if len(name) > NAME_LENGTH:
        raise ValueError(
            f"a channel's name has at most {NAME_LENGTH} characters, this one has {len(name)}"
        )
    if not _NAME.match(name):
        raise ValueError(
            "a channel's name consists of a-z, 0-9, '.', '_' and '-', "
            f"and starts with a letter or a digit: {name!r} does not"
        )
    if name.startswith(RESERVED_PREFIX):
        raise ValueError(
            f"names that start with {RESERVED_PREFIX!r} are reserved: choose another name"
        )
    return name
