"""The format `bytes`, schema ids in messages, and validation of values encoded by the caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from sluiceway.api.models import Connection
from sluiceway.codecs.arrow import Envelope, InvalidEnvelope
from sluiceway.codecs.base import Corrupt, Decoded, Encoded, require_short, runs
from sluiceway.errors import OptionError
from sluiceway.schema import Schema
from sluiceway.schema.schema import holds_messages
from sluiceway.schema.types import Nullable


class BytesCodec:
    """The codec of the format `bytes`; see `Codec` for its contract.

    A record with a null `value` is a tombstone. Without null in the schema, tombstones are
    corrupt.
    """

    def __init__(self, schema: Schema) -> None:
        if not holds_messages(schema):
            raise OptionError(
                "records of the format 'bytes' must have one field, 'value', of type bytes or "
                f"nullable bytes; these have {', '.join(schema.arrow.names)}"
            )
        self.decoded_schema = schema
        self._schema = schema.arrow
        self._nullable = isinstance(schema.record.fields[0].type, Nullable)

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Return the values of `batch`, one per record."""
        values = pa.chunked_array([batch.column(0)], pa.binary())
        require_short(values, limit_bytes)
        return Encoded(values=values)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Return each value as a record."""
        corrupt: list[Corrupt] = []
        counts = None
        if not self._nullable and None in values:
            reason = "it is a tombstone, and the schema does not allow null"
            counts = [int(value is not None) for value in values]
            empty = [index for index, count in enumerate(counts) if not count]
            corrupt = [Corrupt(index=index, reason=reason) for index in empty]
            values = [value for value in values if value is not None]
        batches = [
            pa.RecordBatch.from_arrays(
                [pa.array(values[start:stop], pa.binary())], schema=self._schema
            )
            for start, stop in runs(values)
        ]
        return Decoded(batches=batches, counts=counts, corrupt=corrupt)


_PREFIX_BYTES: Final = 5


def avro_schema_id(value: bytes | None) -> int | None:
    """Return the schema id of an `avro` or `protobuf` message; None if it begins with none."""
    if value is None or len(value) < _PREFIX_BYTES or value[0]:
        return None
    return int.from_bytes(value[1:_PREFIX_BYTES], "big")


def arrow_schema_id(value: bytes | None) -> int | None:
    """Return the schema id of an `arrow` message, or None if it does not begin with an envelope."""
    try:
        return None if value is None else Envelope.unpack(value).schema_id
    except InvalidEnvelope:
        return None


def begins_with_object(value: bytes | None) -> bool:
    """Return whether a `json` message begins with an object, after the prefix if it has one."""
    start = _PREFIX_BYTES if value is not None and value[:1] == b"\0" else 0
    return value is not None and _OBJECT.match(value, start) is not None


_MAX_UNKNOWN_IDS: Final = 1000
_SHOWN_BYTES: Final = 8
_OBJECT: Final = re.compile(rb"[ \t\r\n]*\{")


class WireFormatValidator:
    """Validator for values that the caller encoded.

    A value of an `avro` or `protobuf` channel must begin with the byte 0 and one of the channel's
    schema ids, a value of an `arrow` channel with an envelope that has such an id, and a value of a
    `json` channel with a JSON object, which registry clients' prefix may precede. A `bytes` channel
    accepts any value. A compacted channel accepts null, which deletes a key. The rest of the value
    is not checked. `refresh` requests the connection again, once for each unknown id.
    """

    def __init__(self, connection: Connection, *, refresh: Callable[[], Connection]) -> None:
        self._channel = connection.channel_name
        self._format = connection.format
        self._schema_id = arrow_schema_id if self._format == "arrow" else avro_schema_id
        self._refresh = refresh
        self._prefixes: set[bytes] = set()
        self._unknown_ids: set[int] = set()
        self._tombstones = connection.compacted
        self._add(connection)

    @property
    def accepts_any(self) -> bool:
        """Whether the channel accepts every value."""
        return self._format == "bytes" and self._tombstones

    def may_refresh(self, value: bytes | None) -> bool:
        """Whether `error` would request the connection for this value."""
        if value is None or self._format in ("bytes", "json"):
            return False
        if value[:_PREFIX_BYTES] in self._prefixes:
            return False
        id_ = self._schema_id(value)
        return id_ is not None and not self._is_remembered(id_)

    def error(self, value: bytes | None) -> str | None:
        """Return the reason why the value is invalid, or None. Raises GatewayError."""
        if value is None and not self._tombstones:
            return (
                f"the channel {self._channel!r} of format {self._format} does not accept "
                "tombstones: each message must be a record of its schema. Compacted channels "
                "have them, and channels of format bytes may allow them"
            )
        if value is None:
            return None
        if self._format == "json":
            return self._json_error(value)
        if self._format == "bytes" or value[:_PREFIX_BYTES] in self._prefixes:
            return None
        id_ = self._schema_id(value)
        if id_ is not None and self._is_known(id_):
            return None
        ids = ", ".join(str(int.from_bytes(prefix[1:], "big")) for prefix in sorted(self._prefixes))
        actual = "no schema id" if id_ is None else f"the unknown schema id {id_}"
        head = "an envelope" if self._format == "arrow" else "the byte 0"
        return (
            f"a message of the channel {self._channel!r} of format {self._format} must begin with "
            f"{head} and one of the schema ids {ids}; this one has {actual}. Write records with "
            "channel.writer(), or use a channel of format bytes for values of your own"
        )

    def _json_error(self, value: bytes) -> str | None:
        if begins_with_object(value):
            return None
        return (
            f"a message of the channel {self._channel!r} of format json must be a JSON object; "
            f"this one begins with {value[:_SHOWN_BYTES]!r}. Use a channel of format bytes for "
            "values of your own"
        )

    def _is_remembered(self, id_: int) -> bool:
        """Return whether an earlier request has decided if the channel has this id."""
        prefix = _prefix(id_)
        return prefix is None or prefix in self._prefixes or id_ in self._unknown_ids

    def _is_known(self, id_: int) -> bool:
        prefix = _prefix(id_)
        if not self._is_remembered(id_):
            self._add(self._refresh())
            if prefix not in self._prefixes and len(self._unknown_ids) < _MAX_UNKNOWN_IDS:
                self._unknown_ids.add(id_)
        return prefix in self._prefixes

    def _add(self, connection: Connection) -> None:
        # A new set, as other threads may be reading the old one.
        self._prefixes = self._prefixes | {
            prefix for version in connection.schemas if (prefix := _prefix(version.id)) is not None
        }
        if self._format == "bytes":
            (field,) = Schema.parse(connection.schema_definition).record.fields
            self._tombstones = connection.compacted or isinstance(field.type, Nullable)


def _prefix(id_: int) -> bytes | None:
    return b"\0" + id_.to_bytes(4, "big") if 0 <= id_ < 2**32 else None


__all__ = [
    *("BytesCodec", "WireFormatValidator"),
    *("arrow_schema_id", "avro_schema_id", "begins_with_object"),
]
