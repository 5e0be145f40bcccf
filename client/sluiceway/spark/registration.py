"""Making `format("channel")` known to a Spark session."""

from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from sluiceway.errors import OptionError
from sluiceway.gateway import Gateway
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.driver import Application

_OLDEST = (4, 1)
_APPLICATIONS: Final[dict[int, Application]] = {}
"""By the identity of their Spark sessions, which they keep."""


def register(spark: SparkSession, gateway: str | None = None) -> None:
    """Make `format("channel")` known to `spark`, with the gateway at the URL `gateway`.

    Without one, SLUICEWAY_URL of this process is taken. The token is always that of
    the driver's environment, SLUICEWAY_TOKEN or SLUICEWAY_TOKEN_FILE, as it was when the session
    was started: it is in no option, plan or log. Over Spark Connect the driver is the server's.
    Registering again changes the gateway of reads and writes that are made afterwards. Raises
    OptionError for a Spark older than 4.1 and for a URL that is none.
    """
    found = tuple(int(part) for part in spark.version.split(".")[:2])
    if found < _OLDEST:
        raise OptionError(
            f"Spark is {spark.version}; channels need 4.1 or later: pip install 'pyspark>=4.1'"
        )
    with Gateway(gateway) as checked:
        url = checked.url
    application = _application(spark, url)
    spark.dataSource.register(_format(ChannelDataSource({}, gateway_url=url, job=application.job)))


def _application(spark: SparkSession, url: str) -> Application:
    """Return the application that beats for `spark` at this gateway, begun once."""
    known = _APPLICATIONS.get(id(spark))
    if known is not None and known.goes_on and known.gateway_url == url:
        return known
    application = Application(spark, url)
    application.begin(known)
    _APPLICATIONS[id(spark)] = application
    return application


def _format(source: ChannelDataSource) -> type[DataSource]:
    """Return the class that is registered; with options, it gives a source like `source`.

    Spark pickles a class that no module has by its code, so that this one can be loaded where
    the client is missing, up to the source in it, which says what is wrong.
    """

    class ChannelFormat(DataSource):
        @classmethod
        def name(cls) -> str:
            return "channel"

        def __new__(cls, options: Any) -> Any:
            return source.like(options)

    return ChannelFormat
