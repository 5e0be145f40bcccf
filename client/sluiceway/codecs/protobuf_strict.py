"""Strict Protobuf decoder on `google.protobuf`: reads one message exactly, or gives the reason.

It reads the messages that the columnar reader does not accept.
"""

from __future__ import annotations

import importlib
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, time
from typing import Any, Final, TypeAlias

from sluiceway.codecs.avro_strict import (
    BUDGET_PER_BYTE,
    CELL_BYTES,
    FREE_ITEMS,
    widest,
    width,
)
from sluiceway.codecs.json_strict import Cells
from sluiceway.codecs.record_messages import MalformedMessage
from sluiceway.errors import OptionError
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.defaults import unscaled_size
from sluiceway.schema.proto_files import SCALARS, WELL_KNOWN
from sluiceway.schema.protobuf import (
    DECIMAL,
    ProtoField,
    proto_field,
    symbol_numbers,
)

_PREFIX: Final = struct.Struct(">BI")
_EPOCH: Final = date(1970, 1, 1).toordinal()
_NANOSECONDS: Final = 1_000_000_000
_MAX_UNSCALED_BYTES: Final = 64
"""The longest number of a decimal: 76 digits, and as many zeros behind them."""


def _library(module: str) -> Any:
    try:
        return importlib.import_module(f"google.protobuf.{module}")
    except ImportError as error:
        raise OptionError(
            f"the format protobuf needs protobuf, which cannot be imported ({error}): "
            "pip install 'sluiceway[protobuf]'"
        ) from error


def message_class(record: t.Record) -> Any:
    """Return the class of `google.protobuf` for the messages of `record`."""
    file = _library("descriptor_pb2").FileDescriptorProto(name="records.proto", syntax="proto3")
    name = _Descriptors(file).message(record, "")
    pool = _library("descriptor_pool").DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return _library("message_factory").GetMessageClass(pool.FindMessageTypeByName(name))


