"""Round trips of every type of Spark, with nulls and extremes, through a real broker."""

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sluiceway import Gateway


def logical(type_: str, name: str, **more: object) -> dict[str, object]:
    return {"type": type_, "logicalType": name, **more}


FIRST = datetime(1, 1, 1)  # noqa: DTZ001
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001
MOST = Decimal("9" * 28 + "." + "9" * 10)
UUIDS = {"type": "array", "items": "u"}
# A type, and its least, greatest and empty values.
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "truth": ("boolean", [False, True]),
    "i32": ("int", [-(2**31), 2**31 - 1, 0]),
    "i64": ("long", [-(2**63), 2**63 - 1, 0]),
    "f32": ("float", [-3.4028234663852886e38, 1.401298464324817e-45, float("inf")]),
    "f64": ("double", [-1.7976931348623157e308, 5e-324, float("-inf")]),
    "text": ("string", ["", "Zürich ✈ \U0010ffff\x00", "x" * 1000]),
    "raw": ("bytes", [b"", b"\x00\xff\xfe", bytes(range(256))]),
    "day": (logical("int", "date"), [date.min, date.max, date(1970, 1, 1)]),
    "ms_of_day": (logical("int", "time-millis"), [time.min, time(23, 59, 59, 999_000)]),
    "us_of_day": (logical("long", "time-micros"), [time.min, time.max]),
    "ms": (
        logical("long", "timestamp-millis"),
        [FIRST.replace(tzinfo=UTC), LAST.replace(tzinfo=UTC, microsecond=999_000)],
    ),
    "us": (
        logical("long", "timestamp-micros"),
        [FIRST.replace(tzinfo=UTC), LAST.replace(tzinfo=UTC)],
    ),
    "local_ms": (
        logical("long", "local-timestamp-millis"),
        [FIRST, LAST.replace(microsecond=999_000)],
    ),
    "local_us": (logical("long", "local-timestamp-micros"), [FIRST, LAST]),
    "money": (
        logical("bytes", "decimal", precision=38, scale=10),
        [MOST.copy_negate(), MOST, Decimal("0E-10")],
    ),
    "small": (
        {"type": "fixed", "name": "s", "size": 3} | logical("fixed", "decimal", precision=5),
        [Decimal(-99999), Decimal(99999), Decimal(0)],
    ),
    "id": (logical("string", "uuid"), [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)]),
    "id16": (
        {"type": "fixed", "name": "u", "size": 16} | logical("fixed", "uuid"),
        [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)],
    ),
    "hash": ({"type": "fixed", "name": "h", "size": 20}, [bytes(20), b"\xff" * 20]),
    "odd": ({"type": "fixed", "name": "o", "size": 3}, [bytes(3), b"\xff" * 3]),
    "colour": ({"type": "enum", "name": "c", "symbols": ["RED", "GREEN"]}, ["RED", "GREEN"]),
    "list": (
        {"type": "array", "items": ["null", logical("bytes", "decimal", precision=4, scale=2)]},
        [[], [None], [Decimal("-99.99"), None, Decimal("0.00")]],
    ),
    "lists": (
        {"type": "array", "items": {"type": "array", "items": ["o", "null"]}},
        [[], [[]], [[None, b"abc"], [], [b"\x00\x00\x00"]]],
    ),
    "table": (
        {"type": "map", "values": [logical("int", "time-millis"), "null"]},
        [{}, {"": None}, {"a": time(1), "b": None}],
    ),
    "deep": (
        {
            "type": "record",
            "name": "d",
            "fields": [
                {"name": "colours", "type": {"type": "array", "items": "c"}},
                {"name": "by_name", "type": {"type": "map", "values": UUIDS}},
                {"name": "leaf", "type": ["null", "s"]},
            ],
        },
        [
            {"colours": [], "by_name": {}, "leaf": None},
            {
                "colours": ["GREEN", "RED"],
                "by_name": {"none": [], "some": [uuid.UUID(int=7)]},
                "leaf": Decimal(-1),
            },
        ],
    ),
}  # fmt: skip


def again(type_: Any) -> Any:
    """Return the name of a type that is already defined, or the type."""
    return type_["name"] if isinstance(type_, dict) and "name" in type_ else type_


