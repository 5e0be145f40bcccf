"""Order-independent checksums: hashes of rows, which Spark sums up."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql


def row_hash(frame: DataFrame) -> Column:
    """Return a hash of all columns."""
    columns = [frame[name] for name in frame.columns]
    # xxhash64 skips nulls, so their positions are hashed as well.
    return sql.xxhash64(*columns, *(column.isNull() for column in columns)).cast("decimal(38,0)")


def delay_hash() -> Column:
    """Return a hash of a mean delay, which `read_delays.py` computes in plain Python."""
    mean = sql.floor(sql.col("mean_delay_minutes") * 1e6).cast("string")
    columns = [sql.col(name).cast("string") for name in ("carrier", "hour", "flights", "departed")]
    text = sql.concat_ws("|", *columns, sql.coalesce(mean, sql.lit("")))
    digits = sql.substring(sql.sha2(text, 256), 1, 15)
    return sql.conv(digits, 16, 10).cast("decimal(38,0)")
