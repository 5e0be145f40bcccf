"""JSON of the status of channels."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, Field

from sluiceway_gateway.channels.model import Channel, Format
from sluiceway_gateway.channels.wire import time_json
from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Role
from sluiceway_gateway.endpoints.wire import EndpointBody, ModeWord, endpoint_json
from sluiceway_gateway.http.json import JsonCache, list_of, text_of
from sluiceway_gateway.status.lag import GroupLag, at, key_of
from sluiceway_gateway.status.progress import worst
from sluiceway_gateway.status.sample_store import KeptSample
from sluiceway_gateway.status.store import (
    ChannelSummary,
    EndpointCounts,
    Reader,
    ReaderGroup,
    Status,
)


def status_text(status: Status, fragments: JsonCache) -> str:
    """Return the JSON of a channel's status, but for when it was looked at.

    Of a thousand endpoints a few have changed since somebody looked last: what all others have is
    in `fragments`.
    """
    channel, last = status.head.channel, status.last
    living = Counter(each.reading.group for each in status.readers if each.reading.lives)
    parts = {
        "channel": text_of(_channel_json(channel)),
        "writers": list_of(
            fragments.of(each.id, (each, channel.name), partial(endpoint_json, channel, each))
            for each in status.writers
        ),
        "readers": list_of(_reader_text(channel, each, last, fragments) for each in status.readers),
        "groups": list_of(
            line
            for each in status.groups
            for line in _group_texts(channel, each, living[each.group.name], last, fragments)
        ),
        "partitions": fragments.of(
            ("partitions", channel.uid), (last,), lambda: _bounds_json(last)
        ),
        "write_rate": text_of(None if last is None else _rounded(last.write_rate)),
    }
    return "{" + ",".join(f'"{name}":{text}' for name, text in parts.items()) + "}"


def line_json(line: ChannelSummary) -> dict[str, Any]:
    """Return a channel's line as it is sent."""
    outline, sampled_at = line.outline, line.head.sampled_at
    return {
        "channel": _channel_json(line.head.channel),
        "sampled_at": None if sampled_at is None else time_json(sampled_at),
        "writers": vars(line.crews.get(Role.WRITER, EndpointCounts())),
        "readers": vars(line.crews.get(Role.READER, EndpointCounts())),
        "lag_messages": outline and outline.lag_messages,
        "lag_seconds": outline
        and sampled_at
        and _age(sampled_at, outline.behind_since, outline.lag_messages),
        "progress": outline and outline.progress,
        "write_rate": outline and _rounded(outline.write_rate),
    }


def _channel_json(channel: Channel) -> dict[str, Any]:
    return {
        "name": channel.name,
        "uid": channel.uid,
        "phase": str(channel.phase),
        "generation": channel.generation,
        "labels": dict(channel.labels),
        "format": str(channel.spec.format),
        "partitions": channel.topic.partitions or channel.spec.partitions,
    }


