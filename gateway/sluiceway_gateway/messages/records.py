"""Records of messages as JSON, and messages of records, by the client's codecs.

The libraries of records take memory and time, so the first request that needs this module
imports it.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluiceway.codecs import Decoder, codec
from sluiceway.codecs.wire import arrow_schema_id, avro_schema_id
from sluiceway.errors import InvalidRecord, RecordTooLarge
from sluiceway.kafka.partitioner import partition_of
from sluiceway.records import to_batches, to_records
from sluiceway.records.json_values import json_value, records_from_json
from sluiceway.schema import Schema
from sluiceway_gateway.core.errors import InvalidRequest
from sluiceway_gateway.messages.model import MAX_RECORDS
from sluiceway_gateway.schemas.model import Format, SchemaVersion

MAX_SEARCHED_RECORDS = 10_000
"""Records of a message that are searched: one of `arrow` may have millions in few bytes."""

__all__ = ["EncodedMessage", "MessageContent", "MessageDecoder", "encode", "partition_of"]


@dataclass(frozen=True, kw_only=True)
class MessageContent:
    """The first records of a message as JSON values, or the reason why there are none.

    A `deleted` one deletes its key.
    """

    schema: SchemaVersion | None = None
    records: Sequence[Any] = ()
    record_count: int = 0
    error: str | None = None
    deleted: bool = False


class MessageDecoder:
    """Decodes messages of a channel, each by its writer's schema; `compacted` ones have deletes."""

    def __init__(
        self, format_: Format, versions: Sequence[SchemaVersion], *, compacted: bool = False
    ) -> None:
        self._format = format_
        self._compacted = compacted
        self._versions = {version.id: version for version in versions}
        self._decoders: dict[int, Decoder] = {}

    def decode(self, value: bytes | None) -> MessageContent:
        """Return the records of a value. Never raises because of the bytes."""
        id_ = self._schema_id(value)
        version = None if id_ is None else self._versions.get(id_)
        decoded = self._decoder(id_).decode([value])
        if decoded.corrupt and value is None and self._compacted:
            return MessageContent(deleted=True)
        if decoded.corrupt:
            return MessageContent(schema=version, error=decoded.corrupt[0].reason)
        records: list[Any] = []
        for batch in decoded.batches:
            shown = batch.slice(0, MAX_RECORDS - len(records))
            records += to_records(shown, out_of_range_as_text=True)
        count = sum(batch.num_rows for batch in decoded.batches)
        return MessageContent(schema=version, records=json_value(records), record_count=count)

    def records(self, values: Sequence[bytes | None]) -> list[list[Any] | None]:
        """Return the first records of each value as JSON values; None for one that is not decoded.

        Those are at most MAX_SEARCHED_RECORDS.
        """
        by_id: defaultdict[int | None, list[int]] = defaultdict(list)
        for index, value in enumerate(values):
            by_id[self._schema_id(value)].append(index)
        decoded_records: list[list[Any] | None] = [None] * len(values)
        for id_, indices in by_id.items():
            decoded = self._decoder(id_).decode([values[index] for index in indices])
            corrupt = {message.index for message in decoded.corrupt}
            batches = decoded.batches
            if self._format is Format.ARROW:
                # A message that has records is a batch of its own.
                batches = [batch.slice(0, MAX_SEARCHED_RECORDS) for batch in batches]
            rows = itertools.chain.from_iterable(
                json_value(to_records(batch, out_of_range_as_text=True)) for batch in batches
            )
            counts = itertools.repeat(1) if decoded.counts is None else decoded.counts
            for place, (index, count) in enumerate(zip(indices, counts, strict=False)):
                if place not in corrupt:
                    searched = min(count, MAX_SEARCHED_RECORDS)
                    decoded_records[index] = list(itertools.islice(rows, searched))
        return decoded_records

    def _schema_id(self, value: bytes | None) -> int | None:
        match self._format:
            case Format.AVRO | Format.PROTOBUF:
                return avro_schema_id(value)
            case Format.ARROW:
                return arrow_schema_id(value)
            case Format.JSON | Format.BYTES:
                return None

    def _decoder(self, id_: int | None) -> Decoder:
        """Return the decoder for a schema; for an unknown one the newest, which gives the error."""
        target = id_ if id_ in self._versions else max(self._versions)
        if target not in self._decoders:
            # Messages without an id may have any of the schemas.
            without_ids = self._format in (Format.JSON, Format.BYTES)
            schema_ids = self._versions if without_ids else {target}
            schemas = {
                schema_id: Schema.parse(self._versions[schema_id].definition)
                for schema_id in schema_ids
            }
            self._decoders[target] = Decoder(
                *(str(self._format), schemas[target], schemas),
                # The channel has no other ids.
                look_up=lambda _ids: {},
            )
        return self._decoders[target]


@dataclass(frozen=True, kw_only=True)
class EncodedMessage:
    """A message's value, and its number of records."""

    value: bytes | None
    records: int


def encode(
    records: Sequence[Mapping[str, Any]],
    format_: Format,
    version: SchemaVersion,
    *,
    limit_bytes: int,
) -> list[EncodedMessage]:
    """Return the messages of JSON records: one for each, or few for all of them in `arrow`.

    Raises InvalidRequest with the record and the field that does not fit, or for a record whose
    message is larger than `limit_bytes`.
    """
    schema = Schema.parse(version.definition)
    coder = codec(str(format_), schema, version.id)
    try:
        batches = to_batches(records_from_json(records, schema), schema)
        parts = [coder.encode(batch, limit_bytes=limit_bytes) for batch in batches]
    except InvalidRecord as error:
        reason = error.public_reason or "it does not fit the schema"
        where = f"field {error.schema_path}: " if error.schema_path else ""
        raise InvalidRequest.at(f"/records/{error.index}", f"{where}{reason}") from None
    except RecordTooLarge as error:
        raise InvalidRequest.at(
            f"/records/{error.index}",
            f"its message takes {error.size_bytes:,} bytes, and the channel's messages have at "
            f"most {error.limit_bytes:,}; make it smaller, or raise max.message.bytes",
        ) from None
    return [
        EncodedMessage(value=value, records=count)
        for part in parts
        for value, count in zip(
            part.values.to_pylist(), part.counts or itertools.repeat(1), strict=False
        )
    ]
