"""JSON of the status of channels."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field
from pydantic_core import to_json

from sluiceway_gateway.api.json import JsonCache, body_of, fields_json, list_of, text_of, time_json
from sluiceway_gateway.channels.model import Channel, Delivery, Phase
from sluiceway_gateway.endpoints.groups.model import Group
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Mode, Role
from sluiceway_gateway.endpoints.wire import EndpointBody, ModeWord, endpoint_json
from sluiceway_gateway.schemas.model import Format
from sluiceway_gateway.status.lag import GroupLag, lag_seconds, rounded
from sluiceway_gateway.status.problems import MAX_PROBLEMS, CurrentProblem, advice_of
from sluiceway_gateway.status.reader_progress import ProgressState, offset_at, track_key, worst
from sluiceway_gateway.status.sample_store import StoredSample
from sluiceway_gateway.status.store import (
    ChannelSummary,
    EndpointCounts,
    Reader,
    StatusReport,
)


def status_body(sampled_at: datetime | None, rest: bytes) -> bytes:
    """Return the JSON of a status, from `status_rest`.

    A later sample alone makes no new state, so its time is inserted here.
    """
    return b'{"sampled_at":' + to_json(sampled_at and time_json(sampled_at)) + b"," + rest


def status_rest(status: StatusReport, fragments: JsonCache) -> bytes:
    """Return the JSON of a channel's status after `sampled_at`.

    Between two requests few of a thousand endpoints change: `fragments` caches the JSON of each.
    """
    channel, last = status.version.channel, status.last
    live = Counter(reader.progress.group for reader in status.readers if reader.progress.alive)
    parts = {
        "channel": text_of(_channel_json(channel)),
        "writers": list_of(_endpoint_text(status, writer, fragments) for writer in status.writers),
        "readers": list_of(
            _endpoint_text(status, reader.endpoint, fragments, **_reader_figures(reader, last))
            for reader in status.readers
        ),
        "groups": list_of(
            line
            for group in status.groups
            for line in _group_texts(channel, group, live[group.name], last, fragments)
        ),
        "partitions": fragments.of(
            ("partitions", channel.uid), (last,), lambda: _bounds_json(last)
        ),
        "ledger": fragments.of(("ledger", channel.uid), (last,), lambda: _ledger_json(last)),
        "write_rate": text_of(None if last is None else rounded(last.write_rate)),
        **{
            name: text_of(value)
            for name, value in _problems_json(channel.name, status.problems).items()
        },
    }
    return (",".join(f'"{name}":{text}' for name, text in parts.items()) + "}").encode()


def _endpoint_text(
    status: StatusReport, endpoint: Endpoint, fragments: JsonCache, **figures: object
) -> str:
    """Return the JSON of an endpoint, with further figures and the time of its last heartbeat."""
    channel = status.version.channel
    heartbeat = channel.spec.heartbeat
    # The times alone, because models take longer to compare.
    times = (heartbeat.interval_ms, heartbeat.timeout_ms)
    text = fragments.of(
        endpoint.id,
        (endpoint, channel.name, times, *figures.values()),
        lambda: endpoint_json(channel, endpoint) | figures,
    )
    # Not in the cached text, because it differs in each status.
    at = status.heartbeats.get(endpoint.session)
    return f'{text[:-1]},"last_heartbeat_at":{text_of(at and time_json(at))}}}'


def summary_json(summary: ChannelSummary) -> dict[str, Any]:
    """Return the JSON of a channel in the list."""
    lag, sampled_at = summary.lag, summary.version.sampled_at
    return {
        "channel": _channel_json(summary.version.channel),
        "sampled_at": None if sampled_at is None else time_json(sampled_at),
        "writers": vars(summary.endpoints[Role.WRITER]),
        "readers": vars(summary.endpoints[Role.READER]),
        "lag_messages": lag and lag.lag_messages,
        "lag_seconds": lag
        and sampled_at
        and lag_seconds(sampled_at, lag.behind_since, lag.lag_messages),
        "lag_seconds_at_least": lag is not None and lag.behind_or_before,
        "progress": lag and lag.progress,
        "write_rate": lag and rounded(lag.write_rate),
        "read_rate": rounded(summary.read_rate),
        "trend": lag and rounded(lag.trend),
        "last_heartbeat_at": summary.last_heartbeat_at and time_json(summary.last_heartbeat_at),
        **_problems_json(summary.version.channel.name, summary.problems),
    }


def _problems_json(channel: str, problems: Sequence[CurrentProblem]) -> dict[str, Any]:
    listed = [
        fields_json(problem) | {"advice": advice_of(channel, problem)}
        for problem in problems[:MAX_PROBLEMS]
    ]
    return {"problems": listed, "more_problems": len(problems) > len(listed)}


def _channel_json(channel: Channel) -> dict[str, Any]:
    return body_of(
        StatusChannel,
        channel,
        format=channel.spec.format,
        delivery=channel.spec.delivery,
        partitions=channel.topic.partitions or channel.spec.partitions,
    )


def _bounds_json(last: StoredSample | None) -> list[dict[str, Any]]:
    if last is None:
        return []
    sample, ledger = last.sample, last.sample.ledger
    ends = sample.ends if ledger is None else sample.log_ends
    return [
        {
            "partition": number,
            "start": start,
            "end": end,
            "stable": None if ledger is None else offset_at(ledger.stable, number),
            "visible_end": None if ledger is None else offset_at(ledger.visible_end, number),
        }
        for number, (start, end) in enumerate(zip(sample.starts, ends, strict=True))
    ]


def _ledger_json(last: StoredSample | None) -> dict[str, Any] | None:
    if last is None or last.sample.ledger is None:
        return None
    sample, ledger = last.sample, last.sample.ledger
    return body_of(
        StatusLedger,
        ledger,
        uncommitted_messages=ledger.uncommitted_messages(sample.starts, sample.log_ends),
        batches=[
            body_of(StatusBatch, batch, since=datetime.fromtimestamp(batch.since, UTC))
            for batch in ledger.batches
        ],
    )


def _reader_figures(reader: Reader, last: StoredSample | None) -> dict[str, Any]:
    """Return the progress and the lag of a reader's partitions; None if they are unknown."""
    track = None if last is None else last.lags.get(reader.progress.key)
    if track is None:
        return {"progress": None, "lag_messages": None}
    own: Iterable[int] = reader.progress.assignment(len(track.lags))
    if reader.progress.group == ANONYMOUS:
        own = [partition for partition, lag in enumerate(track.lags) if lag is not None]
    progress = worst(track.progress[partition] for partition in own)
    # One that has ended or is lost does nothing, even if nothing is left to read.
    is_unknown = progress is ProgressState.OK and not reader.progress.alive
    return {
        "progress": None if is_unknown else progress,
        "lag_messages": _sum([track.lags[partition] for partition in own]),
    }


