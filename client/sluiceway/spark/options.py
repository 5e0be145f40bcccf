"""Options of `format("channel")`: names, kinds, defaults. Typos are refused."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self, TypeVar

from sluiceway.errors import OptionError
from sluiceway.kafka.config import CONNECTION, CONSUMER, PRODUCER, refuse_unlisted
from sluiceway.rest.transport import group_path
from sluiceway.spark.offsets import AtTime, Bound, Earliest, Latest, parse_offsets

_KAFKA_PREFIX: Final = "kafka."
_REASONS: Final = {
    "token": "tokens are never options, since plans and logs show options: set SLUICEWAY_TOKEN "
    "or SLUICEWAY_TOKEN_FILE in the driver's environment",
    "paths": "a read takes one channel: load each and unite the dataframes",
    "subscribe": 'the channel is named by load("name") and save("name")',
    "topic": 'the channel is named by load("name") and save("name")',
    "gateway": "the gateway's URL goes to sluiceway.spark.register(spark, gateway=...) or "
    "SLUICEWAY_URL",
    "kafka.bootstrap.servers": "the gateway tells where Kafka is",
    "kafka.delivery.timeout.ms": "use deliveryTimeoutMs",
    **dict.fromkeys(
        ("kafka.sasl.password", "kafka.ssl.key.pem"),
        "plans and event logs show options: set SLUICEWAY_KAFKA_CREDENTIALS_FILE in the driver's "
        "and the executors' environment",
    ),
}

T = TypeVar("T")


class Arguments:
    """Options by their names in any case, all of them known to `verb`.

    `known` are the names that `verb` takes, `elsewhere` those of other verbs with that verb;
    `ignored` are Spark's own, which mean nothing here. Raises OptionError for all others, with
    what may have been meant.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        verb: str,
        known: Collection[str],
        elsewhere: Mapping[str, str],
        ignored: Collection[str] = (),
        side: Literal["consumer", "producer"],
    ) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        self.kafka: dict[str, str] = {}
        names = {name.lower(): name for name in known}
        others = {name.lower(): other for name, other in elsewhere.items()}
        passed_over = {"path", *(name.lower() for name in ignored)}
        for name in sorted(self._given):
            if name in names or name in passed_over:
                continue
            if name in _REASONS:
                raise OptionError(f"{name!r} is no option of a channel: {_REASONS[name]}")
            if name.startswith(_KAFKA_PREFIX):
                self.kafka[name.removeprefix(_KAFKA_PREFIX)] = self._given[name]
                continue
            if name in others:
                raise OptionError(
                    f"{name!r} is an option of a {others[name]}, not of a {verb}: leave it out"
                )
            close = difflib.get_close_matches(name, names, n=1)
            advice = (
                f"did you mean {names[close[0]]!r}?"
                if close
                else f"a {verb} knows {', '.join(sorted(names.values()))} and kafka.*"
            )
            raise OptionError(f"there is no option {name!r}: {advice}")
        refuse_unlisted(self.kafka, CONNECTION, CONSUMER if side == "consumer" else PRODUCER)

    def channel(self, call: str) -> str:
        """Return the channel's name, which `call` was to be given."""
        channel = self._given.get("path", "").strip()
        if not channel:
            raise OptionError(f'no channel is named: give its name as in .{call}("flights")')
        return channel

    def text(self, option: str) -> str | None:
        """Return the option as it was given, or None."""
        return self._given.get(option.lower())

    def number(self, option: str, low: int, high: int) -> int | None:
        """Return the option as a whole number within the bounds, or None."""
        text = self.text(option)
        if text is None:
            return None
        digits = text.strip()
        whole = digits.isascii() and digits.isdigit() and len(digits) < 20
        if not whole or not low <= int(digits) <= high:
            raise OptionError(f"{option} is {text!r}; it takes a whole number from {low} to {high}")
        return int(digits)

    def choice(self, option: str, choices: Mapping[str, T], default: T) -> T:
        """Return what the option's word stands for."""
        text = self.text(option)
        if text is None:
            return default
        if text.strip().lower() not in choices:
            raise OptionError(f"{option} is {text!r}; it takes {' or '.join(choices)}")
        return choices[text.strip().lower()]

    def flag(self, option: str, *, default: bool) -> bool:
        """Return the option as true or false."""
        return self.choice(option, {"true": True, "false": False}, default)


_POLL_TIMEOUT_MS: Final = 60_000
_DELIVERY_TIMEOUT_MS: Final = 120_000
_FORMATS = ("avro", "arrow", "bytes")
_MAX_TIMEOUT_MS: Final = 86_400_000
_MAX_SPLITS: Final = 100_000
_MAX_LONG: Final = 2**63 - 1

