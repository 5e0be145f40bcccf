"""Schema: the record type of a channel."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from sluiceway.errors import InvalidSchema
from sluiceway.schema import avro
from sluiceway.schema import types as t
from sluiceway.schema.avro import parse
from sluiceway.schema.classes import RECORD_CLASSES, record_class
from sluiceway.schema.compatibility import differences
from sluiceway.schema.inference import from_class, from_struct_type, is_struct_type

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Schema:
    """An Avro record schema: the type of a channel's records.

    Created by `Schema.parse` or `Schema.of`; immutable, comparable, hashable and picklable. Schemas
    are equal if their messages have the same bytes: aliases, documentation and other attributes
    are annotations, and not compared.
    """

    record: t.Record

    @staticmethod
    def parse(avro: str | Mapping[str, Any]) -> Schema:
        """Parse Avro JSON, given as text or as an object.

        Raises InvalidSchema or UnsupportedType with the path of the field.
        """
        try:
            text = avro if isinstance(avro, str) else json.dumps(avro)
        except (TypeError, ValueError, RecursionError):
            # It is no JSON, as the error says.
            return Schema(parse(avro))
        return _parsed(_Source(text=text, avro=avro))

    @staticmethod
    def of(source: object) -> Schema:
        """Return the schema of a class, an Arrow schema, a StructType, or Avro JSON.

        A class is a dataclass, a pydantic model, a msgspec.Struct, an attrs class, a NamedTuple, a
        TypedDict, or a class that protoc generated.

        Raises InvalidSchema or UnsupportedType with the path of the field.
        """
        if isinstance(source, Schema):
            return source
        exports_arrow = hasattr(type(source), "__arrow_c_schema__")
        if isinstance(source, str | Mapping) and not exports_arrow:
            return Schema.parse(source)
        if (cls := record_class(source)) is not None:
            return Schema(from_class(cls))
        if is_struct_type(source):
            return Schema(from_struct_type(source))
        if hasattr(descriptor := getattr(source, "DESCRIPTOR", None), "fields_by_number"):
            from sluiceway.schema.proto_files import from_descriptor

            return from_descriptor(descriptor)

        import pyarrow as pa

        if isinstance(source, pa.Schema) or exports_arrow:
            from sluiceway.schema.arrow import from_arrow

            # One of a single type or field is none of records.
            with contextlib.suppress(pa.ArrowInvalid):
                return Schema(from_arrow(pa.schema(source)))
        name = type(source).__name__
        if hasattr(source, "__arrow_c_stream__"):
            raise InvalidSchema(
                f"{name} has records, and is not a schema: give its Arrow schema, such as "
                "pyarrow.RecordBatchReader.from_stream(frame).schema"
            )
        raise InvalidSchema(
            f"{name} is not a schema: give {RECORD_CLASSES}, an Arrow schema, a StructType, or an "
            "Avro record schema as a dict or JSON text"
        )

    @staticmethod
    def from_proto(
        path: str | PathLike[str],
        message: str | None = None,
        *,
        includes: Sequence[str | PathLike[str]] = (),
    ) -> Schema:
        """Return the schema of a message of a `.proto` file: its only one, or that of a full name.

        Imports are looked for in the file's folder and in `includes`. Raises OptionError without
        grpcio-tools, UnsupportedType with the path of the field, and InvalidSchema for a file that
        protoc refuses, after it has printed why.
        """
        from sluiceway.schema.proto_files import from_proto

        return from_proto(path, message, includes=includes)

    @property
    def name(self) -> str:
        """The full Avro name of the record."""
        return self.record.name

    @cached_property
    def definition(self) -> dict[str, Any]:
        """The schema as a dict of Avro JSON, with full names and annotations; do not modify it."""
        rendered: dict[str, Any] = avro.definition(self.record, annotated=True)
        return rendered

    @cached_property
    def text(self) -> str:
        """`definition` as ASCII JSON text without spaces."""
        return json.dumps(self.definition, separators=(",", ":"))

    @cached_property
    def canonical(self) -> str:
        """The canonical form as ASCII JSON text: full names, defaults, no annotations or spaces.

        Equal schemas have equal texts, and `Schema.parse` of the text gives an equal schema.
        """
        return json.dumps(avro.definition(self.record), separators=(",", ":"))

    @property
    def annotated(self) -> bool:
        """Whether it has aliases, documentation or other attributes."""
        return self.text != self.canonical

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the canonical form, as 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical.encode("ascii")).hexdigest()

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the channel's batches; fields without null are not nullable."""
        from sluiceway.schema.arrow import to_arrow

        return to_arrow(self.record)

    def select(self, names: Collection[str]) -> Schema:
        """Return the schema of the fields with these names, in the order of this schema."""
        fields = tuple(field for field in self.record.fields if field.name in names)
        if len(fields) == len(self.record.fields):
            return self
        return Schema(dataclasses.replace(self.record, fields=fields))

    def differences(self, other: Schema) -> tuple[str, ...]:
        """Return the differences between this schema and `other`, one message each.

        Names of records, the order of a union's branches and defaults are ignored, because they do
        not affect the values. The order of fields matters, because it is the order of the bytes.
        """
        return tuple(differences(self.record, other.record))

    def __repr__(self) -> str:
        return f"Schema({self.canonical})"

    def __getstate__(self) -> dict[str, Any]:
        return {"record": self.record}


@dataclass(frozen=True)
class _Source:
    """Avro JSON, compared by its text."""

    text: str
    avro: str | Mapping[str, Any] = field(compare=False)


@lru_cache(maxsize=64)
def _parsed(source: _Source) -> Schema:
    """Parse Avro JSON once a process: that of 60 fields takes more than half a millisecond."""
    return Schema(parse(source.avro))


FIELD: Final = "value"
"""The only field of records of the format `bytes`: the message value."""


@lru_cache(maxsize=1)
def bytes_schema() -> Schema:
    """Return the default schema of the format `bytes`; null is a tombstone."""
    value = {"name": FIELD, "type": ["null", "bytes"], "default": None}
    return Schema.parse({"type": "record", "name": "Message", "fields": [value]})


def holds_messages(schema: Schema) -> bool:
    """Return whether records of `schema` are messages of the format `bytes`."""
    return len(schema.record.fields) == 1 and (
        schema.record.fields[0].name == FIELD
        and schema.record.fields[0].type in (_BYTES, t.Nullable(item=_BYTES), _BYTES_OR_NULL)
    )


_BYTES: Final = t.Scalar(kind=t.Kind.BYTES)
_BYTES_OR_NULL: Final = t.Nullable(item=_BYTES, null_at=1)
