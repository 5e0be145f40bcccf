"""JSON of messages: parameters, request bodies and responses."""

import base64
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field
from pydantic_core import to_json

from sluiceway_gateway.api.json import body_of, time_json
from sluiceway_gateway.api.models import INT64_MAX, Time
from sluiceway_gateway.api.params import decoded_cursor, encoded_cursor
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.core.errors import InvalidRequest
from sluiceway_gateway.core.names import MAX_PARTITIONS
from sluiceway_gateway.messages.model import (
    MAX_MESSAGES,
    MAX_PATTERN,
    MAX_READ_PARTITIONS,
    SearchCondition,
    StartPoint,
    shortened,
)
from sluiceway_gateway.messages.reading import MessagePage, ShownMessage, TopicOffsets
from sluiceway_gateway.messages.search import (
    MAX_MATCHES,
    EndReason,
    SearchEnd,
    SearchProgress,
    SearchRequest,
)
from sluiceway_gateway.messages.writing import WrittenMessage, WrittenMessages
from sluiceway_gateway.schemas.model import Format

_RESPONSE_CHARACTERS = 4 * 1024 * 1024
_MESSAGE_CHARACTERS = 1024 * 1024
_KEY_SHARE, _HEADER_SHARE = 16, 64
MAX_HEADERS, _HEADER_NAME = 100, 200
_ENDED = {
    "time": "Kafka did not return all of them in time. next_cursor continues; a smaller limit, or "
    "one partition, takes less time.",
    "bytes": "The messages are large, so these are fewer. next_cursor continues.",
}


PartitionNumber = Annotated[
    int | None, Query(ge=0, lt=MAX_PARTITIONS, description="Only this partition; default: all")
]
Offset = Annotated[
    int | None,
    Query(ge=0, le=INT64_MAX, description="Oldest first from here on; needs `partition`"),
]
Since = Annotated[
    Time | None, Query(description="Oldest first, from the first message not older than this on")
]
SearchText = Annotated[
    str | None,
    Query(min_length=1, max_length=1000, description="The message contains it, regardless of case"),
]
SearchRegex = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=MAX_PATTERN,
        description="The message contains a match, in RE2's syntax; (?i) ignores case, ^ and $ are "
        "the ends of a value",
    ),
]
SearchField = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=500,
        description="Only in this field of the records, such as `carrier` or `address.city`, in "
        "the key (`@key`), or in a header (`@header.NAME`)",
    ),
]
SearchSince = Annotated[
    Time | None, Query(description="From the first message with this timestamp or a later one on")
]
SearchUntil = Annotated[
    Time | None, Query(description="Up to the first message with this timestamp or a later one")
]
SearchCursor = Annotated[
    str | None,
    Query(max_length=8_000, description="next_cursor of a search with the same other parameters"),
]
Matches = Annotated[int, Query(ge=1, le=MAX_MATCHES, description="End after so many matches")]
Follow = Annotated[
    bool,
    Query(description="Go on with new messages, from the end, `since` or a cursor on, for an hour"),
]
OffsetsSince = Annotated[Time | None, Query(description="The time; default: the end")]
Start = Annotated[
    Literal["latest", "earliest"],
    Query(description="latest: newest first; earliest: oldest first, from the beginning"),
]
Cursor = Annotated[
    str | None,
    Query(
        max_length=8_000, description="next_cursor of a response; replaces the other start points"
    ),
]
Limit = Annotated[int, Query(ge=1, le=MAX_MESSAGES)]
Uncommitted = Annotated[
    bool, Query(description="On exactly-once channels: also uncommitted messages")
]


_CURSOR = re.compile(r"([no])((?:,(?:0|[1-9][0-9]{0,5}):(?:0|[1-9][0-9]{0,18}))+)")


def cursor_of(start: StartPoint) -> str:
    """Return the text of a start point with bounds."""
    bounds = "".join(
        f",{partition}:{offset}" for partition, offset in sorted((start.bounds or {}).items())
    )
    return encoded_cursor(f"{'n' if start.newest_first else 'o'}{bounds}")


def start_of_cursor(cursor: str) -> StartPoint | None:
    """Return the start point of a cursor; None for another text."""
    try:
        match = _CURSOR.fullmatch(decoded_cursor(cursor))
    except ValueError:
        return None
    if match is None:
        return None
    pairs = [bound.split(":") for bound in match[2].removeprefix(",").split(",")]
    bounds = {int(partition): int(offset) for partition, offset in pairs}
    start = StartPoint(newest_first=match[1] == "n", bounds=bounds)
    return start if cursor_of(start) == cursor and len(bounds) <= MAX_READ_PARTITIONS else None