_SOURCE: Final = (
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "onCorrupt",
    "failOnDataLoss",
    "includeHeaders",
    "includeMetadata",
    "kafkaConsumer.pollTimeoutMs",
)
_BATCH: Final = ("endingOffsets", "endingTimestamp")
_STREAM: Final = ("maxOffsetsPerTrigger", "group")
_CREATE: Final = ("format", "partitions", "replication")
_WRITE: Final = ("key", "group", "create", *_CREATE, "deliveryTimeoutMs")
_SPARKS_OWN: Final = ("checkpointLocation", "queryName")
"""Options that Spark puts among those of a streaming write, for itself."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What a read of a channel was asked for, in a batch or as a stream.

    `max_messages` bounds the messages that one task reads (None: by the channel's format);
    `poll_timeout_ms` how long Kafka may stay silent before the read fails.
    """

    channel: str
    starting: Bound
    min_splits: int
    max_messages: int | None
    on_corrupt: Literal["raise", "skip"]
    fail_on_data_loss: bool
    include_headers: bool
    include_metadata: bool
    poll_timeout_ms: int
    kafka: Mapping[str, str]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read Spark's options (keys in any case). Raises OptionError naming the option."""
        given = cls._sorted_out(options)
        return cls(**cls._values(given, given.channel("load")))

    @classmethod
    def _sorted_out(cls, options: Mapping[str, str]) -> Arguments:
        """Take the options of both kinds of read: Spark asks for columns before it tells which."""
        return Arguments(
            options,
            verb="read",
            known=(*_SOURCE, *_BATCH, *_STREAM),
            elsewhere=dict.fromkeys(_WRITE, "write"),
            side="consumer",
        )

    @classmethod
    def _values(cls, given: Arguments, channel: str) -> dict[str, Any]:
        return {
            "channel": channel,
            "starting": _bound(given, "starting", channel, Earliest()),
            "min_splits": given.number("minPartitions", 1, _MAX_SPLITS) or 1,
            "max_messages": given.number("maxRecordsPerPartition", 1, _MAX_LONG),
            "on_corrupt": given.choice("onCorrupt", {"raise": "raise", "skip": "skip"}, "raise"),
            "fail_on_data_loss": given.flag("failOnDataLoss", default=True),
            "include_headers": given.flag("includeHeaders", default=False),
            "include_metadata": given.flag("includeMetadata", default=False),
            "poll_timeout_ms": given.number("kafkaConsumer.pollTimeoutMs", 1, _MAX_TIMEOUT_MS)
            or _POLL_TIMEOUT_MS,
            "kafka": given.kafka,
        }


@dataclass(frozen=True, kw_only=True)
class ReadOptions(SourceOptions):
    """What a batch read was asked for."""

    ending: Bound

    @classmethod
    def _sorted_out(cls, options: Mapping[str, str]) -> Arguments:
        return Arguments(
            options,
            verb="read",
            known=(*_SOURCE, *_BATCH),
            elsewhere=dict.fromkeys(_STREAM, "streaming read") | dict.fromkeys(_WRITE, "write"),
            side="consumer",
        )

    @classmethod
    def _values(cls, given: Arguments, channel: str) -> dict[str, Any]:
        ending = _bound(given, "ending", channel, Latest())
        return super()._values(given, channel) | {"ending": ending}


@dataclass(frozen=True, kw_only=True)
class StreamOptions(SourceOptions):
    """What a streaming read was asked for; `max_offsets_per_trigger` None: all there is.

    `group` is what others see it as; None: the query's name, or its id.
    """

    max_offsets_per_trigger: int | None
    group: str | None

    @classmethod
    def _sorted_out(cls, options: Mapping[str, str]) -> Arguments:
        return Arguments(
            options,
            verb="streaming read",
            known=(*_SOURCE, *_STREAM),
            elsewhere=dict.fromkeys(_BATCH, "batch read") | dict.fromkeys(_WRITE, "write"),
            side="consumer",
        )

    @classmethod
    def _values(cls, given: Arguments, channel: str) -> dict[str, Any]:
        limit = given.number("maxOffsetsPerTrigger", 1, _MAX_LONG)
        return super()._values(given, channel) | {
            "max_offsets_per_trigger": limit,
            "group": _group(given),
        }


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
    """What a write to a channel was asked for, in a batch or as a stream.

    `key` names the column whose equal values go to the same partition, None spreads by task;
    `group` is what others see it as, in the place of the one before that was seen so;
    `creation` is None where an absent channel is an error. A message that Kafka has not
    acknowledged within `delivery_timeout_ms` fails its task.
    """

    channel: str
    key: str | None
    group: str | None
    creation: Creation | None
    delivery_timeout_ms: int
    kafka: Mapping[str, str]

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> "WriteOptions":
        """Read Spark's options (keys in any case). Raises OptionError naming the option."""
        given = Arguments(
            options,
            verb="write",
            known=_WRITE,
            elsewhere=dict.fromkeys((*_SOURCE, *_BATCH, *_STREAM), "read"),
            ignored=_SPARKS_OWN if streaming else (),
            side="producer",
        )
        create = given.flag("create", default=False)
        useless = [name for name in _CREATE if given.text(name) is not None]
        if useless and not create:
            raise OptionError(
                f'the option {useless[0]!r} is for making the channel: add .option("create", '
                f'"true"), or leave {useless[0]!r} out'
            )
        creation = Creation(
            format=given.choice("format", {each: each for each in _FORMATS}, None),
            partitions=given.number("partitions", 1, 10_000),
            replication=given.number("replication", 1, 2**15 - 1),
        )
        channel = given.channel("start" if streaming else "save")
        return cls(
            channel=channel,
            key=given.text("key"),
            group=_group(given),
            creation=creation if create else None,
            delivery_timeout_ms=given.number("deliveryTimeoutMs", 1000, _MAX_TIMEOUT_MS)
            or _DELIVERY_TIMEOUT_MS,
            kafka=given.kafka,
        )


def _group(given: Arguments) -> str | None:
    group = given.text("group")
    if group is not None:
        group_path("any", group)  # raises OptionError
    return group


def _bound(given: Arguments, edge: str, channel: str, default: Bound) -> Bound:
    offsets, timestamp = f"{edge}Offsets", f"{edge}Timestamp"
    at_ms = given.number(timestamp, 0, _MAX_LONG)
    text = given.text(offsets)
    if at_ms is not None and text is not None:
        raise OptionError(f"{offsets} and {timestamp} cannot both be given: leave one of them out")
    if at_ms is not None:
        return AtTime(timestamp_ms=at_ms)
    return default if text is None else parse_offsets(offsets, text, channel)
