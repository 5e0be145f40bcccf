"""How much a micro-batch takes in: all there is, or, from Spark 4.2 on, as much as was asked for.

The one place that knows which Spark can do what in a stream.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from pyspark import __version__ as spark_version
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from sluiceway.errors import OptionError
from sluiceway.spark.checkpoint import StreamOffset
from sluiceway.spark.connections import Link
from sluiceway.spark.options import StreamOptions
from sluiceway.spark.streaming import ChannelStreamReader

try:
    limits: Any = import_module("pyspark.sql.streaming.datasource")
except ModuleNotFoundError:  # before Spark 4.2
    limits = None

__all__ = ["admitted", "stream_reader"]


def stream_reader(
    link: Link, options: StreamOptions, columns: StructType
) -> DataSourceStreamReader:
    """Return the reader for this Spark. Raises OptionError for an option that needs a later one."""
    if limits is not None:
        return LimitedStreamReader(link, options, columns)
    if options.max_offsets_per_trigger is not None:
        raise OptionError(
            f"maxOffsetsPerTrigger needs Spark 4.2 or later, this is Spark {spark_version}: leave "
            "it out, or upgrade Spark on driver and executors"
        )
    return WholeStreamReader(link, options, columns)


def admitted(start: Mapping[int, int], end: Mapping[int, int], limit: int) -> dict[int, int]:
    """Return the end of a batch of at most `limit` messages between `start` and `end`.

    Each partition gives by its share of what there is; what is left over by rounding goes to the
    shortest first, so that none waits for ever. Partitions that `start` lacks begin at 0.
    """
    waiting = {p: max(0, end[p] - start.get(p, 0)) for p in end}
    total = sum(waiting.values())
    if total <= limit:
        return dict(end)
    given = {p: limit * count // total for p, count in waiting.items()}
    left = limit - sum(given.values())
    for partition in sorted(waiting, key=lambda p: (waiting[p], p)):
        if left and given[partition] < waiting[partition]:
            given[partition] += 1
            left -= 1
    return {p: start.get(p, 0) + given[p] if waiting[p] else end[p] for p in end}


class WholeStreamReader(ChannelStreamReader):
    """A micro-batch takes all there is: Spark 4.1."""

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of what there is."""
        return self.frontier.end().to_json()


if limits is not None:

    class LimitedStreamReader(
        ChannelStreamReader,
        limits.SupportsTriggerAvailableNow,  # type: ignore[misc]
    ):
        """A micro-batch takes what the trigger and `maxOffsetsPerTrigger` let in."""

        _last: StreamOffset | None = None

        def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
            """Return what a batch takes unless the trigger says otherwise."""
            limit = self._options.max_offsets_per_trigger
            return limits.ReadAllAvailable() if limit is None else limits.ReadMaxRows(limit)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Read up to what there is now, in as many batches as it takes, and no further."""
            self._last = self.frontier.end()

        def latestOffset(  # type: ignore[override]  # noqa: N802 - Spark's name
            self, start: Mapping[str, Any], limit: Any
        ) -> dict[str, Any]:
            """Return the end of the batch that begins at `start`."""
            begin = StreamOffset.parse(start)
            end = self._last or self.frontier.end()
            if isinstance(limit, limits.ReadMaxRows):
                offsets = admitted(begin.next_offsets, end.next_offsets, limit.max_rows)
                end = replace(end, next_offsets=offsets)
            return end.to_json()

        def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            """Return the end of what there is, for the query's progress."""
            return self.frontier.end().to_json()
