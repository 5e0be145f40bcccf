"""Names of channels, topics and groups, and limits of numbers in requests. Pure."""

import re

MAX_PARTITIONS = 10_000
MAX_GROUP_SIZE = 10_000

NAME_PATTERN = r"^[a-zA-Z0-9._-]+$"
TOPIC_LENGTH = 249
_UID_LENGTH = 8
NAME_LENGTH = TOPIC_LENGTH - 1 - _UID_LENGTH
"""Maximum length of a name: the topic's name is the prefix, the name, `-` and a part of the uid."""
RESERVED_PREFIX = "sluiceway."

TOPIC_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"
_TOPIC = re.compile(TOPIC_PATTERN.removesuffix("$") + r"\Z")
_NAME = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")


def topic_name(prefix: str, name: str, uid: str) -> str:
    """Return the name of the channel's own topic."""
    return f"{prefix}{name}-{uid[:_UID_LENGTH]}"


def longest_name(prefix: str) -> int:
    """Return the maximum length of the name of a channel with an owned topic."""
    return NAME_LENGTH - len(prefix)


def check_name(name: str) -> str:
    """Return a valid channel name; raises ValueError naming the broken rule."""
    if not name:
        raise ValueError("a channel's name cannot be empty")
    if len(name) > NAME_LENGTH:
        raise ValueError(
            f"a channel's name has at most {NAME_LENGTH} characters, this one has {len(name)}"
        )
    if not _NAME.match(name) or name in (".", ".."):
        raise ValueError(
            "a channel's name consists of a-z, A-Z, 0-9, '.', '_' and '-', and is not '.' or '..': "
            f"{name!r} is not one"
        )
    if name.startswith(RESERVED_PREFIX):
        raise ValueError(
            f"names that start with {RESERVED_PREFIX!r} are reserved: choose another name"
        )
    return name


def check_topic(name: str) -> str:
    """Return a topic name that may be adopted; raises ValueError naming the broken rule."""
    if not _TOPIC.match(name) or name in (".", ".."):
        raise ValueError(
            "a topic's name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-': "
            f"{name[:250]!r} is not one"
        )
    if name.startswith("__"):
        raise ValueError(f"the topic {name!r} is one of Kafka's own: adopt another one")
    return name


GROUP_LENGTH = 249
"""Maximum length of a group's name: at most 996 bytes, which fit into an index of PostgreSQL."""
# UTF-8 has no surrogates.
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_group(name: str) -> str:
    """Return a valid group name; raises ValueError naming the broken rule."""
    return _checked(name, "a group's name")


def check_static_id(name: str) -> str:
    """Return a valid static id; raises ValueError naming the broken rule."""
    return _checked(name, "a static id")


def _checked(name: str, what: str) -> str:
    if not 1 <= len(name) <= GROUP_LENGTH:
        raise ValueError(f"{what} has 1 to {GROUP_LENGTH} characters, this one has {len(name)}")
    if _REFUSED.search(name):
        raise ValueError(f"{what} cannot contain control characters, as {name!r} does")
    return name
