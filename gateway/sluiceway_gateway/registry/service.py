"""Subjects of the registry: channels of the format avro, under their names and their topics' names.

A message of such a channel begins with the id of its schema, as registry clients expect. Messages
of other formats do not, so those channels have no subject.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from sluiceway.errors import SchemaError
from sluiceway.schema import Schema
from sluiceway_gateway.channels import schema_store
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.errors import RegistryError
from sluiceway_gateway.core.names import TOPIC_PATTERN
from sluiceway_gateway.registry import store as registry_store
from sluiceway_gateway.registry.store import Subject
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.model import Compatibility, SchemaVersion
from sluiceway_gateway.schemas.service import differences

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


@dataclass(frozen=True, kw_only=True)
class SubjectVersion:
    """A version of a subject, as responses have it."""

    subject: str
    version: int
    id: int
    """The id of its schema."""
    schema: str
    """Its definition."""

    @classmethod
    def of(cls, subject: str, version: SchemaVersion) -> Self:
        """Return the subject's version with this schema."""
        return cls(
            subject=subject, version=version.version, id=version.id, schema=version.definition
        )


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

    def definition(self, schema_id: int, principal: Principal) -> str:
        """Return a schema by the id that messages carry. Raises RegistryError."""
        with self._database.read() as tx:
            definition = schema_store.find(tx, schema_id, prefixes=_visible(principal))
        if definition is None:
            raise RegistryError(
                f"No channel that this token may see has a schema with the id {schema_id}.",
                SCHEMA_NOT_FOUND,
            )
        return definition

    def max_id(self, principal: Principal) -> int:
        """Return the highest id of the schemas that the principal may see."""
        with self._database.read() as tx:
            return schema_store.max_id(tx, prefixes=_visible(principal))

    def uses(self, schema_id: int, principal: Principal) -> list[tuple[str, int]]:
        """Return the subjects and versions of a schema. Raises RegistryError."""
        self.definition(schema_id, principal)
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
                (name, version, schema_id): (subject.channel_uid, version)
                for subject, version, schema_id in versions
                if not latest or version == subject.version
                for name in _names(subject)
                if name.startswith(prefix)
            }
            shown = sorted(every)[part]
            texts = registry_store.definitions(tx, {every[key] for key in shown})
        return [
            SubjectVersion(subject=name, version=version, id=id_, schema=texts[every[key]])
            for key in shown
            for name, version, id_ in [key]
        ]

    def versions(self, subject: str, principal: Principal) -> tuple[SchemaVersion, ...]:
        """Return all versions of a subject, the oldest first. Raises RegistryError."""
        with self._database.read() as tx:
            return schemas_store.versions(tx, _require(tx, subject, principal).channel_uid)

    def version(self, subject: str, version: str, principal: Principal) -> SubjectVersion:
        """Return a version by its number; `latest` or -1 is the version that writers use.

        Raises RegistryError.
        """
        with self._database.read() as tx:
            channel = _require(tx, subject, principal)
            versions = schemas_store.versions(tx, channel.channel_uid)
        return SubjectVersion.of(subject, _version(subject, version, versions, channel.version))

    def lookup(self, subject: str, definition: str, principal: Principal) -> SubjectVersion:
        """Return the version with this schema, given as Avro JSON.

        Raises RegistryError.
        """
        versions = self.versions(subject, principal)
        schema = _parsed(definition)
        for version in versions:
            if version.fingerprint == schema.fingerprint:
                return SubjectVersion.of(subject, version)
        raise RegistryError(
            f"None of the {len(versions)} versions of {subject!r} is this schema.",
            SCHEMA_NOT_FOUND,
        )

    def incompatibilities(
        self, subject: str, version: str | None, definition: str, principal: Principal
    ) -> list[str]:
        """Return the violations of the channel's rule, against one version or all of them.

        Raises RegistryError.
        """
        schema = _parsed(definition)
        # In one transaction: a version added meanwhile could be the latest, but not among these.
        with self._database.read() as tx:
            channel = _require(tx, subject, principal)
            versions = schemas_store.versions(tx, channel.channel_uid)
        kept = (
            versions
            if version is None
            else (_version(subject, version, versions, channel.version),)
        )
        return differences(schema, kept, channel.compatibility)

    def compatibility(self, subject: str, principal: Principal) -> Compatibility:
        """Return the rule of the subject's channel. Raises RegistryError."""
        with self._database.read() as tx:
            return _require(tx, subject, principal).compatibility


def _names(subject: Subject) -> set[str]:
    return {f"{subject.channel}{_SUFFIX}", f"{subject.topic}{_SUFFIX}"}


def _visible(principal: Principal) -> tuple[str, ...] | None:
    return None if principal.may(Action.ADMIN) else principal.prefixes(Action.VIEW)


def _require(tx: ReadTransaction, subject: str, principal: Principal) -> Subject:
    """Return the subject's channel; a channel's name has precedence over a topic's."""
    name = subject.removesuffix(_SUFFIX)
    if name != subject and _NAME.fullmatch(name):
        candidates = registry_store.subjects(
            tx, prefixes=principal.prefixes(Action.VIEW), name=name
        )
        if candidates:
            return min(candidates, key=lambda candidate: candidate.channel != name)
    if subject.endswith(KEY_SUFFIX):
        raise RegistryError(
            f"There is no subject {subject[:300]!r}: the keys of a channel are text or bytes, "
            "without a schema. Serialize them as such.",
            SUBJECT_NOT_FOUND,
        )
    raise RegistryError(
        f"There is no subject {subject[:300]!r} that this token may see. Subjects are "
        "CHANNEL-value and TOPIC-value, of channels of the format avro.",
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


def _parsed(definition: str) -> Schema:
    try:
        return Schema.parse(definition)
    except SchemaError as error:
        raise RegistryError(f"The schema cannot be used: {error}", INVALID_SCHEMA) from error
