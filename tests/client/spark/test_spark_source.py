"""Errors and options of the data source in Spark's user interface."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import sluiceway.spark
from sluiceway import Gateway
from sluiceway.errors import GatewayUnavailable, OptionError
from sluiceway.spark.datasource import ChannelDataSource
from spark_tasks import produce


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    return spark.range(100).selectExpr("id", "cast(id as string) s")


def save(frame: DataFrame, name: str, mode: str = "append", **options: object) -> None:
    frame.write.format("channel").mode(mode).options(**options).save(name)


def count(gateway: Gateway, name: str) -> int:
    with gateway.channel(name).reader(until="now") as reader:
        return sum(1 for _ in reader)


def test_a_write_creates_a_channel_only_on_request(
    frame: DataFrame, gateway: Gateway, name: str
) -> None:
    with pytest.raises(AnalysisException, match=r'no channel.*create it.*"create", "true"'):
        save(frame, name)
    assert name not in {channel.name for channel in gateway.channels()}

    save(frame, name, create="true", format="arrow", partitions=3)

    channel = gateway.channel(name)
    assert (channel.format, channel.partitions) == ("arrow", 3)
    assert count(gateway, name) == 100


@pytest.mark.long
def test_a_write_merges_its_columns_into_the_channels(
    spark: SparkSession, frame: DataFrame, name: str
) -> None:
    save(frame.limit(2), name, create="true")
    save(frame.limit(3).selectExpr("*", "'LAX' as city"), name, mergeSchema="true")

    rows = spark.read.format("channel").load(name).groupBy("city").count().collect()

    assert dict(map(tuple, rows)) == {None: 2, "LAX": 3}


@pytest.mark.long
def test_a_second_write_appends_to_the_channel(
    spark: SparkSession, frame: DataFrame, gateway: Gateway, name: str
) -> None:
    save(frame, name, create="true")
    save(frame, name, create="true")

    assert spark.read.format("channel").load(name).count() == 200


@pytest.mark.long
def test_a_thread_writes_after_it_has_registered_the_session(
    spark: SparkSession, frame: DataFrame, gateway: Gateway, gateway_url: str, name: str
) -> None:
    def write() -> None:
        sluiceway.spark.register(spark, gateway=gateway_url)
        save(frame, name, create="true")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()

    assert count(gateway, name) == 100


@pytest.mark.long
def test_a_further_session_of_the_thread_is_registered_too(
    spark: SparkSession, gateway: Gateway, gateway_url: str, name: str
) -> None:
    further = spark.newSession()

    sluiceway.spark.register(further, gateway=gateway_url)

    save(further.range(100), name, create="true")
    assert further.read.format("channel").load(name).count() == 100
    assert count(gateway, name) == 100


@pytest.mark.long
def test_an_empty_channel_has_no_rows(spark: SparkSession, frame: DataFrame, name: str) -> None:
    save(frame.limit(0), name, create="true")

    assert spark.read.format("channel").load(name).collect() == []


@pytest.mark.sample
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"formt": "arrow"}, "there is no option 'formt': did you mean 'format'"),
        ({"token": "slw_1_secret"}, "tokens are never options"),
        ({"kafka.acks": "0"}, "the Kafka property 'acks' cannot be set"),
        ({"key": "x", "create": "true"}, "key is 'x'; the channel has the fields id, s"),
    ],
)
def test_an_invalid_option_fails_planning(
    frame: DataFrame, name: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException, match=said) as caught:
        save(frame, name, **options)

    assert "secret" not in str(caught.value)


def test_overwriting_is_an_error_with_advice(frame: DataFrame, gateway: Gateway, name: str) -> None:
    save(frame, name, create="true")

    with pytest.raises(AnalysisException, match=r'cannot be overwritten: write with .mode\("app'):
        save(frame, name, mode="overwrite")
    assert count(gateway, name) == 100


@pytest.mark.sample
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["id", "id s"], "column 's' is bigint in the dataframe and string in the channel"),
        (["id", "s", "1 x"], "no column 'x'"),
        (["s"], r"lacks the column 'id' \(bigint\)"),
        (["id", "cast(id as decimal(9,2)) s"], r"'s' is decimal\(9,2\) in the dataframe"),
    ],
)
def test_a_mismatched_dataframe_fails_before_the_first_row(
    frame: DataFrame, gateway: Gateway, name: str, columns: list[str], said: str
) -> None:
    save(frame.limit(0), name, create="true")

    with pytest.raises(AnalysisException, match=said):
        save(frame.selectExpr(*columns), name)
    assert count(gateway, name) == 0


@pytest.mark.long
def test_an_unsupported_type_creates_no_channel(
    frame: DataFrame, gateway: Gateway, name: str
) -> None:
    with pytest.raises(AnalysisException, match=r"'d' has the type interval"):
        save(frame.selectExpr("make_dt_interval(1) d"), name, create="true")
    assert name not in {channel.name for channel in gateway.channels()}


@pytest.mark.long
def test_a_null_in_a_required_column_fails_the_job(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    save(spark.createDataFrame([], "id bigint not null"), name, create="true")

    with pytest.raises(PySparkException, match=r"field 'id': .*null"):
        save(spark.createDataFrame([Row(id=None)], "id bigint"), name)
    assert count(gateway, name) == 0


@pytest.mark.long
def test_a_corrupt_message_fails_the_job_unless_skipped(
    spark: SparkSession, frame: DataFrame, gateway: Gateway, name: str
) -> None:
    save(frame.coalesce(1), name, create="true")
    produce(gateway.channel(name).connection("write"), b"foreign")
    read = spark.read.format("channel")

    with pytest.raises(PySparkException, match="partition 0, offset 100"):
        read.load(name).count()
    assert read.option("onCorrupt", "skip").load(name).count() == 100


def test_partitions_are_read_in_parallel_and_split_on_request(
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


def test_a_read_after_a_limit_is_complete(spark: SparkSession, frame: DataFrame, name: str) -> None:
    save(frame, name, create="true", partitions=2)
    loaded = spark.read.format("channel").load(name)

    assert len(loaded.limit(3).collect()) == 3
    assert loaded.count() == 100


@pytest.mark.sample
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id int", "column 'id' is bigint in the channel"),
        ("id bigint, x int", "no column 'x'"),
    ],
)
def test_a_mismatched_schema_fails_planning(
    spark: SparkSession, frame: DataFrame, name: str, schema: str, said: str
) -> None:
    save(frame.limit(0), name, create="true")

    with pytest.raises(AnalysisException, match=said):
        spark.read.format("channel").schema(schema).load(name).collect()


def test_reading_a_missing_channel_is_an_error(spark: SparkSession, name: str) -> None:
    with pytest.raises(AnalysisException, match=f"no channel '{name}': check its name"):
        spark.read.format("channel").load(name)
    with pytest.raises(AnalysisException, match="no channel is named"):
        spark.read.format("channel").load()


def test_a_gateway_that_cannot_be_reached_is_named(gateway_url: str, name: str) -> None:
    url = gateway_url.replace("http:", "https:")
    source = ChannelDataSource({"path": name}, gateway_url=url)

    with pytest.raises(GatewayUnavailable, match=f"no connection to the gateway at {url}"):
        source.schema()


def test_registering_an_invalid_url_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="URL"):
        sluiceway.spark.register(spark, gateway="localhost")
