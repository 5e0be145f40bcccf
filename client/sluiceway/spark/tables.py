"""Tables of Spark's catalog: the options of `CREATE TABLE ... USING channel`.

Spark passes these when the table is created, and neither when it is read nor when it is written.
But it keeps the columns with their metadata, so the first column's metadata has the options.
"""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

_KEY: Final = "sluiceway.options"
_PREFIX: Final = "option."
_PROPERTIES: Final = frozenset(
    {"comment", "external", "is_managed_location", "location", "owner", "provider"}
)
"""Properties of a table that Spark adds to its options when the table is created."""


def without_table_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the properties that Spark adds to those of a new table."""
    if not {"owner", "provider"} <= {name.lower() for name in options}:
        return dict(options)
    return {
        name: value
        for name, value in options.items()
        if name.lower() not in _PROPERTIES and not name.lower().startswith(_PREFIX)
    }


def keep_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a new table, with its options in the first column's metadata."""
    first, *others = columns.fields
    metadata = {_KEY: json.dumps(options)}
    kept = StructField(first.name, first.dataType, first.nullable, metadata)
    return StructType([kept, *others])


def with_table_options(options: Mapping[str, str], columns: StructType) -> dict[str, str]:
    """Return the options of a read or write of `columns`, with those of the table, if it is one.

    Options of the statement, as in `FROM flights WITH (minPartitions 4)`, come first. A statement
    with a path of its own is none of the table.
    """
    if not any(name.lower() == "path" for name in options):
        for field in columns.fields:
            if kept := field.metadata.get(_KEY):
                given = {name.lower(): value for name, value in options.items()}
                return {**json.loads(kept), **given}
    return dict(options)
