"""Subjects of the registry: channels of three formats, by their names and topics.

A message of an `avro` or `protobuf` channel begins with the id of its schema, as registry clients
expect, and one of a `json` channel may. The schema of a `json` channel is shown as JSON Schema, and
that of a `protobuf` channel as a `.proto` file. Other channels have no subject.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from sluiceway.errors import SchemaError
from sluiceway.schema import Schema
from sluiceway.schema.json_schema import json_schema
from sluiceway.schema.proto_files import proto_file
from sluiceway_gateway.channels import schema_store
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.errors import RegistryError
from sluiceway_gateway.core.names import TOPIC_PATTERN
from sluiceway_gateway.registry import store as registry_store
from sluiceway_gateway.registry.store import Subject
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.model import Compatibility, Format, SchemaVersion
from sluiceway_gateway.schemas.service import differences

SERIALIZED: Final = "serialized"
"""The format of texts in which a `.proto` file is a descriptor, as clients of Python request it."""
_SUFFIX: Final = "-value"
KEY_SUFFIX: Final = "-key"
"""Of subjects of keys, which other registries have."""

SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
"""Error codes of Confluent Schema Registry."""

_VERSION: Final = re.compile(r"[0-9]{1,10}\Z")
_MAX_VERSION: Final = 2**31 - 1
_NAME: Final = re.compile(TOPIC_PATTERN)
"""Names of topics, which include those of channels."""


class SchemaType(StrEnum):
    """Language of a schema, as the registry names it."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, kw_only=True)
class TypedSchema:
    """The text of a schema in one of the languages."""

    text: str
    type: SchemaType

    @classmethod
    def of(cls, definition: str, format_: Format, text_format: str = "") -> Self:
        """Return the schema of messages of a format, from its Avro JSON.

        With the text format `serialized`, a `.proto` file is its descriptor in base64.
        """
        match format_:
            case Format.JSON:
                text = json.dumps(json_schema(Schema.parse(definition)), separators=(",", ":"))
                return cls(text=text, type=SchemaType.JSON)
            case Format.PROTOBUF:
                file = proto_file(Schema.parse(definition))
                if text_format != SERIALIZED:
                    return cls(text=file.text, type=SchemaType.PROTOBUF)
                from sluiceway_gateway.registry.descriptors import serialized

                return cls(text=serialized(file), type=SchemaType.PROTOBUF)
        return cls(text=definition, type=SchemaType.AVRO)

    def fields(self) -> dict[str, str]:
        """Return its fields of a response; without a type, a schema is Avro."""
        named = {} if self.type is SchemaType.AVRO else {"schemaType": str(self.type)}
        return {"schema": self.text, **named}


@dataclass(frozen=True, kw_only=True)
class SubjectVersion:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    """The id of its schema."""
    schema: TypedSchema

    @classmethod
    def of(
        cls, subject: str, version: SchemaVersion, format_: Format, text_format: str = ""
    ) -> Self:
        """Return the subject's version with this schema."""
        return cls(
            subject=subject,
            version=version.version,
            id=version.id,
            schema=TypedSchema.of(version.definition, format_, text_format),
        )

    def fields(self) -> dict[str, Any]:
        """Return it as responses have it."""
        numbers = {"subject": self.subject, "version": self.version, "id": self.id}
        return {**numbers, **self.schema.fields()}


