"""Routes of messages: read a few of a channel's, and write a few by hand."""

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sluiceway_gateway.api.auth import Reader, Viewer, Writer, authenticate_again
from sluiceway_gateway.api.deps import ChangesDep, Service
from sluiceway_gateway.api.json import json_response
from sluiceway_gateway.api.params import Name
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.core.errors import SluicewayGatewayError, Unauthenticated
from sluiceway_gateway.messages.model import SearchCondition
from sluiceway_gateway.messages.reading import MessageReads
from sluiceway_gateway.messages.search import MessageSearches, SearchEnd, SearchEvents
from sluiceway_gateway.messages.threads import BoundedThreads
from sluiceway_gateway.messages.wire import (
    Cursor,
    Follow,
    Limit,
    Matches,
    MessagesBody,
    Offset,
    OffsetsSince,
    PartitionNumber,
    SearchCursor,
    SearchField,
    SearchLine,
    SearchRegex,
    SearchSince,
    SearchText,
    SearchUntil,
    Since,
    Start,
    TopicOffsetsBody,
    Uncommitted,
    WrittenBody,
    end_line,
    match_line,
    offsets_json,
    page_json,
    progress_line,
    search_request,
    start_point,
    written_json,
)
from sluiceway_gateway.messages.writing import MessageWrites, WriteRequest

router = APIRouter(
    prefix="/v1/channels/{name}/messages", tags=["messages"], route_class=StrictRoute
)

MessageReadsDep = Annotated[MessageReads, Depends(Service("message_reads"))]
MessageThreadsDep = Annotated[BoundedThreads, Depends(Service("message_threads"))]
MessageSearchesDep = Annotated[MessageSearches, Depends(Service("message_searches"))]
SearchThreadsDep = Annotated[BoundedThreads, Depends(Service("search_threads"))]
FollowThreadsDep = Annotated[BoundedThreads, Depends(Service("follow_threads"))]
MessageWritesDep = Annotated[MessageWrites, Depends(Service("message_writes"))]


@router.get(
    "",
    summary="Read messages",
    response_model=MessagesBody,
    response_description="Messages, decoded by their schemas",
    responses=problems(404, 409),
)
async def list_messages(
    name: Name,
    _reader: Reader,
    message_reads: MessageReadsDep,
    message_threads: MessageThreadsDep,
    partition: PartitionNumber = None,
    offset: Offset = None,
    since: Since = None,
    start: Start = "latest",
    cursor: Cursor = None,
    limit: Limit = 50,
    uncommitted: Uncommitted = False,
) -> Response:
    """Return the newest messages, or messages from a start point on; changes no positions.

    On exactly-once channels returns committed messages. A message that cannot be decoded has
    `error` and its bytes. A response has at most some megabytes. After about five seconds it has
    the messages found so far: see `incomplete`.
    """
    begin = start_point(partition=partition, offset=offset, since=since, start=start, cursor=cursor)

    def read() -> Response:
        page = message_reads.read(name, begin, limit=limit, uncommitted=uncommitted)
        # Records must not stay in caches, which do not check tokens.
        return json_response(page_json(page), headers={"Cache-Control": "no-store"})

    return await message_threads.run(read)


@router.get(
    "/offsets",
    summary="Look up offsets",
    response_model=TopicOffsetsBody,
    response_description="The offsets",
    responses=problems(404, 409),
)
async def list_offsets(
    name: Name,
    _viewer: Viewer,
    message_reads: MessageReadsDep,
    message_threads: MessageThreadsDep,
    since: OffsetsSince = None,
) -> Response:
    """Return the first and the end offset of each partition, and the offset at a time.

    These are the positions for a reset of a group to a time, or to the beginning or end.
    """
    return await message_threads.run(
        lambda: json_response(offsets_json(message_reads.offsets(name, since=since)))
    )


