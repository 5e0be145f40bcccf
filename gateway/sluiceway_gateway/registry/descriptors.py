"""`.proto` files as descriptors, and their comparison with those that registry clients send.

Protobuf's library takes memory and time, so the first request that needs this module imports it.
"""

import base64
import binascii
import importlib
import re
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from sluiceway.schema.proto_files import SCALARS, WELL_KNOWN, Member, ProtoFile, entry_name

_PROVIDED: Final = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
}
"""Modules of the files that come with Protobuf."""

_OPTIONAL, _REPEATED = 1, 3
# Texts and comments without an end reach to that of the file: the time stays linear.
_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\])*"?|[\w.]+|//[^\n]*|/\*.*?(?:\*/|\Z)|\S', re.DOTALL)


class InvalidFile(ValueError):
    """A file that cannot be used; with the reason."""


def serialized(file: ProtoFile) -> str:
    """Return the descriptor of a file in base64, as registry clients take it."""
    return base64.b64encode(descriptor_of(file).SerializeToString()).decode("ascii")


def descriptor_of(file: ProtoFile) -> FileDescriptorProto:
    """Return what protoc makes of a file, without the names of fields in JSON that follow."""
    made = FileDescriptorProto(
        name=file.path, package=file.package, dependency=file.imports, syntax="proto3"
    )
    prefix = f".{file.package}" if file.package else ""
    for name, members in file.messages.items():
        _add_members(made.message_type.add(name=name), members, f"{prefix}.{name}")
    for name, numbers in file.enums.items():
        holder, _, own = name.rpartition(".")
        enum = (made.message_type.add(name=holder) if holder else made).enum_type.add(name=own)
        for symbol, number in numbers.items():
            enum.value.add(name=symbol, number=number)
    return made


def _add_members(message: DescriptorProto, members: Iterable[Member], full_name: str) -> None:
    oneofs = list(dict.fromkeys(member.oneof for member in members if member.oneof is not None))
    for oneof in oneofs:
        message.oneof_decl.add(name=oneof)
    for member in members:
        repeated = member.label in ("repeated", "map")
        field = message.field.add(
            name=member.name, number=member.number, label=_REPEATED if repeated else _OPTIONAL
        )
        if member.label == "map":
            entry = message.nested_type.add(name=entry_name(member.name))
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=_OPTIONAL, type=SCALARS.index("string"))
            _set_type(entry.field.add(name="value", number=2, label=_OPTIONAL), member)
            field.type = SCALARS.index("message")
            field.type_name = f"{full_name}.{entry.name}"
            continue
        _set_type(field, member)
        if member.oneof is not None:
            field.oneof_index = oneofs.index(member.oneof)
        elif member.label == "optional" and not member.is_message:
            field.proto3_optional = True
    names = {*oneofs, *(member.name for member in members)}
    for field in message.field:
        if field.proto3_optional:
            name = f"_{field.name}"
            while name in names:
                name = f"X{name}"
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)


def _set_type(field: Any, member: Member) -> None:
    if member.type.startswith("."):
        field.type = SCALARS.index("enum" if member.is_enum else "message")
        field.type_name = member.type
    else:
        field.type = SCALARS.index(member.type)


class SentFile:
    """A file that a registry client sent: a descriptor in base64, as those of Python, or text."""

    def __init__(self, schema: str) -> None:
        """Raise InvalidFile for a descriptor that cannot be used."""
        descriptor = _descriptor_in(schema)
        self._pool = None if descriptor is None else _pool(descriptor)
        self._tokens = _tokens(schema) if descriptor is None else []

    def is_same(self, file: ProtoFile) -> bool:
        """Return whether it declares the first message of `file`, and those within.

        Of a descriptor, all that bytes depend on and the names of fields are compared; of text, all
        but comments and white space.
        """
        if self._pool is None:
            return self._tokens == _tokens(file.text)
        (first, *_) = file.messages
        name = f"{file.package}.{first}" if file.package else first
        try:
            theirs = self._pool.FindMessageTypeByName(name)
        except KeyError:
            return False
        ours = _pool(descriptor_of(file)).FindMessageTypeByName(name)
        return _same_messages(theirs, ours, set())


def _descriptor_in(schema: str) -> FileDescriptorProto | None:
    try:
        return FileDescriptorProto.FromString(base64.b64decode(schema, validate=True))
    except (binascii.Error, ValueError):
        return None  # Text has spaces.
    except DecodeError as error:
        raise InvalidFile("it is neither the text of a file nor a descriptor") from error


def _pool(file: FileDescriptorProto) -> DescriptorPool:
    """Return the pool of a file, and of the well-known files that it imports."""
    pool = DescriptorPool()
    own = {well_known.path: well_known for well_known in WELL_KNOWN.values()}
    for path in file.dependency:
        if path in _PROVIDED:
            provided = importlib.import_module(_PROVIDED[path])
            pool.AddSerializedFile(provided.DESCRIPTOR.serialized_pb)
        elif path in own:
            pool.AddSerializedFile(descriptor_of(own[path]).SerializeToString())
        else:
            raise InvalidFile(f"it imports {path[:200]!r}, which is not here")
    try:
        pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise InvalidFile(str(error)) from error
    return pool


def _same_messages(theirs: Any, ours: Any, compared: set[tuple[str, str]]) -> bool:
    if ours.full_name in WELL_KNOWN:
        return bool(theirs.full_name == ours.full_name)
    # The other may hold itself, and two places may have one message.
    if (pair := (theirs.full_name, ours.full_name)) in compared:
        return True
    compared.add(pair)
    fields = theirs.fields_by_number
    return (
        set(fields) == set(ours.fields_by_number)
        and _oneofs(theirs) == _oneofs(ours)
        and all(
            _same_fields(fields[number], field, compared)
            for number, field in ours.fields_by_number.items()
        )
    )


def _oneofs(message: Any) -> set[frozenset[int]]:
    """Return the numbers of the fields of each oneof; one field alone is as without."""
    oneofs = (frozenset(field.number for field in oneof.fields) for oneof in message.oneofs)
    return {numbers for numbers in oneofs if len(numbers) > 1}


def _same_fields(theirs: Any, ours: Any, compared: set[tuple[str, str]]) -> bool:
    if _form(theirs) != _form(ours):
        return False
    if ours.enum_type is not None:
        return _same_enums(theirs.enum_type, ours.enum_type, compared)
    return ours.message_type is None or _same_messages(
        theirs.message_type, ours.message_type, compared
    )


def _same_enums(theirs: Any, ours: Any, compared: set[tuple[str, str]]) -> bool:
    if (pair := (theirs.full_name, ours.full_name)) in compared:
        return True
    compared.add(pair)
    numbers, others = (
        {value.name: value.number for value in enum.values} for enum in (ours, theirs)
    )
    return numbers == others


def _form(field: Any) -> tuple[Any, ...]:
    """Return name and type of a field, and whether it has presence."""
    in_entry = field.containing_type.GetOptions().map_entry
    optional = field.has_presence and not field.is_required and not in_entry
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    return field.name, field.type, field.is_repeated, is_map, optional


def _tokens(text: str) -> list[str]:
    return [token for token in _TOKEN.findall(text) if not token.startswith(("//", "/*"))]
