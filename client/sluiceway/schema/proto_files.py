"""`.proto` files and generated classes as schemas, and schemas as `.proto` files.

Only `from_proto` and `from_descriptor` need Protobuf's packages.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from os import PathLike
from pathlib import Path
from typing import Any, Final

from sluiceway.errors import InvalidSchema, OptionError, UnsupportedType
from sluiceway.schema import types as t
from sluiceway.schema.defaults import default_text
from sluiceway.schema.protobuf import (
    ATTRIBUTE,
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    ProtoField,
    numbered,
    proto_field,
    symbol_numbers,
)
from sluiceway.schema.schema import Schema

__all__ = [
    "SCALARS",
    "WELL_KNOWN",
    "Member",
    "ProtoFile",
    "entry_name",
    "from_descriptor",
    "from_proto",
    "proto_file",
]

SCALARS: Final = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("group", "message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
"""The types of fields by their numbers in descriptors."""

_AVRO: Final = {
    "bool": t.Kind.BOOLEAN,
    "float": t.Kind.FLOAT,
    "double": t.Kind.DOUBLE,
    "string": t.Kind.STRING,
    "bytes": t.Kind.BYTES,
    **dict.fromkeys(("int32", "sint32", "sfixed32"), t.Kind.INT),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), t.Kind.LONG),
}
_MOMENTS: Final = {TIMESTAMP: datetime, DATE: date, TIME: time}
_ZEROS: Final = {bool: False, int: 0, float: 0.0, str: "", bytes: ""}


def from_proto(
    path: str | PathLike[str],
    message: str | None = None,
    *,
    includes: Sequence[str | PathLike[str]] = (),
) -> Schema:
    """Return the schema of a message of a `.proto` file: its only one, or that of a full name.

    Imports are looked for in the file's folder and in `includes`; those of `google/protobuf` and
    the well-known messages are there. Raises OptionError without grpcio-tools, InvalidSchema for a
    file that protoc refuses, after it has printed why, and the errors of `from_descriptor`.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidSchema(f"there is no file {str(file)!r}")
    pool = compiled(file, [file.parent, *map(Path, includes)])
    declared = pool.FindFileByName(file.name).message_types_by_name.values()
    if message is None:
        if len(declared) != 1:
            names = ", ".join(descriptor.full_name for descriptor in declared) or "none"
            raise InvalidSchema(f"give the message of {file.name} that records are: {names}")
        return from_descriptor(*declared)
    try:
        return from_descriptor(pool.FindMessageTypeByName(message))
    except KeyError:
        raise InvalidSchema(
            f"{file.name} has no message {message!r}: give its full name, with the package"
        ) from None


def compiled(file: Path, folders: Sequence[Path]) -> Any:
    """Return the descriptor pool of a file and of its imports, looked for in `folders`."""
    protoc = _package("grpc_tools.protoc", "grpcio-tools")
    own = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        for well_known in WELL_KNOWN.values():
            content = Path(folder) / well_known.path
            content.parent.mkdir(parents=True, exist_ok=True)
            content.write_text(well_known.text)
        result = Path(folder) / "descriptors"
        paths = [f"--proto_path={path}" for path in (*folders, own, folder)]
        command = ["protoc", *paths, "--include_imports", f"--descriptor_set_out={result}"]
        if protoc.main([*command, file.name]):
            raise InvalidSchema(f"{file.name} does not compile: protoc has printed why")
        files = _package("google.protobuf.descriptor_pb2", "protobuf").FileDescriptorSet()
        files.ParseFromString(result.read_bytes())
    pool = _package("google.protobuf.descriptor_pool", "protobuf").DescriptorPool()
    for described in files.file:
        pool.AddSerializedFile(described.SerializeToString())
    return pool


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OptionError(
            f"schemas of Protobuf need {package}, which cannot be imported ({error}): "
            "pip install 'sluiceway[protobuf]'"
        ) from error


