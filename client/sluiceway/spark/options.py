"""Options of `format("channel")`: names, types, defaults. Unknown names are errors."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

from sluiceway.errors import OptionError
from sluiceway.spark.offsets import EARLIEST, LATEST, AtTime, OffsetBound, parse_offsets
from sluiceway.spi import (
    CONNECTION,
    CONSUMER,
    PRODUCER,
    SchemaRegistry,
    group_path,
    refuse_unlisted,
)

T = TypeVar("T")

OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "read": (
        "startingOffsets",
        "startingTimestamp",
        "minPartitions",
        "maxRecordsPerPartition",
        "onCorrupt",
        "failOnDataLoss",
        "includeHeaders",
        "includeMetadata",
        "includeDeletes",
        "key",
        "schemaRegistry",
        "kafkaConsumer.pollTimeoutMs",
    ),
    "batch read": (
        *("endingOffsets", "endingTimestamp"),
        *("snapshot", "versionAsOf", "timestampAsOf"),
    ),
    "streaming read": ("maxOffsetsPerTrigger", "group"),
    "write": (
        *("key", "group", "create", "format", "partitions", "replication", "delivery"),
        *("mergeSchema", "deliveryTimeoutMs"),
    ),
    "batch write": ("batchKey",),
}
_ADDED_BY_SPARK: Final = ("checkpointlocation", "queryname")
"""Lower-case names of Spark's own options, which it adds to those of a streaming write."""
_KAFKA_PREFIX: Final = "kafka."
_REASONS: Final = {
    "token": "tokens are never options, because plans and logs show options: set SLUICEWAY_TOKEN "
    "or SLUICEWAY_TOKEN_FILE in the driver's environment",
    "paths": "a read takes one channel: load each and unite the dataframes",
    **dict.fromkeys(
        ("subscribe", "subscribepattern", "assign", "topic"),
        'the channel is named by load("name") and save("name")',
    ),
    "gateway": "the gateway's URL goes to sluiceway.spark.register(spark, gateway=...) or "
    "SLUICEWAY_URL",
    "kafka.bootstrap.servers": "the gateway provides the brokers' addresses",
    "kafka.delivery.timeout.ms": "use deliveryTimeoutMs",
    **dict.fromkeys(
        ("kafka.group.id", "groupidprefix"),
        "Spark's tasks are in no Kafka consumer group; the option group of a streaming read is the "
        "query's group at the gateway",
    ),
    **dict.fromkeys(
        ("minoffsetspertrigger", "maxtriggerdelay"),
        "a micro-batch has no minimum: set the time between micro-batches by "
        '.trigger(processingTime="1 minute")',
    ),
    **dict.fromkeys(
        _ADDED_BY_SPARK,
        "it is an option of a streaming query's write, which ends with .start(...) or "
        ".toTable(...)",
    ),
    **dict.fromkeys(
        ("kafka.sasl.password", "kafka.ssl.key.pem"),
        "plans and event logs show options: set SLUICEWAY_KAFKA_CREDENTIALS_FILE in the driver's "
        "and the executors' environment",
    ),
}
_FORMATS: Final = ("avro", "arrow", "json", "protobuf", "bytes")
_DELIVERIES: Final = ("at_least_once", "exactly_once")
_MAX_TIMEOUT_MS: Final = 86_400_000
_MAX_LONG: Final = 2**63 - 1