def start_point(
    *,
    partition: int | None,
    offset: int | None,
    since: datetime | None,
    start: str,
    cursor: str | None,
) -> StartPoint:
    """Return the start point. Raises InvalidRequest for parameters that exclude each other."""
    parameters = {"cursor": cursor, "offset": offset, "since": since}
    named = [name for name, value in parameters.items() if value is not None]
    named += ["start"] if start == "earliest" else []
    if len(named) > 1 or (cursor is not None and partition is not None):
        second = named[1] if len(named) > 1 else "partition"
        raise InvalidRequest.at(
            f"query:{second}", f"not together with {named[0]}; give one of them"
        )
    if offset is not None and partition is None:
        raise InvalidRequest.at(
            "query:offset", "an offset is one of a partition; give partition too"
        )
    if cursor is None:
        return StartPoint(newest_first=not named, partition=partition, offset=offset, since=since)
    point = start_of_cursor(cursor)
    if point is None:
        raise InvalidRequest.at(
            "query:cursor", "not a cursor of messages; use next_cursor of the previous response"
        )
    return point


def search_request(
    condition: SearchCondition,
    *,
    start: str,
    partition: int | None,
    cursor: str | None,
    **options: Any,
) -> SearchRequest:
    """Return the search of a request's parameters; raises InvalidRequest."""
    follow, until = options["follow"], options["until"]
    if follow and (until is not None or start == "earliest"):
        name = "start" if until is None else "until"
        raise InvalidRequest.at(f"query:{name}", "not together with follow; give one of them")
    point = start_point(partition=partition, offset=None, since=None, start=start, cursor=cursor)
    if follow:
        point = replace(point, newest_first=False)
    return SearchRequest(condition=condition, start=point, **options)


class BytesBody(BaseModel):
    """Bytes: the text if they are UTF-8, else base64."""

    encoding: Literal["utf-8", "base64"]
    data: str = Field(description="The beginning, if `truncated`")
    size_bytes: int
    truncated: bool


class HeaderBody(BaseModel):
    """A header of a message."""

    name: str
    value: BytesBody | None


class MessageSchemaBody(BaseModel):
    """The schema that a message was written with."""

    id: int
    version: int


class MessageBody(BaseModel):
    """A message. Records have the JSON forms that `sluiceway tail` prints."""

    partition: int
    offset: int
    timestamp: datetime | None
    timestamp_type: Literal["create", "append"] | None = Field(
        description="The clock of the timestamp: the producer's, or the broker's"
    )
    committed: bool | None = Field(
        description="Whether it is committed; null except on exactly-once channels"
    )
    key: BytesBody | None
    headers: list[HeaderBody] = Field(description=f"The first {MAX_HEADERS}")
    size_bytes: int
    schema_: MessageSchemaBody | None = Field(alias="schema", description="Of its id, if known")
    record_count: int
    records: list[Any] = Field(description="The first ones; only arrow has several")
    truncated: list[str] = Field(
        description="JSON pointers into `records`: texts that were cut, and objects and lists "
        "whose rest was left out. limit=1 cuts less"
    )
    error: str | None = Field(description="The reason why it has no records")
    deleted: bool = Field(description="Whether it has no value and deletes its key")
    raw: BytesBody | None = Field(description="The value of a message of bytes, or with an error")


class MessagePartitionBody(BaseModel):
    """Offsets of a partition that was read."""

    partition: int
    begin_offset: int
    end_offset: int
    stable_offset: int | None = Field(description="`stable` of exactly-once channels, else null")


class EndedBody(BaseModel):
    """The reason why there are fewer messages than requested, although there are more."""

    reason: Literal["time", "bytes"]
    message: str


class MessagesBody(BaseModel):
    """Messages by their timestamps, those of a partition by their offsets."""

    order: Literal["newest_first", "oldest_first"]
    items: list[MessageBody]
    partitions: list[MessagePartitionBody]
    partitions_left_out: int = Field(
        description="With messages, but not read: there are too many; give `partition`"
    )
    partitions_unavailable: list[int] = Field(description="Their leaders did not answer")
    incomplete: EndedBody | None
    next_cursor: str | None = Field(description="The next page in this order; null at the end")


class PartitionOffsetsBody(MessagePartitionBody):
    """Offsets of a partition."""

    offset: int = Field(
        description="Of the first message with the timestamp `since` or a later one; without such "
        "a message, and without `since`, `stable_offset` or else `end_offset`"
    )


class TopicOffsetsBody(BaseModel):
    """Offsets of the partitions of a channel's topic."""

    topic_id: str
    partitions: list[PartitionOffsetsBody]
    partitions_unavailable: list[int] = Field(description="Their leaders did not answer")


class SearchProgressBody(BaseModel):
    """What a search has read."""

    scanned: int = Field(description="Messages")
    scanned_bytes: int
    passed: int = Field(description="Offsets, of `total`")
    total: int


class SearchEndBody(BaseModel):
    """The end of a search."""

    reason: EndReason = Field(
        description="`end`: all was searched; `limit`: so many matches; `messages`, `bytes`, "
        "`time`: so much was searched; `error`; `stopped`: the gateway stops, or the token is not "
        "valid any more"
    )
    message: str | None = Field(description="The reason of `error` and `stopped`")
    partitions_left_out: int = Field(
        description="With messages, but not searched: there are too many; give `partition`"
    )
    partitions_unavailable: list[int] = Field(description="Their leaders did not answer")
    next_cursor: str | None = Field(description="Continues the search; null if nothing is left")


