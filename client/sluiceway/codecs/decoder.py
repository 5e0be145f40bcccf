"""Decoder: messages of several schemas as records of one.

Each message names its schema by an id. Those of one id are decoded together and resolved to the
schema that the reader wants; then all records are put back into the order of their messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from sluiceway.codecs.arrow import Envelope, NotAnEnvelope
from sluiceway.codecs.base import Codec, Corrupt, Decoded, codec
from sluiceway.codecs.resolution import Resolution
from sluiceway.errors import CorruptMessage, SchemaMismatch
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema
from sluiceway.schema.types import Nullable


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Whole messages of one batch, with how many rows each has: a message may have millions."""

    batch: pa.RecordBatch
    messages: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]


class Gathering:
    """What became of so many messages, whose records are batches of `schema` at the end."""

    def __init__(self, schema: pa.Schema, *, messages: int) -> None:
        self._schema = schema
        self._counts: np.ndarray[Any, Any] = np.zeros(messages, np.int64)
        self._corrupt: dict[int, Corrupt] = {}
        self._batches: list[pa.RecordBatch] = []
        self._parts: list[_Part] = []

    def reject(self, index: int, reason: str, *, skippable: bool = True) -> None:
        """Take no record of the message `index`; the first reason given stays."""
        corrupt = Corrupt(index=index, reason=reason, skippable=skippable)
        self._corrupt.setdefault(index, corrupt)

    def add(self, decoded: Decoded, indices: Sequence[int], resolution: Resolution | None) -> None:
        """Take what was decoded of the messages `indices`; None: no records are among it."""
        for corrupt in decoded.corrupt:
            self.reject(indices[corrupt.index], corrupt.reason)
        if resolution is None:
            return
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

    def _resolve(self, part: _Part, resolution: Resolution) -> None:
        batch, unresolvable = resolution.sift(part.batch)
        messages, rows = part.messages, part.rows
        if unresolvable:
            of = np.repeat(messages, rows)
            for position, reason in unresolvable.items():
                self.reject(int(of[position]), reason)
            corrupt = list(self._corrupt)
            of = np.delete(of, list(unresolvable))
            batch = batch.filter(pa.array(~np.isin(of, corrupt)))
            whole = ~np.isin(messages, corrupt)
            messages, rows = messages[whole], rows[whole]
        if len(messages):
            self._parts.append(_Part(batch=batch, messages=messages, rows=rows))

    def settle(self) -> None:
        """Put the records added since the last time into the order of their messages."""
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
        """Give all that was settled; `one_each`: a message that is not corrupt has one record."""
        corrupt = [self._corrupt[index] for index in sorted(self._corrupt)]
        counts = None if one_each and not corrupt else self._counts.tolist()
        return Decoded(batches=self._batches, counts=counts, corrupt=corrupt)


Learn: TypeAlias = Callable[[Collection[int]], Mapping[int, Schema]]
"""Finds the channel's schemas with these ids; those that are none are left out."""

_RUN_BYTES: Final = 256 << 20
"""So many bytes of messages are put in order at once: Arrow's offsets end at 2 GiB."""

_MOST_STRANGERS: Final = 10_000
"""So many ids that are no schema's are remembered, of the many that a hostile topic may have."""


