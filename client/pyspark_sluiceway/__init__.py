"""`format("sluiceway")`, which Spark's own lookup of data sources finds without `register`.

Spark imports all modules named `pyspark_…` on Python's path for it, in a worker of its driver, so
this one imports nothing else of the client.
"""

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Channels of the gateway at SLUICEWAY_URL, without endpoints.

    The name is not that of `register`, so a session that was forgotten there is an error and never
    writes to another gateway.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "sluiceway"

    def __new__(cls, options: Any) -> Any:
        """Return the data source of a channel."""
        from sluiceway.spark.datasource import ChannelDataSource

        return ChannelDataSource(options, registered=False)
