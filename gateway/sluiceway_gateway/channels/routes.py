"""Routes of channels, and of the connection of a client: topic, schemas, Kafka properties."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic_core import to_json

from sluiceway_gateway.api.auth import Anybody, Manager, Viewer
from sluiceway_gateway.api.deps import ChangesDep, RenderedDep, SettingsDep
from sluiceway_gateway.api.json import ResponseCache, body_of, json_response, text_of
from sluiceway_gateway.api.middleware import long_poll
from sluiceway_gateway.api.params import (
    Conditions,
    Features,
    IdempotencyKey,
    Name,
    Wait,
    cursor_after,
    name_before,
    request_of,
)
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.channels.change import etag
from sluiceway_gateway.channels.deps import ChannelsDep
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.service import ChangeContext, require_known
from sluiceway_gateway.channels.topic_config import canonical, refusals
from sluiceway_gateway.channels.wire import (
    ChannelBody,
    ChannelList,
    ChannelPut,
    Connection,
    ConnectionChannel,
    channel_json,
    selector_of,
)
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.changes import of_channel
from sluiceway_gateway.core.db.idempotency import StoredResponse
from sluiceway_gateway.core.errors import ConfigNotAllowed, Violation
from sluiceway_gateway.core.preconditions import Precondition
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.schemas.model import SchemaVersion
from sluiceway_gateway.schemas.service import parse_schema

router = APIRouter(prefix="/v1/channels", tags=["channels"], route_class=StrictRoute)

DryRun = Annotated[
    bool,
    Query(
        description="Validate the change and return its result without storing it; the response "
        "has no ETag, and its new ids, uid and topic are examples. Idempotency-Key is ignored"
    ),
]
_ETAG = {"ETag": {"schema": {"type": "string"}, "description": "The state's entity tag"}}


def described(text: str) -> dict[str, Any]:
    """Return the OpenAPI response that is a channel."""
    return {"description": text, "model": ChannelBody, "headers": _ETAG}


@router.put(
    "/{name}",
    summary="Create a channel or change it",
    response_model=ChannelBody,
    responses=problems(
        404,
        409,
        412,
        413,
        also={200: described("It existed before"), 201: described("It was created")},
    ),
)
def create_channel(
    name: Name,
    body: ChannelPut,
    principal: Manager,
    channels: ChannelsDep,
    precondition: Conditions,
    dry_run: DryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create the channel, or change the given fields; omitted fields keep their values.

    Another schema becomes a new version if it is compatible with all kept ones by `compatibility`;
    otherwise 409 `schema_incompatible` lists the reasons. `topic` adopts an existing topic, which
    needs a token for all channels. The response does not wait for Kafka; see `status`.
    """
    spec, metadata = body.spec, body.metadata
    schema = parse_schema(spec.schema_) if "schema_" in spec.model_fields_set else None
    if spec.topic is not None:
        principal.require_everywhere(Action.MANAGE, "Adopting a topic")
    if "config" in spec.model_fields_set:
        spec = spec.model_copy(update={"config": _canonical(spec.config)})
    labels = metadata.labels if "labels" in metadata.model_fields_set else None
    content = ("PUT", name, body.model_dump_json(exclude_unset=True, by_alias=True))
    context = change_context(principal, precondition, idempotency_key, content, dry_run=dry_run)
    return sent(channels.put(name, spec, context, labels=labels, schema=schema, uid=metadata.uid))


@router.get(
    "/{name}",
    summary="Read a channel",
    response_model=ChannelBody,
    responses=problems(
        404, also={200: described("The channel"), 304: {"description": "It has not changed"}}
    ),
)
async def get_channel(
    name: Name,
    request: Request,
    _viewer: Viewer,
    channels: ChannelsDep,
    changes: ChangesDep,
    precondition: Conditions,
    wait: Wait = 0,
) -> Response:
    """Return the channel. With `wait` and `If-None-Match`, wait for a change."""
    channel, unchanged = await long_poll(
        request,
        precondition,
        wait,
        changes=changes,
        awaited=lambda: of_channel(channels.get(name).uid),
        read=lambda: channels.get(name),
        tag=etag,
    )
    return unchanged or sent(_response(channel, 200))


@router.get(
    "",
    summary="List channels",
    response_model=ChannelList,
    response_description="A page",
    responses=problems(),
)
def list_channels(
    principal: Anybody,
    channels: ChannelsDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    selector: Annotated[
        str | None, Query(max_length=4000, description="a=b,c!=d,e,!f,g in (x,y),h notin (z)")
    ] = None,
) -> Response:
    """Return the channels that the token may see, ordered by name."""
    page = channels.page(
        limit=limit,
        after=name_before(cursor),
        selector=selector_of(selector),
        prefixes=principal.prefixes(Action.VIEW),
    )
    following = None if page.following is None else cursor_after(page.following)
    items = [channel_json(channel) for channel in page.channels]
    return json_response({"items": items, "next_cursor": following})


