"""The options of `format("channel")`: named as Spark's Kafka users know them, typos refused."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from sluiceway.errors import OptionError
from sluiceway.kafka.properties import CONNECTION, CONSUMER, PRODUCER, refuse_unlisted
from sluiceway.spark.bounds import AtTime, Bound, Earliest, Latest, parse_offsets

_KAFKA_PREFIX = "kafka."
_POLL_TIMEOUT_MS = 60_000
_DELIVERY_TIMEOUT_MS = 120_000
_MAX_TIMEOUT_MS = 86_400_000
_MAX_SPLITS = 100_000
_MAX_LONG = 2**63 - 1
_READ = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "onCorrupt",
    "kafkaConsumer.pollTimeoutMs",
)
_CREATE = ("format", "partitions", "replication")
_WRITE = ("key", "create", *_CREATE, "deliveryTimeoutMs")
_REASONS = {
    "token": "tokens are never options, since plans and logs show options: set SLUICEWAY_TOKEN "
    "or SLUICEWAY_TOKEN_FILE in the driver's environment",
    "paths": "a read takes one channel: load each and unite the dataframes",
    "subscribe": 'the channel is named by load("name") and save("name")',
    "topic": 'the channel is named by load("name") and save("name")',
    "gateway": "the gateway's URL goes to sluiceway.spark.register(spark, gateway=...) or "
    "SLUICEWAY_URL",
    "kafka.bootstrap.servers": "the gateway tells where Kafka is",
    "kafka.delivery.timeout.ms": "use deliveryTimeoutMs",
}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a read of a channel was asked for.

    `max_messages` bounds the messages that one task reads (None: by the channel's format);
    `poll_timeout_ms` how long a task waits for Kafka before it fails.
    """

    channel: str
    starting: Bound
    ending: Bound
    min_splits: int
    max_messages: int | None
    on_corrupt: Literal["raise", "skip"]
    poll_timeout_ms: int
    kafka: Mapping[str, str]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadOptions":
        """Read Spark's options (keys in any case). Raises OptionError naming the option."""
        given, kafka = _sorted_out(options, _READ, _WRITE, "read")
        channel = _channel(given, "load")
        return cls(
            channel=channel,
            starting=_bound(given, "startingOffsets", "startingTimestamp", channel, Earliest()),
            ending=_bound(given, "endingOffsets", "endingTimestamp", channel, Latest()),
            min_splits=_number(given, "minPartitions", 1, _MAX_SPLITS) or 1,
            max_messages=_number(given, "maxRecordsPerPartition", 1, _MAX_LONG),
            on_corrupt=_choice(given, "onCorrupt", {"raise": "raise", "skip": "skip"}) or "raise",
            poll_timeout_ms=_number(given, "kafkaConsumer.pollTimeoutMs", 1, _MAX_TIMEOUT_MS)
            or _POLL_TIMEOUT_MS,
            kafka=kafka,
        )


@dataclass(frozen=True, kw_only=True)
class Creation:
    """How a channel is made if it is not there; None leaves the choice to the gateway."""

    format: str | None
    partitions: int | None
    replication: int | None

    def given(self) -> dict[str, Any]:
        """Return what was chosen, by the names that `Gateway.channel` has for it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What a write to a channel was asked for.

    `key` names the column whose equal values go to the same partition, None spreads by task;
    `creation` is None where an absent channel is an error. A message that Kafka has not
    acknowledged within `delivery_timeout_ms` fails its task.
    """

    channel: str
    key: str | None
    creation: Creation | None
    delivery_timeout_ms: int
    kafka: Mapping[str, str]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteOptions":
        """Read Spark's options (keys in any case). Raises OptionError naming the option."""
        given, kafka = _sorted_out(options, _WRITE, _READ, "write")
        create = _choice(given, "create", {"true": True, "false": False}) or False
        useless = [name for name in _CREATE if name.lower() in given]
        if useless and not create:
            raise OptionError(
                f'the option {useless[0]!r} is for making the channel: add .option("create", '
                f'"true"), or leave {useless[0]!r} out'
            )
        creation = Creation(
            format=_choice(given, "format", {"avro": "avro", "arrow": "arrow"}),
            partitions=_number(given, "partitions", 1, 10_000),
            replication=_number(given, "replication", 1, 2**15 - 1),
        )
        return cls(
            channel=_channel(given, "save"),
            key=given.get("key"),
            creation=creation if create else None,
            delivery_timeout_ms=_number(given, "deliveryTimeoutMs", 1000, _MAX_TIMEOUT_MS)
            or _DELIVERY_TIMEOUT_MS,
            kafka=kafka,
        )


def _sorted_out(
    options: Mapping[str, str], known: Iterable[str], others: Iterable[str], verb: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options by lower-case name and Kafka's properties, all of them known."""
    given = {name.lower(): value for name, value in options.items()}
    kafka = {}
    names = {name.lower(): name for name in known}
    elsewhere = {name.lower() for name in others}
    for name in sorted(given):
        if name in names or name == "path":
            continue
        if name in _REASONS:
            raise OptionError(f"{name!r} is no option of a channel: {_REASONS[name]}")
        if name.startswith(_KAFKA_PREFIX):
            kafka[name.removeprefix(_KAFKA_PREFIX)] = given[name]
            continue
        if name in elsewhere:
            other = "write" if verb == "read" else "read"
            raise OptionError(f"{name!r} is an option of a {other}, not of a {verb}: leave it out")
        close = difflib.get_close_matches(name, names, n=1)
        advice = (
            f"did you mean {names[close[0]]!r}?"
            if close
            else f"a {verb} knows {', '.join(sorted(names.values()))} and kafka.*"
        )
        raise OptionError(f"there is no option {name!r}: {advice}")
    refuse_unlisted(kafka, CONNECTION, CONSUMER if verb == "read" else PRODUCER)
    return given, kafka


def _channel(given: Mapping[str, str], call: str) -> str:
    channel = given.get("path", "").strip()
    if not channel:
        raise OptionError(f'no channel is named: give its name as in .{call}("flights")')
    return channel


def _bound(
    given: Mapping[str, str], offsets: str, timestamp: str, channel: str, default: Bound
) -> Bound:
    at_ms = _number(given, timestamp, 0, _MAX_LONG)
    text = given.get(offsets.lower())
    if at_ms is not None and text is not None:
        raise OptionError(f"{offsets} and {timestamp} cannot both be given: leave one of them out")
    if at_ms is not None:
        return AtTime(timestamp_ms=at_ms)
    return default if text is None else parse_offsets(offsets, text, channel)


def _number(given: Mapping[str, str], option: str, low: int, high: int) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    digits = text.strip()
    whole = digits.isascii() and digits.isdigit() and len(digits) < 20
    if not whole or not low <= int(digits) <= high:
        raise OptionError(f"{option} is {text!r}; it takes a whole number from {low} to {high}")
    return int(digits)


def _choice(given: Mapping[str, str], option: str, choices: Mapping[str, T]) -> T | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if text.strip().lower() not in choices:
        raise OptionError(f"{option} is {text!r}; it takes {' or '.join(choices)}")
    return choices[text.strip().lower()]
