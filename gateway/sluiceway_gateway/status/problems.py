"""Current problems of a channel, computed from its status. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from shlex import quote
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    Endpoint,
    Health,
    Place,
    Role,
    State,
    has_failed,
)
from sluiceway_gateway.status.lag import GroupSummary, LedgerSample, Sample
from sluiceway_gateway.status.reader_progress import (
    COMMITTED,
    ProgressState,
    ReaderProgress,
    group_of_track,
    offset_at,
)

MAX_PROBLEMS = 10
"""Maximum number of listed problems of a channel, those that hold up the most first."""
FAILURE_AGE = timedelta(days=1)
"""Time after which the failure of an ended endpoint is no problem any more."""


class Severity(StrEnum):
    """Severity of a problem."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class CurrentProblem:
    """A current problem of a channel; what is unknown or does not apply is null."""

    __pydantic_config__: ClassVar = ConfigDict(json_schema_serialization_defaults_required=True)

    code: Annotated[
        str,
        Field(
            description="`channel_failed`, `channel_not_synced`, `partitions_unavailable`, "
            "`channel_halted`, `batch_holds_readers`, `reader_stalled`, `reader_stopped`, "
            "`not_converging`, `position_out_of_range`, `partitions_unread`, `writer_failed`, "
            "`writer_lost`, `reader_failed`, `reader_lost` or `suspect`; more may follow"
        ),
    ]
    severity: Severity
    since: datetime | None = None
    role: Role | None = None
    group: str | None = None
    index: int | None = None
    endpoint: str | None = None
    batch: Annotated[str | None, Field(description="Key of an open batch")] = None
    owner: Annotated[str | None, Field(description="Owner of that batch")] = None
    held_messages: Annotated[
        int | None, Field(description="Committed messages that wait for that batch")
    ] = None
    lag_messages: int | None = None
    reason: str | None = None
    failures: Annotated[
        int | None,
        Field(
            description="Of writers and readers that failed, or were lost without a group, within "
            "the last day: their number. They are one problem, that of the last one"
        ),
    ] = None

    @property
    def order(self) -> tuple[bool, bool, bool, int]:
        """The place in the list: live before ended, errors first, by what is held up."""
        held = self.lag_messages if self.held_messages is None else self.held_messages
        return (
            self.failures is not None,
            self.severity is not Severity.ERROR,
            self.code not in _OF_ALL_RECORDS,
            -(held or 0),
        )


_OF_ALL_RECORDS = frozenset(
    {"channel_failed", "channel_halted", "channel_not_synced", "partitions_unavailable"}
)
"""Problems that concern all records of a channel."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The partitions of a sample, and those of them whose offsets Kafka gave."""

    known: int
    partitions: int
    """0 if Kafka gave none."""

    @classmethod
    def of(cls, starts: Sequence[int | None]) -> "Coverage":
        """Return the coverage of a sample's first offsets."""
        return cls(known=sum(start is not None for start in starts), partitions=len(starts))


@dataclass(frozen=True, kw_only=True)
class OutOfRange:
    """Numbers of partitions in which Kafka does not have the message at a group's position."""

    expired: int
    """Retention removed the message before it was read."""
    beyond: int
    """The position is above the end, as after a loss of messages or a wrong commit."""

    @property
    def partitions(self) -> int:
        """Their total."""
        return self.expired + self.beyond


#: Samples that must agree. The watermarks of a sample are read before its positions, and the end of
#: a new leader may trail for a moment.
_AGREEING = 3


def out_of_range(window: Sequence[Sample]) -> dict[str, OutOfRange]:
    """Return the groups with positions out of range, by name."""
    recent = window[-_AGREEING:]
    counts: dict[str, tuple[int, int]] = {}
    for key, track in recent[-1].tracks.items() if len(recent) == _AGREEING else ():
        for partition in range(len(track.committed)):
            last = _position_in_log(recent[-1], key, partition)
            if last is None or last[1] <= last[0] <= last[2]:
                continue
            positions = [_position_in_log(sample, key, partition) for sample in recent]
            known_positions = [position for position in positions if position is not None]
            if len(known_positions) < _AGREEING:
                continue
            offsets, starts, ends = zip(*known_positions, strict=True)
            expired, beyond = counts.get(group_of_track(key), (0, 0))
            if max(offsets) < min(starts):
                counts[group_of_track(key)] = expired + 1, beyond
            elif min(offsets) > max(ends):
                counts[group_of_track(key)] = expired, beyond + 1
    return {name: OutOfRange(expired=low, beyond=high) for name, (low, high) in counts.items()}


