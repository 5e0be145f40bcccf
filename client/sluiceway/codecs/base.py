"""The codec contract, and the choice of a codec by format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sluiceway.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from sluiceway.schema import Schema


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Message values in order. `counts`: how many records each holds; None: one each.

    A value None is a tombstone, which only the format `bytes` writes.
    """

    values: Sequence[bytes | None]
    counts: list[int] | None


@dataclass(frozen=True, kw_only=True)
class Corrupt:
    """The value at `index` of those that were to be decoded gave no records.

    `skippable`: it is no message of the channel, or a damaged one. Otherwise it is one that only
    another schema can read, and who passes over it loses records.
    """

    index: int
    reason: str
    skippable: bool = True


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Records in the order of their messages, and the messages that held none.

    `counts`: how many records each value held, 0 where it was corrupt; None: one each.
    """

    batches: list[pa.RecordBatch]
    counts: list[int] | None
    corrupt: list[Corrupt]


class Codec(Protocol):
    """Turns batches of one schema into message values and back."""

    def encode(self, batch: pa.RecordBatch, *, limit_bytes: int) -> Encoded:
        """Encode `batch`, whose schema is exactly `Schema.arrow` and whose records are valid.

        No value is longer than `limit_bytes`. Raises RecordTooLarge with the index within
        `batch` of the first record that cannot be made to fit.
        """

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode message values, whoever wrote them.

        Never raises for what the bytes are: each value that is not exactly a message of this
        schema is named in `corrupt`. Batches have `Schema.arrow`, satisfy all that it says, and
        take memory in proportion to the values.
        """


def codec(format: str, schema: Schema, schema_id: int) -> Codec:  # noqa: A002 - the wire's word
    """Choose the codec of a channel of `format` ("avro", "arrow" or "bytes"); OptionError else."""
    if format == "avro":
        from sluiceway.codecs.avro import AvroCodec

        return AvroCodec(schema, schema_id)
    if format == "arrow":
        from sluiceway.codecs.arrow import ArrowCodec

        return ArrowCodec(schema, schema_id)
    if format == "bytes":
        from sluiceway.codecs.wire import BytesCodec

        return BytesCodec(schema)
    raise OptionError(f"there is no format {format!r}: a channel is 'avro', 'arrow' or 'bytes'")