def decoder(
    format: str,  # noqa: A002 - the wire's word
    target: Schema,
    schemas: Mapping[int, Schema],
    *,
    learn: Learn | None = None,
) -> Decoder:
    """Choose the decoder of a channel of `format`, which gives records of `target`.

    `schemas` are the channel's by id; `learn` is asked about the ids of messages that are not
    among them, once about each; without it, a message of such an id is not skippable. Raises
    OptionError for an unknown format.
    """
    return Decoder(format, target, schemas, learn=learn)


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How messages of one schema id become records of the target."""

    codec: Codec
    resolution: Resolution


@dataclass(frozen=True, kw_only=True)
class _NoWay:
    """Why messages of one schema id do not; see `Corrupt`."""

    reason: str
    skippable: bool


class Decoder:
    """Turns message values of any of a channel's schemas into batches of the target schema."""

    def __init__(
        self,
        format: str,  # noqa: A002 - the wire's word
        target: Schema,
        schemas: Mapping[int, Schema],
        *,
        learn: Learn | None = None,
    ) -> None:
        self._format = format
        self._target = target
        self._schemas = dict(schemas)
        self._learn = learn
        self._strangers: set[int] = set()
        self._ways: dict[int, _Way | _NoWay] = {}
        # For messages without an id, which no codec takes: it says what is wrong with them.
        self._judge = codec(format, target, 0)
        self._id = _id_of(format, self._schemas)
        # The id that all messages had the last time; None: several, or not known yet.
        self._usual: int | None = None

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode message values, whoever wrote them, into batches of the target schema.

        What `Codec.decode` promises holds here too. Raises what `learn` raises, and may then be
        called again.
        """
        decoded = self._decoded_as_usual(values)
        if decoded is not None:
            return decoded
        ids = [self._id(value) for value in values]
        self._ask({id_ for id_ in ids if id_ is not None})
        gathering = Gathering(self._target.arrow, messages=len(values))
        for start, stop in _runs(values):
            groups: dict[int | None, list[int]] = defaultdict(list)
            for index in range(start, stop):
                groups[ids[index]].append(index)
            for id_, indices in groups.items():
                self._gather(id_, indices, values, gathering)
            gathering.settle()
        met = self._ways.keys() & set(ids)
        self._usual = met.pop() if len(met) == 1 else None
        return gathering.decoded(one_each=self._format != "arrow")

    def _decoded_as_usual(self, values: Sequence[bytes | None]) -> Decoded | None:
        """Decode `values` at once if all are of the usual id, without a look at each."""
        usual = self._usual
        if usual is None or not values or {self._id(values[0]), self._id(values[-1])} != {usual}:
            return None
        way = self._ways[usual]
        if isinstance(way, _NoWay):
            return None
        decoded = way.codec.decode(values)
        # A codec takes no message of another id than its own.
        if not {self._id(values[corrupt.index]) for corrupt in decoded.corrupt} <= {usual, None}:
            return None
        if way.resolution.identical:
            return decoded
        gathering = Gathering(self._target.arrow, messages=len(values))
        gathering.add(decoded, range(len(values)), way.resolution)
        gathering.settle()
        return gathering.decoded(one_each=self._format != "arrow")

    def _gather(
        self,
        id_: int | None,
        indices: Sequence[int],
        values: Sequence[bytes | None],
        gathering: Gathering,
    ) -> None:
        chosen = [values[index] for index in indices]
        if id_ is None:
            gathering.add(self._judge.decode(chosen), indices, None)
            return
        way = self._ways.get(id_) or self._way(id_)
        if isinstance(way, _NoWay):
            for index in indices:
                gathering.reject(index, way.reason, skippable=way.skippable)
            return
        gathering.add(way.codec.decode(chosen), indices, way.resolution)

    def _ask(self, ids: set[int]) -> None:
        unknown = ids - self._schemas.keys() - self._strangers
        if not unknown:
            return
        if self._learn is not None:
            self._schemas = {**self._learn(sorted(unknown)), **self._schemas}
        if len(self._strangers) > _MOST_STRANGERS:
            self._strangers.clear()
        self._strangers |= unknown - self._schemas.keys()

    def _way(self, id_: int) -> _Way | _NoWay:
        schema = self._schemas.get(id_)
        if schema is None and self._learn is None:
            return _NoWay(
                reason=f"it was written with the schema id {id_}, which this reader does not know "
                "and, without a gateway, cannot ask about: it may be a newer one of the channel's",
                skippable=False,
            )
        if schema is None:
            return _NoWay(
                reason=f"it was written with the schema id {id_}, which is none of the channel's: "
                "whoever wrote it took the id from elsewhere, and not from the gateway",
                skippable=True,
            )
        try:
            way: _Way | _NoWay = _Way(
                codec=codec(self._format, schema, id_),
                resolution=Resolution(schema, self._target),
            )
        except SchemaMismatch as error:
            way = _NoWay(
                reason=f"it was written with the channel's schema {id_}, and cannot be read with "
                f"this reader's: {error}",
                skippable=False,
            )
        self._ways[id_] = way
        return way


def _id_of(
    format: str,  # noqa: A002 - the wire's word
    schemas: Mapping[int, Schema],
) -> Callable[[bytes | None], int | None]:
    """Return how a message's schema id is found."""
    if format == "bytes":
        # Messages name none: all of the channel's differ in whether there are tombstones.
        widest = max(schemas, key=lambda id_: (_nullable(schemas[id_]), id_), default=None)
        return lambda _value: widest
    return _registry_id if format == "avro" else _envelope_id


def _nullable(schema: Schema) -> bool:
    return any(isinstance(field.type, Nullable) for field in schema.record.fields)


def _registry_id(value: bytes | None) -> int | None:
    if value is None or len(value) < 5 or value[0]:
        return None
    return int.from_bytes(value[1:5], "big")


def _envelope_id(value: bytes | None) -> int | None:
    try:
        return None if value is None else Envelope.unpack(value).schema_id
    except NotAnEnvelope:
        return None


def _runs(values: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Divide `values` into runs, by first and last, of at most so many bytes or of one value."""
    start = size_bytes = 0
    for index, value in enumerate(values):
        length = len(value or b"")
        if index > start and size_bytes + length > _RUN_BYTES:
            yield start, index
            start, size_bytes = index, 0
        size_bytes += length
    yield start, len(values)


def decoder_for(
    connection: Connection,
    *,
    target: Schema | None = None,
    refresh: Callable[[], Connection] | None = None,
) -> Decoder:
    """Make the decoder of the channel's messages, whatever schema of its own they have.

    It gives records of `target`, by default of the schema that the connection says this job uses.
    `refresh` gives the connection as it is now, when a message has a schema that `connection` does
    not know yet; what it raises, decoding raises. Without it nobody can tell a newer schema of the
    channel from a stranger's, so no such message is skippable. Raises InvalidSchema,
    UnsupportedType.
    """

    def learn(_: Collection[int]) -> Mapping[int, Schema]:
        return {} if refresh is None else _schemas(refresh())

    if target is None:
        target = Schema.parse(connection.schema_definition)
    asked = None if refresh is None else learn
    return decoder(connection.format, target, _schemas(connection), learn=asked)


def refusal(channel: str, message: Message, corrupt: Corrupt) -> CorruptMessage | SchemaMismatch:
    """Return what to raise for a message that gave no records."""
    partition, offset = message.partition(), message.offset()
    if corrupt.skippable:
        return CorruptMessage(
            channel=channel, partition=partition, offset=offset, reason=corrupt.reason
        )
    error = SchemaMismatch(
        f"channel {channel!r}, partition {partition}, offset {offset}: {corrupt.reason}. It "
        "may well be a record of the channel, so it is never skipped: read on from there with a "
        "schema that can, as the channel's newest may, or begin behind it"
    )
    # What is never skipped is refused for its schema's sake, before its record was looked at.
    error.tells_no_values = True
    return error


def _schemas(connection: Connection) -> dict[int, Schema]:
    return {kept.id: Schema.parse(kept.definition) for kept in connection.schemas}


__all__ = ["decoder_for", "refusal"]
