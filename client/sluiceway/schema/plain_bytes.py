"""The schema of channels of the format `bytes`, whose messages are their writers' own affair."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from sluiceway.schema.schema import Schema
from sluiceway.schema.types import Kind, Nullable, Scalar

FIELD: Final = "value"
"""The one field of each record: the message's value as it is."""


@lru_cache(maxsize=1)
def bytes_schema() -> Schema:
    """Return the schema that such a channel has where none is given; null is a tombstone."""
    field = {"name": FIELD, "type": ["null", "bytes"], "default": None}
    return Schema.parse({"type": "record", "name": "Message", "fields": [field]})


def holds_messages(schema: Schema) -> bool:
    """Whether each record of `schema` is a message: its one field is `value`, bytes or null."""
    return len(schema.record.fields) == 1 and (
        schema.record.fields[0].name == FIELD
        and schema.record.fields[0].type in (_BYTES, Nullable(item=_BYTES), _BYTES_OR_NULL)
    )


_BYTES: Final = Scalar(kind=Kind.BYTES)
_BYTES_OR_NULL: Final = Nullable(item=_BYTES, null_first=False)
