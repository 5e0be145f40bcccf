"""What is wrong with a record."""

from sluiceway.errors.root import SluicewayError


class RecordError(SluicewayError):
    """A record was refused. Nothing of the write that held it was sent."""

    code = "record_error"


class InvalidRecord(RecordError):
    """The record at `index` of the write does not fit the schema.

    `index` counts from 0 within the write; `field` is a dotted path, empty for a whole record.
    `schema_path` and `public_reason` say the same without any value: the path by the schema's own
    names, and None where no reason may be told.
    """

    code = "invalid_record"

    def __init__(
        self,
        *,
        index: int,
        field: str,
        reason: str,
        schema_path: str = "",
        public_reason: str | None = None,
    ) -> None:
        super().__init__(f"{_where(index, field)}: {reason}; nothing of this write was sent")
        self.index, self.field, self.reason = index, field, reason
        self.schema_path, self.public_reason = schema_path, public_reason

    @property
    def summary(self) -> str:
        """The record's index, the field and the reason, without any value."""
        where = _where(self.index, self.schema_path)
        return where if self.public_reason is None else f"{where}: {self.public_reason}"


class RecordTooLarge(RecordError):
    """The record at `index` of the write is larger than one message of the topic may be."""

    code = "record_too_large"
    tells_no_values = True

    def __init__(self, *, index: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"record {index} takes {size_bytes:,} bytes, a message of this channel may take "
            f"{limit_bytes:,}; nothing of this write was sent. Make the record smaller, or raise "
            "the channel's max.message.bytes"
        )
        self.index, self.size_bytes, self.limit_bytes = index, size_bytes, limit_bytes


def _where(index: int, field: str) -> str:
    return f"record {index}, field {field!r}" if field else f"record {index}"
