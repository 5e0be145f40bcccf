"""Writes with `mergeSchema`: new versions of a channel's schema, without a Spark session."""

import pytest
from pyspark.sql import types as spark

from faults import at_call
from sluiceway import Gateway
from sluiceway.api.channels import Control
from sluiceway.errors import Conflict, OptionError, SchemaMismatch
from sluiceway.schema import Schema
from sluiceway.spark.datasource import ChannelDataSource

ID = spark.StructField("id", spark.IntegerType())
CITY = spark.StructField("city", spark.StringType(), False)
WIDE = spark.StructField("id", spark.LongType())


def struct(*fields: spark.StructField) -> spark.StructType:
    return spark.StructType([*fields])


def source(gateway_url: str, name: str, **options: str) -> ChannelDataSource:
    options = {"path": name, "mergeSchema": "true"} | options
    return ChannelDataSource(options, gateway_url=gateway_url)


def columns(gateway: Gateway, name: str) -> list[str]:
    versions = gateway.channel(name).schemas()
    return [", ".join(Schema.parse(version.definition).arrow.names) for version in versions]


@pytest.fixture
def channel(gateway: Gateway, name: str) -> str:
    with gateway.channel(name, Schema.of(struct(ID))).writer() as writer:
        writer.write([{"id": 1}])
    return name


def test_further_and_wider_columns_become_a_new_version(
    gateway: Gateway, gateway_url: str, channel: str
) -> None:
    written = struct(CITY, WIDE)

    for _ in range(2):
        source(gateway_url, channel).writer(written, False)

    assert columns(gateway, channel) == ["id", "id, city"]
    with gateway.channel(channel).reader(until="now") as reader:
        assert list(reader) == [{"id": 1, "city": None}]
    # Narrower and fewer columns fit as before.
    source(gateway_url, channel).writer(struct(ID), False)
    assert columns(gateway, channel) == ["id", "id, city"]


def test_a_wider_key_is_refused(gateway: Gateway, gateway_url: str, channel: str) -> None:
    with pytest.raises(SchemaMismatch, match="'id' is the key of this write, and as int64"):
        source(gateway_url, channel, key="id").writer(struct(WIDE), False)
    source(gateway_url, channel, key="id").writer(struct(ID, CITY), False)

    assert columns(gateway, channel) == ["id", "id, city"]


def test_a_streaming_write_merges_too(gateway: Gateway, gateway_url: str, channel: str) -> None:
    source(gateway_url, channel).streamWriter(struct(ID), False)
    source(gateway_url, channel).streamWriter(struct(ID, CITY), False)

    assert columns(gateway, channel) == ["id", "id, city"]


def test_a_change_against_the_channels_rule_is_refused(
    gateway: Gateway, gateway_url: str, channel: str
) -> None:
    gateway.channel(channel).update(compatibility="forward")

    with pytest.raises(Conflict, match=r"id.*long") as caught:
        source(gateway_url, channel).writer(struct(WIDE), False)

    assert caught.value.code == "schema_incompatible"
    assert columns(gateway, channel) == ["id"]


def test_a_refused_write_does_not_change_the_channel(
    gateway: Gateway, gateway_url: str, channel: str
) -> None:
    text = spark.StructField("id", spark.StringType())

    with pytest.raises(SchemaMismatch, match="'id' is string in the dataframe"):
        source(gateway_url, channel).writer(struct(text, CITY), False)
    with pytest.raises(OptionError, match="key is 'x'"):
        source(gateway_url, channel, key="x").writer(struct(ID, CITY), False)
    with pytest.raises(OptionError, match="has no batches"):
        source(gateway_url, channel, batchKey="day").writer(struct(ID, CITY), False)
    with pytest.raises(SchemaMismatch, match=r"no column 'city'.*\"mergeSchema\", \"true\""):
        source(gateway_url, channel, mergeSchema="false").writer(struct(ID, CITY), False)

    assert columns(gateway, channel) == ["id"]


def test_columns_that_another_write_adds_meanwhile_are_kept(
    gateway: Gateway, gateway_url: str, channel: str
) -> None:
    other = [struct(ID, spark.StructField("other", spark.StringType()))]

    def after_another_write(*_: object, **__: object) -> None:
        if other:
            source(gateway_url, channel).writer(other.pop(), False)

    with at_call(Control, "update", after_another_write):
        source(gateway_url, channel).writer(struct(ID, CITY), False)

    assert columns(gateway, channel)[-1] == "id, other, city"
