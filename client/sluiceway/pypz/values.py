"""Values of schemas that a channel's records cannot have, each as Avro in a field of bytes.

A port of pypz may have any schema of Avro: also null fields, recursive records, and values that are
no records, such as strings, arrays and maps. Their channel has records of two fields: the
fingerprint of the value's schema, and its Avro. The schema itself is an attribute of the record, so
readers with a later schema find it among the channel's versions.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import fastavro
from fastavro.schema import to_parsing_canonical_form
from fastavro.validation import ValidationError, validate

from sluiceway import Schema
from sluiceway.errors import InvalidRecord, SchemaMismatch, UnsupportedType

__all__ = ["ValueSchema"]

_ATTRIBUTE: Final = "avro"
_MAX_DEPTH: Final = 100
"""fastavro ends the process at some thousand levels of a recursive record."""
_MAX_VALUES_PER_BYTE: Final = 128
"""In arrays and maps: a message of a few bytes could have millions of nulls."""
_NUMBERS: Final = ("int", "long", "float", "double")
_BYTES: Final = {"null": 0, "float": 4, "double": 8}
"""The least bytes of a primitive type, if it is not 1."""
_RECORDS: Final = ("record", "error", "request")


class ValueSchema:
    """A schema of Avro whose values are carried as bytes; `schema` is that of the channel."""

    def __init__(self, definition: Any) -> None:
        """Parse Avro JSON. Raises UnsupportedType, and fastavro's errors for an invalid schema."""
        self.named: dict[str, Any] = {}
        self.parsed = fastavro.parse_schema(definition, named_schemas=self.named)
        self.recursive = False
        """Whether a record holds itself."""
        self._measure(self.parsed, frozenset())
        canonical = to_parsing_canonical_form(self.parsed)
        self.fingerprint = hashlib.sha256(canonical.encode()).digest()[:8]
        name = f"Value_{self.fingerprint.hex()}"
        self.schema = Schema.of(
            {
                "type": "record",
                "name": name,
                "fields": [
                    {
                        "name": "fingerprint",
                        "type": {"type": "fixed", "name": "Fingerprint", "size": 8},
                    },
                    {"name": "value", "type": "bytes"},
                ],
                _ATTRIBUTE: definition,
            }
        )

    def to_record(self, index: int, value: Any) -> dict[str, bytes]:
        """Return the channel's record of the value at `index` of a write. Raises InvalidRecord.

        As in pypz, a missing field whose type allows null is None, and True is 1 in a field of
        numbers.
        """
        _require_shallow(index, value)
        completed = self._completed(index, self.parsed, value)
        try:
            validate(completed, self.parsed, raise_errors=True)
        except ValidationError as error:
            first = error.errors[0]
            raise InvalidRecord(
                index=index,
                field=str(getattr(first, "field", "") or ""),
                reason=str(first),
                public_reason="it does not match the port's schema",
            ) from error
        body = io.BytesIO()
        fastavro.schemaless_writer(body, self.parsed, completed)
        return {"fingerprint": self.fingerprint, "value": body.getvalue()}

    def from_record(self, record: Mapping[str, Any], others: Mapping[bytes, "ValueSchema"]) -> Any:
        """Return the value of a channel's record; `others` are schemas by their fingerprint.

        Raises SchemaMismatch if this schema cannot read it, and for damaged bytes.
        """
        written = self
        if record["fingerprint"] != self.fingerprint:
            schema = others.get(record["fingerprint"])
            if schema is None:
                raise SchemaMismatch(
                    f"a value has a schema of the fingerprint {record['fingerprint'].hex()}, which "
                    "is no version of the channel's"
                )
            written = schema
        body = io.BytesIO(record["value"])
        try:
            if written.recursive:
                _Depth(record["value"], written.named).check(written.parsed)
            value = fastavro.schemaless_reader(body, written.parsed, self.parsed)
        except Exception as error:
            raise SchemaMismatch(
                f"a value cannot be read with the port's schema: {type(error).__name__}: {error}"
            ) from error
        if body.tell() != len(record["value"]):
            raise SchemaMismatch("a value has more bytes than its schema")
        return value

    @classmethod
    def of_versions(cls, definitions: Sequence[Mapping[str, Any]]) -> dict[bytes, "ValueSchema"]:
        """Return the schemas of values among a channel's versions, by fingerprint."""
        schemas = [cls(d[_ATTRIBUTE]) for d in definitions if _ATTRIBUTE in d]
        return {schema.fingerprint: schema for schema in schemas}

    def _completed(self, index: int, type_: Any, value: Any) -> Any:
        if isinstance(type_, list):
            branches = [branch for branch in type_ if branch != "null"]
            certain = len(branches) == 1 and value is not None and not isinstance(value, tuple)
            return self._completed(index, branches[0], value) if certain else value
        if isinstance(type_, str) and type_ in self.named:
            type_ = self.named[type_]
        kind = type_ if isinstance(type_, str) else type_["type"]
        match kind:
            case "record" | "error" if isinstance(value, Mapping):
                return self._completed_record(index, type_, value)
            case "array" if isinstance(value, list | tuple):
                return [self._completed(index, type_["items"], item) for item in value]
            case "map" if isinstance(value, Mapping):
                values = type_["values"]
                return {key: self._completed(index, values, v) for key, v in value.items()}
            case str() if kind in _NUMBERS and isinstance(value, bool):
                return int(value)
            case list() | dict():
                return self._completed(index, kind, value)
        return value

    def _completed_record(
        self, index: int, type_: Mapping[str, Any], value: Mapping[str, Any]
    ) -> dict[str, Any]:
        completed = dict(value)
        for field in type_["fields"]:
            name, field_type = field["name"], field["type"]
            if name in completed:
                completed[name] = self._completed(index, field_type, completed[name])
            elif "default" not in field and "null" in (
                field_type if isinstance(field_type, list) else [field_type]
            ):
                completed[name] = None
        unknown = completed.keys() - {field["name"] for field in type_["fields"]} - {"-type"}
        if unknown:
            name = min(map(str, unknown))
            raise InvalidRecord(index=index, field=name, reason="the schema has no such field")
        return completed

    def _measure(self, type_: Any, within: frozenset[str]) -> tuple[int, int]:
        """Return the least bytes of a value, and how many values are in it, at most.

        Raises UnsupportedType for arrays and maps whose items take too few bytes.
        """
        if isinstance(type_, list):
            measured = [self._measure(branch, within) for branch in type_]
            return 1, 1 + max(values for _, values in measured)
        if isinstance(type_, str) and type_ in self.named:
            if type_ in within:
                self.recursive = True
                return 1, 1
            return self._measure(self.named[type_], within)
        kind = type_ if isinstance(type_, str) else type_["type"]
        if isinstance(kind, list | dict):
            return self._measure(kind, within)
        if kind in _RECORDS:
            inner = within | {type_["name"]}
            fields = [self._measure(field["type"], inner) for field in type_["fields"]]
            return sum(least for least, _ in fields), 1 + sum(values for _, values in fields)
        if kind == "fixed":
            return int(type_["size"]), 1
        if kind in ("array", "map"):
            item = type_["items"] if kind == "array" else type_["values"]
            least, values = self._measure(item, within)
            if values > _MAX_VALUES_PER_BYTE * (least + (kind == "map")):
                raise UnsupportedType(
                    path="",
                    type_name=f"{kind} of {json.dumps(item, default=str)[:80]}",
                    hint="its items take no bytes, so a small message could have millions: give "
                    "their number as a long",
                )
            return 1, 1
        return _BYTES.get(kind, 1), 1