def _group_texts(
    channel: Channel,
    group: Group,
    live: int,
    last: StoredSample | None,
    fragments: JsonCache,
) -> Iterable[str]:
    """Give the JSON of a group, or of each member of a broadcast group."""
    members: Sequence[int | None] = [None]
    if group.mode is Mode.BROADCAST and last is not None:
        members = [
            index for index in range(group.size or 0) if track_key(group.name, index) in last.lags
        ] or [None]
    for index in members:
        key = track_key(group.name, index)
        lag = None if last is None else last.lags.get(key)
        body = {
            "group": group.name,
            "index": index,
            "mode": str(group.mode),
            "size": group.size,
            "generation": group.generation,
            "dynamic": group.dynamic,
            "members": live,
            **_lag_json(channel, lag, last),
        }
        partitions = fragments.of(
            ("group", channel.uid, key), (last,), partial(_partitions_json, key, lag, last)
        )
        yield f'{text_of(body)[:-1]},"partitions":{partitions}}}'


def _lag_json(channel: Channel, lag: GroupLag | None, last: StoredSample | None) -> dict[str, Any]:
    if lag is None or last is None:
        names = ("lag_messages", "lag_records", "lag_seconds", "read_rate", "trend", "drain_s")
        return {**dict.fromkeys((*names, "progress")), "lag_seconds_at_least": False}
    return {
        "lag_messages": lag.lag_messages,
        "lag_records": lag.lag_messages if _has_record_per_message(channel, last) else None,
        "lag_seconds": lag_seconds(last.sample.at, lag.behind_since, lag.lag_messages),
        "lag_seconds_at_least": lag.behind_or_before,
        "read_rate": rounded(lag.read_rate),
        "trend": rounded(lag.trend),
        "drain_s": rounded(lag.drain_s),
        "progress": lag.worst,
    }


