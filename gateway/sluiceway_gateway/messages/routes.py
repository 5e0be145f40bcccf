"""Routes of messages: read a few of a channel's, and write a few by hand."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from sluiceway_gateway.api.auth import Reader, Viewer, Writer
from sluiceway_gateway.api.deps import Service
from sluiceway_gateway.api.json import json_response
from sluiceway_gateway.api.params import Name
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.messages.reading import MessageReads
from sluiceway_gateway.messages.threads import BoundedThreads
from sluiceway_gateway.messages.wire import (
    Cursor,
    Limit,
    MessagesBody,
    Offset,
    OffsetsSince,
    PartitionNumber,
    Since,
    Start,
    TopicOffsetsBody,
    Uncommitted,
    WrittenBody,
    offsets_json,
    page_json,
    start_point,
    written_json,
)
from sluiceway_gateway.messages.writing import MessageWrites, WriteRequest

router = APIRouter(
    prefix="/v1/channels/{name}/messages", tags=["messages"], route_class=StrictRoute
)

MessageReadsDep = Annotated[MessageReads, Depends(Service("message_reads"))]
MessageThreadsDep = Annotated[BoundedThreads, Depends(Service("message_threads"))]
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
