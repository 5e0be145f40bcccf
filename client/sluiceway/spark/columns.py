"""The columns that a read gives: a choice of the channel's, as nullable as was asked for."""

import pyarrow as pa
from pyspark.sql import types as spark


def chosen(batch: pa.RecordBatch, struct: spark.StructType) -> pa.RecordBatch:
    """Return the columns of `struct`, in its order; values are shared.

    Types are those of the batch but for what may be null: Spark 4.3 takes no other than it
    planned with, and `.schema(...)` may have made columns nullable.
    """
    picked = batch.select(struct.names)
    wanted = pa.schema(
        [_relaxed(field, struct[field.name]) for field in picked.schema],
    )
    return picked if wanted.equals(picked.schema) else picked.cast(wanted)


def _relaxed(field: pa.Field, like: spark.StructField) -> pa.Field:
    return pa.field(field.name, _type(field.type, like.dataType), like.nullable)


def _type(arrow: pa.DataType, like: spark.DataType) -> pa.DataType:
    match like:
        case spark.StructType():
            return pa.struct([_relaxed(field, like[field.name]) for field in arrow.fields])
        case spark.ArrayType():
            items = arrow.value_field
            inner = pa.field(items.name, _type(items.type, like.elementType), like.containsNull)
            return pa.list_(inner)
        case spark.MapType():
            values = arrow.item_field
            inner = pa.field(
                values.name, _type(values.type, like.valueType), like.valueContainsNull
            )
            return pa.map_(arrow.key_type, inner)
    return arrow
