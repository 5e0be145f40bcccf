"""Making `format("channel")` known to a Spark session."""

from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from sluiceway.errors import OptionError
from sluiceway.gateway import Gateway
from sluiceway.spark.source import ChannelDataSource

_OLDEST = (4, 1)


def register(spark: SparkSession, gateway: str | None = None) -> None:
    """Make `format("channel")` known to `spark`, with the gateway at the URL `gateway`.

    Without one, SLUICEWAY_URL of this process is taken. The token is always that of
    the driver's environment, SLUICEWAY_TOKEN or SLUICEWAY_TOKEN_FILE, as it was when the session
    was started: it is in no option, plan or log. Registering again changes the gateway of reads
    and writes that are made afterwards. Raises OptionError for a Spark older than 4.1 and for a
    URL that is none.
    """
    found = tuple(int(part) for part in spark_version.split(".")[:2])
    if found < _OLDEST:
        raise OptionError(
            f"Spark is {spark_version}; channels need 4.1 or later: pip install 'pyspark>=4.1'"
        )
    with Gateway(gateway) as checked:
        url = checked.url
    # A class of its own, so that it travels to planning by value, its URL included.
    source = type("ChannelDataSource", (ChannelDataSource,), {"gateway_url": url})
    spark.dataSource.register(source)