class OptionParser:
    """Typed options of one operation; names are case-insensitive.

    `groups` are the keys of OPTIONS with the operation's options. Raises OptionError for any other
    name, with a suggestion. `kafka` has the Kafka properties, checked against the client's list.
    """

    def __init__(self, options: Mapping[str, str], operation: str, groups: tuple[str, ...]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self.kafka: dict[str, str] = {}
        allowed = {name.lower(): name for group in groups for name in OPTIONS[group]}
        elsewhere = {name.lower(): group for group, names in OPTIONS.items() for name in names}
        for name in sorted(self._options.keys() - allowed.keys() - {"path"}):
            if name in _REASONS:
                raise OptionError(f"{name!r} is not an option of a channel: {_REASONS[name]}")
            if name.startswith(_KAFKA_PREFIX):
                self.kafka[name.removeprefix(_KAFKA_PREFIX)] = self._options[name]
                continue
            if name in elsewhere:
                raise OptionError(
                    f"{name!r} is an option of a {elsewhere[name]}, not of a {operation}: remove it"
                )
            close = difflib.get_close_matches(name, allowed, n=1)
            advice = (
                f"did you mean {allowed[close[0]]!r}?"
                if close
                else f"a {operation} takes {', '.join(sorted(allowed.values()))} and kafka.*"
            )
            raise OptionError(f"there is no option {name!r}: {advice}")
        refuse_unlisted(self.kafka, CONNECTION, PRODUCER if "write" in groups else CONSUMER)

    def channel(self, method: Literal["load", "save", "start"]) -> str:
        """Return the channel's name, the argument of Spark's `method`."""
        channel = self._options.get("path", "").strip()
        if not channel:
            advice = {
                "load": "Spark keeps the options of CREATE TABLE only for a table without a list "
                "of columns",
                "save": "Spark passes the options of a table to no write, so name its channel in "
                "each: INSERT INTO t WITH (path 'flights') SELECT ...; a CREATE TABLE ... AS "
                "SELECT names none: create the table without AS SELECT, then insert",
                "start": "Spark passes the options of a table to no write, so name its channel in "
                'each: .option("path", "flights").toTable("t")',
            }
            raise OptionError(
                f'no channel is named: pass its name as in .{method}("flights"), in SQL as in '
                "CREATE TEMPORARY VIEW flights USING channel OPTIONS (path 'flights'). "
                + advice[method]
            )
        return channel

    def text(self, option: str) -> str | None:
        """Return the option's text, or None."""
        return self._options.get(option.lower())

    def number(self, option: str, low: int, high: int) -> int | None:
        """Return the option as an integer from `low` to `high`, or None."""
        text = self.text(option)
        if text is None:
            return None
        digits = text.strip()
        is_integer = digits.isascii() and digits.isdigit() and len(digits) < 20
        if not is_integer or not low <= int(digits) <= high:
            raise OptionError(f"{option} is {text!r}; it takes a whole number from {low} to {high}")
        return int(digits)

    def choice(self, option: str, choices: Mapping[str, T], default: T) -> T:
        """Return the choice that the option names."""
        text = self.text(option)
        if text is None:
            return default
        if text.strip().lower() not in choices:
            raise OptionError(f"{option} is {text!r}; it takes {' or '.join(choices)}")
        return choices[text.strip().lower()]

    def flag(self, option: str, *, default: bool) -> bool:
        """Return the option as a boolean."""
        return self.choice(option, {"true": True, "false": False}, default)

    def group(self) -> str | None:
        """Return the name of the job's group, or None."""
        group = self.text("group")
        if group is not None:
            group_path("any", group)  # raises OptionError
        return group

    def snapshot(self) -> int | datetime | None:
        """Return the number or the time of a commit, or None.

        Other tables have an option for the one and the other.
        """
        names = ("snapshot", "versionAsOf", "timestampAsOf")
        chosen = [name for name in names if self.text(name) is not None]
        if len(chosen) > 1:
            raise OptionError(f"{chosen[0]} and {chosen[1]} cannot both be given: remove one")
        option = chosen[0] if chosen else "snapshot"
        text = self.text(option)
        is_number = text is not None and text.strip().isascii() and text.strip().isdigit()
        if text is None or option == "versionAsOf" or (option == "snapshot" and is_number):
            return self.number(option, 0, _MAX_LONG)
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            number = "the number of a commit, or " if option == "snapshot" else ""
            raise OptionError(
                f"{option} is {text!r}; it takes {number}a time with its zone such as "
                "2026-11-24T08:00:00Z"
            )
        return moment

    def bound(self, edge: str, channel: str, default: OffsetBound) -> OffsetBound:
        """Return the bound set by the offsets or the timestamp of `edge`."""
        offsets, timestamp = f"{edge}Offsets", f"{edge}Timestamp"
        timestamp_ms = self.number(timestamp, 0, _MAX_LONG)
        text = self.text(offsets)
        if timestamp_ms is not None and text is not None:
            raise OptionError(f"{offsets} and {timestamp} cannot both be given: remove one")
        if timestamp_ms is not None:
            return AtTime(timestamp_ms=timestamp_ms)
        return default if text is None else parse_offsets(offsets, text, channel)


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of a read, batch or streaming.

    `max_messages` limits the messages per task (None: by the channel's format), and
    `max_offsets_per_trigger` those per micro-batch (None: no limit). The read fails when Kafka
    sends nothing for `poll_timeout_ms`. `group` is a query's group (None: its name, or its id).
    `snapshot` is the number or the time of the commit as of which an exactly-once channel is read.
    The ids in messages are those of `registry`, if there is one.
    With `include_deletes`, deletes are rows, which are null but for the column `key`.
    """

    channel: str
    starting: OffsetBound
    ending: OffsetBound
    min_splits: int
    max_messages: int | None
    max_offsets_per_trigger: int | None
    group: str | None
    snapshot: int | datetime | None = None
    on_corrupt: Literal["raise", "skip"]
    fail_on_data_loss: bool
    include_headers: bool
    include_metadata: bool
    include_deletes: bool = False
    key: str | None = None
    registry: SchemaRegistry | None = None
    poll_timeout_ms: int
    kafka: Mapping[str, str]

    @classmethod
    def parse(
        cls, options: Mapping[str, str], kind: Literal["batch read", "streaming read"] | None = None
    ) -> "ReadOptions":
        """Parse Spark's options. Raises OptionError naming the option.

        Spark requests the columns before the `kind` of read is known: None accepts the options of
        both.
        """
        kinds = (kind,) if kind else ("batch read", "streaming read")
        parser = OptionParser(options, kind or "read", ("read", *kinds))
        channel = parser.channel("load")
        starting = parser.bound("starting", channel, EARLIEST)
        ending = parser.bound("ending", channel, LATEST)
        times = [bound.timestamp_ms for bound in (starting, ending) if isinstance(bound, AtTime)]
        if times != sorted(times):
            raise OptionError(
                f"startingTimestamp {times[0]} is after endingTimestamp {times[1]}, so nothing "
                "would be read: exchange them"
            )
        include_deletes = parser.flag("includeDeletes", default=False)
        registry = parser.text("schemaRegistry")
        key = parser.text("key")
        if key is not None and not include_deletes:
            raise OptionError(
                f"key is {key!r}, but a read uses it for the keys of deletes: add "
                '.option("includeDeletes", "true"), or remove it'
            )
        return cls(
            channel=channel,
            starting=starting,
            ending=ending,
            min_splits=parser.number("minPartitions", 1, 100_000) or 1,
            max_messages=parser.number("maxRecordsPerPartition", 1, _MAX_LONG),
            max_offsets_per_trigger=parser.number("maxOffsetsPerTrigger", 1, _MAX_LONG),
            group=parser.group(),
            snapshot=parser.snapshot(),
            on_corrupt=parser.choice("onCorrupt", {"raise": "raise", "skip": "skip"}, "raise"),
            fail_on_data_loss=parser.flag("failOnDataLoss", default=True),
            include_headers=parser.flag("includeHeaders", default=False),
            include_metadata=parser.flag("includeMetadata", default=False),
            include_deletes=include_deletes,
            key=key,
            registry=None if registry is None else SchemaRegistry.open(registry),
            poll_timeout_ms=parser.number("kafkaConsumer.pollTimeoutMs", 1, _MAX_TIMEOUT_MS)
            or 60_000,
            kafka=parser.kafka,
        )


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of a write, batch or streaming.

    Records with the same value in the column `key` go to the same partition; with None, each task
    writes to one partition. `group` is the writer's group. `batch_key` is the key of an
    exactly-once write. `creation` has arguments of `Gateway.channel` to create a missing channel;
    with None, a missing channel is an error. With `merge_schema`, further and wider columns of the
    dataframe become a new version of the channel's schema. A task fails when Kafka has not
    acknowledged a message within `delivery_timeout_ms`.
    """

    channel: str
    key: str | None
    group: str | None
    batch_key: str | None
    creation: Mapping[str, Any] | None
    merge_schema: bool
    delivery_timeout_ms: int
    kafka: Mapping[str, str]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> "WriteOptions":
        """Parse Spark's options. Raises OptionError naming the option."""
        if streaming:
            options = {
                name: text for name, text in options.items() if name.lower() not in _ADDED_BY_SPARK
            }
            if "batchkey" in map(str.lower, options):
                raise OptionError(
                    "batchKey is an option of a batch write: each micro-batch of a stream has its "
                    "own key, from the query and the number. Remove it, or write in foreachBatch"
                )
        parser = OptionParser(options, "write", ("write", "batch write"))
        creation = {
            "format": parser.choice("format", {format_: format_ for format_ in _FORMATS}, None),
            "partitions": parser.number("partitions", 1, 10_000),
            "replication": parser.number("replication", 1, 2**15 - 1),
            "delivery": parser.choice(
                "delivery", {delivery: delivery for delivery in _DELIVERIES}, None
            ),
        }
        creation = {name: value for name, value in creation.items() if value is not None}
        create = parser.flag("create", default=False)
        if creation and not create:
            name = next(iter(creation))
            raise OptionError(
                f"the option {name!r} applies to a channel that is created: add "
                f'.option("create", "true"), or remove {name!r}'
            )
        return cls(
            channel=parser.channel("start" if streaming else "save"),
            key=parser.text("key"),
            group=parser.group(),
            batch_key=parser.text("batchKey"),
            creation=creation if create else None,
            merge_schema=parser.flag("mergeSchema", default=False),
            delivery_timeout_ms=parser.number("deliveryTimeoutMs", 1000, _MAX_TIMEOUT_MS)
            or 120_000,
            kafka=parser.kafka,
        )