def _bounds_json(last: KeptSample | None) -> list[dict[str, Any]]:
    if last is None:
        return []
    starts, ends = last.sample.starts, last.sample.ends
    return [
        {"partition": number, "start": start, "end": end}
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _reader_text(
    channel: Channel, reader: Reader, last: KeptSample | None, fragments: JsonCache
) -> str:
    progress, lag = None, None
    pace = None if last is None else last.paces.get(reader.reading.key)
    if pace is not None:
        own: Iterable[int] = reader.reading.reads(len(pace.lags))
        if reader.reading.group == ANONYMOUS:
            own = [each for each, lag in enumerate(pace.lags) if lag is not None]
        progress = worst(pace.progress[each] for each in own)
        lag = _sum([pace.lags[each] for each in own])
    return fragments.of(
        reader.endpoint.id,
        (reader, channel.name, progress, lag),
        lambda: (
            endpoint_json(channel, reader.endpoint) | {"progress": progress, "lag_messages": lag}
        ),
    )


def _group_texts(
    channel: Channel,
    standing: ReaderGroup,
    living: int,
    last: KeptSample | None,
    fragments: JsonCache,
) -> Iterable[str]:
    """Give the group's line, or one for each member whose positions are its own."""
    group = standing.group
    members: Sequence[int | None] = [None]
    if group.mode is Mode.BROADCAST and last is not None:
        members = [
            index for index in range(group.size or 0) if key_of(group.name, index) in last.paces
        ] or [None]
    for index in members:
        key = key_of(group.name, index)
        pace = None if last is None else last.paces.get(key)
        line = {
            "group": group.name,
            "index": index,
            "mode": str(group.mode),
            "size": group.size,
            "generation": group.generation,
            "dynamic": standing.dynamic,
            "members": living,
            **_pace_json(channel, pace, last),
        }
        partitions = fragments.of(
            ("group", channel.uid, key), (last,), partial(_partitions, key, pace, last)
        )
        yield f'{text_of(line)[:-1]},"partitions":{partitions}}}'


def _pace_json(channel: Channel, pace: GroupLag | None, last: KeptSample | None) -> dict[str, Any]:
    if pace is None or last is None:
        names = ("lag_messages", "lag_records", "lag_seconds", "read_rate", "trend", "drain_s")
        return dict.fromkeys((*names, "progress"))
    return {
        "lag_messages": pace.lag_messages,
        "lag_records": pace.lag_messages if _is_a_record_a_message(channel) else None,
        "lag_seconds": _age(last.sample.at, pace.behind_since, pace.lag_messages),
        "read_rate": _rounded(pace.read_rate),
        "trend": _rounded(pace.trend),
        "drain_s": _rounded(pace.drain_s),
        "progress": pace.worst,
    }


def _partitions(key: str, pace: GroupLag | None, last: KeptSample | None) -> list[dict[str, Any]]:
    if pace is None or last is None:
        return []
    sample = last.sample
    track = sample.tracks[key]
    return [
        {
            "partition": partition,
            "committed": committed,
            "position": position,
            "end": at(sample.ends, partition),
            "lag_messages": (lag := at(pace.lags, partition)),
            "lag_seconds": _age(sample.at, pace.since[partition], lag) if pace.since else None,
            "progress": pace.progress[partition] if pace.progress else None,
        }
        for partition, (committed, position) in enumerate(
            zip(track.committed, track.position, strict=True)
        )
    ]


def _is_a_record_a_message(channel: Channel) -> bool:
    """Whether each offset holds a record: not in Arrow, where none of them was compacted away.

    What others write to a topic that was adopted may be none of the channel's, or leave gaps.
    """
    compacted = "compact" in channel.spec.config.get("cleanup.policy", "")
    return channel.spec.format is not Format.ARROW and not channel.adopted and not compacted


def _age(sampled_at: datetime, since: float | None, lag: int | None) -> float | None:
    if lag == 0:
        return 0.0
    return None if since is None else _rounded(max(0.0, sampled_at.timestamp() - since))


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [each for each in numbers if each is not None]
    return sum(known) if known and len(known) == len(numbers) else None


ProgressWord = Literal["ok", "falling_behind", "stalled", "stopped", "rewound"]
PhaseWord = Literal["provisioning", "ready", "failed", "closed", "deleting"]


class StatusChannel(BaseModel):
    """Which channel it is."""

    name: str
    uid: str
    phase: PhaseWord
    generation: int
    labels: dict[str, str]
    format: Literal["avro", "arrow", "bytes"]
    partitions: int = Field(description="Of the topic; of the spec as long as there is none")


class StatusPartition(BaseModel):
    """A partition's first offset and the one after its last."""

    partition: int
    start: int | None
    end: int | None


class StatusReader(EndpointBody):
    """A reader, and how it gets on with what is its own."""

    progress: ProgressWord | None
    lag_messages: int | None


class StatusGroupPartition(BaseModel):
    """How far a group, or one member, is in a partition."""

    partition: int
    committed: int | None = Field(description="The next offset, as it was committed")
    position: int | None = Field(
        description="The next offset to be read, as a reader says, else as it was committed"
    )
    end: int | None
    lag_messages: int | None = Field(description="How many offsets are left to be read")
    lag_seconds: float | None = Field(description="The age of the next message to be read")
    progress: ProgressWord | None


class StatusGroup(BaseModel):
    """A group of readers, or one member of a broadcast group."""

    group: str
    index: int | None = Field(description="Of the member, in broadcast groups")
    mode: ModeWord
    size: int | None
    generation: int
    dynamic: bool
    members: int = Field(description="How many of the group live")
    lag_messages: int | None
    lag_records: int | None = Field(
        description="null where a message holds many records, or the log may have gaps"
    )
    lag_seconds: float | None = Field(description="The age of the oldest message to be read")
    read_rate: float | None = Field(description="Messages a second, over the last samples")
    trend: float | None = Field(description="By how much the lag grows in a second")
    drain_s: float | None = Field(description="When nothing is left, if it goes on like this")
    progress: ProgressWord | None = Field(description="The worst of its partitions")
    partitions: list[StatusGroupPartition]


class StatusBody(BaseModel):
    """All that is known of a channel; what is not known is null."""

    sampled_at: datetime | None = Field(description="When Kafka was looked at last")
    channel: StatusChannel
    writers: list[EndpointBody]
    readers: list[StatusReader]
    groups: list[StatusGroup]
    partitions: list[StatusPartition]
    write_rate: float | None = Field(description="Messages a second, over the last samples")


class StatusCrew(BaseModel):
    """How many endpoints live, are lost, have failed, and have finished."""

    living: int
    lost: int
    failed: int
    finished: int


class StatusLine(BaseModel):
    """A channel in one line, by those of its readers that get on worst."""

    channel: StatusChannel
    sampled_at: datetime | None
    writers: StatusCrew
    readers: StatusCrew
    lag_messages: int | None
    lag_seconds: float | None
    progress: ProgressWord | None
    write_rate: float | None


class StatusList(BaseModel):
    """A page of channels, by name."""

    items: list[StatusLine]
    next_cursor: str | None = Field(description="null at the end")
