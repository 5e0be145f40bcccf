"""Entity tags: `"{uid8}.{generation}.{revision}"`.

`If-None-Match` compares whole tags, which any change replaces. `If-Match` compares only uid and
generation, so that the gateway's own status updates do not fail clients' changes. Lists of
endpoints have `"{uid8}.e{revision}"` with their own revision. A channel's status has the weak tag
`W/"{uid8}.s…"` with all revisions; the time of the last sample is not part of it.
"""

import re
from dataclasses import dataclass

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.errors import PreconditionFailed

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


def etag(channel: Channel) -> str:
    """Return the quoted tag of a channel."""
    return f'"{channel.uid[:8]}.{channel.generation}.{channel.revision}"'


def endpoints_etag(channel: Channel, revision: int) -> str:
    """Return the quoted tag of a channel's list of endpoints."""
    return f'"{channel.uid[:8]}.e{revision}"'


def status_etag(
    uid: str, *, generation: int, revision: int, endpoints_revision: int, samples_revision: int
) -> str:
    """Return the quoted tag of a channel's status, without `W/`."""
    revisions = f"{generation}.{revision}.{endpoints_revision}.{samples_revision}"
    return f'"{uid[:8]}.s{revisions}"'


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

    def unchanged(self, channel: Channel) -> bool:
        """Return whether `If-None-Match` names the channel's tag."""
        return self.names(etag(channel))

    def names(self, tag: str) -> bool:
        """Return whether `If-None-Match` names this tag."""
        named = self.if_none_match
        return named is not None and ("*" in named or tag in named)

    def check(self, channel: Channel | None) -> None:
        """Raise PreconditionFailed unless `channel` (None: creation) may be changed."""
        if self.if_match is not None and not self._matches(self.if_match, channel):
            state = "does not exist" if channel is None else f"is at {etag(channel)}"
            raise PreconditionFailed(
                f"The channel {state}, which If-Match does not name; read it again."
            )
        if channel is not None and self.unchanged(channel):
            raise PreconditionFailed(
                "The channel exists already, which If-None-Match excludes; "
                "leave the header out to change it."
            )

    @staticmethod
    def _matches(named: tuple[str, ...], channel: Channel | None) -> bool:
        if channel is None:
            return False
        own = etag(channel).rpartition(".")[0]
        return "*" in named or any(each.rpartition(".")[0] == own for each in named)


def _tags(header: str, *, weak: bool) -> tuple[str, ...]:
    if header.strip() == "*":
        return ("*",)
    found = _TAG.finditer(header)
    return tuple(f'"{each[2]}"' for each in found if weak or not each[1])
