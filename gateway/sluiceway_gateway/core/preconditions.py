"""Preconditions of requests: tags in `If-Match` and `If-None-Match`. Pure."""

import re
from dataclasses import dataclass

from sluiceway_gateway.core.errors import PreconditionFailed

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


@dataclass(frozen=True, kw_only=True)
class Precondition:
    """The tags of `If-Match` and `If-None-Match`; None without the header, ("*",) for any."""

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None

    @classmethod
    def of(cls, *, if_match: str | None, if_none_match: str | None) -> "Precondition":
        """Parse the headers; foreign tags never match."""
        return cls(
            if_match=None if if_match is None else _tags(if_match, weak=False),
            if_none_match=None if if_none_match is None else _tags(if_none_match, weak=True),
        )

    def names(self, tag: str) -> bool:
        """Return whether `If-None-Match` names this tag, which may be weak."""
        named = self.if_none_match
        return named is not None and ("*" in named or tag.removeprefix("W/") in named)

    def check(self, tag: str | None) -> None:
        """Raise PreconditionFailed unless the channel with this tag (None: creation) may change."""
        if self.if_match is not None and not self._matches(self.if_match, tag):
            state = "does not exist" if tag is None else f"is at {tag}"
            raise PreconditionFailed(
                f"The channel {state}, which If-Match does not name; read it again."
            )
        if tag is not None and self.names(tag):
            raise PreconditionFailed(
                "The channel exists already, which If-None-Match excludes; "
                "leave the header out to change it."
            )

    @staticmethod
    def _matches(named: tuple[str, ...], tag: str | None) -> bool:
        if tag is None:
            return False
        own = tag.rpartition(".")[0]
        return "*" in named or any(other.rpartition(".")[0] == own for other in named)


def _tags(header: str, *, weak: bool) -> tuple[str, ...]:
    if header.strip() == "*":
        return ("*",)
    matches = _TAG.finditer(header)
    return tuple(f'"{match[2]}"' for match in matches if weak or not match[1])
