"""Reading a channel as a stream."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sluiceway.spark.batch_reader import records
from sluiceway.spark.checkpoint import StreamOffset
from sluiceway.spark.connections import Link
from sluiceway.spark.microbatch import Frontier
from sluiceway.spark.options import StreamOptions
from sluiceway.spark.shipping import Shipped

__all__ = ["ChannelStreamReader"]


class ChannelStreamReader(Shipped, DataSourceStreamReader):
    """Plans micro-batches in a process of the query's own, reads them in tasks.

    `columns` are the columns to give, in that order. What Spark puts into the checkpoint is
    `StreamOffset`'s JSON. How Spark asks for the end of the next batch depends on its version: see
    `admission`.
    """

    def __init__(self, link: Link, options: StreamOptions, columns: StructType) -> None:
        self._link = link
        self._options = options
        self._columns = columns
        self._frontier: Frontier | None = None

    @property
    def frontier(self) -> Frontier:
        """What plans the batches; made when it is first used, which is never in a task."""
        if self._frontier is None:
            self._frontier = Frontier(self._link, self._options)
        return self._frontier

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts."""
        return self.frontier.start().to_json()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return one partition a task; Spark also asks, with `start` twice, on a restart."""
        shares = self.frontier.shares(StreamOffset.parse(start), StreamOffset.parse(end))
        return [InputPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the records of one piece, in order; what `records` raises fails the task."""
        return records(partition.value, self._options, self._columns)

    def stop(self) -> None:
        """Let go of Kafka."""
        if self._frontier is not None:
            self._frontier.close()
            self._frontier = None
