"""The data source behind `format("channel")`, and its registration."""

import os
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from sluiceway.errors import ChannelNotFound, Conflict, OptionError
from sluiceway.gateway import Gateway
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema
from sluiceway.spark.batch_reader import ChannelDataReader
from sluiceway.spark.connections import Link
from sluiceway.spark.driver import Application
from sluiceway.spark.endpoints import Job
from sluiceway.spark.metadata_columns import MessageColumns
from sluiceway.spark.microbatch import stream_reader
from sluiceway.spark.options import ReadOptions, SourceOptions, StreamOptions, WriteOptions
from sluiceway.spark.shipping import Shipped
from sluiceway.spark.types import require_readable, require_writable, struct_of
from sluiceway.spark.worker import prepare_worker
from sluiceway.spark.writer import ChannelDataWriter, ChannelStreamWriter

_REFRESH_EVERY_S: Final = 5.0
_SINKS: Final[dict[tuple[object, ...], Link]] = {}


class ChannelDataSource(Shipped, DataSource):
    """Plans reads and writes of a channel; runs in Python workers of Spark's driver.

    Only planning asks the gateway, by `gateway_url` (None: SLUICEWAY_URL) and with the token
    that the driver's environment names. Tasks get a Connection, and need Kafka alone. What a
    `job` reads and writes in batches is seen by others; without one, nobody knows of it.
    """

    def __init__(
        self, options: Mapping[str, str], *, gateway_url: str | None = None, job: Job | None = None
    ) -> None:
        super().__init__(dict(options))
        self.gateway_url = gateway_url
        self.job = job

    def like(self, options: Mapping[str, str]) -> "ChannelDataSource":
        """Return a source with the same gateway, of the same job, and with these options."""
        return ChannelDataSource(options, gateway_url=self.gateway_url, job=self.job)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "channel"

    def schema(self) -> StructType:
        """Return the channel's columns, and those beside them that were asked for."""
        prepare_worker()
        options = SourceOptions.parse(self.options)
        columns = struct_of(_schema(self._read_link(options.channel).last).arrow)
        return MessageColumns(options).added_to(columns, options.channel)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a read of the columns of `schema`, all of the channel's or a choice of them."""
        prepare_worker()
        options = ReadOptions.parse(self.options)
        return ChannelDataReader(self._checked_link(options, schema), options, schema, self.job)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Plan a stream of the columns of `schema`, all of the channel's or a choice of them."""
        prepare_worker()
        options = StreamOptions.parse(self.options)
        return stream_reader(self._checked_link(options, schema), options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a write; everything that can be known before the first row is checked here."""
        if overwrite:
            raise OptionError(
                'a channel cannot be overwritten: write with .mode("append"); to begin anew, '
                "delete the channel and create it again"
            )
        prepare_worker()
        options = WriteOptions.parse(self.options)
        link = self._write_link(options, schema)
        require_writable(schema, options.channel, _schema(link.last))
        writer = ChannelDataWriter(link.last, options)
        writer.check()
        writer.attach(self.job, link.gateway_url)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        """Plan the write of a micro-batch; Spark asks for every one of them, and for its commit.

        `overwrite` stands for the output mode `complete`: every batch holds the whole result,
        which is added to the channel, as Kafka's connector adds it to a topic.
        """
        del overwrite
        prepare_worker()
        options = WriteOptions.parse(self.options, streaming=True)
        connection = self._open_link(options, schema)
        require_writable(schema, options.channel, _schema(connection))
        writer = ChannelStreamWriter(connection, options)
        writer.check()
        return writer

    def _checked_link(self, options: SourceOptions, struct: StructType) -> Link:
        link = self._read_link(options.channel)
        own = MessageColumns(options).taken_from(struct, options.channel)
        require_readable(own, options.channel, _schema(link.last))
        return link

    def _read_link(self, channel: str) -> Link:
        with Gateway(self.gateway_url) as gateway:
            connection = gateway.channel(channel).connection("read")
            return Link(connection, "read", gateway_url=gateway.url)

    def _write_link(self, options: WriteOptions, struct: StructType) -> Link:
        creation = options.creation
        given = {} if creation is None else creation.given()
        with Gateway(self.gateway_url) as gateway:
            try:
                channel = gateway.channel(options.channel, **given)
            except ChannelNotFound as error:
                if creation is None:
                    raise ChannelNotFound(
                        f"there is no channel {options.channel!r}: create it, or let the write "
                        'create it with .option("create", "true")',
                        status=error.status,
                    ) from error
                channel = gateway.channel(options.channel, Schema.of(struct), **given)
            return Link(channel.connection("write"), "write", gateway_url=gateway.url)

    def _open_link(self, options: WriteOptions, struct: StructType) -> Connection:
        """Return the Connection of a stream's sink, which this process keeps from batch to batch.

        A channel that was deleted and made anew meanwhile is opened anew.
        """
        key = (os.getpid(), self.gateway_url, options.channel)
        link = _SINKS.get(key)
        if link is not None:
            try:
                return link.connection(max_age_s=_REFRESH_EVERY_S)
            except (ChannelNotFound, Conflict):
                _SINKS.pop(key).close()
        link = _SINKS[key] = self._write_link(options, struct)
        return link.last


def _schema(connection: Connection) -> Schema:
    return Schema.parse(connection.schema_definition)


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