def ranges_of(document: Mapping[str, Any] | None) -> dict[str, OutOfRange]:
    """Return the groups of a sample's document, which samples of earlier versions do not have."""
    return {name: OutOfRange(**counts) for name, counts in (document or {}).items()}


def unread_partitions(
    window: Sequence[Sample], readers: Iterable[ReaderProgress]
) -> dict[str, int]:
    """Return how many partitions with messages nobody reads, by the name of the group.

    A live reader of the group reports positions, but nobody has ever reported or committed one in
    these partitions. They are new ones, or those of members that are missing. Groups whose
    partitions wait for tasks, and readers without a group, which may choose partitions, are left
    out.
    """
    recent = window[-_AGREEING:]
    if len(recent) < _AGREEING:
        return {}
    counts: dict[str, int] = {}
    by_tasks = {reader.group for reader in readers if reader.alive and reader.by_tasks}
    for key in recent[-1].tracks:
        group = group_of_track(key)
        if group == ANONYMOUS or group in by_tasks:
            continue
        unread = [
            partition
            for partition in range(len(recent[-1].ends))
            if all(_is_unread(sample, key, partition) for sample in recent)
        ]
        if unread:
            counts[group] = max(len(unread), counts.get(group, 0))
    return counts


def _is_unread(sample: Sample, key: str, partition: int) -> bool:
    track = sample.tracks.get(key)
    start, end = offset_at(sample.starts, partition), sample.readable_end(partition)
    if track is None or start is None or end is None or start >= end:
        return False
    is_live = any(holder is not None and holder > COMMITTED for holder in track.holder)
    return is_live and offset_at(track.position, partition) is None


def _position_in_log(sample: Sample, key: str, partition: int) -> tuple[int, int, int] | None:
    """Return the position of a track, and Kafka's first and end offset; None if one is unknown.

    A position that was never committed is unknown: the next reader does not start there.
    """
    track = sample.tracks.get(key)
    if track is None or offset_at(track.committed, partition) is None:
        return None
    position = offset_at(track.position, partition)
    start = offset_at(sample.starts, partition)
    end = offset_at(sample.ends, partition)
    # Of an exactly-once channel, `ends` are those of the committed messages. The log may be longer,
    # by uncommitted messages; if it is shorter, the channel halts, and its repair keeps positions
    # valid.
    log_end = end if sample.ledger is None else offset_at(sample.log_ends, partition)
    if position is None or start is None or end is None or log_end is None:
        return None
    return position, start, max(end, log_end)


@dataclass(frozen=True, kw_only=True)
class EndpointState:
    """The part of an endpoint that a list of channels reads."""

    id: str
    place: Place
    state: State
    health: Health
    changed_at: datetime
    cause: str | None


@dataclass(frozen=True, kw_only=True)
class Failures:
    """The recent failures of a channel's endpoints; see `has_failed`."""

    latest: Endpoint | EndpointState
    count: int

    @classmethod
    def of(
        cls, endpoints: Iterable[Endpoint | EndpointState], *, since: datetime
    ) -> "Failures | None":
        """Return the failures after `since`; None if there are none."""
        recent = [
            endpoint
            for endpoint in endpoints
            if _has_failed(endpoint) and endpoint.changed_at > since
        ]
        if not recent:
            return None
        return cls(latest=max(recent, key=attrgetter("changed_at")), count=len(recent))


_OF_PROGRESS = {
    ProgressState.STALLED: ("reader_stalled", Severity.ERROR),
    ProgressState.STOPPED: ("reader_stopped", Severity.WARNING),
    ProgressState.FALLING_BEHIND: ("not_converging", Severity.WARNING),
}


_AT_WORK = frozenset({"Provisioning", "Deleting"})
"""Reasons of the condition Synced that are no problems: the gateway is creating or deleting."""


