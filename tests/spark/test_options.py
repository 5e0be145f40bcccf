import pytest

from sluiceway.errors import OptionError
from sluiceway.spark.offsets import AtTime, Earliest, Latest, Offsets
from sluiceway.spark.options import (
    Creation,
    ReadOptions,
    SourceOptions,
    StreamOptions,
    WriteOptions,
)


def test_a_read_starts_at_the_earliest_and_ends_at_the_latest() -> None:
    options = ReadOptions.parse({"path": "flights"})

    assert (options.channel, options.starting, options.ending) == ("flights", Earliest(), Latest())
    assert (options.min_splits, options.max_messages, options.on_corrupt) == (1, None, "raise")
    assert options.poll_timeout_ms == 60_000
    assert options.kafka == {}


def test_the_options_of_a_read_are_taken_in_any_case() -> None:
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
        }
    )

    assert options == ReadOptions(
        channel="flights",
        starting=Offsets(by_partition={0: 3}),
        ending=AtTime(timestamp_ms=1_700_000_000_000),
        min_splits=8,
        max_messages=100,
        on_corrupt="skip",
        fail_on_data_loss=False,
        include_headers=True,
        include_metadata=False,
        poll_timeout_ms=5000,
        kafka={"fetch.min.bytes": "1"},
    )


def test_a_write_creates_only_when_it_is_asked_to() -> None:
    assert WriteOptions.parse({"path": "flights"}).creation is None
    assert WriteOptions.parse({"path": "flights", "create": "false"}).creation is None

    options = WriteOptions.parse(
        {"path": "flights", "create": "true", "format": "arrow", "partitions": "4"}
    )

    assert options.creation == Creation(format="arrow", partitions=4, replication=None)
    assert options.creation.given() == {"format": "arrow", "partitions": 4}


def test_a_write_takes_a_key_a_timeout_and_kafkas_properties() -> None:
    options = WriteOptions.parse(
        {"path": "c", "key": "id", "deliveryTimeoutMs": "5000", "kafka.linger.ms": "5"}
    )

    assert (options.key, options.delivery_timeout_ms) == ("id", 5000)
    assert options.kafka == {"linger.ms": "5"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r'no channel is named: give its name as in .load\("flights"\)'),
        ({"path": " "}, "no channel is named"),
        ({"startingOffset": "earliest"}, "no option 'startingoffset': did you mean 'startingOff"),
        ({"zzz": "1"}, "no option 'zzz': a read knows endingOffsets, "),
        ({"create": "true"}, "'create' is an option of a write, not of a read"),
        ({"paths": '["a", "b"]'}, "a read takes one channel"),
        ({"gateway": "http://x"}, r"register\(spark, gateway="),
        ({"minPartitions": "0"}, "minPartitions is '0'; it takes a whole number from 1 to 100000"),
        ({"minPartitions": "1e3"}, "minPartitions is '1e3'"),
        ({"maxRecordsPerPartition": "9" * 5000}, "maxRecordsPerPartition"),
        ({"onCorrupt": "ignore"}, "onCorrupt is 'ignore'; it takes raise or skip"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'"),
        (
            {"startingTimestamp": "1", "startingOffsets": "latest"},
            "startingOffsets and startingTimestamp cannot both be given",
        ),
        ({"kafka.plugin.library.paths": "/x.so"}, "'plugin.library.paths' is not one"),
        ({"kafka.bootstrap.servers": "x:1"}, "the gateway tells where Kafka is"),
        ({"kafka.sasl.password": "x"}, "SLUICEWAY_KAFKA_CREDENTIALS_FILE"),
        ({"kafka.ssl.key.pem": "x"}, "plans and event logs show options"),
        ({"kafka.linger.ms": "5"}, "'linger.ms'"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss is 'yes'; it takes true or false"),
        ({"maxOffsetsPerTrigger": "5"}, "is an option of a streaming read, not of a read"),
    ],
)
def test_a_read_refuses_what_it_does_not_know(options: dict[str, str], said: str) -> None:
    named = {} if not options or "path" in options else {"path": "flights"}
    with pytest.raises(OptionError, match=said):
        ReadOptions.parse(named | options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": "4"}, "'partitions' is for making the channel: add"),
        ({"create": "yes"}, "create is 'yes'; it takes true or false"),
        ({"create": "true", "format": "json"}, "format is 'json'; it takes avro or arrow"),
        ({"create": "true", "partitions": "-1"}, "partitions is '-1'"),
        ({"create": "true", "partitions": "10001"}, "from 1 to 10000"),
        ({"startingOffsets": "latest"}, "'startingoffsets' is an option of a read"),
        ({"topic": "t"}, "the channel is named by load"),
        ({"kafka.acks": "0"}, "'acks' is not one"),
        ({"kafka.delivery.timeout.ms": "1"}, "use deliveryTimeoutMs"),
    ],
)
def test_a_write_refuses_what_it_does_not_know(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        WriteOptions.parse({"path": "flights"} | options)


def test_a_stream_starts_at_the_earliest_and_takes_what_there_is() -> None:
    options = StreamOptions.parse({"path": "flights"})

    assert (options.starting, options.max_offsets_per_trigger) == (Earliest(), None)
    assert options.fail_on_data_loss


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "is an option of a batch read, not of a streaming read"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'"),
        ({"checkpointLocation": "/c"}, "there is no option 'checkpointlocation'"),
    ],
)
def test_a_stream_refuses_what_it_does_not_know(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        StreamOptions.parse({"path": "flights"} | options)


def test_the_columns_of_a_read_are_known_before_its_kind() -> None:
    both = {"path": "c", "endingOffsets": "latest", "maxOffsetsPerTrigger": "5"}

    assert SourceOptions.parse(both).channel == "c"


def test_a_streaming_write_passes_over_what_spark_puts_among_its_options() -> None:
    sparks = {"path": "c", "checkpointLocation": "/c", "queryName": "q"}

    assert WriteOptions.parse(sparks, streaming=True).channel == "c"
    with pytest.raises(OptionError, match="there is no option 'checkpointlocation'"):
        WriteOptions.parse(sparks)


@pytest.mark.parametrize("parse", [ReadOptions.parse, StreamOptions.parse, WriteOptions.parse])
def test_a_token_is_refused_and_never_repeated(parse: object) -> None:
    with pytest.raises(OptionError, match="tokens are never options") as caught:
        parse({"path": "flights", "token": "slw_1_secret"})  # type: ignore[operator]

    assert "secret" not in str(caught.value)