def from_descriptor(descriptor: Any) -> Schema:
    """Return the schema of a message, with the numbers of its fields.

    Raises UnsupportedType with the path of a field that a schema cannot have, and InvalidSchema.
    """
    record = _Reader().record(descriptor, "", 0)
    if indexes := _indexes(descriptor):
        attributes = {ATTRIBUTE: {"indexes": indexes}}
        record = t.Record(name=record.name, fields=record.fields, attributes=attributes)
    # Parsed, as that checks the names, and the limits also of messages that are used twice.
    return numbered(Schema.parse(Schema(record).text))


def _indexes(descriptor: Any) -> list[int]:
    """Return the place of the message in its file; none for the first."""
    places: list[int] = []
    while (outer := descriptor.containing_type) is not None:
        places.insert(0, [nested.name for nested in outer.nested_types].index(descriptor.name))
        descriptor = outer
    places.insert(0, list(descriptor.file.message_types_by_name).index(descriptor.name))
    return [] if places == [0] else places


class _Reader:
    """The state of one conversion: the messages that are converted, and the size so far."""

    def __init__(self) -> None:
        self._records: dict[str, t.Record | None] = {}  # None: being converted
        self._limits = t.SchemaLimits()

    def record(self, descriptor: Any, path: str, depth: int) -> t.Record:
        name = descriptor.full_name
        self._limits.count(len(descriptor.fields), depth, path)
        if (record := self._records.get(name)) is not None:
            return record
        if name in self._records:
            raise UnsupportedType(
                path=path, type_name=f"{name} (recursive)", hint="records cannot hold themselves"
            )
        if not descriptor.fields:
            raise UnsupportedType(
                path=path,
                type_name=f"{name} without fields",
                hint="give it a field, or leave it out",
            )
        self._records[name] = None
        proto: Any = _package("google.protobuf.descriptor_pb2", "protobuf").DescriptorProto()
        descriptor.CopyToProto(proto)
        synthetic = {field.name for field in proto.field if field.proto3_optional}
        fields = tuple(
            self._field(field, t.join_path(path, field.name), depth, field.name in synthetic)
            for field in descriptor.fields
        )
        record = self._records[name] = t.Record(name=name, fields=fields)
        return record

    def _field(self, field: Any, path: str, depth: int, synthetic: bool) -> t.Field:
        attribute: dict[str, Any] = {"number": field.number}
        if field.has_default_value:
            raise UnsupportedType(
                path=path,
                type_name=f"{SCALARS[field.type]} with a default",
                hint="leave the default out, as readers with other defaults read other values",
            )
        entry = _map_entry(field, path)
        value_field = field if entry is None else entry.fields_by_name["value"]
        within = "{}" if entry is not None else "[]" if field.is_repeated else ""
        value = self._value(value_field, f"{path}{within}", depth + 1)
        scalar = SCALARS[value_field.type]
        if scalar not in ("message", "enum") and scalar not in _default_types(value, path):
            attribute["type"] = scalar
        type_: t.Type = value
        default: object = _zero(value)
        if entry is not None:
            type_, default = t.Map(values=value), {}
        elif field.is_repeated:
            type_, default = t.Array(items=value), []
        elif field.has_presence and not field.is_required:
            type_, default = t.Nullable(item=value), None
            if field.containing_oneof is not None and not synthetic:
                attribute["oneof"] = field.containing_oneof.name
        return t.Field(
            name=field.name,
            type=type_,
            default=None if field.is_required else default_text(default, type_, path),
            attributes={ATTRIBUTE: attribute},
        )

    def _value(self, field: Any, path: str, depth: int) -> t.Leaf | t.Record:
        scalar = SCALARS[field.type]
        match scalar:
            case "group":
                raise UnsupportedType(path=path, type_name="group", hint="make it a message")
            case "uint64" | "fixed64":
                return t.Decimal(precision=20, scale=0)
            case "enum":
                return _enum(field.enum_type, path)
            case "message":
                return self._message(field.message_type, path, depth)
        return t.Scalar(kind=_AVRO[scalar])

    def _message(self, descriptor: Any, path: str, depth: int) -> t.Leaf | t.Record:
        name = descriptor.full_name
        if python := _MOMENTS.get(name):
            plain = (kind for kind in t.Kind if kind.traits.plain and kind.traits.python is python)
            return t.Scalar(kind=next(plain))
        if name == DECIMAL:
            raise UnsupportedType(
                path=path,
                type_name=name,
                hint="the file does not tell its digits: give the channel an Avro schema with a "
                "decimal, its precision and its scale",
            )
        return self.record(descriptor, path, depth)