def current_problems(
    channel: Channel,
    *,
    coverage: Coverage | None,
    groups: Mapping[str, GroupSummary],
    out_of_range: Mapping[str, OutOfRange],
    unread: Mapping[str, int],
    ledger: LedgerSample | None,
    endpoints: Iterable[Endpoint | EndpointState],
    failures: Failures | None,
) -> tuple[CurrentProblem, ...]:
    """Return the problems of a channel in the order of their `order`.

    `endpoints` are those that miss heartbeats, and may be others. Endpoints that failed, or were
    lost without a group, have ended, so `failures` are one problem, the last one.
    """
    problems = [
        *_of_channel(channel),
        *_of_coverage(coverage),
        *_of_ledger(ledger),
        *_of_groups(groups),
        *_of_ranges(out_of_range),
        *_of_unread(unread),
        *(problem for endpoint in endpoints if (problem := _of_endpoint(endpoint)) is not None),
        *_of_failures(failures),
    ]
    problems.sort(key=attrgetter("order"))
    return tuple(problems)


_STATUS = "`sluiceway channels status {channel}`"
_DISMISS = "`sluiceway channels dismiss {channel} --endpoint {endpoint}`"
_WRITER_ENDED = f"Start it again, or dismiss it, so that readers take it as finished: {_DISMISS}"
_READER_ENDED = f"Start it again, or dismiss it: {_DISMISS}"
ADVICE = {
    "channel_failed": "The condition Ready says what happened to its topic: `sluiceway channels "
    "show {channel}`. If its records are given up, delete the channel: `sluiceway channels delete "
    "{channel}`",
    "channel_not_synced": "Correct what Kafka refuses, such as a setting: `sluiceway channels "
    "update {channel} --config KEY=VALUE`. The condition Synced has the details: `sluiceway "
    "channels show {channel}`",
    "partitions_unavailable": "See whether the brokers are up and the gateway reaches them: "
    "`sluiceway channels status {channel} --watch` shows when they are back",
    "channel_halted": "`sluiceway channels repair {channel}` shows what is lost, and asks before "
    "it gives that up",
    "writer_lost": _WRITER_ENDED,
    "writer_failed": _WRITER_ENDED,
    "reader_lost": _READER_ENDED,
    "reader_failed": _READER_ENDED,
    "reader_stalled": "Look at its program: it is busy with one record, hangs, or cannot reach "
    f"Kafka. Its members: {_STATUS}",
    "reader_stopped": f"Start a reader of the group. The end of the last one: {_STATUS}",
    "batch_holds_readers": "It ends with its job, or with its lease. If the job is gone, abort the "
    "batch: `sluiceway channels abort {channel} {batch}`",
    "not_converging": "Make each member faster, or add members, one per partition at most; in a "
    "group of a fixed size with `sluiceway channels resize {channel} {group} SIZE`",
    "position_out_of_range": "A reader that starts there fails. Find out what was lost, then reset "
    "the group: `sluiceway channels reset {channel} {group} --to earliest`, with `--index` for a "
    "member of a broadcast group",
    "partitions_unread": f"Start the missing members; those that are there: {_STATUS}. Members of "
    "older clients read added partitions after a restart",
    "suspect": "It is lost if no heartbeat arrives in time: `sluiceway channels status {channel} "
    "--watch` shows it",
}
#: Readers without a group have no size, and no positions that a command sets.
_WITHOUT_GROUP = f"Make its program faster; its readers: {_STATUS}"


def advice_of(channel: str, problem: CurrentProblem) -> str:
    """Return what to do about a problem of a channel, with commands in backticks."""
    template = ADVICE[problem.code]
    if problem.group is None and "{group}" in template:
        template = _WITHOUT_GROUP
    return template.format(
        channel=channel,
        group=quote(problem.group or ""),
        endpoint=problem.endpoint,
        batch=quote(problem.batch or ""),
    )


def _of_channel(channel: Channel) -> Iterable[CurrentProblem]:
    ready, synced = channel.condition("Ready"), channel.condition("Synced")
    if channel.phase is Phase.FAILED:
        yield CurrentProblem(
            code="channel_failed",
            severity=Severity.ERROR,
            since=None if ready is None else ready.last_transition_at,
            reason=None if ready is None else ready.message,
        )
    elif synced is not None and synced.status == "False" and synced.reason not in _AT_WORK:
        unusable = ready is not None and ready.status == "False"
        is_error = unusable and channel.phase is not Phase.DELETING
        yield CurrentProblem(
            code="channel_not_synced",
            severity=Severity.ERROR if is_error else Severity.WARNING,
            since=synced.last_transition_at,
            reason=synced.message,
        )


