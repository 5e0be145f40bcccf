"""All channels in use at a glance. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.endpoints.model import Role
from sluiceway_gateway.status.held_back import LedgerSample
from sluiceway_gateway.status.lag import GroupSummary

FAILED = "failed"
"""In place of the health of an endpoint in the state `error`."""


@dataclass(frozen=True, kw_only=True)
class GroupOverview:
    """A group of a channel."""

    role: Role
    name: str
    members: Mapping[str, int] = field(default_factory=dict)
    """Numbers of members by health; closed ones do not count."""
    lag: GroupSummary | None = None
    """Of readers, at the last sample."""


@dataclass(frozen=True, kw_only=True)
class ChannelOverview:
    """A channel that is in use."""

    name: str
    sampled_at: datetime | None
    write_rate: float | None
    ledger: LedgerSample | None = None
    """Of an exactly-once channel, at the last sample."""
    groups: tuple[GroupOverview, ...]


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The channels that are in use, by name, as far as a limit allows."""

    phases: Mapping[Phase, int]
    """Numbers of all channels by phase."""
    channels: tuple[ChannelOverview, ...]
    omitted: int
    """Channels that are left out, or some groups of which are."""