def _map_entry(field: Any, path: str) -> Any:
    """Return the message of a map's entries; None for other fields."""
    message = field.message_type if SCALARS[field.type] == "message" else None
    if message is None or not message.GetOptions().map_entry:
        return None
    key = SCALARS[message.fields_by_name["key"].type]
    if key != "string":
        raise UnsupportedType(
            path=path, type_name=f"map with {key} keys", hint="map keys must be strings"
        )
    return message


def _enum(descriptor: Any, path: str) -> t.Enum:
    numbers: dict[str, int] = {}
    for value in sorted(descriptor.values, key=lambda value: (value.number != 0, value.index)):
        if value.number in numbers.values():
            raise UnsupportedType(
                path=path,
                type_name=f"enum with two names of the number {value.number}",
                hint=f"leave the alias {value.name!r} out",
            )
        numbers[value.name] = value.number
    if 0 not in numbers.values():
        raise UnsupportedType(
            path=path,
            type_name=f"enum {descriptor.name} without the number 0",
            hint="give it a value with the number 0",
        )
    return t.Enum(
        name=descriptor.full_name, symbols=tuple(numbers), attributes={ATTRIBUTE: numbers}
    )


def _default_types(value: t.Leaf | t.Record, path: str) -> tuple[str, ...]:
    field = t.Field(name="value", type=value, attributes={ATTRIBUTE: {"number": 1}})
    return (proto_field(field, path).type,)


def _zero(value: t.Leaf | t.Record) -> object:
    """Return what Protobuf reads where a field without presence is missing, as Avro's JSON."""
    match value:
        case t.Enum(symbols=symbols):
            return symbols[0]
        case t.Decimal():
            return "\0"
        case t.Scalar(python=python):
            return _ZEROS.get(python, 0)
    return None


@dataclass(frozen=True, kw_only=True)
class Member:
    """A field of a message in a `.proto` file."""

    name: str
    number: int
    type: str
    """A scalar type, or the full name of a message or an enum after a dot."""
    label: str
    oneof: str | None = None
    is_enum: bool = False

    @property
    def is_message(self) -> bool:
        """Whether the field has messages, and not scalars or enums."""
        return self.type.startswith(".") and not self.is_enum


@dataclass(frozen=True, kw_only=True)
class ProtoFile:
    """A `.proto` file of flat messages and enums, in the syntax proto3."""

    path: str
    package: str
    imports: tuple[str, ...]
    messages: Mapping[str, tuple[Member, ...]]
    enums: Mapping[str, Mapping[str, int]]
    """The values by name; a name with a dot is nested in an otherwise empty message."""

    @property
    def text(self) -> str:
        """The file's content."""
        lines = ['syntax = "proto3";']
        if self.package:
            lines.append(f"package {self.package};")
        lines += [f'import "{path}";' for path in self.imports]
        for name, members in self.messages.items():
            lines += ["", f"message {name} {{", *_member_lines(members), "}"]
        for name, numbers in self.enums.items():
            holder, _, own = name.rpartition(".")
            values = [f"  {symbol} = {number};" for symbol, number in numbers.items()]
            enum = [f"enum {own} {{", *values, "}"]
            if holder:
                enum = [f"message {holder} {{", *(f"  {line}" for line in enum), "}"]
            lines += ["", *enum]
        return "\n".join(lines) + "\n"