def _partitions_json(
    key: str, lag: GroupLag | None, last: StoredSample | None
) -> list[dict[str, Any]]:
    if lag is None or last is None:
        return []
    sample = last.sample
    track = sample.tracks[key]
    return [
        {
            "partition": partition,
            "committed": committed,
            "position": position,
            "end": offset_at(sample.ends, partition),
            "lag_messages": (messages := offset_at(lag.lags, partition)),
            "lag_seconds": lag_seconds(sample.at, lag.since[partition], messages)
            if lag.since
            else None,
            "lag_seconds_at_least": bool(lag.since_or_before) and lag.since_or_before[partition],
            "progress": lag.progress[partition] if lag.progress else None,
        }
        for partition, (committed, position) in enumerate(
            zip(track.committed, track.position, strict=True)
        )
    ]


def _has_record_per_message(channel: Channel, last: StoredSample) -> bool:
    """Whether every offset is a record.

    False for Arrow, whose messages are batches, and for compacted topics. Adopted topics may have
    gaps, or messages in other formats. In exactly-once channels, messages may be uncommitted.
    """
    ledger = last.sample.ledger
    if ledger is not None and not ledger.is_gapless(last.sample.starts):
        return False
    return channel.spec.format is not Format.ARROW and not channel.adopted and not channel.compacted


def _sum(numbers: Sequence[int | None]) -> int | None:
    values = [number for number in numbers if number is not None]
    return sum(values) if values and len(values) == len(numbers) else None


_AT_LEAST = (
    "Whether `lag_seconds` is a lower bound, as a message to read is older than the samples, or "
    "its partition has no known position"
)


_HEARTBEAT = (
    "Later heartbeats make no new status: `health` tells whether they are in time, and "
    "`GET /v1/channels/{name}/heartbeats` has their times"
)


class StatusChannel(BaseModel):
    """The channel of a status."""

    name: str
    uid: str
    phase: Phase
    generation: int
    labels: dict[str, str]
    format: Format
    delivery: Delivery
    partitions: int = Field(description="Of the topic, or of the spec while there is no topic")


class StatusPartition(BaseModel):
    """The watermarks of a partition, and its committed end."""

    partition: int
    start: int | None
    end: int | None
    stable: int | None = Field(description="The end of what readers read; null for at_least_once")
    visible_end: int | None = Field(description="The end of the last committed record")


class StatusBatch(BaseModel):
    """An open batch."""

    key: str
    owner: str
    since: datetime
    held_messages: int = Field(description="Committed messages that wait for its end")


class StatusLedger(BaseModel):
    """Commits of an exactly-once channel, and the batches that hold readers back."""

    number: int = Field(description="Of the last batch that ended")
    halted: str | None = Field(description="The reason of the halt")
    uncommitted_messages: int | None = Field(
        description="Messages in Kafka of open batches, failed attempts and foreign producers"
    )
    open_batches: int
    batches: list[StatusBatch] = Field(
        description="At most 20 open batches, by number of waiting messages, highest first"
    )


