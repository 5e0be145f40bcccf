"""The data source `format("channel")`, its registration, and tables of Spark's catalog."""

import json
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from sluiceway import Gateway, Schema
from sluiceway.errors import ChannelNotFound, Conflict, OptionError, SchemaMismatch
from sluiceway.spark.batch_reader import ChannelDataReader
from sluiceway.spark.driver import Application
from sluiceway.spark.endpoints import Job, JobEndpoint
from sluiceway.spark.ledger_batches import JobBatch, request_of_job
from sluiceway.spark.metadata_columns import MetadataColumns
from sluiceway.spark.microbatch import require_supported, stream_reader
from sluiceway.spark.options import ReadOptions, WriteOptions
from sluiceway.spark.types import (
    merged_schema,
    require_readable,
    require_writable,
    struct_of,
)
from sluiceway.spark.worker import RefreshableConnection, Shipped, prepare_worker, traced
from sluiceway.spark.writer import ChannelDataWriter, ChannelStreamWriter, TaskWriter
from sluiceway.spi import (
    ChannelSpec,
    Control,
    KeyField,
    SchemaRegistry,
    Transport,
    partitioning,
    this_process,
    tracing,
)

_KEY: Final = "sluiceway.options"
_PREFIX: Final = "option."
_PROPERTIES: Final = frozenset(
    {"comment", "external", "is_managed_location", "location", "owner", "provider"}
)
"""Table properties that Spark adds to the options of a new table."""


