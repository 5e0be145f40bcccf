"""Decoder: converts messages of several schemas to records of one schema; codecs by format.

Each message names its schema by an id. The messages of each id are decoded together and resolved to
the target schema; then all records are put back into the order of their messages. Messages of the
format `json` name their fields instead, so all are decoded by the target schema.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from sluiceway.api.models import Connection
from sluiceway.api.schema_registry import SchemaRegistry
from sluiceway.codecs.arrow import ArrowCodec
from sluiceway.codecs.avro import AvroCodec
from sluiceway.codecs.base import Codec, Corrupt, Decoded, runs
from sluiceway.codecs.resolution import Resolution
from sluiceway.codecs.wire import (
    BytesCodec,
    arrow_schema_id,
    avro_schema_id,
    begins_with_object,
)
from sluiceway.errors import CorruptMessage, OptionError, SchemaMismatch
from sluiceway.schema import Schema
from sluiceway.schema.types import Nullable, written_name


def codec(
    format: str, schema: Schema, schema_id: int, columns: Collection[str] | None = None
) -> Codec:
    """Return the codec of a format: "avro", "arrow", "json", "protobuf" or "bytes".

    Of `arrow`, `json` and `protobuf` messages, only `columns` are decoded (None: all). Records of
    `avro` can only be decoded whole. Raises OptionError for other formats, UnsupportedType for a
    union of several types in `json`, and the errors of `ProtobufCodec`.
    """
    if format == "avro":
        return AvroCodec(schema, schema_id)
    if format == "arrow":
        return ArrowCodec(schema, schema_id, columns)
    if format == "bytes":
        return BytesCodec(schema)
    if format == "json":
        from sluiceway.codecs.json_codec import JsonCodec

        return JsonCodec(schema, columns)
    if format == "protobuf":
        from sluiceway.codecs.protobuf import ProtobufCodec

        return ProtobufCodec(schema, schema_id, columns)
    raise OptionError(
        f"the format is {format!r}; it must be 'avro', 'arrow', 'json', 'protobuf' or 'bytes'"
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The records of whole messages, with the number of rows of each message."""

    batch: pa.RecordBatch
    messages: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]


