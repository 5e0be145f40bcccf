"""Names of topics, groups and members: bytes where they are answered, either where they are given.

pykafka names everything in bytes. Text is taken as well, and what is answered is found by either.
"""

from typing import Any, TypeVar

from sluiceway.errors import OptionError

__all__ = ["ByName", "in_bytes", "in_text"]

V = TypeVar("V")


def in_text(name: object, what: str) -> str:
    """Return a name as text; `what` says what it is of. Raises OptionError."""
    if isinstance(name, str):
        return name
    if isinstance(name, bytes | bytearray):
        try:
            return bytes(name).decode()
        except UnicodeDecodeError as error:
            raise OptionError(f"the name of a {what} is UTF-8; it is {name!r}") from error
    raise OptionError(f"the name of a {what} is bytes or str; it is {name!r}")


def in_bytes(name: object, what: str) -> bytes:
    """Return a name as bytes; `what` says what it is of. Raises OptionError."""
    return in_text(name, what).encode()


class ByName(dict[bytes, V]):
    """What is answered by name: the keys are bytes, and are found by text too."""

    def __missing__(self, name: object) -> V:
        if isinstance(name, str):
            return self[name.encode()]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.encode() if isinstance(name, str) else name)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return what is there by this name, or `default`."""
        return super().get(name.encode() if isinstance(name, str) else name, default)
