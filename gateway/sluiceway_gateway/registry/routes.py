"""Routes of the registry, as Confluent Schema Registry documents them.

Source: https://docs.confluent.io/platform/current/schema-registry/develop/api.html. Requests that
would change something are refused: schemas change with their channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from sluiceway_gateway.api.auth import REGISTRY, Anybody
from sluiceway_gateway.api.deps import Service
from sluiceway_gateway.api.problems import headers_of
from sluiceway_gateway.api.strict_json import read_model
from sluiceway_gateway.core.errors import NotFound, RegistryError, SluicewayGatewayError
from sluiceway_gateway.registry.service import (
    INVALID_SCHEMA,
    KEY_SUFFIX,
    SCHEMA_NOT_FOUND,
    SUBJECT_NOT_FOUND,
    Registry,
    SchemaType,
    TypedSchema,
)

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


MEDIA_TYPES: Final = frozenset(
    {MEDIA_TYPE, "application/vnd.schemaregistry+json", "application/json"}
)


def error_response(error: SluicewayGatewayError) -> Response:
    """Return the response of a registry to an error."""
    number = getattr(error, "number", None) or _number(error.status)
    body = {"error_code": number, "message": str(error)}
    status = number if number < 1000 else number // 100
    return _json(body, status, headers=headers_of(error, scheme="Basic"))


# Not a StrictRoute: parameters of other registries are ignored, because clients send them.
router = APIRouter(prefix=REGISTRY, include_in_schema=False)

RegistryDep = Annotated[Registry, Depends(Service("registry"))]

_INT32_MAX = 2**31 - 1

SchemaId = Annotated[int, Path(ge=1, le=_INT32_MAX)]
SubjectOfId = Annotated[str, Query(alias="subject", max_length=300)]
"""The subject as which a client reads the schema of an id, which several may have."""
TextFormat = Annotated[str, Query(alias="format", max_length=300)]
"""The form of a schema's text; only `serialized` is another than the usual one."""


@dataclass(frozen=True)
class ListPart:
    """The part of a list that is requested; a negative limit means all."""

    offset: int
    limit: int
    deleted_only: bool

    @property
    def range(self) -> slice:
        """The requested part."""
        return slice(self.offset, None if self.limit < 0 else self.offset + self.limit)

    def of(self, items: Sequence[Any]) -> Response:
        """Return the response with this part of all items."""
        return _json([] if self.deleted_only else list(items[self.range]))


async def part_of(
    offset: Annotated[int, Query(ge=0, le=_INT32_MAX)] = 0,
    limit: Annotated[int, Query(ge=-_INT32_MAX, le=_INT32_MAX)] = -1,
    # Nothing is soft-deleted here: a channel is deleted with its subject.
    deleted_only: Annotated[bool, Query(alias="deletedOnly")] = False,
) -> ListPart:
    """Return the part that the query names."""
    return ListPart(offset=offset, limit=limit, deleted_only=deleted_only)


Part = Annotated[ListPart, Depends(part_of)]
SubjectPrefix = Annotated[str, Query(alias="subjectPrefix", max_length=300)]
ANY_CONTEXT: Final = ":*:"
"""Before the prefix of a subject's name: in any context."""
MAX_SCHEMAS: Final = 1_000
"""Versions in one response; the limit of Confluent Schema Registry too."""


class SchemaText(BaseModel):
    """A schema to look up."""

    schema_: str
    schemaType: str | None = None  # noqa: N815 - the interface's name
    references: list[Any] | None = None

    model_config = {"alias_generator": lambda name: name.rstrip("_"), "extra": "ignore"}

    def typed(self) -> TypedSchema:
        """Return the schema with its type. Raises RegistryError for others than channels have."""
        type_ = self.schemaType or SchemaType.AVRO
        if type_ not in tuple(SchemaType):
            raise RegistryError(
                f"The schema is of the type {type_[:100]!r}; channels have Avro, JSON or Protobuf "
                "schemas.",
                INVALID_SCHEMA,
            )
        if self.references:
            raise RegistryError(
                "The schema has references, and schemas of channels have none: write the types "
                "that it refers to into the schema.",
                INVALID_SCHEMA,
            )
        return TypedSchema(text=self.schema_, type=SchemaType(type_))