class _Lines(StreamingResponse):
    """Lines of JSON, whose source is closed with the connection."""

    media_type = "application/jsonl"

    def __init__(
        self,
        lines: AsyncGenerator[bytes],
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(lines, status_code, headers)
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines until they end, or the client is gone."""
        async with aclosing(self._lines):
            await super().__call__(scope, receive, send)


@router.get(
    "/search",
    summary="Search messages",
    response_class=_Lines,
    response_model=SearchLine,
    response_description="Lines of JSON: the progress about once a second, matches, the end",
    responses=problems(404, 409),
)
async def search_messages(
    name: Name,
    request: Request,
    _reader: Reader,
    message_searches: MessageSearchesDep,
    search_threads: SearchThreadsDep,
    follow_threads: FollowThreadsDep,
    changes: ChangesDep,
    text: SearchText = None,
    regex: SearchRegex = None,
    field: SearchField = None,
    partition: PartitionNumber = None,
    since: SearchSince = None,
    until: SearchUntil = None,
    start: Start = "latest",
    cursor: SearchCursor = None,
    limit: Matches = 50,
    follow: Follow = False,
    uncommitted: Uncommitted = False,
) -> Response:
    """Search messages from the newest one back, or from the oldest on; changes no positions.

    Sends matches as they are found, and ends after 1,000,000 messages, 1 GiB or a minute:
    `next_cursor` of the end continues. Disconnect to cancel it. The first 65,536 characters of a
    message are searched, in `arrow` of its first 10,000 records. On exactly-once channels searches
    committed messages.
    """
    search = search_request(
        SearchCondition(text=text, regex=regex, field=field),
        partition=partition,
        since=since,
        until=until,
        start=start,
        cursor=cursor,
        limit=limit,
        follow=follow,
        uncommitted=uncommitted,
    )

    def run(send: Callable[[bytes], None], stopped: Callable[[], bool]) -> None:
        events = SearchEvents(
            on_match=lambda channel, shown: send(match_line(channel, shown)),
            on_progress=lambda progress: send(progress_line(progress)),
            on_end=lambda end: send(end_line(end)),
            stopped=lambda: changes.is_closed or stopped(),
        )
        message_searches.run(name, search, events)

    threads = follow_threads if follow else search_threads
    lines = _while_authenticated(request, threads.stream(run))
    # Errors before the first line are responses of their own.
    first = await anext(lines)
    # Records must not stay in caches, and proxies must not buffer matches.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if request.state.method == "HEAD":
        await lines.aclose()
        return StreamingResponse((), headers=headers, media_type=_Lines.media_type)
    return _Lines(_chained(first, lines), headers=headers)


_AUTHENTICATED_S = 10.0


async def _while_authenticated(
    request: Request, lines: AsyncGenerator[bytes]
) -> AsyncGenerator[bytes]:
    """Yield the lines, and end with a last one once the token is not valid any more.

    While that cannot be known, as without the database, it is looked at again with each line.
    """
    due_s = time.monotonic() + _AUTHENTICATED_S
    async with aclosing(lines):
        async for line in lines:
            if time.monotonic() >= due_s:
                try:
                    await authenticate_again(request)
                    due_s = time.monotonic() + _AUTHENTICATED_S
                except Unauthenticated as error:
                    yield end_line(SearchEnd(reason="stopped", error=error))
                    return
                except SluicewayGatewayError:
                    pass
            yield line


async def _chained(first: bytes, lines: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(lines):
        yield first
        async for line in lines:
            yield line


@router.post(
    "",
    status_code=201,
    summary="Write messages",
    response_model=WrittenBody,
    response_description="The offsets of the messages",
    responses=problems(404, 409, 413),
)
async def write_messages(
    name: Name,
    body: WriteRequest,
    writer: Writer,
    message_writes: MessageWritesDep,
    message_threads: MessageThreadsDep,
) -> Response:
    """Write a few records by hand, in the channel's format and current schema.

    On exactly-once channels they are one committed batch, which a repeat with the same `batch_key`
    does not write again. On other channels a repeat writes again.
    """

    def write() -> Response:
        written = message_writes.write(name, body, writer)
        return json_response(written_json(written), 201)

    return await message_threads.run(write)
