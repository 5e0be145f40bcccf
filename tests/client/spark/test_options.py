import re
from pathlib import Path

import pytest

from sluiceway.errors import OptionError
from sluiceway.spark.offsets import EARLIEST, LATEST, AtTime
from sluiceway.spark.options import OPTIONS, ReadOptions, WriteOptions

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def test_a_batch_read_covers_all_offsets_by_default() -> None:
    options = ReadOptions.parse({"path": "flights"}, "batch read")

    assert (options.channel, options.starting, options.ending) == ("flights", EARLIEST, LATEST)
    assert (options.min_splits, options.max_messages, options.on_corrupt) == (1, None, "raise")
    assert options.poll_timeout_ms == 60_000
    assert options.kafka == {}


def test_option_names_are_case_insensitive() -> None:
    options = ReadOptions.parse(
        {
            "path": "flights",
            "STARTINGOFFSETS": '{"0": 3}',
            "endingTimestamp": "1700000000000",
            "minpartitions": "8",
            "maxRecordsPerPartition": "100",
            "onCorrupt": "Skip",
            "failOnDataLoss": "FALSE",
            "includeHeaders": "true",
            "kafkaConsumer.pollTimeoutMs": "5000",
            "kafka.fetch.min.bytes": "1",
        },
        "batch read",
    )

    assert options == ReadOptions(
        channel="flights",
        starting={0: 3},
        ending=AtTime(timestamp_ms=1_700_000_000_000),
        min_splits=8,
        max_messages=100,
        max_offsets_per_trigger=None,
        group=None,
        on_corrupt="skip",
        fail_on_data_loss=False,
        include_headers=True,
        include_metadata=False,
        poll_timeout_ms=5000,
        kafka={"fetch.min.bytes": "1"},
    )


def test_a_write_creates_a_channel_only_on_request() -> None:
    assert WriteOptions.parse({"path": "flights"}).creation is None
    assert WriteOptions.parse({"path": "flights", "create": "false"}).creation is None

    options = WriteOptions.parse(
        {"path": "flights", "create": "true", "format": "arrow", "partitions": "4"}
    )

    assert options.creation == {"format": "arrow", "partitions": 4}