NOT_IN_PROTOBUF = {"local_ms", "local_us", "list", "lists", "table", "deep"}
PROTOBUF_TYPES: dict[str, tuple[Any, list[Any]]] = {
    **{name: type_ for name, type_ in TYPES.items() if name not in NOT_IN_PROTOBUF},
    "deep": (
        {
            "type": "record",
            "name": "d",
            "fields": [
                {"name": "colours", "type": {"type": "array", "items": "c"}},
                {"name": "by_name", "type": {"type": "map", "values": "s"}},
                {"name": "leaf", "type": ["null", "u"]},
            ],
        },
        [
            {"colours": [], "by_name": {}, "leaf": None},
            {
                "colours": ["GREEN", "RED"],
                "by_name": {"": Decimal(0), "some": Decimal(-1)},
                "leaf": uuid.UUID(int=7),
            },
        ],
    ),
}


def schema_of(types: dict[str, tuple[Any, list[Any]]]) -> dict[str, Any]:
    nullable = (
        {"name": name, "type": ["null", type_] if number % 2 else [type_, "null"]}
        for number, (name, (type_, _)) in enumerate(types.items())
    )
    # The same types as non-nullable columns.
    required = (
        {"name": f"every_{name}", "type": again(type_)} for name, (type_, _) in types.items()
    )
    fields = [{"name": "row", "type": "int"}, *nullable, *required]
    return {"type": "record", "name": "Everything", "fields": fields}


def records(types: dict[str, tuple[Any, list[Any]]]) -> list[dict[str, Any]]:
    """Return extremes, a row of nulls, and each column as the only null and as the only value."""
    names = list(types)

    def record(number: int, absent: set[str]) -> dict[str, Any]:
        values = {name: samples[number % len(samples)] for name, (_, samples) in types.items()}
        return (
            {"row": number}
            | {name: None if name in absent else value for name, value in values.items()}
            | {f"every_{name}": value for name, value in values.items()}
        )

    absences = [set(), set(), set(), set(names)]
    absences += [{name} for name in names]
    absences += [set(names) - {name} for name in names]
    return [record(number, absent) for number, absent in enumerate(absences)]


@pytest.mark.sample
@pytest.mark.parametrize("format_", ["avro", "arrow", "json", "protobuf"])
def test_every_type_survives_a_round_trip_through_spark(
    spark: SparkSession, gateway: Gateway, name: str, format_: str
) -> None:
    types = PROTOBUF_TYPES if format_ == "protobuf" else TYPES
    written, schema = records(types), schema_of(types)
    first = gateway.channel(name, schema=schema, format=format_)
    copy = gateway.channel(f"{name}-copy", schema=schema, format=format_)
    with first.writer() as writer:
        writer.write(written)

    frame = spark.read.format("channel").load(name)
    frame.write.format("channel").mode("append").save(copy.name)

    for channel in (first, copy):
        with channel.reader(until="now") as reader:
            assert sorted(reader, key=lambda record: record["row"]) == written


@pytest.mark.long
def test_a_channel_created_from_a_dataframe_returns_its_rows(
    spark: SparkSession, name: str
) -> None:
    frame = spark.sql(
        """
        select cast('-0.5' as decimal(38, 38)) as least, cast(7 as decimal(1, 0)) as digit,
            array(cast(null as decimal(20, 2)), cast('1.25' as decimal(20, 2))) as sums,
            time'23:59:59.999999' as clock, map('a', time'00:00:00') as clocks,
            cast('ab' as varchar(4)) as text, named_struct('n', cast(null as binary)) as nothing
        """
    )
    frame.write.format("channel").mode("append").option("create", "true").save(name)

    back = spark.read.format("channel").load(name)

    assert back.dtypes == [(n, t.replace("varchar(4)", "string")) for n, t in frame.dtypes]
    assert back.collect() == frame.collect()


def test_an_unsupported_type_fails_before_the_first_row(spark: SparkSession, name: str) -> None:
    frame = spark.sql("select named_struct('gap', interval '1' day) as s")
    with pytest.raises(AnalysisException, match=r"'s\.gap' has the type interval day.*seconds"):
        frame.write.format("channel").mode("append").option("create", "true").save(name)