def _of_coverage(coverage: Coverage | None) -> Iterable[CurrentProblem]:
    if coverage is None or 0 < coverage.known == coverage.partitions:
        return
    missing = coverage.partitions - coverage.known
    where = f"{missing} of {coverage.partitions}" if coverage.known else "all"
    yield CurrentProblem(
        code="partitions_unavailable",
        severity=Severity.WARNING if coverage.known else Severity.ERROR,
        reason=f"{where} partitions are affected; their lag is unknown",
    )


def _of_ledger(ledger: LedgerSample | None) -> Iterable[CurrentProblem]:
    if ledger is None:
        return
    if ledger.halted is not None:
        yield CurrentProblem(code="channel_halted", severity=Severity.ERROR, reason=ledger.halted)
    for batch in ledger.batches:
        if batch.held_messages > 0:
            yield CurrentProblem(
                code="batch_holds_readers",
                severity=Severity.WARNING,
                since=datetime.fromtimestamp(batch.since, UTC),
                batch=batch.key,
                owner=batch.owner,
                held_messages=batch.held_messages,
            )


def _of_groups(groups: Mapping[str, GroupSummary]) -> Iterable[CurrentProblem]:
    for name, summary in sorted(groups.items()):
        if summary.progress in _OF_PROGRESS:
            code, severity = _OF_PROGRESS[summary.progress]
            yield CurrentProblem(
                code=code,
                severity=severity,
                role=Role.READER,
                group=name or None,
                lag_messages=summary.lag_messages,
            )


def _of_ranges(out_of_range: Mapping[str, OutOfRange]) -> Iterable[CurrentProblem]:
    for name, counts in sorted(out_of_range.items()):
        reasons = (
            (counts.expired, "retention removed the next messages of {}"),
            (counts.beyond, "its positions are above the last message of {}"),
        )
        yield CurrentProblem(
            code="position_out_of_range",
            severity=Severity.ERROR if counts.beyond else Severity.WARNING,
            role=Role.READER,
            group=name or None,
            reason=", and ".join(
                text.format("1 partition" if count == 1 else f"{count} partitions")
                for count, text in reasons
                if count
            ),
        )


def _of_unread(unread: Mapping[str, int]) -> Iterable[CurrentProblem]:
    for name, count in sorted(unread.items()):
        partitions = "1 partition" if count == 1 else f"{count} partitions"
        yield CurrentProblem(
            code="partitions_unread",
            severity=Severity.ERROR,
            role=Role.READER,
            group=name,
            reason=f"nobody has ever read {partitions} with messages",
        )


def _of_endpoint(endpoint: Endpoint | EndpointState) -> CurrentProblem | None:
    if endpoint.state is State.CLOSED or _has_failed(endpoint):
        return None
    if endpoint.health is Health.LOST:
        code, severity = f"{endpoint.place.role}_lost", Severity.ERROR
    elif endpoint.health is Health.SUSPECT:
        code, severity = "suspect", Severity.WARNING
    else:
        return None
    return _located(endpoint, code, severity)


def _has_failed(endpoint: Endpoint | EndpointState) -> bool:
    return has_failed(endpoint.state, endpoint.health, endpoint.place.group)


def _of_failures(failures: Failures | None) -> Iterable[CurrentProblem]:
    if failures is not None:
        kind = "failed" if failures.latest.state is State.ERROR else "lost"
        code = f"{failures.latest.place.role}_{kind}"
        yield replace(_located(failures.latest, code, Severity.WARNING), failures=failures.count)


def _located(endpoint: Endpoint | EndpointState, code: str, severity: Severity) -> CurrentProblem:
    return CurrentProblem(
        code=code,
        severity=severity,
        since=endpoint.changed_at,
        role=endpoint.place.role,
        group=endpoint.place.group or None,
        # The place of one without a group has a number of its own, which tells nobody anything.
        index=endpoint.place.index if endpoint.place.group else None,
        endpoint=endpoint.id,
        reason=endpoint.cause,
    )