class Registry:
    """Reads of subjects and schemas that a principal may see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def subjects(self, principal: Principal, *, prefix: str = "") -> list[str]:
        """Return the names of all subjects, in order."""
        with self._database.read() as tx:
            subjects = registry_store.subjects(tx, prefixes=principal.prefixes(Action.VIEW))
        names = {name for subject in subjects for name in _names(subject)}
        return sorted(name for name in names if name.startswith(prefix))

    def schema(
        self, schema_id: int, principal: Principal, subject: str = "", text_format: str = ""
    ) -> TypedSchema:
        """Return a schema by the id that messages carry, as the `subject` has it.

        Without one, or for one that does not have it, it is Avro unless all subjects that have it
        are of one other format. Raises RegistryError.
        """
        visible = _visible(principal)
        with self._database.read() as tx:
            channel = _find_channel(tx, subject, principal)
            if channel is not None:
                definition = registry_store.definition(tx, channel, schema_id)
                if definition is not None:
                    return TypedSchema.of(definition, channel.format, text_format)
            formats = schema_store.formats(tx, schema_id, prefixes=visible)
            formats &= set(registry_store.FORMATS)
            format_ = formats.pop() if len(formats) == 1 else Format.AVRO
            definition = schema_store.find(tx, schema_id, prefixes=visible, format_=format_)
        if definition is None:
            raise RegistryError(
                f"No channel that this token may see has a schema with the id {schema_id}.",
                SCHEMA_NOT_FOUND,
            )
        return TypedSchema.of(definition, format_, text_format)

    def max_id(self, principal: Principal) -> int:
        """Return the highest id of the schemas that the principal may see."""
        with self._database.read() as tx:
            return schema_store.max_id(tx, prefixes=_visible(principal))

    def uses(self, schema_id: int, principal: Principal) -> list[tuple[str, int]]:
        """Return the subjects and versions of a schema. Raises RegistryError."""
        self.schema(schema_id, principal)
        with self._database.read() as tx:
            versions = registry_store.subject_versions(
                tx, prefixes=principal.prefixes(Action.VIEW), schema_id=schema_id
            )
        return sorted(
            {(name, version) for subject, version, _ in versions for name in _names(subject)}
        )

    def listed(
        self, principal: Principal, *, prefix: str, latest: bool, part: slice
    ) -> list[SubjectVersion]:
        """Return this part of all versions of all subjects, or of those that writers use."""
        with self._database.read() as tx:
            versions = registry_store.subject_versions(tx, prefixes=principal.prefixes(Action.VIEW))
            every = {
                (name, version, schema_id): (subject.channel_uid, version, subject.format)
                for subject, version, schema_id in versions
                if not latest or version == subject.version
                for name in _names(subject)
                if name.startswith(prefix)
            }
            shown = sorted(every)[part]
            texts = registry_store.definitions(tx, {every[key][:2] for key in shown})
        return [
            SubjectVersion(
                subject=name,
                version=version,
                id=id_,
                schema=TypedSchema.of(texts[every[key][:2]], every[key][2]),
            )
            for key in shown
            for name, version, id_ in [key]
        ]

    def versions(self, subject: str, principal: Principal) -> list[int]:
        """Return the numbers of all versions of a subject, in order. Raises RegistryError."""
        with self._database.read() as tx:
            versions = schemas_store.versions(tx, _require(tx, subject, principal).channel_uid)
        return [version.version for version in versions]

    def version(
        self, subject: str, version: str, principal: Principal, text_format: str = ""
    ) -> SubjectVersion:
        """Return a version by its number; `latest` or -1 is the version that writers use.

        Raises RegistryError.
        """
        with self._database.read() as tx:
            channel = _require(tx, subject, principal)
            versions = schemas_store.versions(tx, channel.channel_uid)
        chosen = _version(subject, version, versions, channel.version)
        return SubjectVersion.of(subject, chosen, channel.format, text_format)

    def lookup(
        self, subject: str, schema: TypedSchema, principal: Principal, text_format: str = ""
    ) -> SubjectVersion:
        """Return the version with this schema. Raises RegistryError."""
        with self._database.read() as tx:
            channel = _require(tx, subject, principal)
            versions = schemas_store.versions(tx, channel.channel_uid)
        version = _find(schema, versions, channel)
        if version is None:
            raise RegistryError(
                f"None of the {len(versions)} versions of {subject!r} is this schema.",
                SCHEMA_NOT_FOUND,
            )
        return SubjectVersion.of(subject, version, channel.format, text_format)

    def incompatibilities(
        self, subject: str, version: str | None, schema: TypedSchema, principal: Principal
    ) -> list[str]:
        """Return the violations of the channel's rule, against one version or all of them.

        JSON Schema and `.proto` files say less than a channel's schema, so they must be those of a
        version. Raises RegistryError.
        """
        # In one transaction: a version added meanwhile could be the latest, but not among these.
        with self._database.read() as tx:
            channel = _require(tx, subject, principal)
            versions = schemas_store.versions(tx, channel.channel_uid)
        kept = (
            versions
            if version is None
            else (_version(subject, version, versions, channel.version),)
        )
        if channel.format is Format.AVRO:
            return differences(_parsed(schema), kept, channel.compatibility)
        same = _find(schema, versions, channel)
        if same is None:
            raise RegistryError(
                f"The schema is not that of a version of {subject!r}, and the type {schema.type} "
                "says too little to compare it: check the channel's schema, which is Avro JSON, by "
                "PUT /v1/channels/NAME?dry_run=true.",
                INVALID_SCHEMA,
            )
        return differences(Schema.parse(same.definition), kept, channel.compatibility)

    def compatibility(self, subject: str, principal: Principal) -> Compatibility:
        """Return the rule of the subject's channel. Raises RegistryError."""
        with self._database.read() as tx:
            return _require(tx, subject, principal).compatibility