async def schema_of(request: Request) -> TypedSchema:
    """Return the schema in the body."""
    return (await read_model(request, SchemaText, MEDIA_TYPES)).typed()


Schema = Annotated[TypedSchema, Depends(schema_of)]


def _number(status: int) -> int:
    """Return the five-digit error code for an HTTP status, if there is one."""
    return status * 100 + 1 if status in {401, 403} else status


def _json(content: Any, status: int = 200, *, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(content, status, headers=headers, media_type=MEDIA_TYPE)


@router.get("")
@router.get("/")
async def get_root(_client: Anybody) -> Response:
    """Respond to clients that check for a registry."""
    return _json({})


@router.get("/contexts")
async def list_contexts(_client: Anybody) -> Response:
    """Return the default context; there are no others."""
    return _json(["."])


@router.get("/schemas")
def list_schemas(
    client: Anybody,
    registry: RegistryDep,
    part: Part,
    prefix: SubjectPrefix = "",
    latest: Annotated[bool, Query(alias="latestOnly")] = False,
) -> Response:
    """Return versions of all subjects with their schemas, at most 1,000."""
    limit = min(part.limit, MAX_SCHEMAS) if part.limit >= 0 else MAX_SCHEMAS
    versions = registry.listed(
        client,
        prefix=prefix.removeprefix(ANY_CONTEXT),
        latest=latest,
        part=replace(part, limit=limit).range,
    )
    return _json([version.fields() for version in versions])


@router.get("/schemas/types")
async def list_types(_client: Anybody) -> Response:
    """Return the types of schemas."""
    return _json(list(SchemaType))


@router.get("/schemas/ids/{schema_id}")
def get_schema_by_id(
    schema_id: SchemaId,
    client: Anybody,
    registry: RegistryDep,
    subject: SubjectOfId = "",
    text_format: TextFormat = "",
    fetch_max_id: Annotated[bool, Query(alias="fetchMaxId")] = False,
) -> Response:
    """Return the schema with this id, as messages carry it."""
    schema: dict[str, Any] = dict(registry.schema(schema_id, client, subject, text_format).fields())
    return _json(schema | ({"maxId": registry.max_id(client)} if fetch_max_id else {}))


@router.get("/schemas/ids/{schema_id}/schema")
def get_definition_by_id(
    schema_id: SchemaId,
    client: Anybody,
    registry: RegistryDep,
    subject: SubjectOfId = "",
    text_format: TextFormat = "",
) -> Response:
    """Return the schema alone."""
    schema = registry.schema(schema_id, client, subject, text_format)
    return Response(schema.text, media_type=MEDIA_TYPE)


@router.get("/schemas/ids/{schema_id}/subjects")
def list_subjects_of_id(
    schema_id: SchemaId, client: Anybody, registry: RegistryDep, part: Part
) -> Response:
    """Return the subjects that have the schema."""
    return part.of(sorted({subject for subject, _ in registry.uses(schema_id, client)}))


@router.get("/schemas/ids/{schema_id}/versions")
def list_versions_of_id(
    schema_id: SchemaId, client: Anybody, registry: RegistryDep, part: Part
) -> Response:
    """Return the subjects and versions that have the schema."""
    return part.of(
        [
            {"subject": subject, "version": version}
            for subject, version in registry.uses(schema_id, client)
        ]
    )


@router.get("/subjects")
def list_subjects(
    client: Anybody,
    registry: RegistryDep,
    part: Part,
    prefix: SubjectPrefix = "",
) -> Response:
    """Return the names of all subjects."""
    return part.of(registry.subjects(client, prefix=prefix.removeprefix(ANY_CONTEXT)))


@router.get("/subjects/{subject}/versions")
def list_versions(subject: str, client: Anybody, registry: RegistryDep, part: Part) -> Response:
    """Return the numbers of a subject's versions."""
    return part.of(registry.versions(subject, client))


@router.get("/subjects/{subject}/versions/{version}")
def get_version(
    subject: str,
    version: str,
    client: Anybody,
    registry: RegistryDep,
    text_format: TextFormat = "",
) -> Response:
    """Return a version; `latest` is the version that writers use."""
    return _json(registry.version(subject, version, client, text_format).fields())


@router.get("/subjects/{subject}/versions/{version}/schema")
def get_definition(
    subject: str,
    version: str,
    client: Anybody,
    registry: RegistryDep,
    text_format: TextFormat = "",
) -> Response:
    """Return the schema of a version alone."""
    subject_version = registry.version(subject, version, client, text_format)
    return Response(subject_version.schema.text, media_type=MEDIA_TYPE)


@router.get("/subjects/{subject}/versions/{version}/referencedby")
def list_references(subject: str, version: str, client: Anybody, registry: RegistryDep) -> Response:
    """Return no ids: schemas of channels have no references."""
    registry.version(subject, version, client)
    return _json([])


@router.post("/subjects/{subject}")
def lookup_schema(
    subject: str,
    client: Anybody,
    registry: RegistryDep,
    schema: Schema,
    text_format: TextFormat = "",
) -> Response:
    """Return the version that has this schema."""
    return _json(registry.lookup(subject, schema, client, text_format).fields())


@router.post("/subjects/{subject}/versions")
def register_schema(
    subject: str, client: Anybody, registry: RegistryDep, schema: Schema
) -> Response:
    """Return the id of a schema that the channel has already; others are refused."""
    try:
        version = registry.lookup(subject, schema, client)
    except RegistryError as error:
        if error.number not in {SUBJECT_NOT_FOUND, SCHEMA_NOT_FOUND}:
            raise
        if subject.endswith(KEY_SUFFIX):
            raise RegistryError(str(error)) from error
        raise RegistryError(
            f"{error} Give the schema to the channel first, with `gateway.channel(NAME, "
            "schema=…)`, `channel.update(schema=…)` or PUT /v1/channels/NAME, and set "
            "auto.register.schemas=false in the serializer."
        ) from error
    return _json({"id": version.id})


@router.post("/compatibility/subjects/{subject}/versions")
def check_all_versions(
    subject: str, client: Anybody, registry: RegistryDep, schema: Schema
) -> Response:
    """Check a schema against all versions by the channel's rule."""
    return _compatibility(registry.incompatibilities(subject, None, schema, client))


@router.post("/compatibility/subjects/{subject}/versions/{version}")
def check_version(
    subject: str, version: str, client: Anybody, registry: RegistryDep, schema: Schema
) -> Response:
    """Check a schema against one version by the channel's rule."""
    return _compatibility(registry.incompatibilities(subject, version, schema, client))


def _compatibility(reasons: list[str]) -> Response:
    return _json({"is_compatible": not reasons, "messages": reasons})


@router.get("/config")
async def get_global_config(_client: Anybody) -> Response:
    """Return the rule of new channels."""
    return _json({"compatibilityLevel": "BACKWARD_TRANSITIVE"})


@router.get("/config/{subject}")
def get_config(subject: str, client: Anybody, registry: RegistryDep) -> Response:
    """Return the rule of a subject's channel, which always covers all versions."""
    rule = str(registry.compatibility(subject, client)).upper()
    return _json({"compatibilityLevel": rule if rule == "NONE" else f"{rule}_TRANSITIVE"})


@router.get("/mode")
@router.get("/mode/{subject}")
async def get_mode(_client: Anybody) -> Response:
    """Return the mode: read-only, because schemas are registered with their channels."""
    return _json({"mode": "READONLY"})


@router.api_route(
    "/{path:path}", methods=["GET", "POST", "PUT", "DELETE", "PATCH"], response_model=None
)
async def refuse(request: Request, _client: Anybody) -> Response:
    """Refuse changes and unknown paths."""
    if request.method == "GET":
        raise NotFound(
            "The registry has no such path; it has schemas, subjects, compatibility, config and "
            "mode, as Confluent Schema Registry does."
        )
    raise RegistryError(
        "The registry is read-only: schemas, their versions and their rule of compatibility belong "
        "to channels. Change them with PUT /v1/channels/NAME, `channel.update(…)` or "
        "`sluiceway channels update`; DELETE /v1/channels/NAME deletes a channel."
    )
