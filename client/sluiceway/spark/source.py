"""The data source behind `format("channel")`."""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from sluiceway.errors import ChannelNotFound, OptionError
from sluiceway.gateway import Gateway
from sluiceway.protocol import Connection
from sluiceway.schema import Schema
from sluiceway.spark.options import ReadOptions, WriteOptions
from sluiceway.spark.reading import ChannelDataReader
from sluiceway.spark.shipping import Shipped
from sluiceway.spark.types import arrow_of, require_readable, require_writable, struct_of
from sluiceway.spark.worker import settle
from sluiceway.spark.writing import ChannelDataWriter


class ChannelDataSource(Shipped, DataSource):
    """Plans reads and writes of a channel; runs in Python workers of Spark's driver.

    Only planning asks the gateway, by `gateway_url` (None: SLUICEWAY_URL) and with the token
    that the driver's environment names. Tasks get a Connection and speak to Kafka alone.
    """

    def __init__(self, options: Mapping[str, str], *, gateway_url: str | None = None) -> None:
        super().__init__(dict(options))
        self.gateway_url = gateway_url

    def like(self, options: Mapping[str, str]) -> "ChannelDataSource":
        """Return a source with the same gateway and these options."""
        return ChannelDataSource(options, gateway_url=self.gateway_url)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "channel"

    def schema(self) -> StructType:
        """Return the channel's columns."""
        settle()
        options = ReadOptions.parse(self.options)
        return struct_of(_schema(self._read_connection(options.channel)).arrow)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a read of the columns of `schema`, all of the channel's or a choice of them."""
        settle()
        options = ReadOptions.parse(self.options)
        connection = self._read_connection(options.channel)
        require_readable(schema, options.channel, _schema(connection))
        return ChannelDataReader(connection, options, schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a write; everything that can be known before the first row is checked here."""
        if overwrite:
            raise OptionError(
                'a channel cannot be overwritten: write with .mode("append"); to begin anew, '
                "delete the channel and create it again"
            )
        settle()
        options = WriteOptions.parse(self.options)
        connection = self._write_connection(options, schema)
        require_writable(schema, options.channel, _schema(connection))
        writer = ChannelDataWriter(connection, options)
        writer.check()
        return writer

    def _read_connection(self, channel: str) -> Connection:
        with Gateway(self.gateway_url) as gateway:
            return gateway.channel(channel).connection("read")

    def _write_connection(self, options: WriteOptions, struct: StructType) -> Connection:
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
                channel = gateway.channel(options.channel, Schema.of(arrow_of(struct)), **given)
            return channel.connection("write")


def _schema(connection: Connection) -> Schema:
    return Schema.parse(connection.schema_definition)