class _Merger:
    """Merger of the records of several schemas, in the order of their messages."""

    def __init__(self, schema: pa.Schema, *, messages: int) -> None:
        self._schema = schema
        self._counts: np.ndarray[Any, Any] = np.zeros(messages, np.int64)
        self._corrupt: dict[int, Corrupt] = {}
        self._batches: list[pa.RecordBatch] = []
        self._parts: list[_Part] = []

    def reject(self, index: int, reason: str, *, skippable: bool = True) -> None:
        """Drop the records of the message `index`; the first reason is kept."""
        corrupt = Corrupt(index=index, reason=reason, skippable=skippable)
        self._corrupt.setdefault(index, corrupt)

    def add(self, decoded: Decoded, indices: Sequence[int], resolution: Resolution | None) -> None:
        """Add the decoded messages `indices`."""
        for corrupt in decoded.corrupt:
            self.reject(indices[corrupt.index], corrupt.reason)
        messages = np.asarray(indices)
        rows = np.ones(len(messages), np.int64) if decoded.counts is None else decoded.counts
        rows = np.asarray(rows, np.int64)
        messages, rows = messages[rows > 0], rows[rows > 0]
        ends = np.cumsum(rows)
        first = end = 0
        for batch in filter(len, decoded.batches):
            end += batch.num_rows
            last = int(np.searchsorted(ends, end)) + 1
            part = _Part(batch=batch, messages=messages[first:last], rows=rows[first:last])
            first = last
            self._resolve(part, resolution)

    def _resolve(self, part: _Part, resolution: Resolution | None) -> None:
        if resolution is None:
            self._parts.append(part)
            return
        batch, failed = resolution.sift(part.batch)
        messages, rows = part.messages, part.rows
        if failed:
            message_of = np.repeat(messages, rows)
            for position, reason in failed.items():
                self.reject(int(message_of[position]), reason)
            corrupt = list(self._corrupt)
            message_of = np.delete(message_of, list(failed))
            batch = batch.filter(pa.array(~np.isin(message_of, corrupt)))
            intact = ~np.isin(messages, corrupt)
            messages, rows = messages[intact], rows[intact]
        if len(messages):
            self._parts.append(_Part(batch=batch, messages=messages, rows=rows))

    def merge(self) -> None:
        """Put the records added since the last call into the order of their messages."""
        parts, self._parts = self._parts, []
        if not parts:
            return
        messages = np.concatenate([part.messages for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        self._counts[messages] = rows
        if np.all(messages[1:] >= messages[:-1]):
            self._batches += [part.batch for part in parts]
        elif all(len(part.messages) == 1 for part in parts):
            parts.sort(key=lambda part: int(part.messages[0]))
            self._batches += [part.batch for part in parts]
        else:
            order = pa.array(np.argsort(np.repeat(messages, rows), kind="stable"))
            table = pa.Table.from_batches([part.batch for part in parts], self._schema)
            self._batches += table.take(order).combine_chunks().to_batches()

    def decoded(self, *, one_each: bool) -> Decoded:
        """Return all merged records; `one_each`: a message that is not corrupt has one record."""
        corrupt = [self._corrupt[index] for index in sorted(self._corrupt)]
        counts = None if one_each and not corrupt else self._counts.tolist()
        return Decoded(batches=self._batches, counts=counts, corrupt=corrupt)


LookUp: TypeAlias = Callable[[Collection[int]], Mapping[int, Schema | SchemaMismatch]]
"""Looks up schemas by id; unknown ids are left out, and others may be added.

A SchemaMismatch is the reason why a schema cannot be used.
"""

_NUMBERED: Final = {
    "type": "record",
    "name": "Message",
    "fields": [{"name": "value", "type": "boolean", "protobuf": {"number": 1}}],
}
"""Any schema that a message of the format `protobuf` may have."""

_LOOK_UP_INTERVAL_S: Final = 1.0
"""The least time between two requests for newer schemas: a topic may have any number of messages
that are no records."""

_MAX_UNKNOWN_IDS: Final = 10_000
"""The most unknown ids to remember; a hostile topic may have any number."""


@dataclass(frozen=True, kw_only=True)
class _Readable:
    """The decoding of messages of one schema id."""

    codec: Codec
    resolution: Resolution | None
    """None: the codec decodes into the target schema."""


@dataclass(frozen=True, kw_only=True)
class _Unreadable:
    """The reason why messages of one schema id cannot be decoded; see `Corrupt`."""

    reason: str
    skippable: bool


class Decoder:
    """Decoder for messages of any of a channel's schemas, to batches of the target schema.

    `schemas` are the channel's schemas by id. `look_up` is called once for each unknown id;
    without it, messages of unknown ids are not skippable. A message of `json` is not skippable if
    another of the channel's schemas can read it; for such, `look_up` is called once a second.
    If the ids are those of another `registry`, messages of unknown ids are not skippable either.
    With `skip_deletes`, null values are deletes, which have no records and are not corrupt.
    Raises OptionError for an unknown format, and the errors of `codec`.
    """

    def __init__(
        self,
        format: str,
        target: Schema,
        schemas: Mapping[int, Schema],
        *,
        look_up: LookUp | None = None,
        registry: str | None = None,
        skip_deletes: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._format = format
        self._target = target
        self._schemas = dict(schemas)
        self._unusable: dict[int, SchemaMismatch] = {}
        self._registry = registry
        self._look_up = look_up
        self._skip_deletes = skip_deletes
        self._clock = clock
        self._unknown_ids: set[int] = set()
        self._by_id: dict[int, _Readable | _Unreadable] = {}
        # For the reasons of messages without an id, which every other codec rejects. A reader's own
        # schema may have no numbers, and types that Protobuf does not have.
        any_schema = Schema.parse(_NUMBERED) if format == "protobuf" else target
        self._fallback = codec(format, any_schema, 0)
        self._schema_id = _schema_id_of(format, self._schemas)
        # The codecs of other schemas, for messages of `json`, and when to look for newer ones.
        self._codecs: dict[int, Codec] = {}
        self._look_up_due_s = -math.inf
        # The id of all messages of the last call; None: several, or unknown.
        self._usual_id: int | None = None

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode message values from any source into batches of the target schema.

        The contract is that of `Codec.decode`. Raises the errors of `look_up`, and may then be
        called again.
        """
        if not self._skip_deletes or None not in values:
            return self._decode(values)
        present = [index for index, value in enumerate(values) if value is not None]
        decoded = self._decode([values[index] for index in present])
        counts: np.ndarray[Any, Any] = np.zeros(len(values), np.int64)
        counts[present] = 1 if decoded.counts is None else decoded.counts
        corrupt = [replace(message, index=present[message.index]) for message in decoded.corrupt]
        return Decoded(batches=decoded.batches, counts=counts.tolist(), corrupt=corrupt)

    def _decode(self, values: Sequence[bytes | None]) -> Decoded:
        if self._format == "json":
            return self._decode_by_names(values)
        decoded = self._decode_usual(values)
        if decoded is not None:
            return decoded
        ids = [self._schema_id(value) for value in values]
        self._look_up_unknown({id_ for id_ in ids if id_ is not None})
        merger = _Merger(self._target.arrow, messages=len(values))
        for start, stop in runs(values):
            groups: dict[int | None, list[int]] = defaultdict(list)
            for index in range(start, stop):
                groups[ids[index]].append(index)
            for id_, indices in groups.items():
                self._decode_group(id_, indices, values, merger)
            merger.merge()
        resolved_ids = self._by_id.keys() & set(ids)
        self._usual_id = resolved_ids.pop() if len(resolved_ids) == 1 else None
        return merger.decoded(one_each=self._format != "arrow")

    def _decode_usual(self, values: Sequence[bytes | None]) -> Decoded | None:
        """Decode `values` at once if all have the usual id, without reading each id first."""
        usual = self._usual_id
        if usual is None or not values:
            return None
        if {self._schema_id(values[0]), self._schema_id(values[-1])} != {usual}:
            return None
        readable = self._by_id[usual]
        if isinstance(readable, _Unreadable):
            return None
        decoded = readable.codec.decode(values)
        # A codec rejects messages of other ids as corrupt.
        ids = {self._schema_id(values[corrupt.index]) for corrupt in decoded.corrupt}
        if not ids <= {usual, None}:
            return None
        if readable.resolution is None:
            return decoded
        merger = _Merger(self._target.arrow, messages=len(values))
        merger.add(decoded, range(len(values)), readable.resolution)
        merger.merge()
        return merger.decoded(one_each=self._format != "arrow")

    def _decode_by_names(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode messages that name their fields, and have no id of a schema."""
        decoded = self._fallback.decode(values)
        corrupt = {message.index: message for message in decoded.corrupt}
        unread = [index for index in corrupt if begins_with_object(values[index])]
        if not unread:
            return decoded
        now_s = self._clock()
        if self._look_up is not None and now_s >= self._look_up_due_s:
            self._learn(self._look_up(()))
            self._look_up_due_s = now_s + _LOOK_UP_INTERVAL_S
        for id_, schema in self._schemas.items():
            if not unread or schema.record == self._target.record:
                continue
            if id_ not in self._codecs:
                self._codecs[id_] = codec(self._format, schema, id_)
            refused = self._codecs[id_].decode([values[index] for index in unread]).corrupt
            still_unread = [unread[message.index] for message in refused]
            for index in set(unread).difference(still_unread):
                reason = (
                    f"it is a record of the channel's schema {id_}, which this reader's schema "
                    f"cannot read: {corrupt[index].reason}"
                )
                corrupt[index] = Corrupt(index=index, reason=reason, skippable=False)
            unread = still_unread
        return replace(decoded, corrupt=[*corrupt.values()])

    def _decode_group(
        self,
        id_: int | None,
        indices: Sequence[int],
        values: Sequence[bytes | None],
        merger: _Merger,
    ) -> None:
        group = [values[index] for index in indices]
        if id_ is None:
            for corrupt in self._fallback.decode(group).corrupt:
                merger.reject(indices[corrupt.index], corrupt.reason)
            return
        readable = self._by_id.get(id_) or self._resolve(id_)
        if isinstance(readable, _Unreadable):
            for index in indices:
                merger.reject(index, readable.reason, skippable=readable.skippable)
            return
        merger.add(readable.codec.decode(group), indices, readable.resolution)

    def _look_up_unknown(self, ids: set[int]) -> None:
        unknown = ids - self._schemas.keys() - self._unusable.keys() - self._unknown_ids
        if not unknown:
            return
        if self._look_up is not None:
            self._learn(self._look_up(sorted(unknown)))
        if len(self._unknown_ids) > _MAX_UNKNOWN_IDS:
            self._unknown_ids.clear()
        self._unknown_ids |= unknown - self._schemas.keys()

    def _learn(self, schemas: Mapping[int, Schema | SchemaMismatch]) -> None:
        for id_, schema in schemas.items():
            if isinstance(schema, Schema):
                self._schemas.setdefault(id_, schema)
            else:
                self._unusable[id_] = schema

    def _resolve(self, id_: int) -> _Readable | _Unreadable:
        schema = self._schemas.get(id_)
        if id_ in self._unusable:
            reason = f"it has {self._of_schema(id_)}, and {self._unusable[id_]}"
            return _Unreadable(reason=reason, skippable=False)
        if schema is None and self._registry is not None:
            return _Unreadable(
                reason=f"its schema id {id_} is not in {self._registry}, which may be the wrong "
                "one",
                skippable=False,
            )
        if schema is None and self._look_up is None:
            return _Unreadable(
                reason=f"its schema id {id_} is unknown to this reader, and cannot be looked up "
                "without a gateway: it may belong to a newer schema of the channel",
                skippable=False,
            )
        if schema is None:
            return _Unreadable(
                reason=f"its schema id {id_} is not one of the channel's: its writer did not get "
                "the id from the gateway",
                skippable=True,
            )
        readable: _Readable | _Unreadable
        try:
            # At least one column, which gives the number of records.
            names = [field.name for field in schema.record.fields]
            read = {written_name(field, names) for field in self._target.record.fields}
            columns = [name for name in names if name in read] or names[:1]
            decoding = codec(self._format, schema, id_, columns)
            decoded = decoding.decoded_schema
            resolution = None
            if decoded.record != self._target.record:
                resolution = Resolution(decoded, self._target)
            readable = _Readable(codec=decoding, resolution=resolution)
        except SchemaMismatch as error:
            readable = _Unreadable(
                reason=f"it has {self._of_schema(id_)}, which this reader's schema cannot read: "
                f"{error}",
                skippable=False,
            )
        self._by_id[id_] = readable
        return readable

    def _of_schema(self, id_: int) -> str:
        own = self._registry is None
        return f"the channel's schema {id_}" if own else f"the schema id {id_} of {self._registry}"


def _schema_id_of(
    format: str, schemas: Mapping[int, Schema]
) -> Callable[[bytes | None], int | None]:
    if format == "bytes":
        # Messages have no id; the channel's schemas differ only in allowing tombstones.
        widest = max(schemas, key=lambda id_: (_nullable(schemas[id_]), id_), default=None)
        return lambda _value: widest
    return arrow_schema_id if format == "arrow" else avro_schema_id


def _nullable(schema: Schema) -> bool:
    return any(isinstance(field.type, Nullable) for field in schema.record.fields)


def decoder_for(
    connection: Connection,
    *,
    target: Schema,
    refresh: Callable[[], Connection] | None,
    registry: SchemaRegistry | None = None,
    deletes: bool = False,
) -> Decoder:
    """Return the decoder for a channel's messages, to records of `target`.

    The ids in them are those of the `registry`, if there is one.

    Null values are deletes on a compacted channel and with `deletes`; without it, a null of the
    format `bytes` is a record if `target` allows it. Elsewhere they are corrupt.
    `refresh` returns a new connection when a message has an unknown schema id; its exceptions pass
    through `decode`. Without it, messages of unknown ids are not skippable. Raises InvalidSchema,
    UnsupportedType.
    """
    schemas: Mapping[int, Schema] = {} if registry is not None else _schemas(connection)
    look_up: LookUp | None = None
    if registry is not None:
        look_up = registry.look_up
    elif refresh is not None:
        look_up = lambda _: _schemas(refresh())  # noqa: E731
    null_is_record = connection.format == "bytes" and _nullable(target)
    return Decoder(
        connection.format,
        target,
        schemas,
        look_up=look_up,
        registry=None if registry is None else str(registry),
        skip_deletes=deletes or (connection.compacted and not null_is_record),
    )


def corrupt_error(
    channel: str, partition: int, offset: int, corrupt: Corrupt
) -> CorruptMessage | SchemaMismatch:
    """Return the exception for a message without records."""
    if corrupt.skippable:
        return CorruptMessage(
            channel=channel, partition=partition, offset=offset, reason=corrupt.reason
        )
    error = SchemaMismatch(
        f"channel {channel!r}, partition {partition}, offset {offset}: {corrupt.reason}. It may be "
        "a valid record, so it is never skipped: continue there with a schema that can read it, "
        "such as the channel's newest, or start after it"
    )
    # The reason is about the schema only: the record was not decoded.
    error.message_is_public = True
    return error


def _schemas(connection: Connection) -> dict[int, Schema]:
    return {version.id: Schema.parse(version.definition) for version in connection.schemas}


__all__ = ["Decoder", "codec", "corrupt_error", "decoder_for"]