class StatusEndpoint(EndpointBody):
    """A writer or reader, with the last heartbeat of its process."""

    last_heartbeat_at: datetime | None = Field(description=_HEARTBEAT)


class StatusReader(StatusEndpoint):
    """A reader, with progress and lag of its partitions."""

    progress: ProgressState | None
    lag_messages: int | None


class StatusGroupPartition(BaseModel):
    """Position and lag of a group, or of one member, in a partition."""

    partition: int
    committed: int | None = Field(description="The next offset to read, as committed")
    position: int | None = Field(
        description="The next offset to read: as its reader reports, or as committed if that is "
        "later or the reader reports none"
    )
    end: int | None = Field(description="The watermark, or `visible_end`")
    lag_messages: int | None = Field(description="Offsets to read")
    lag_seconds: float | None = Field(description="Age of the next message to read")
    lag_seconds_at_least: bool = Field(description=_AT_LEAST)
    progress: ProgressState | None


class StatusGroup(BaseModel):
    """A group of readers, or one member of a broadcast group."""

    group: str
    index: int | None = Field(description="Index of the member, in broadcast groups")
    mode: ModeWord
    size: int | None
    generation: int
    dynamic: bool
    members: int = Field(description="Live members of the group")
    lag_messages: int | None
    lag_records: int | None = Field(
        description="null if messages have many records, or the log may have gaps"
    )
    lag_seconds: float | None = Field(description="Age of the oldest message to read")
    lag_seconds_at_least: bool = Field(description=_AT_LEAST)
    read_rate: float | None = Field(description="Messages per second over the last seconds")
    trend: float | None = Field(description="Growth of the lag in messages per second")
    drain_s: float | None = Field(
        description="Seconds until the lag is zero at this trend; null if it does not shrink, or "
        "nobody reads"
    )
    progress: ProgressState | None = Field(description="The worst state of its partitions")
    partitions: list[StatusGroupPartition]


@dataclass(frozen=True, kw_only=True)
class ListedProblem(CurrentProblem):
    """A current problem of a channel, and what to do about it."""

    advice: Annotated[str, Field(description="What to do, with commands in backticks")]


_PROBLEMS = Field(
    description="Current problems: live ones before failures, errors first, by the messages that "
    f"they hold up; at most {MAX_PROBLEMS}"
)
_MORE_PROBLEMS = Field(description="Whether there are more problems")


class StatusBody(BaseModel):
    """The status of a channel; unknown values are null."""

    sampled_at: datetime | None = Field(description="Time of the last sample of Kafka")
    channel: StatusChannel
    writers: list[StatusEndpoint]
    readers: list[StatusReader]
    groups: list[StatusGroup]
    partitions: list[StatusPartition]
    ledger: StatusLedger | None = Field(description="null for at_least_once")
    write_rate: float | None = Field(description="Messages per second over the last seconds")
    problems: list[ListedProblem] = _PROBLEMS
    more_problems: bool = _MORE_PROBLEMS


class StatusLine(BaseModel):
    """A channel, with the worst lag and progress of its readers."""

    channel: StatusChannel
    sampled_at: datetime | None
    writers: EndpointCounts
    readers: EndpointCounts
    lag_messages: int | None
    lag_seconds: float | None
    lag_seconds_at_least: bool = Field(description=_AT_LEAST)
    progress: ProgressState | None
    write_rate: float | None
    read_rate: float | None = Field(description="Of all groups, in messages per second")
    trend: float | None = Field(description="Growth of the largest lag in messages per second")
    last_heartbeat_at: datetime | None = Field(description=f"Of any endpoint. {_HEARTBEAT}")
    problems: list[ListedProblem] = _PROBLEMS
    more_problems: bool = _MORE_PROBLEMS


class StatusList(BaseModel):
    """A page of channels by name."""

    items: list[StatusLine]
    next_cursor: str | None = Field(description="null on the last page")