def test_a_write_has_a_key_a_timeout_and_kafka_properties() -> None:
    options = WriteOptions.parse(
        {"path": "c", "key": "id", "deliveryTimeoutMs": "5000", "kafka.linger.ms": "5"}
    )

    assert (options.key, options.delivery_timeout_ms) == ("id", 5000)
    assert options.kafka == {"linger.ms": "5"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r'no channel is named: pass its name as in .load\("flights"\)'),
        ({"path": " "}, "no channel is named"),
        ({"startingOffset": "earliest"}, "no option 'startingoffset': did you mean 'startingOff"),
        ({"zzz": "1"}, "no option 'zzz': a batch read takes endingOffsets, "),
        ({"create": "true"}, "'create' is an option of a write, not of a batch read"),
        ({"paths": '["a", "b"]'}, "a read takes one channel"),
        ({"gateway": "http://x"}, r"register\(spark, gateway="),
        ({"minPartitions": "0"}, "minPartitions is '0'; it takes a whole number from 1 to 100000"),
        ({"minPartitions": "1e3"}, "minPartitions is '1e3'"),
        ({"maxRecordsPerPartition": "9" * 5000}, "maxRecordsPerPartition"),
        ({"onCorrupt": "ignore"}, "onCorrupt is 'ignore'; it takes raise or skip"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'"),
        (
            {"startingTimestamp": "2", "endingTimestamp": "1"},
            "startingTimestamp 2 is after endingTimestamp 1, so nothing would be read",
        ),
        (
            {"startingOffsets": '{"nope": {"0": 1}}'},
            r"""such as {"0": 5, "1": -2} or {"flights": {"0": 5, "1": -2}}""",
        ),
        (
            {"startingTimestamp": "1", "startingOffsets": "latest"},
            "startingOffsets and startingTimestamp cannot both be given",
        ),
        ({"kafka.plugin.library.paths": "/x.so"}, "'plugin.library.paths' cannot be set"),
        ({"kafka.bootstrap.servers": "x:1"}, "the gateway provides the brokers' addresses"),
        ({"kafka.sasl.password": "x"}, "SLUICEWAY_KAFKA_CREDENTIALS_FILE"),
        ({"kafka.ssl.key.pem": "x"}, "plans and event logs show options"),
        ({"kafka.linger.ms": "5"}, "'linger.ms'"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss is 'yes'; it takes true or false"),
        ({"maxOffsetsPerTrigger": "5"}, "is an option of a streaming read, not of a batch read"),
        ({"subscribePattern": "f.*"}, "the channel is named by load"),
        ({"kafka.group.id": "delays"}, "the option group of a streaming read"),
    ],
)
def test_invalid_options_of_a_batch_read_are_errors(options: dict[str, str], said: str) -> None:
    named = {} if not options or "path" in options else {"path": "flights"}
    with pytest.raises(OptionError, match=said):
        ReadOptions.parse(named | options, "batch read")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": "4"}, "'partitions' applies to a channel that is created: add"),
        ({"create": "yes"}, "create is 'yes'; it takes true or false"),
        ({"create": "true", "format": "xml"}, "format is 'xml'; it takes avro or arrow or"),
        ({"create": "true", "partitions": "-1"}, "partitions is '-1'"),
        ({"create": "true", "partitions": "10001"}, "from 1 to 10000"),
        ({"startingOffsets": "latest"}, "'startingoffsets' is an option of a read"),
        ({"topic": "t"}, "the channel is named by load"),
        ({"kafka.acks": "0"}, "'acks' cannot be set"),
        ({"kafka.delivery.timeout.ms": "1"}, "use deliveryTimeoutMs"),
        ({"checkpointLocation": "/c"}, "an option of a streaming query's write"),
    ],
)
def test_invalid_options_of_a_write_are_errors(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        WriteOptions.parse({"path": "flights"} | options)


def test_a_stream_starts_at_the_earliest_offset_without_a_limit() -> None:
    options = ReadOptions.parse({"path": "flights"}, "streaming read")

    assert (options.starting, options.max_offsets_per_trigger) == (EARLIEST, None)
    assert options.fail_on_data_loss


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "is an option of a batch read, not of a streaming read"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'"),
        ({"checkpointLocation": "/c"}, "an option of a streaming query's write"),
        ({"minOffsetsPerTrigger": "5"}, "a micro-batch has no minimum"),
    ],
)
def test_invalid_options_of_a_stream_are_errors(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ReadOptions.parse({"path": "flights"} | options, "streaming read")


def test_options_of_both_kinds_of_read_are_accepted_for_its_schema() -> None:
    both = {"path": "c", "endingOffsets": "latest", "maxOffsetsPerTrigger": "5"}

    assert ReadOptions.parse(both).channel == "c"


def test_a_streaming_write_ignores_options_added_by_spark() -> None:
    sparks = {"path": "c", "checkpointLocation": "/c", "queryName": "q"}

    assert WriteOptions.parse(sparks, streaming=True).channel == "c"
    with pytest.raises(OptionError, match="'checkpointlocation' is not an option of a channel"):
        WriteOptions.parse(sparks)


@pytest.mark.parametrize("parse", [ReadOptions.parse, WriteOptions.parse])
def test_a_token_is_an_error_that_does_not_contain_it(parse: object) -> None:
    with pytest.raises(OptionError, match="tokens are never options") as caught:
        parse({"path": "flights", "token": "slw_1_secret"})  # type: ignore[operator]

    assert "secret" not in str(caught.value)


def test_the_documentation_lists_every_option() -> None:
    reading, writing = re.split("^## (?=Writing)", PAGE.read_text(), flags=re.MULTILINE)
    writing, _, _ = writing.partition("\n## ")
    documented = [
        {
            name
            for cell in re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
            for name in re.findall(r"`([^`]+)`", cell)
        }
        for section in (reading, writing)
    ]

    expected = [
        {name for group in OPTIONS if group.endswith(kind) for name in OPTIONS[group]}
        for kind in ("read", "write")
    ]
    assert documented == [names | {"kafka.*"} for names in expected]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"versionAsOf": "2026-11-24T08:00:00Z"}, "versionAsOf is .*; it takes a whole number"),
        ({"timestampAsOf": "3"}, "timestampAsOf is '3'; it takes a time with its zone"),
        ({"timestampAsOf": "2026-11-24"}, "timestampAsOf is .* time with its zone"),
        ({"snapshot": "3", "versionAsOf": "3"}, "snapshot and versionAsOf cannot both be given"),
    ],
)
def test_the_version_and_the_time_of_a_snapshot_are_options_of_their_own(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        ReadOptions.parse({"path": "flights"} | options, "batch read")