def change_context(
    by: Principal,
    precondition: Precondition,
    key: str | None,
    content: tuple[object, ...],
    status: int = 200,
    *,
    dry_run: bool = False,
) -> ChangeContext:
    """Return the context of a request with this content; `status` is that of its response."""
    request = request_of(None if dry_run else key, by, *content, precondition=precondition)
    return ChangeContext(
        by=by,
        precondition=precondition,
        request=request,
        render=lambda channel, created: _response(
            channel, 201 if created else status, dry_run=dry_run
        ),
        dry_run=dry_run,
    )


def _canonical(config: Mapping[str, str]) -> dict[str, str]:
    """Return the config in canonical form; raises ConfigNotAllowed."""
    refused = refusals(config)
    if refused:
        raise ConfigNotAllowed(
            "; ".join(refusal.message for refusal in refused) + ".",
            tuple(
                Violation(pointer=f"/spec/config/{refusal.name}", message=refusal.message)
                for refusal in refused
            ),
        )
    return canonical(config)


def _response(channel: Channel, status: int, *, dry_run: bool = False) -> StoredResponse:
    # No tag: the tag of a state that is not stored would later match another state.
    headers = {} if dry_run else {"ETag": etag(channel)}
    return StoredResponse(status=status, headers=headers, body=text_of(channel_json(channel)))


def sent(response: StoredResponse) -> Response:
    """Return the stored response as it is sent."""
    return Response(
        response.body,
        response.status,
        headers=dict(response.headers),
        media_type="application/json",
    )


Listener = Annotated[str | None, Query(description="The name of a Kafka listener", max_length=100)]


@router.get(
    "/{name}/connection",
    summary="Connect to a channel",
    response_model=Connection,
    response_description="The connection",
    responses=problems(404, 409),
)
def get_connection(
    name: Name,
    access: Annotated[Literal["read", "write"], Query(description="The intended access")],
    principal: Viewer,
    channels: ChannelsDep,
    settings: SettingsDep,
    rendered: RenderedDep,
    features: Features,
    listener: Listener = None,
) -> Response:
    """Return the connection; creates no endpoint.

    409 `channel_not_ready` until there is a topic, `channel_closed` for writing to a closed one,
    `client_outdated` for a client that does not know the channel's delivery, or as a writer its
    partitioner.
    """
    principal.require(Action(access), name)
    settings.listeners.reached_by(listener)
    channel, versions = channels.connected(name, writes=access == "write")
    require_known(channel, features, writes=access == "write")
    return Response(
        connection_text(settings, rendered, channel, versions, listener=listener),
        # The properties may contain credentials.
        headers={"Cache-Control": "no-store"},
        media_type="application/json",
    )


def connection_text(
    settings: Settings,
    rendered: ResponseCache,
    channel: Channel,
    versions: Sequence[SchemaVersion],
    *,
    listener: str | None,
) -> str:
    """Return the JSON of a connection, cached per state of the channel.

    Raises InvalidRequest for an unknown listener.
    """
    kafka = settings.listeners.reached_by(listener)
    topic = channel.topic
    tag = f"{etag(channel)}/{channel.schema_id}/{len(versions)}/{topic.id}/{topic.partitions}"
    key = f"connection/{channel.uid}/{listener}"
    kept = rendered.get(key, tag)
    if kept is None:
        connection = _connection_json(channel, versions, kafka)
        kept = to_json(connection)
        rendered.put(key, tag, kept)
    return kept.decode()


def _connection_json(
    channel: Channel, versions: Sequence[SchemaVersion], kafka: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "channel": body_of(ConnectionChannel, channel),
        "format": channel.spec.format,
        "delivery": channel.spec.delivery,
        "partitioner": channel.spec.partitioner,
        "schema": {
            "id": channel.schema_id,
            "version": channel.schema_version,
            "definition": json.loads(channel.schema),
        },
        "schemas": [
            {
                "id": version.id,
                "version": version.version,
                "definition": json.loads(version.definition),
            }
            for version in versions
        ],
        "topic": {
            **vars(channel.topic),
            "max_message_bytes": channel.max_message_bytes,
            "compacted": channel.compacted,
        },
        "kafka": dict(kafka),
    }
