"""What a user meets: plans that are refused, tasks that fail, and nothing written by mistake."""

from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import sluiceway.spark
from sluiceway import Gateway
from sluiceway.errors import OptionError

Produce = Callable[..., None]


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.range(100).selectExpr("id", "cast(id as string) s")


def save(frame: DataFrame, name: str, mode: str = "append", **options: object) -> None:
    frame.write.format("channel").mode(mode).options(**options).save(name)


def count(gateway: Gateway, name: str) -> int:
    with gateway.channel(name).reader(until="now") as reader:
        return sum(1 for _ in reader)


def test_a_channel_is_made_only_on_demand(frame: DataFrame, gateway: Gateway, name: str) -> None:
    with pytest.raises(AnalysisException, match=r'no channel.*create it.*"create", "true"'):
        save(frame, name)
    assert name not in {channel.name for channel in gateway.channels()}

    save(frame, name, create="true", format="arrow", partitions=3)

    channel = gateway.channel(name)
    assert (channel.format, channel.partitions) == ("arrow", 3)
    assert count(gateway, name) == 100


def test_a_second_write_adds_to_the_channel(
    spark: SparkSession, frame: DataFrame, gateway: Gateway, name: str
) -> None:
    save(frame, name, create="true")
    save(frame, name, create="true")

    assert spark.read.format("channel").load(name).count() == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"formt": "arrow"}, "there is no option 'formt': did you mean 'format'"),
        ({"token": "slw_1_secret"}, "tokens are never options"),
        ({"kafka.acks": "0"}, "the Kafka property 'acks' cannot be set"),
        ({"key": "x", "create": "true"}, "key is 'x'; the channel has the fields id, s"),
    ],
)
def test_an_option_that_makes_no_sense_fails_the_plan(
    frame: DataFrame, name: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException, match=said) as caught:
        save(frame, name, **options)

    assert "secret" not in str(caught.value)


def test_overwriting_is_refused_with_what_to_do(
    frame: DataFrame, gateway: Gateway, name: str
) -> None:
    save(frame, name, create="true")

    with pytest.raises(AnalysisException, match=r'cannot be overwritten: write with .mode\("app'):
        save(frame, name, mode="overwrite")
    assert count(gateway, name) == 100


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["id", "id s"], "column 's' is bigint in the dataframe and string in the channel"),
        (["id", "s", "1 x"], "no column 'x'"),
        (["s"], r"lacks the column 'id' \(bigint\)"),
        (["id", "cast(id as decimal(9,2)) s"], r"'s' is decimal\(9,2\) in the dataframe"),
    ],
)
def test_a_dataframe_that_does_not_fit_fails_before_the_first_row(
    frame: DataFrame, gateway: Gateway, name: str, columns: list[str], said: str
) -> None:
    save(frame.limit(0), name, create="true")

    with pytest.raises(AnalysisException, match=said):
        save(frame.selectExpr(*columns), name)
    assert count(gateway, name) == 0


def test_a_type_that_no_channel_carries_makes_no_channel(
    frame: DataFrame, gateway: Gateway, name: str
) -> None:
    with pytest.raises(AnalysisException, match=r"'d' has the type interval"):
        save(frame.selectExpr("make_dt_interval(1) d"), name, create="true")
    assert name not in {channel.name for channel in gateway.channels()}


def test_a_null_where_none_may_be_fails_the_job(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    save(spark.createDataFrame([], "id bigint not null"), name, create="true")

    with pytest.raises(PySparkException, match=r"field 'id': .*null"):
        save(spark.createDataFrame([Row(id=None)], "id bigint"), name)
    assert count(gateway, name) == 0


def test_a_corrupt_message_fails_the_job_unless_it_may_be_skipped(
    spark: SparkSession, frame: DataFrame, gateway: Gateway, name: str, produce: Produce
) -> None:
    save(frame.coalesce(1), name, create="true")
    produce(gateway.channel(name).connection("write"), b"foreign")
    read = spark.read.format("channel")

    with pytest.raises(PySparkException, match="partition 0, offset 100"):
        read.load(name).count()
    assert read.option("onCorrupt", "skip").load(name).count() == 100


def test_partitions_are_read_in_parallel_and_split_where_asked(
    spark: SparkSession, frame: DataFrame, name: str
) -> None:
    save(frame.repartition(2), name, create="true", partitions=2)
    read = spark.read.format("channel")

    assert read.load(name).rdd.getNumPartitions() == 2
    split = read.option("minPartitions", 6).load(name)
    assert split.rdd.getNumPartitions() == 6
    assert sorted(row.id for row in split.collect()) == [*range(100)]


def test_offsets_bound_a_read(spark: SparkSession, frame: DataFrame, name: str) -> None:
    save(frame.coalesce(1), name, create="true")
    read = spark.read.format("channel")

    some = read.option("startingOffsets", '{"0": 10}').option("endingOffsets", '{"0": 13}')

    assert [row.id for row in some.load(name).collect()] == [10, 11, 12]
    with pytest.raises(AnalysisException, match="partition 0 has no offset 101"):
        read.option("startingOffsets", '{"0": 101}').load(name).count()


def test_a_limit_ends_early_and_leaves_the_next_read_whole(
    spark: SparkSession, frame: DataFrame, name: str
) -> None:
    save(frame, name, create="true", partitions=2)
    loaded = spark.read.format("channel").load(name)

    assert len(loaded.limit(3).collect()) == 3
    assert loaded.count() == 100


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id int", "column 'id' is bigint in the channel"),
        ("id bigint, x int", "no column 'x'"),
    ],
)
def test_a_schema_that_is_not_the_channels_fails_the_plan(
    spark: SparkSession, frame: DataFrame, name: str, schema: str, said: str
) -> None:
    save(frame.limit(0), name, create="true")

    with pytest.raises(AnalysisException, match=said):
        spark.read.format("channel").schema(schema).load(name).collect()


def test_a_channel_that_is_not_there_cannot_be_read(spark: SparkSession, name: str) -> None:
    with pytest.raises(AnalysisException, match=f"there is no channel '{name}'"):
        spark.read.format("channel").load(name)
    with pytest.raises(AnalysisException, match="no channel is named"):
        spark.read.format("channel").load()


def test_a_gateway_that_is_away_is_named(spark: SparkSession, name: str) -> None:
    sluiceway.spark.register(spark, gateway="http://127.0.0.1:9")

    with pytest.raises(AnalysisException, match=r"GatewayUnavailable.*127\.0\.0\.1:9"):
        spark.read.format("channel").load(name)


def test_an_url_that_is_none_is_refused_when_it_is_given(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="URL"):
        sluiceway.spark.register(spark, gateway="localhost")
