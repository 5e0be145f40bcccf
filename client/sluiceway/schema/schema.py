"""Schema: the record type of a channel."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, Self

from sluiceway.errors import InvalidSchema
from sluiceway.schema import rendering
from sluiceway.schema.avro import parse
from sluiceway.schema.compatibility import differences
from sluiceway.schema.inference import from_class, from_struct_type, is_struct_type
from sluiceway.schema.types import Kind, Nullable, Record, Scalar

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Schema:
    """What the records of a channel look like: an Avro record schema.

    Made by `Schema.parse` and `Schema.of`, never changed, comparable, hashable and picklable.
    """

    record: Record

    @classmethod
    def parse(cls, avro: str | Mapping[str, Any]) -> Self:
        """Read the schema that Avro JSON describes: text, or what `json.loads` makes of it.

        Raises InvalidSchema or UnsupportedType, naming the path of the field at fault.
        """
        return cls(parse(avro))

    @classmethod
    def of(cls, source: object) -> Schema:
        """Make the schema of `source`: a dataclass, Arrow's or Spark's schema, Avro JSON, a Schema.

        Raises InvalidSchema or UnsupportedType, naming the path of the field at fault.
        """
        if isinstance(source, Schema):
            return source
        if isinstance(source, str | Mapping):
            return cls.parse(source)
        if isinstance(source, type) and dataclasses.is_dataclass(source):
            return cls(from_class(source))
        if is_struct_type(source):
            return cls(from_struct_type(source))

        import pyarrow as pa

        if isinstance(source, pa.Schema):
            from sluiceway.schema.arrow import from_arrow

            return cls(from_arrow(source))
        raise InvalidSchema(
            f"a schema cannot be made from {type(source).__name__}: give a dataclass, a "
            "pyarrow.Schema, a StructType of Spark, or an Avro record schema as a dict or JSON text"
        )

    @property
    def name(self) -> str:
        """The full Avro name of the record."""
        return self.record.name

    @cached_property
    def definition(self) -> dict[str, Any]:
        """The canonical form as a dict; not to be changed."""
        return rendering.definition(self.record)

    @cached_property
    def canonical(self) -> str:
        """The schema as JSON text in one fixed form: full names, defaults, no documentation.

        Equal schemas have equal texts, and `Schema.parse` of the text gives an equal schema.
        """
        return rendering.canonical(self.record)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the canonical form, as 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical.encode("ascii")).hexdigest()

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the channel's batches; a non-null Avro field is not nullable."""
        from sluiceway.schema.arrow import to_arrow

        return to_arrow(self.record)

    def differences(self, other: Schema) -> tuple[str, ...]:
        """Say where the records of `other` are not those of this schema, a sentence each.

        Names of records, the order of a union's branches and defaults do not count: they decide
        nothing about what a record may hold. The order of fields does, as the bytes follow it.
        """
        return differences(self.record, other.record)

    def __repr__(self) -> str:
        return f"Schema({self.canonical})"

    def __getstate__(self) -> dict[str, Any]:
        return {"record": self.record}


FIELD: Final = "value"
"""The one field of each record: the message's value as it is."""


@lru_cache(maxsize=1)
def bytes_schema() -> Schema:
    """Return the schema that such a channel has where none is given; null is a tombstone."""
    field = {"name": FIELD, "type": ["null", "bytes"], "default": None}
    return Schema.parse({"type": "record", "name": "Message", "fields": [field]})


def holds_messages(schema: Schema) -> bool:
    """Whether each record of `schema` is a message: its one field is `value`, bytes or null."""
    return len(schema.record.fields) == 1 and (
        schema.record.fields[0].name == FIELD
        and schema.record.fields[0].type in (_BYTES, Nullable(item=_BYTES), _BYTES_OR_NULL)
    )


_BYTES: Final = Scalar(kind=Kind.BYTES)
_BYTES_OR_NULL: Final = Nullable(item=_BYTES, null_first=False)
