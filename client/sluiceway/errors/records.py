"""What is wrong with a record."""

from sluiceway.errors.root import SluicewayError


class RecordError(SluicewayError):
    """A record was refused. Nothing of the write that held it was sent."""

    code = "record_error"


class InvalidRecord(RecordError):
    """The record at `index` of the write does not fit the schema.

    `index` counts from 0 within the write; `field` is a dotted path, empty for a whole record.
    """

    code = "invalid_record"

    def __init__(self, *, index: int, field: str, reason: str) -> None:
        where = f"record {index}, field {field!r}" if field else f"record {index}"
        super().__init__(f"{where}: {reason}; nothing of this write was sent")
        self.index, self.field, self.reason = index, field, reason


class RecordTooLarge(RecordError):
    """The record at `index` of the write is larger than one message of the topic may be."""

    code = "record_too_large"

    def __init__(self, *, index: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"record {index} takes {size_bytes:,} bytes, a message of this channel may take "
            f"{limit_bytes:,}; nothing of this write was sent. Make the record smaller, or raise "
            "the channel's max.message.bytes"
        )
        self.index, self.size_bytes, self.limit_bytes = index, size_bytes, limit_bytes