def without_table_properties(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a new table without the table properties that Spark adds."""
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
    """Return the options of a read of `columns`, including those of their table, if any.

    Options of the statement, as in `FROM flights WITH (minPartitions 4)`, take precedence. With its
    own path, the statement does not refer to the table. Not for writes: Spark may pass the columns
    of the written query with them, which may come from another table.
    """
    if not any(name.lower() == "path" for name in options):
        for field in columns.fields:
            if kept := field.metadata.get(_KEY):
                statement_options = {name.lower(): value for name, value in options.items()}
                return {**json.loads(kept), **statement_options}
    return dict(options)


_REFRESH_EVERY_S: Final = 5.0
_STREAM_SINKS: Final[dict[tuple[object, ...], RefreshableConnection]] = {}
_COMMIT_WORKER: Final = "pyspark.sql.worker.python_streaming_sink_runner"
"""The module of Spark's workers that commit micro-batches. Spark does not pass this fact; if the
module had another name, commits would request a Connection first."""


def _commits_only() -> bool:
    """Return whether this process is a worker that only commits micro-batches."""
    # Without Spark's daemon of workers it is the main module.
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _COMMIT_WORKER in sys.modules or (main is not None and main.name == _COMMIT_WORKER)


class ChannelDataSource(Shipped, DataSource):
    """Plans reads and writes of a channel, in Python workers of Spark's driver.

    Only planning calls the gateway at `gateway_url` (None: SLUICEWAY_URL), with the token of the
    driver's environment. Tasks get a Connection and need only Kafka. Batch reads and writes are
    endpoints of the channel if a `job` is given. `registered`: by `register`, so that it is clear
    whether Spark Connect is used.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        gateway_url: str | None = None,
        job: Job | None = None,
        registered: bool = True,
    ) -> None:
        super().__init__(dict(options))
        self.gateway_url = gateway_url
        self.job = job
        self.registered = registered

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "channel"

    def schema(self) -> StructType:
        """Return the channel's columns and the requested metadata columns."""
        prepare_worker()
        read_options = without_table_properties(self.options)
        options = ReadOptions.parse(read_options)
        require_supported(options)
        columns = struct_of(_schema(self._source(options.channel)).arrow)
        columns = MetadataColumns(options).add_to(columns, options.channel)
        return columns if read_options == self.options else keep_options(columns, read_options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a batch read of the columns in `schema`."""
        prepare_worker()
        options = ReadOptions.parse(with_table_options(self.options, schema), "batch read")
        source = self._checked_source(options, schema)
        return ChannelDataReader(source, options, schema, self.job)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Plan a streaming read of the columns in `schema`."""
        prepare_worker()
        options = ReadOptions.parse(with_table_options(self.options, schema), "streaming read")
        return stream_reader(self._checked_source(options, schema), options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a batch write; checks options and columns before the first row."""
        if overwrite:
            raise OptionError(
                'a channel cannot be overwritten: write with .mode("append"); to start over, '
                "delete the channel and create it again"
            )
        prepare_worker()
        options = WriteOptions.parse(self.options)
        with traced("write", options.channel, {} if self.job is None else self.job.trace):
            sink = self._sink(options, schema, require=self._require_batch)
            task_writer = _task_writer(sink, options, schema)
            instance = uuid.uuid4().hex
            batch = self._batch(sink, options, instance)
            job, group = self.job, options.group
            endpoint = JobEndpoint.attach(
                job, sink.gateway_url, sink.connection, "writer", group, instance=instance
            )
            if batch is not None and endpoint is not None:
                # The session identifies the batch by its instance, which is the endpoint's id.
                batch = replace(batch, renewed_by_tasks=not endpoint.spec.job.renews)
            return ChannelDataWriter(task_writer, endpoint, batch, trace=tracing.carrier())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        """Plan the write of a micro-batch. Spark calls it for each micro-batch and for its commit.

        `overwrite` means the output mode `complete`: the whole result of each micro-batch is
        appended, as by Kafka's connector.
        """
        del overwrite
        prepare_worker()
        options = WriteOptions.parse(self.options, streaming=True)
        if _commits_only():
            return ChannelStreamWriter(
                options.channel, batch=JobBatch(gateway_url=self.gateway_url)
            )
        sink = self._stream_sink(options, schema)
        batch = None
        if sink.connection.delivery == "exactly_once":
            batch = JobBatch(
                connection=sink.connection,
                gateway_url=_url(sink),
                renewed_by_tasks=self.job is None or not self.job.renews,
            )
        return ChannelStreamWriter(options.channel, _task_writer(sink, options, schema), batch)

    def _batch(
        self, sink: RefreshableConnection, options: WriteOptions, instance: str
    ) -> JobBatch | None:
        """Return the batch that a job's tasks open; None if the channel has no batches."""
        connection, key = sink.connection, options.batch_key
        if connection.delivery != "exactly_once":
            return None
        request = request_of_job(
            connection,
            instance=instance,
            key=key,
            application=None if self.job is None else self.job.application,
            group=options.group,
        )
        return JobBatch(
            connection=connection, gateway_url=_url(sink), request=request, has_key=key is not None
        )

    def _require_batch(self, options: WriteOptions, delivery: str) -> None:
        """Raise OptionError for a batch key without batches, and for a missing one."""
        key = options.batch_key
        if delivery != "exactly_once":
            if key is None:
                return
            raise _no_batches(options.channel, delivery)
        remote = not self.registered or (self.job is not None and self.job.remote)
        if key is None and remote:
            raise OptionError(
                f"this write to the exactly-once channel {options.channel!r} needs a batch key: "
                '.option("batchKey", "2013-01-01"), the same in every run, because a second write '
                "with it writes nothing. Over Spark Connect and without register(spark), it is not "
                "clear whether a write is in foreachBatch: there, use the number of the "
                "micro-batch, with a prefix that changes with the checkpointLocation"
            )

    def _checked_source(self, options: ReadOptions, struct: StructType) -> RefreshableConnection:
        source = self._source(options.channel, options.registry)
        if options.include_deletes and source.connection.delivery == "exactly_once":
            raise OptionError(
                f"the channel {options.channel!r} has the delivery exactly_once, which has no "
                "deletes: remove includeDeletes"
            )
        if options.key is not None:
            KeyField(options.key, _schema(source))  # raises OptionError
        columns = MetadataColumns(options).remove_from(struct, options.channel)
        of_table = any(_KEY in field.metadata for field in struct.fields)
        require_readable(columns, options.channel, _schema(source), of_table=of_table)
        return source

    def _source(
        self, channel: str, registry: SchemaRegistry | None = None
    ) -> RefreshableConnection:
        with Gateway(self.gateway_url) as gateway:
            try:
                opened = gateway.channel(channel)
                if registry is not None:
                    registry.require_usable(channel, opened.format, adopted=opened.adopted)
                connection = opened.connection("read")
            except ChannelNotFound as error:
                raise ChannelNotFound(
                    f"there is no channel {channel!r}: check its name, or create it by a write "
                    'with .option("create", "true")',
                    status=error.status,
                ) from error
            return RefreshableConnection(connection, "read", gateway_url=gateway.url)

    def _sink(
        self,
        options: WriteOptions,
        struct: StructType,
        *,
        require: Callable[[WriteOptions, str], None],
    ) -> RefreshableConnection:
        """Return the channel to write to; `require` refuses options for its delivery."""
        creation = options.creation or {}
        with Gateway(self.gateway_url) as gateway:
            try:
                channel = gateway.channel(options.channel, **creation)
            except ChannelNotFound as error:
                if options.creation is None:
                    raise ChannelNotFound(
                        f"there is no channel {options.channel!r}: create it, or let the write "
                        'create it with .option("create", "true")',
                        status=error.status,
                    ) from error
                schema = Schema.of(struct)
                _require_creatable(schema, options)
                channel = gateway.channel(options.channel, schema, **creation)
            # Before the channel changes.
            require(options, channel.delivery)
            if options.merge_schema:
                _merge_schema(gateway.url, options, struct)
            connection = channel.connection("write")
            return RefreshableConnection(connection, "write", gateway_url=gateway.url)

    def _stream_sink(self, options: WriteOptions, struct: StructType) -> RefreshableConnection:
        """Return a stream's sink, which this process keeps between micro-batches.

        Opens a deleted and recreated channel again.
        """
        merged = struct.json() if options.merge_schema else None
        key = (this_process(), self.gateway_url, options.channel, merged)
        sink = _STREAM_SINKS.get(key)
        if sink is not None:
            try:
                sink.refresh(max_age_s=_REFRESH_EVERY_S)
            except (ChannelNotFound, Conflict):
                del _STREAM_SINKS[key]
            else:
                return sink
        sink = _STREAM_SINKS[key] = self._sink(options, struct, require=lambda *_: None)
        return sink


def _schema(channel: RefreshableConnection) -> Schema:
    return Schema.parse(channel.connection.schema_definition)


def _merge_schema(gateway_url: str, options: WriteOptions, struct: StructType) -> None:
    """Make further and wider columns of a dataframe a new version of the channel's schema.

    The channel does not change if the dataframe cannot be written. Raises Conflict
    `schema_incompatible` with each broken rule of the channel's compatibility.
    """
    channel = options.channel
    with closing(Transport(gateway_url)) as transport:
        control = Control(transport)
        while True:
            resource = control.channel(channel)
            present = Schema.parse(resource.schema_definition)
            merged = merged_schema(struct, present)
            if merged == present:
                return
            require_writable(struct, channel, merged)
            _require_key(merged, options)
            _require_same_key(options, present, merged)
            spec = ChannelSpec(schema=merged)
            try:
                # Another write may merge other columns, which must not be lost.
                control.update(channel, uid=resource.uid, spec=spec, seen=resource.etag)
            except Conflict as error:
                if error.code != "precondition_failed":
                    raise
            else:
                return


def _require_creatable(schema: Schema, options: WriteOptions) -> None:
    """Raise OptionError for options that the created channel would refuse.

    The delivery of a channel cannot be changed, so it must not exist after this error.
    """
    _require_key(schema, options)
    delivery = (options.creation or {}).get("delivery", "at_least_once")
    if options.batch_key is not None and delivery != "exactly_once":
        raise _no_batches(options.channel, delivery)


def _require_key(schema: Schema, options: WriteOptions) -> None:
    """Raise OptionError for a key that the schema does not have."""
    partitioning(
        schema,
        1,
        key=options.key,
        partitioner=None,
        partition=None,
        key_partitioner="murmur2",
    )


def _require_same_key(options: WriteOptions, present: Schema, merged: Schema) -> None:
    """Raise SchemaMismatch for a wider key: its values would be other keys, elsewhere."""
    key, before = options.key, present.arrow
    if key in before.names and before.field(key).type != merged.arrow.field(key).type:
        raise SchemaMismatch(
            f"the column {key!r} is the key of this write, and as {merged.arrow.field(key).type} "
            f"its values would be other keys than as {before.field(key).type}, in other "
            "partitions: cast it to the channel's type"
        )


def _no_batches(channel: str, delivery: str) -> OptionError:
    return OptionError(
        f"the channel {channel!r} has the delivery {delivery}, which has no batches, so a second "
        "run with this batchKey would write again: remove it, or write to a channel with the "
        'delivery exactly_once, which .option("delivery", "exactly_once") creates'
    )


def _task_writer(
    sink: RefreshableConnection, options: WriteOptions, struct: StructType
) -> TaskWriter:
    require_writable(struct, options.channel, _schema(sink))
    return TaskWriter(sink.connection, options)


def _url(sink: RefreshableConnection) -> str:
    assert sink.gateway_url is not None  # noqa: S101 - `_sink` sets it
    return sink.gateway_url


_MIN_VERSION = (4, 1)
_APPLICATIONS: Final[dict[int, Application]] = {}
"""Applications by the id() of their SparkSession, which they keep alive."""


def register(spark: SparkSession, gateway: str | None = None) -> None:
    """Register `format("channel")` with `spark`, for the gateway at the URL `gateway`.

    Defaults to the SLUICEWAY_URL of this process. The token is always the SLUICEWAY_TOKEN or
    SLUICEWAY_TOKEN_FILE of the driver's environment, so no option, plan or log contains it; over
    Spark Connect the driver is the server's. Registering again changes the gateway of later reads
    and writes. A thread other than the one that created the session has to call it before a batch
    write or the start of a query. Raises OptionError for Spark before 4.1 and for an invalid URL.
    """
    version = tuple(int(part) for part in spark.version.split(".")[:2])
    if version < _MIN_VERSION:
        raise OptionError(
            f"Spark is {spark.version}; channels need 4.1 or later: pip install 'pyspark>=4.1'"
        )
    with Gateway(gateway) as checked:
        url = checked.url
    source = _data_source_class(url, _application(spark, url).job)
    # Spark Connect has another session class.
    active = SparkSession.getActiveSession() if isinstance(spark, SparkSession) else None
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS" or active is None:
            raise
        # Spark found the format in the active session, which is another one.
        _activate(spark)
        spark.dataSource.register(source)
        _activate(active)
    if active is None and isinstance(spark, SparkSession):
        _activate(spark)


def _activate(spark: SparkSession) -> None:
    """Make a session the active one of the calling thread, where Spark looks for formats of writes.

    Threads other than the session's own have none.
    """
    spark.createDataFrame([], "id int")


def _application(spark: SparkSession, url: str) -> Application:
    """Return the running application of `spark` at this gateway, or start it."""
    previous = _APPLICATIONS.get(id(spark))
    if previous is not None and previous.is_active and previous.gateway_url == url:
        return previous
    application = Application(spark, url)
    application.start(replacing=previous)
    _APPLICATIONS[id(spark)] = application
    return application


def _data_source_class(gateway_url: str, job: Job) -> type[DataSource]:
    """Return the class to register, whose sources use the gateway and the job.

    Spark pickles a local class by value, so it loads even where the client is not installed; the
    source in it then raises ImportError with advice.
    """
    source = ChannelDataSource({}, gateway_url=gateway_url, job=job)

    class ChannelFormat(DataSource):
        @classmethod
        def name(cls) -> str:
            return "channel"

        def __new__(cls, options: Any) -> Any:
            return type(source)(options, gateway_url=source.gateway_url, job=source.job)

    return ChannelFormat