def _require_shallow(index: int, value: Any, depth: int = 0) -> None:
    """Raise InvalidRecord for a value with more than `_MAX_DEPTH` levels."""
    if depth > _MAX_DEPTH:
        raise InvalidRecord(
            index=index,
            field="",
            reason=f"it is nested deeper than {_MAX_DEPTH} levels",
            public_reason="it is nested too deep",
        )
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for item in items:
            _require_shallow(index, item, depth + 1)


class _Depth:
    """Walks over an encoded value, without building it, to limit its depth."""

    def __init__(self, body: bytes, named: Mapping[str, Any]) -> None:
        self._body = body
        self._named = named
        self._at = 0

    def check(self, type_: Any, depth: int = 0) -> None:
        """Skip a value. Raises ValueError if it is too deep or incomplete."""
        if isinstance(type_, list):
            branch = self._long()
            if not 0 <= branch < len(type_):
                raise ValueError(f"a union has no branch {branch}")
            self.check(type_[branch], depth)
            return
        if isinstance(type_, str) and type_ in self._named:
            type_ = self._named[type_]
        kind = type_ if isinstance(type_, str) else type_["type"]
        if isinstance(kind, list | dict):
            self.check(kind, depth)
        elif kind in _RECORDS:
            if depth >= _MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {_MAX_DEPTH} records")
            for field in type_["fields"]:
                self.check(field["type"], depth + 1)
        elif kind in ("array", "map"):
            self._check_items(type_, depth)
        elif kind in ("int", "long", "enum"):
            self._long()
        elif kind in ("string", "bytes"):
            self._skip(self._long())
        else:
            self._skip(type_["size"] if kind == "fixed" else _BYTES.get(kind, 1))

    def _check_items(self, type_: Mapping[str, Any], depth: int) -> None:
        keyed = type_["type"] == "map"
        item = type_["values"] if keyed else type_["items"]
        while count := self._long():
            if count < 0:
                count = -count
                self._long()
            if count > len(self._body):
                self._end()
            for _ in range(count):
                if keyed:
                    self._skip(self._long())
                self.check(item, depth)

    def _long(self) -> int:
        value = shift = 0
        while True:
            if self._at >= len(self._body) or shift > 63:
                self._end()
            byte = self._body[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
            shift += 7

    def _skip(self, count: int) -> None:
        if not 0 <= count <= len(self._body) - self._at:
            self._end()
        self._at += count

    def _end(self) -> NoReturn:
        raise ValueError("its bytes are damaged")
