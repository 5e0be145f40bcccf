"""Reading a channel's schema with the client's own rules."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluiceway.errors import SchemaError
from sluiceway.schema import Schema
from sluiceway_gateway.domain.errors import InvalidSchema, Violation


@dataclass(frozen=True, kw_only=True)
class ParsedSchema:
    """A schema that a channel can have, in its one canonical form."""

    canonical: str
    fingerprint: str


def parse_schema(definition: Mapping[str, Any]) -> ParsedSchema:
    """Read an Avro schema; raises InvalidSchema naming the path of what is wrong."""
    try:
        schema = Schema.parse(definition)
    except SchemaError as error:
        raise InvalidSchema(
            f"The schema cannot be used: {error}",
            (Violation(pointer="/spec/schema", message=str(error)),),
        ) from error
    return ParsedSchema(canonical=schema.canonical, fingerprint=schema.fingerprint)