def _member_lines(members: Sequence[Member]) -> list[str]:
    lines: list[str] = []
    oneofs: set[str] = set()
    for member in members:
        if member.oneof is None:
            lines.append(f"  {_declared(member)}")
        elif member.oneof not in oneofs:
            oneofs.add(member.oneof)
            inside = [f"    {_declared(m)}" for m in members if m.oneof == member.oneof]
            lines += [f"  oneof {member.oneof} {{", *inside, "  }"]
    return lines


def _declared(member: Member) -> str:
    type_ = f"map<string, {member.type}>" if member.label == "map" else member.type
    keyword = {"repeated": "repeated ", "optional": "optional "}.get(member.label, "")
    if member.oneof is not None or (member.is_message and member.label == "optional"):
        keyword = ""
    return f"{keyword}{type_} {member.name} = {member.number};"


def _well_known(name: str, path: str, *members: tuple[str, str]) -> ProtoFile:
    package, _, short = name.rpartition(".")
    return ProtoFile(
        path=path,
        package=package,
        imports=(),
        messages={
            short: tuple(
                Member(name=member, number=number, type=type_, label="singular")
                for number, (type_, member) in enumerate(members, 1)
            )
        },
        enums={},
    )


WELL_KNOWN: Final = {
    TIMESTAMP: _well_known(
        TIMESTAMP, "google/protobuf/timestamp.proto", ("int64", "seconds"), ("int32", "nanos")
    ),
    DATE: _well_known(
        DATE, "google/type/date.proto", ("int32", "year"), ("int32", "month"), ("int32", "day")
    ),
    TIME: _well_known(
        TIME,
        "google/type/timeofday.proto",
        *(("int32", "hours"), ("int32", "minutes"), ("int32", "seconds"), ("int32", "nanos")),
    ),
    DECIMAL: _well_known(
        DECIMAL,
        "confluent/type/decimal.proto",
        *(("bytes", "value"), ("uint32", "precision"), ("int32", "scale")),
    ),
}
"""The files of well-known messages, which registry clients have, by the messages' names."""


def proto_file(schema: Schema) -> ProtoFile:
    """Return the `.proto` file of a numbered `schema`, the message of its records first.

    This message has the full name of the record. Others have the last part of theirs, with a
    number where that is taken, as have enums. Raises InvalidSchema for names that Protobuf takes
    for one, and the errors of `proto_field`.
    """
    return _Writer(schema.record).file()


class _Writer:
    """The state of one conversion: the declarations so far, and the names in use."""

    def __init__(self, record: t.Record) -> None:
        self._record = record
        self._package = record.name.rpartition(".")[0]
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._messages: dict[str, tuple[Member, ...]] = {}
        self._enums: dict[str, dict[str, int]] = {}
        self._imports: set[str] = set()

    def file(self) -> ProtoFile:
        self._message(self._record, "")
        return ProtoFile(
            path=f"{self._record.name.replace('.', '/')}.proto",
            package=self._package,
            imports=tuple(sorted(self._imports)),
            messages=self._messages,
            enums=self._enums,
        )

    def _message(self, record: t.Record, path: str) -> str:
        if record.name not in self._names:
            name = self._names[record.name] = self._free(record.name)
            _require_own_names(record, path)
            self._messages[name] = ()  # its place is before the messages within
            self._messages[name] = tuple(
                self._member(field, t.join_path(path, field.name)) for field in record.fields
            )
        return self._full(self._names[record.name])

    def _member(self, field: t.Field, path: str) -> Member:
        proto = proto_field(field, path)
        return Member(
            name=field.name,
            number=proto.number,
            type=self._type(proto, path),
            label=proto.label,
            oneof=proto.oneof,
            is_enum=proto.type == "enum",
        )

    def _type(self, proto: ProtoField, path: str) -> str:
        match proto.value:
            case t.Record() as record:
                return self._message(record, path)
            case t.Enum() as enum:
                return self._enum(enum, path)
        if proto.type not in WELL_KNOWN:
            return proto.type
        self._imports.add(WELL_KNOWN[proto.type].path)
        return f".{proto.type}"

    def _enum(self, enum: t.Enum, path: str) -> str:
        if enum.name not in self._names:
            numbers = symbol_numbers(enum, path)
            # The first must be zero, and the names of values belong to the scope around the enum.
            values = dict(sorted(numbers.items(), key=lambda pair: pair[1] != 0))
            name = self._free(enum.name)
            _require_own_symbols(values, name, path)
            if self._taken & values.keys():
                own = "Values"
                while own in values:
                    own += "_"
                self._names[enum.name] = f"{name}.{own}"
            else:
                self._names[enum.name] = name
                self._taken |= values.keys()
            self._enums[self._names[enum.name]] = values
        return self._full(self._names[enum.name])

    def _free(self, full_name: str) -> str:
        """Return the last part of a name, or one like it that is free."""
        short = name = full_name.rpartition(".")[2]
        number = 2
        while name in self._taken:
            name, number = f"{short}_{number}", number + 1
        self._taken.add(name)
        return name

    def _full(self, name: str) -> str:
        return f".{self._package}.{name}" if self._package else f".{name}"


