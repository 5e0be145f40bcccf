"""Keys of messages: conversion from and to values, and the deletes of records by key."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from sluiceway.api.arguments import whole_number
from sluiceway.codecs import Corrupt, Decoded
from sluiceway.errors import OptionError
from sluiceway.schema import Schema
from sluiceway.schema.types import find_union

__all__ = ["Deleted", "KeyField", "deletes_of", "key_bytes"]


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """A delete, which a reader with `deletes=True` returns in the place of a record.

    All records with this key before it, in its partition, are deleted. `key` is bytes, or a value
    of the reader's `key` field.
    """

    key: Any


def key_bytes(key: Any) -> bytes | None:
    """Return a str, bytes or 64-bit int as a message's key; None for anything else."""
    if type(key) is bytes:
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            return None
    number = whole_number(key, -(2**63), 2**63)
    return None if number is None else struct.pack(">q", number)


class KeyField:
    """A field of a schema whose values are the keys of messages."""

    def __init__(self, name: str, schema: Schema) -> None:
        """Raise OptionError for a field that the schema lacks, or that cannot be a key."""
        names = schema.arrow.names
        if name not in names:
            raise OptionError(f"key is {name!r}; the channel has the fields {', '.join(names)}")
        if find_union(schema.select([name]).record):
            raise OptionError(
                f"key is {name!r}, a field with a union of several types; give a function that "
                "returns a string, bytes or an int for a record"
            )
        self.name = name
        self.type: pa.DataType = schema.arrow.field(name).type
        self._integer: struct.Struct | None = None
        if pa.types.is_int32(self.type):
            self._integer = struct.Struct(">i")
        elif pa.types.is_int64(self.type):
            self._integer = struct.Struct(">q")
        elif not (pa.types.is_string(self.type) or pa.types.is_binary(self.type)):
            raise OptionError(
                f"key is {name!r}, a field of type {self.type}; a key is a string, bytes, an int "
                "or a long. For other types give a function that returns one of these for a "
                "record; Spark needs a column of one of these types"
            )
        self.encode: Callable[[Any], bytes] = bytes
        """Convert a valid value of the field."""
        if self._integer is not None:
            self.encode = self._integer.pack
        elif pa.types.is_string(self.type):
            self.encode = str.encode

    def checked(self, value: Any) -> bytes:
        """Convert any value. Raises OptionError for one that the field cannot have."""
        key: bytes | None = None
        if self._integer is not None:
            limit = 1 << (8 * self._integer.size - 1)
            number = whole_number(value, -limit, limit)
            key = None if number is None else self._integer.pack(number)
        elif isinstance(value, str if pa.types.is_string(self.type) else bytes):
            key = key_bytes(value)
        if key is None:
            raise OptionError(
                f"the key to delete is {value!r}; it takes a value of the writer's key, the field "
                f"{self.name!r} of type {self.type}"
            )
        return key

    def decode(self, key: bytes) -> Any:
        """Return the value of a message's key. Raises ValueError."""
        if self._integer is None:
            return key.decode() if pa.types.is_string(self.type) else key
        if len(key) != self._integer.size:
            raise ValueError(f"it has {len(key)} bytes")
        return self._integer.unpack(key)[0]


def deletes_of(
    messages: Sequence[Message], decoded: Decoded, field: KeyField | None
) -> tuple[dict[int, Any], Decoded]:
    """Return the deleted keys by the index of their messages, and what is decoded.

    The keys are values of `field`, or bytes. Deletes without such a key are corrupt.
    """
    keys: dict[int, Any] = {}
    corrupt: list[Corrupt] = []
    for index, message in enumerate(messages):
        if message.value() is not None:
            continue
        key = message.key()
        if key is None:
            corrupt.append(Corrupt(index=index, reason="it is a delete without a key"))
            continue
        try:
            keys[index] = key if field is None else field.decode(key)
        except ValueError as error:
            assert field is not None  # noqa: S101 - bytes are not decoded
            reason = f"it is a delete whose key is no value of the field {field.name!r}: {error}"
            corrupt.append(Corrupt(index=index, reason=reason))
    if corrupt:
        merged = sorted([*decoded.corrupt, *corrupt], key=lambda message: message.index)
        decoded = replace(decoded, corrupt=merged)
    return keys, decoded