def _names(subject: Subject) -> set[str]:
    return {f"{subject.channel}{_SUFFIX}", f"{subject.topic}{_SUFFIX}"}


def _visible(principal: Principal) -> tuple[str, ...] | None:
    return None if principal.may(Action.ADMIN) else principal.prefixes(Action.VIEW)


def _find_channel(tx: ReadTransaction, subject: str, principal: Principal) -> Subject | None:
    """Return the subject's channel, or None; a channel's name has precedence over a topic's."""
    name = subject.removesuffix(_SUFFIX)
    if name == subject or not _NAME.fullmatch(name):
        return None
    candidates = registry_store.subjects(tx, prefixes=principal.prefixes(Action.VIEW), name=name)
    return min(candidates, key=lambda candidate: candidate.channel != name, default=None)


def _require(tx: ReadTransaction, subject: str, principal: Principal) -> Subject:
    """Return the subject's channel. Raises RegistryError."""
    channel = _find_channel(tx, subject, principal)
    if channel is not None:
        return channel
    if subject.endswith(KEY_SUFFIX):
        raise RegistryError(
            f"There is no subject {subject[:300]!r}: the keys of a channel are text or bytes, "
            "without a schema. Serialize them as such.",
            SUBJECT_NOT_FOUND,
        )
    raise RegistryError(
        f"There is no subject {subject[:300]!r} that this token may see. Subjects are "
        "CHANNEL-value and TOPIC-value, of channels of the formats avro, json and protobuf.",
        SUBJECT_NOT_FOUND,
    )


def _version(
    subject: str, version: str, versions: Sequence[SchemaVersion], in_use: int
) -> SchemaVersion:
    """Return the version that a request names; `in_use` is that of `latest`.

    Raises RegistryError.
    """
    latest = version in {"latest", "-1"}
    if not latest and not (_VERSION.match(version) and 1 <= int(version) <= _MAX_VERSION):
        raise RegistryError(
            f"The version {version[:100]!r} is not a number from 1 to {_MAX_VERSION}, nor "
            "`latest`.",
            INVALID_VERSION,
        )
    number = in_use if latest else int(version)
    for candidate in versions:
        if candidate.version == number:
            return candidate
    raise RegistryError(f"The subject {subject!r} has no version {number}.", VERSION_NOT_FOUND)


def _find(
    schema: TypedSchema, versions: Sequence[SchemaVersion], channel: Subject
) -> SchemaVersion | None:
    """Return the version with this schema, or None. Raises RegistryError."""
    if channel.format is Format.AVRO:
        fingerprint = _parsed(schema).fingerprint
        return next((v for v in versions if v.fingerprint == fingerprint), None)
    if channel.format is Format.PROTOBUF:
        return _find_file(schema, versions)
    _require_type(schema, SchemaType.JSON)
    try:
        wanted = json.loads(schema.text)
    except ValueError as error:
        raise RegistryError(f"The schema is not JSON: {error}", INVALID_SCHEMA) from error
    return next((v for v in versions if json_schema(Schema.parse(v.definition)) == wanted), None)


def _find_file(schema: TypedSchema, versions: Sequence[SchemaVersion]) -> SchemaVersion | None:
    _require_type(schema, SchemaType.PROTOBUF)
    from sluiceway_gateway.registry.descriptors import InvalidFile, SentFile

    try:
        sent = SentFile(schema.text)
    except InvalidFile as error:
        raise RegistryError(f"The schema cannot be used: {error}", INVALID_SCHEMA) from error
    files = ((version, proto_file(Schema.parse(version.definition))) for version in versions)
    return next((version for version, file in files if sent.is_same(file)), None)


def _require_type(schema: TypedSchema, type_: SchemaType) -> None:
    if schema.type is not type_:
        raise RegistryError(
            f"The schema is of the type {str(schema.type)!r}; this subject has schemas of the type "
            f"{str(type_)!r}.",
            INVALID_SCHEMA,
        )


def _parsed(schema: TypedSchema) -> Schema:
    _require_type(schema, SchemaType.AVRO)
    try:
        return Schema.parse(schema.text)
    except SchemaError as error:
        raise RegistryError(f"The schema cannot be used: {error}", INVALID_SCHEMA) from error
