"""The rules for the names of channels, and of topics to adopt."""

import re

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
NAME_LENGTH = 200
RESERVED_PREFIX = "sluiceway."

TOPIC_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"

_TOPIC = re.compile(TOPIC_PATTERN.removesuffix("$") + r"\Z")
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


def check_topic(name: str) -> str:
    """Return `name` if it can be that of a topic to adopt.

    Raises ValueError saying which rule it breaks.
    """
    if not _TOPIC.match(name) or name in (".", ".."):
        raise ValueError(
            "a topic's name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-': "
            f"{name[:250]!r} does not"
        )
    if name.startswith("__"):
        raise ValueError(f"the topic {name!r} is one of Kafka's own: adopt another one")
    return name