def _require_own_names(record: t.Record, path: str) -> None:
    """Raise InvalidSchema for names in a message that Protobuf takes for one."""
    oneofs = {proto_field(field, field.name).oneof for field in record.fields}
    names = {oneof: f"the oneof {oneof!r}" for oneof in oneofs if oneof is not None}
    in_json = dict(names)
    names |= {field.name: f"the field {field.name!r}" for field in record.fields}
    for field in record.fields:
        name = _json_name(field.name)
        if name in in_json:
            raise t.invalid_schema(
                t.join_path(path, field.name),
                f"Protobuf does not tell it from {in_json[name]}, as both are {name!r} in JSON: "
                "rename one of them",
            )
        in_json[name] = names[field.name]
        if not isinstance(field.type, t.Map):
            continue
        entry = entry_name(field.name)
        if entry in names or not t.NAME.fullmatch(entry):
            why = names.get(entry, "not a name")
            raise t.invalid_schema(
                t.join_path(path, field.name),
                f"Protobuf names the entries of this map {entry}, which is {why}: rename it",
            )
        names[entry] = f"the name of the entries of {field.name!r}"


_STATEMENTS: Final = frozenset({"option", "reserved"})
"""Words with which other statements of an enum begin in a file."""


def _require_own_symbols(symbols: Iterable[str], enum: str, path: str) -> None:
    """Raise InvalidSchema for symbols that a file cannot have.

    Two are one in languages with names like `PaidLate`.
    """
    own: dict[str, str] = {}
    for symbol in symbols:
        if symbol in _STATEMENTS:
            raise t.invalid_schema(
                path,
                f"Protobuf does not take {symbol!r} for a symbol of the enum {enum}: rename it",
            )
        first = own.setdefault(_plain(symbol, enum), symbol)
        if first != symbol:
            raise t.invalid_schema(
                path,
                f"Protobuf does not tell the symbols {first!r} and {symbol!r} of the enum {enum} "
                "apart: rename one of them",
            )


def _plain(symbol: str, enum: str) -> str:
    """Return a symbol as protoc compares it: without the enum's name, and in one case."""
    prefix = enum.replace("_", "").lower()
    rest, matched = symbol, 0
    while rest and matched < len(prefix):
        if rest[0] != "_":
            if rest[0].lower() != prefix[matched]:
                break
            matched += 1
        rest = rest[1:]
    rest = rest.lstrip("_")
    if matched < len(prefix) or not rest:
        rest = symbol
    return "".join(word[:1].upper() + word[1:].lower() for word in rest.split("_"))


def entry_name(field: str) -> str:
    """Return the name of the message that protoc makes of a map's entries."""
    return "".join(word[:1].upper() + word[1:] for word in field.split("_")) + "Entry"


def _json_name(name: str) -> str:
    """Return the name that Protobuf gives a field in JSON."""
    first, *words = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in words)
