"""Points of the lag history, and their merging into coarser resolutions. Pure.

A point covers an interval: its lag is the maximum, its rates are means.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field

from sluiceway_gateway.status.lag import GroupSummary, lag_seconds, rounded

MAX_GROUPS = 50
"""Maximum groups of a point and of a response: those with the largest lag."""


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """An interval between points, and the time for which points are kept."""

    step_s: int
    kept_s: int

    @property
    def slots(self) -> int:
        """The number of points that are kept."""
        return self.kept_s // self.step_s

    def start(self, at_s: float) -> int:
        """Return the start of the interval that has this time."""
        return int(at_s // self.step_s) * self.step_s

    def slot(self, at_s: int) -> int:
        """Return the slot of an interval; a later interval takes the slot of an expired one."""
        return at_s // self.step_s % self.slots


RESOLUTIONS = (
    Resolution(step_s=10, kept_s=20 * 60),
    Resolution(step_s=60, kept_s=2 * 60 * 60),
    Resolution(step_s=300, kept_s=25 * 60 * 60),
)
"""The finest first."""
FINEST = RESOLUTIONS[0]


@dataclass(frozen=True, kw_only=True)
class GroupPoint:
    """A group in an interval. None is unknown."""

    lag_messages: int | None
    lag_seconds: float | None
    lag_seconds_at_least: bool
    """Whether `lag_seconds` is a lower bound."""
    read_rate: float | None
    """Messages per second."""


_UNKNOWN = GroupPoint(
    lag_messages=None, lag_seconds=None, lag_seconds_at_least=False, read_rate=None
)


@dataclass(frozen=True, kw_only=True)
class HistoryPoint:
    """A channel in an interval."""

    at_s: int
    """The start of the interval, in Unix time."""
    write_rate: float | None
    """Messages per second; None is unknown."""
    groups: Mapping[str, GroupPoint]


def point_of(
    at: datetime, *, write_rate: float | None, groups: Mapping[str, GroupSummary]
) -> HistoryPoint:
    """Return the point of a sample, at the finest resolution."""
    points = {name: _group_point(at, summary) for name, summary in groups.items()}
    return HistoryPoint(
        at_s=FINEST.start(at.timestamp()), write_rate=rounded(write_rate), groups=_largest(points)
    )


def _group_point(at: datetime, group: GroupSummary) -> GroupPoint:
    return GroupPoint(
        lag_messages=group.lag_messages,
        lag_seconds=lag_seconds(at, group.behind_since, group.lag_messages),
        lag_seconds_at_least=group.behind_or_before,
        read_rate=rounded(group.read_rate),
    )


def merged(points: Iterable[HistoryPoint], resolution: Resolution) -> list[HistoryPoint]:
    """Merge points of finer resolutions into those of this one, in the order of time."""
    intervals: dict[int, list[HistoryPoint]] = defaultdict(list)
    for point in points:
        intervals[resolution.start(point.at_s)].append(point)
    return [_merged(at_s, intervals[at_s]) for at_s in sorted(intervals)]


def _merged(at_s: int, points: Sequence[HistoryPoint]) -> HistoryPoint:
    groups: dict[str, list[GroupPoint]] = defaultdict(list)
    for point in points:
        for name, group_point in point.groups.items():
            groups[name].append(group_point)
    return HistoryPoint(
        at_s=at_s,
        write_rate=_mean(point.write_rate for point in points),
        groups=_largest(
            {name: _merged_group(group_points) for name, group_points in groups.items()}
        ),
    )


def _merged_group(points: Sequence[GroupPoint]) -> GroupPoint:
    oldest = max(points, key=lambda point: -1.0 if point.lag_seconds is None else point.lag_seconds)
    lags = [point.lag_messages for point in points if point.lag_messages is not None]
    return GroupPoint(
        lag_messages=max(lags, default=None),
        lag_seconds=oldest.lag_seconds,
        lag_seconds_at_least=oldest.lag_seconds_at_least,
        read_rate=_mean(point.read_rate for point in points),
    )


def _largest(groups: Mapping[str, GroupPoint]) -> Mapping[str, GroupPoint]:
    """Return the `MAX_GROUPS` groups with the largest lag."""
    if len(groups) <= MAX_GROUPS:
        return groups
    names = sorted(groups, key=lambda name: (-(groups[name].lag_messages or 0), name))
    return {name: groups[name] for name in names[:MAX_GROUPS]}


def _mean(numbers: Iterable[float | None]) -> float | None:
    measured = [number for number in numbers if number is not None]
    return rounded(sum(measured) / len(measured)) if measured else None


@dataclass(frozen=True, kw_only=True)
class GroupSeries:
    """A group of readers; each list has one value for each of `times`, and null is unknown."""

    group: Annotated[str | None, Field(description="null: the readers without a group")]
    lag_messages: Annotated[list[int | None], Field(description="The largest lag in the interval")]
    lag_seconds: Annotated[
        list[float | None],
        Field(description="The largest age of the next message to read in the interval"),
    ]
    lag_seconds_at_least: Annotated[
        list[bool], Field(description="Whether `lag_seconds` is a lower bound")
    ]
    read_rate: Annotated[list[float | None], Field(description="Messages per second, the mean")]


@dataclass(frozen=True, kw_only=True)
class LagHistory:
    """Lag and rates of a channel over time."""

    since: datetime
    until: datetime
    step_s: int
    points: Sequence[HistoryPoint] = field(default=())
    """In the order of time; an interval without a sample has none."""

    def group_names(self) -> list[str]:
        """Return the groups with the largest lag, at most `MAX_GROUPS`, by name."""
        largest: dict[str, int] = {}
        for point in self.points:
            for name, group_point in point.groups.items():
                largest[name] = max(largest.get(name, 0), group_point.lag_messages or 0)
        names = sorted(largest, key=lambda name: (-largest[name], name))
        return sorted(names[:MAX_GROUPS])

    def series(self, name: str) -> GroupSeries:
        """Return the figures of a group, one for each point."""
        points = [vars(point.groups.get(name, _UNKNOWN)) for point in self.points]
        figures = {field: [point[field] for point in points] for field in vars(_UNKNOWN)}
        return GroupSeries(group=name or None, **figures)


def resolution_for(since: datetime, *, now: datetime) -> Resolution:
    """Return the finest resolution that goes back to `since`, or else the coarsest."""
    for resolution in RESOLUTIONS:
        if now - since <= timedelta(seconds=resolution.kept_s):
            return resolution
    return RESOLUTIONS[-1]


def history_of(
    stored: Mapping[int, Sequence[HistoryPoint]],
    resolution: Resolution,
    *,
    since: datetime,
    until: datetime,
) -> LagHistory:
    """Return the history at a resolution, from stored points by their step.

    Finer points complete it: the last interval is not merged yet, and none is while no sample is
    taken.
    """
    points: list[HistoryPoint] = []
    next_s = resolution.start(since.timestamp())
    for source in reversed(RESOLUTIONS[: RESOLUTIONS.index(resolution) + 1]):
        own = [
            point
            for point in stored.get(source.step_s, ())
            if next_s <= point.at_s <= until.timestamp()
        ]
        if own:
            points += own
            next_s = max(point.at_s for point in own) + source.step_s
    return LagHistory(
        since=since, until=until, step_s=resolution.step_s, points=merged(points, resolution)
    )
