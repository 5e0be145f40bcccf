import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from sluiceway.spark.types import ColumnSelection

LONG = spark.LongType()
STRICT = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("list", pa.list_(pa.field("item", pa.int64(), nullable=False))),
        pa.field("map", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        pa.field("row", pa.struct([pa.field("n", pa.int64(), nullable=False)]), nullable=False),
    ]
)
BATCH = pa.RecordBatch.from_pylist(
    [{"n": 1, "list": [2], "map": {"a": 3}, "row": {"n": 4}}], STRICT
)


def struct(*, nullable: bool) -> spark.StructType:
    return spark.StructType(
        [
            spark.StructField("row", spark.StructType().add("n", LONG, nullable), nullable),
            spark.StructField("map", spark.MapType(spark.StringType(), LONG, nullable)),
            spark.StructField("list", spark.ArrayType(LONG, nullable)),
            spark.StructField("n", LONG, nullable),
        ]
    )


@pytest.mark.parametrize("nullable", [False, True])
def test_selected_columns_are_as_nullable_as_requested(nullable: bool) -> None:
    selected = ColumnSelection(struct(nullable=nullable)).apply(BATCH)

    assert selected.to_pylist() == [{"row": {"n": 4}, "map": [("a", 3)], "list": [2], "n": 1}]
    assert selected.schema.field("n").nullable is nullable
    assert selected.schema.field("row").nullable is nullable
    assert selected.schema.field("row").type.field("n").nullable is nullable
    assert selected.schema.field("list").type.value_field.nullable is nullable
    assert selected.schema.field("map").type.item_field.nullable is nullable
