"""The format `bytes`, and validation of messages that the caller encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from sluiceway.codecs import Envelope
from sluiceway.codecs.arrow import NotAnEnvelope
from sluiceway.codecs.base import Corrupt, Decoded, Encoded
from sluiceway.errors import OptionError, RecordTooLarge
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema
from sluiceway.schema.schema import holds_messages
from sluiceway.schema.types import Nullable

_RUN_BYTES: Final = 256 << 20
"""So many bytes of messages share a batch: Arrow's offsets end at 2 GiB."""


class BytesCodec:
    """The codec of the format `bytes`; see `Codec` for what it promises.

    A record whose `value` is null is a message without a value, a tombstone. Such a message is a
    record only where the schema allows null.
    """

    def __init__(self, schema: Schema) -> None:
        if not holds_messages(schema):
            raise OptionError(
                "records of the format 'bytes' have one field, 'value', of the type bytes, or of "
                f"null and bytes; these have {', '.join(schema.arrow.names)}"
            )
        self._schema = schema.arrow
        self._nullable = isinstance(schema.record.fields[0].type, Nullable)

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Give the values of `batch`, one a record."""
        values: list[bytes | None] = batch.column(0).to_pylist()
        for index, value in enumerate(values):
            if value is not None and len(value) > limit_bytes:
                raise RecordTooLarge(index=index, size_bytes=len(value), limit_bytes=limit_bytes)
        return Encoded(values=values, counts=None)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Take each value as a record."""
        corrupt: list[Corrupt] = []
        counts = None
        if not self._nullable and None in values:
            reason = "it has no value (a tombstone), and the schema allows no null"
            counts = [int(value is not None) for value in values]
            empty = [index for index, count in enumerate(counts) if not count]
            corrupt = [Corrupt(index=index, reason=reason) for index in empty]
            values = [value for value in values if value is not None]
        batches = [
            pa.RecordBatch.from_arrays([pa.array(run, pa.binary())], schema=self._schema)
            for run in _runs(values)
        ]
        return Decoded(batches=batches, counts=counts, corrupt=corrupt)


def _runs(values: Sequence[bytes | None]) -> Iterator[Sequence[bytes | None]]:
    start = size_bytes = 0
    for index, value in enumerate(values):
        length = len(value or b"")
        if index > start and size_bytes + length > _RUN_BYTES:
            yield values[start:index]
            start, size_bytes = index, 0
        size_bytes += length
    if start < len(values):
        yield values[start:]


_PREFIX_BYTES: Final = 5
_MOST_STRANGERS: Final = 1000


class WireFormatValidator:
    """Looks at values before they are produced as they are.

    A value of an `avro` channel begins with the byte 0 and one of the channel's schema ids as four
    bytes, one of an `arrow` channel with an envelope of such an id; a `bytes` channel takes any.
    What follows the id is not looked at: readers do that. `refresh` asks for the connection anew,
    once for an id that is not known.
    """

    def __init__(self, connection: Connection, *, refresh: Callable[[], Connection]) -> None:
        self._channel = connection.channel_name
        self._format = connection.format
        self._refresh = refresh
        self._prefixes: set[bytes] = set()
        self._strangers: set[int] = set()
        self._tombstones = False
        self._learn(connection)

    @property
    def takes_any(self) -> bool:
        """Whether there is nothing to look at."""
        return self._format == "bytes" and self._tombstones

    def refusal(self, value: bytes | None) -> str | None:
        """Say why the channel cannot have this value; None: it can. Raises GatewayError."""
        if value is None:
            return None if self._tombstones else self._no_tombstone()
        if self._format == "bytes" or value[:_PREFIX_BYTES] in self._prefixes:
            return None
        id_ = self._id(value)
        if id_ is not None and self._knows(id_):
            return None
        ids = ", ".join(str(int.from_bytes(each[1:], "big")) for each in sorted(self._prefixes))
        begins = "no schema id" if id_ is None else f"the schema id {id_}, which is none of these"
        head = "the byte 0 and" if self._format == "avro" else "the head of a record batch and"
        return (
            f"a message of the channel {self._channel!r}, which is of the format {self._format}, "
            f"begins with {head} one of the schema ids {ids}; this one has {begins}. Write records "
            "with channel.writer(), or take a channel of the format bytes for values of your own"
        )

    def _no_tombstone(self) -> str:
        return (
            f"the channel {self._channel!r}, of the format {self._format}, has no messages without "
            "a value: each is a record of its schema. Channels of the format bytes have them"
        )

    def _id(self, value: bytes) -> int | None:
        if self._format == "avro":
            whole = len(value) >= _PREFIX_BYTES and not value[0]
            return int.from_bytes(value[1:_PREFIX_BYTES], "big") if whole else None
        try:
            id_: int = Envelope.unpack(value).schema_id
        except NotAnEnvelope:
            return None
        return id_

    def _knows(self, id_: int) -> bool:
        prefix = _prefix(id_)
        if prefix is None:
            return False
        if prefix not in self._prefixes and id_ not in self._strangers:
            self._learn(self._refresh())
            if prefix not in self._prefixes and len(self._strangers) < _MOST_STRANGERS:
                self._strangers.add(id_)
        return prefix in self._prefixes

    def _learn(self, connection: Connection) -> None:
        # A new set, as another thread may be looking at the one before.
        self._prefixes = self._prefixes | {
            prefix for kept in connection.schemas if (prefix := _prefix(kept.id)) is not None
        }
        if self._format == "bytes":
            (field,) = Schema.parse(connection.schema_definition).record.fields
            self._tombstones = isinstance(field.type, Nullable)


def _prefix(id_: int) -> bytes | None:
    return b"\0" + id_.to_bytes(4, "big") if 0 <= id_ < 2**32 else None


__all__ = ["WireFormatValidator"]
