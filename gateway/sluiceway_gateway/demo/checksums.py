"""Order-free checksums in Spark: the sum of a hash over every row."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from sluiceway_gateway.demo.delays import HASH_DIGITS, MEAN_SCALE


def row_hash(frame: DataFrame) -> Column:
    """Return the hash of a row over all its columns, nulls included, as a decimal to sum."""
    columns = [frame[name] for name in frame.columns]
    # A null leaves xxhash64 as it is, so that where the nulls are is hashed beside the values.
    return sql.xxhash64(*columns, *(column.isNull() for column in columns)).cast("decimal(38,0)")


def delay_hash() -> Column:
    """Return the hash of a row of the delays, as `delays.checksum` computes it in Python."""
    mean = sql.col("mean_delay_minutes")
    text = sql.concat_ws(
        "|",
        *(sql.col(name).cast("string") for name in ("carrier", "hour", "flights", "departed")),
        sql.coalesce(sql.floor(mean * sql.lit(MEAN_SCALE)).cast("string"), sql.lit("")),
    )
    digits = sql.substring(sql.sha2(text, 256), 1, HASH_DIGITS)
    return sql.conv(digits, 16, 10).cast("decimal(38,0)")
