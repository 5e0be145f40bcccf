"""Schema versions of a channel, their format and compatibility. Pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

#: Per channel, with the characters of all definitions; a connection contains all of them.
MAX_SCHEMA_VERSIONS = 1_000
MAX_SCHEMA_CHARACTERS = 16 * 1024 * 1024


class Format(StrEnum):
    """Encoding of records in messages."""

    AVRO = "avro"
    ARROW = "arrow"
    JSON = "json"
    """A message is one JSON object without a schema id."""
    PROTOBUF = "protobuf"
    """A message is one Protobuf message, after its schema's id and its place in the file."""
    BYTES = "bytes"
    """A message is one value, unchanged."""


class Compatibility(StrEnum):
    """Rule for a new version of a channel's schema and every kept version."""

    NONE = "none"
    """No rule."""
    BACKWARD = "backward"
    """The new version reads records of the old ones."""
    FORWARD = "forward"
    """The old versions read records of the new one."""
    FULL = "full"
    """Both."""


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """A current or former schema of a channel."""

    id: int
    """Global and permanent; messages carry it."""
    version: int
    """Number within the channel, from 1."""
    fingerprint: str
    """Of the canonical form, which is the schema's identity."""
    definition: str
    """Avro JSON, with aliases, documentation and other attributes."""
    created_at: datetime
    """Time at which the channel got it."""