class SearchLine(BaseModel):
    """A line of a search: one of these. The last one is `end`."""

    message: MessageBody | None = None
    progress: SearchProgressBody | None = None
    end: SearchEndBody | None = None


class WrittenBatchBody(BaseModel):
    """The committed batch."""

    id: str
    key: str
    number: int
    replayed: bool = Field(description="Its key was committed before, and nothing was written")


class WrittenBody(BaseModel):
    """Messages that Kafka has on all in-sync replicas."""

    messages: list[WrittenMessage]
    batch: WrittenBatchBody | None = Field(description="Of exactly-once channels")


def page_json(page: MessagePage) -> dict[str, Any]:
    """Return the JSON of a response with messages."""
    count = max(1, len(page.messages))
    characters = min(_MESSAGE_CHARACTERS, _RESPONSE_CHARACTERS // count)
    return {
        "order": "newest_first" if page.newest_first else "oldest_first",
        "items": [
            _message_json(message, page.channel.spec.format, characters)
            for message in page.messages
        ],
        "partitions": [body_of(MessagePartitionBody, partition) for partition in page.partitions],
        "partitions_left_out": page.left_out,
        "partitions_unavailable": page.unavailable,
        "incomplete": None
        if page.ended is None
        else {"reason": page.ended, "message": _ENDED[page.ended]},
        "next_cursor": None if page.following is None else cursor_of(page.following),
    }


def match_line(channel: Channel, shown: ShownMessage) -> bytes:
    """Return the line of a match."""
    return _line("message", _message_json(shown, channel.spec.format, _MESSAGE_CHARACTERS))


def progress_line(progress: SearchProgress) -> bytes:
    """Return the line of a search's progress."""
    return _line("progress", body_of(SearchProgressBody, progress))


def end_line(end: SearchEnd) -> bytes:
    """Return the line of a search's end."""
    return _line(
        "end",
        body_of(
            SearchEndBody,
            end,
            message=None if end.error is None else str(end.error),
            partitions_left_out=end.left_out,
            partitions_unavailable=end.unavailable,
            next_cursor=None if end.following is None else cursor_of(end.following),
        ),
    )


def _line(kind: str, body: dict[str, Any]) -> bytes:
    return to_json({kind: body}) + b"\n"


def offsets_json(offsets: TopicOffsets) -> dict[str, Any]:
    """Return the JSON of a topic's offsets."""
    return body_of(TopicOffsetsBody, offsets, partitions_unavailable=offsets.unavailable)


def written_json(written: WrittenMessages) -> dict[str, Any]:
    """Return the JSON of messages that were written."""
    batch = written.batch
    return {
        "messages": written.messages,
        "batch": batch and body_of(WrittenBatchBody, batch, replayed=written.replayed),
    }


def _message_json(shown: ShownMessage, format_: Format, characters: int) -> dict[str, Any]:
    message, content = shown.message, shown.content
    records, truncated = shortened(list(content.records), characters)
    with_raw = content.error is not None or format_ is Format.BYTES
    few = max(200, characters // _KEY_SHARE)
    least = max(100, characters // _HEADER_SHARE)
    return {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": _time_json(message.timestamp_ms),
        "timestamp_type": message.timestamp_type,
        "committed": shown.committed,
        "key": _bytes_json(message.key, few),
        "headers": [
            {"name": name[:_HEADER_NAME], "value": _bytes_json(value, least)}
            for name, value in message.headers[:MAX_HEADERS]
        ],
        "size_bytes": message.size_bytes,
        "schema": None
        if content.schema is None
        else {"id": content.schema.id, "version": content.schema.version},
        "record_count": content.record_count,
        "records": records,
        "truncated": truncated,
        "error": content.error,
        "deleted": content.deleted,
        "raw": _bytes_json(message.value, characters) if with_raw else None,
    }


def _time_json(timestamp_ms: int | None) -> str | None:
    if timestamp_ms is None:
        return None
    try:
        return time_json(datetime.fromtimestamp(timestamp_ms / 1000, UTC))
    except (OverflowError, ValueError, OSError):
        # Producers may set any number.
        return None


def _bytes_json(value: bytes | None, most: int) -> dict[str, Any] | None:
    """Return the JSON of bytes, of which at most about `most` are shown."""
    if value is None:
        return None
    cut = len(value) > most
    try:
        value.decode()
        # What is left may end within a character.
        encoding, data = "utf-8", value[:most].decode(errors="ignore")
    except UnicodeDecodeError:
        encoding, data = "base64", base64.b64encode(value[:most]).decode("ascii")
    return {"encoding": encoding, "data": data, "size_bytes": len(value), "truncated": cut}