class _Descriptors:
    """Descriptors of the messages of a schema, which have names of their own.

    Names are not on the wire, and those of a schema may be those of methods. An enum is its number.
    A map is a list of its entries, so that none of them is dropped unseen.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._named: dict[str, str] = {}
        # Records of a schema may have these names, too.
        self._well_known_named: dict[str, str] = {}

    def message(self, record: t.Record, path: str) -> str:
        """Return the name of the message of `record`."""
        if record.name not in self._named:
            message = self._message()
            self._named[record.name] = message.name
            protos = [
                (
                    proto_field(field, t.join_path(path, field.name)),
                    isinstance(field.type, t.Nullable),
                )
                for field in record.fields
            ]
            for oneof in dict.fromkeys(proto.oneof for proto, _ in protos if proto.oneof):
                message.oneof_decl.add(name=f"o_{oneof}")
            oneofs = [declared.name for declared in message.oneof_decl]
            for proto, nullable in protos:
                field = self._field(message, proto, t.join_path(path, f"f{proto.number}"))
                if proto.oneof is not None:
                    field.oneof_index = oneofs.index(f"o_{proto.oneof}")
                elif nullable and not field.type_name:
                    field.proto3_optional = True
                    field.oneof_index = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"p_{field.name}")
        return self._named[record.name]

    def _message(self) -> Any:
        return self._file.message_type.add(name=f"M{len(self._file.message_type)}")

    def _field(self, message: Any, proto: ProtoField, path: str) -> Any:
        repeated = proto.label in ("repeated", "map")
        field = message.field.add(
            name=f"f{proto.number}", number=proto.number, label=3 if repeated else 1
        )
        if proto.label == "map":
            entry = self._message()
            entry.field.add(name="f1", number=1, label=1, type=SCALARS.index("string"))
            self._set_type(entry.field.add(name="f2", number=2, label=1), proto, path)
            field.type, field.type_name = SCALARS.index("message"), f".{entry.name}"
        else:
            self._set_type(field, proto, path)
        return field

    def _set_type(self, field: Any, proto: ProtoField, path: str) -> None:
        if isinstance(proto.value, t.Record):
            name = self.message(proto.value, path)
        elif proto.type in WELL_KNOWN:
            name = self._well_known(proto.type)
        else:
            field.type = SCALARS.index("int32" if proto.type == "enum" else proto.type)
            return
        field.type, field.type_name = SCALARS.index("message"), f".{name}"

    def _well_known(self, name: str) -> str:
        if name not in self._well_known_named:
            message = self._message()
            self._well_known_named[name] = message.name
            (members,) = WELL_KNOWN[name].messages.values()
            for member in members:
                message.field.add(
                    name=member.name,
                    number=member.number,
                    label=1,
                    type=SCALARS.index(member.type),
                )
        return self._well_known_named[name]


# Reading: each function returns the stored value of a message's field, or of a message.
_Read: TypeAlias = Callable[[Any, Cells], Any]


class StrictProtobufReader:
    """Decoder for the messages of a schema; the values are those that Avro stores.

    The message is the first one of its file, or has the place `indexes`. Only the fields of
    `decoded` are returned. Raises the errors of `ProtobufCodec`.
    """

    def __init__(
        self, schema: Schema, schema_id: int, indexes: list[int], decoded: t.Record
    ) -> None:
        self._id = schema_id
        self._indexes = [[0], indexes]
        self._read = _record_reader(decoded, "")
        self._parse = message_class(schema.record).FromString
        self._error = _library("message").DecodeError
        record = schema.record
        self._cells = width(record) + FREE_ITEMS * widest(record)

    def read(self, value: bytes) -> dict[str, Any]:
        """Decode a message. Raises MalformedMessage."""
        if len(value) <= _PREFIX.size or value[0]:
            raise MalformedMessage("it does not begin with the byte 0, a schema id and a place")
        _, schema_id = _PREFIX.unpack_from(value)
        if schema_id != self._id:
            raise MalformedMessage(f"it has the schema id {schema_id}, not {self._id}")
        indexes, start = _indexes(value, _PREFIX.size)
        if indexes not in self._indexes:
            raise MalformedMessage(
                f"it is the message {indexes} of its file, not the channel's, {self._indexes[-1]}"
            )
        try:
            message = self._parse(value[start:])
        except self._error as error:
            raise MalformedMessage(f"it is not a Protobuf message: {error}") from error
        cells = Cells(self._cells + len(value) * BUDGET_PER_BYTE // CELL_BYTES)
        record: dict[str, Any] = self._read(message, cells)
        return record


def _indexes(value: bytes, start: int) -> tuple[list[int], int]:
    """Return the place of a message in its file, and where the message begins."""
    count, start = _varint(value, start)
    if count == 0:
        return [0], start
    if not 0 < count <= t.MAX_DEPTH:
        raise MalformedMessage(f"the place of the message in its file has {count} numbers")
    indexes = []
    for _ in range(count):
        index, start = _varint(value, start)
        indexes.append(index)
    return indexes, start


def _varint(value: bytes, start: int) -> tuple[int, int]:
    """Return a zigzag varint of at most 32 bits, and where it ends."""
    number = 0
    for shift in range(5):
        if start + shift >= len(value):
            break
        byte = value[start + shift]
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), start + shift + 1
    raise MalformedMessage("the place of the message in its file is cut off, or too long")


def _record_reader(record: t.Record, path: str) -> _Read:
    paths: dict[int, tuple[str, str]] = {}
    readers = []
    for field in record.fields:
        where = t.join_path(path, field.name)
        proto = proto_field(field, where)
        paths[proto.number] = where, proto.type
        readers.append((field.name, _field_reader(field, proto, where)))
    require_read = _unread(paths)

    def read(message: Any, cells: Cells) -> dict[str, Any]:
        require_read(message)
        return {name: read_field(message, cells) for name, read_field in readers}

    return read


def _unread(fields: Mapping[int, tuple[str, str]]) -> Callable[[Any], None]:
    """Return a check that a message has no `fields` in another wire form.

    Protobuf takes these for unknown fields, so they would be read as their defaults.
    """
    unknown_fields = _library("unknown_fields").UnknownFieldSet

    def require_read(message: Any) -> None:
        for field in unknown_fields(message):
            if field.field_number in fields:
                path, type_ = fields[field.field_number]
                raise MalformedMessage(
                    f"field {path!r} has another form than {type_}, which its number has"
                )

    return require_read


def _field_reader(field: t.Field, proto: ProtoField, path: str) -> _Read:
    name = f"f{proto.number}"
    within = {"repeated": "[]", "map": "{}"}.get(proto.label, "")
    convert = _value_reader(proto, f"{path}{within}")
    is_message = isinstance(proto.value, t.Record) or proto.type in WELL_KNOWN
    nullable = isinstance(field.type, t.Nullable)
    item_cells = width(proto.value)
    require_entry = _unread({1: (f"{path}{{}}", "string"), 2: (f"{path}{{}}", proto.type)})

    def singular(message: Any, cells: Cells) -> Any:
        if (nullable or is_message) and not message.HasField(name):
            if nullable:
                return None
            raise MalformedMessage(f"field {path!r} is missing, and cannot be null")
        return convert(getattr(message, name), cells)

    def repeated(message: Any, cells: Cells) -> list[Any]:
        items = getattr(message, name)
        cells.take(len(items) * item_cells, path)
        return [convert(item, cells) for item in items]

    def mapped(message: Any, cells: Cells) -> list[tuple[str, Any]]:
        entries = getattr(message, name)
        cells.take(len(entries) * (2 + item_cells), path)
        pairs: dict[str, Any] = {}
        for entry in entries:
            require_entry(entry)
            # Of entries with one key, the last one counts.
            pairs[entry.f1] = convert(entry.f2, cells)
        return list(pairs.items())

    return {"repeated": repeated, "map": mapped}.get(proto.label, singular)


def _value_reader(proto: ProtoField, path: str) -> _Read:
    match proto.value:
        case t.Record() as record:
            return _record_reader(record, path)
        case t.Enum() as enum:
            return _enum_reader(enum, path)
        case t.Decimal() as leaf if proto.type == DECIMAL:
            return _decimal_reader(leaf, path)
        case t.Decimal():
            return lambda number, _: number.to_bytes(unscaled_size(number), signed=True)
        case t.Fixed(size=size) | t.Uuid(fixed=t.Fixed(size=size)):
            return _checked(lambda value: len(value) == size, f"{size} bytes", path)
        case t.Uuid():
            matches = re.compile(t.UUID_TEXT).fullmatch
            return _checked(lambda value: matches(value) is not None, "the text of a UUID", path)
        case t.Scalar(kind=kind) if proto.type in WELL_KNOWN:
            return _moment_reader(kind, proto.type, path)
    return lambda value, _: value


def _checked(fits: Callable[[Any], bool], expected: str, path: str) -> _Read:
    def read(value: Any, _: Cells) -> Any:
        if not fits(value):
            raise MalformedMessage(f"field {path!r} is not {expected}")
        return value

    return read


def _enum_reader(enum: t.Enum, path: str) -> _Read:
    numbers = symbol_numbers(enum, path)
    places = {numbers[symbol]: place for place, symbol in enumerate(enum.symbols)}
    default = None if enum.default is None else enum.symbols.index(enum.default)

    def read(number: int, _: Cells) -> int:
        place = places.get(number, default)
        if place is None:
            raise MalformedMessage(
                f"field {path!r} is {number}, which is none of the enum's numbers "
                f"{', '.join(map(str, places))}"
            )
        return place

    return read


def _decimal_reader(leaf: t.Decimal, path: str) -> _Read:
    require_read = _unread(_members(DECIMAL, path))
    end = 10**leaf.precision
    wrong = (
        f"field {path!r} is not a number of at most {leaf.precision} digits, {leaf.scale} of them "
        "after the point"
    )

    def read(message: Any, _: Cells) -> bytes:
        require_read(message)
        data: bytes = message.value
        shift = leaf.scale - message.scale
        if not 0 < len(data) <= _MAX_UNSCALED_BYTES or abs(shift) > 2 * t.MAX_DIGITS:
            raise MalformedMessage(wrong)
        number = int.from_bytes(data, signed=True)
        rest = 0
        if shift >= 0:
            number *= 10**shift
        else:
            number, rest = divmod(number, 10**-shift)
        if rest or not -end < number < end:
            raise MalformedMessage(wrong)
        size = leaf.fixed.size if leaf.fixed else unscaled_size(number)
        stored: bytes = number.to_bytes(size, signed=True)
        return stored

    return read


def _members(name: str, path: str) -> dict[int, tuple[str, str]]:
    (members,) = WELL_KNOWN[name].messages.values()
    return {member.number: (f"{path}.{member.name}", member.type) for member in members}


def _moment_reader(kind: t.Kind, name: str, path: str) -> _Read:
    require_read = _unread(_members(name, path))
    python, ticks = kind.traits.python, kind.ticks
    low, high = kind.range

    def stored(message: Any) -> int:
        if python is date:
            return date(message.year, message.month, message.day).toordinal() - _EPOCH
        if python is time:
            moment = time(message.hours, message.minutes, message.seconds)
            seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
        else:
            seconds = message.seconds
        fraction, finer = divmod(message.nanos * ticks, _NANOSECONDS)
        if finer or not 0 <= message.nanos < _NANOSECONDS:
            raise ValueError
        return int(seconds * ticks + fraction)

    def read(message: Any, _: Cells) -> int:
        require_read(message)
        try:
            value = stored(message)
        except ValueError as error:
            raise MalformedMessage(f"field {path!r} is not a {kind.value}") from error
        if not low <= value <= high:
            raise MalformedMessage(f"field {path!r} is outside of the range of {kind.value}")
        return value

    return read
