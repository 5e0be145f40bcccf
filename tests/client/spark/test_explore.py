"""Exploration."""

import json, time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import sluiceway.spark
from ledger_view import LedgerView
from sluiceway import Gateway
from spark_tasks import SCHEMA, all_ids, fill, ids_in
from topics import Topics

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def ledger(gateway_url: str, topics: Topics) -> Iterator[LedgerView]:
    with closing(LedgerView(gateway_url, topics)) as view:
        yield view


def tables(spark, gateway, name):
    a = gateway.channel(f"{name}-a", SCHEMA)
    b = gateway.channel(f"{name}-b", SCHEMA)
    fill(b, range(3))
    ta, tb = (f"{x.name}".replace("-", "_") for x in (a, b))
    for t, c in ((ta, a), (tb, b)):
        spark.sql(f"CREATE TABLE {t} USING channel OPTIONS (path '{c.name}')")
    return a, b, ta, tb


def test_insert_select(spark, gateway, name):
    a, b, ta, tb = tables(spark, gateway, name)
    spark.sql(f"INSERT INTO {ta} SELECT * FROM {tb}")
    print("INSERT SELECT", all_ids(a), all_ids(b))
    assert all_ids(a) == [0, 1, 2]
    assert all_ids(b) == [0, 1, 2]


def test_insert_into_df(spark, gateway, name):
    a, b, ta, tb = tables(spark, gateway, name)
    spark.table(tb).write.insertInto(ta)
    print("insertInto", all_ids(a), all_ids(b))
    assert all_ids(a) == [0, 1, 2]
    assert all_ids(b) == [0, 1, 2]


def test_writeto_append(spark, gateway, name):
    a, b, ta, tb = tables(spark, gateway, name)
    spark.table(tb).writeTo(ta).append()
    print("writeTo", all_ids(a), all_ids(b))
    assert all_ids(a) == [0, 1, 2]
    assert all_ids(b) == [0, 1, 2]


def test_save_as_table_append(spark, gateway, name):
    a, b, ta, tb = tables(spark, gateway, name)
    spark.table(tb).write.format("channel").mode("append").saveAsTable(ta)
    print("saveAsTable", all_ids(a), all_ids(b))
    assert all_ids(a) == [0, 1, 2]
    assert all_ids(b) == [0, 1, 2]


def test_insert_view_from_table(spark, gateway, name):
    a, b, ta, tb = tables(spark, gateway, name)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW va USING channel OPTIONS (path '{a.name}')")
    spark.sql(f"INSERT INTO va SELECT * FROM {tb}")
    assert (all_ids(a), all_ids(b)) == ([0, 1, 2], [0, 1, 2])


def test_to_table(spark, gateway, name, tmp_path):
    a, b, ta, tb = tables(spark, gateway, name)
    q = (
        spark.readStream.table(tb)
        .writeStream.option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .toTable(ta)
    )
    q.awaitTermination(TIMEOUT_S)
    print("toTable", all_ids(a), all_ids(b))
    assert all_ids(a) == [0, 1, 2]


def test_select_other_columns_table(spark, gateway, name):
    a, b, ta, tb = tables(spark, gateway, name)
    assert [r.s for r in spark.sql(f"SELECT s FROM {tb} WHERE id = 1").collect()] == ["1"]
    x = spark.table(tb).alias("x").join(spark.table(ta).alias("y"), "id", "left")
    assert x.count() == 3
    spark.table(ta).unionByName(spark.table(tb)).write.format("channel").mode("append").save(a.name)
    assert all_ids(a) == [0, 1, 2]


@pytest.mark.parametrize("fmt", ["avro", "arrow"])
def test_metadata_ddl(spark, gateway, name, fmt):
    c = gateway.channel(name, SCHEMA, format=fmt)
    fill(c, range(3))
    r = (
        spark.read.format("channel")
        .option("includeMetadata", "true")
        .schema(
            "id long, _metadata struct<partition: int, offset: bigint, timestamp: timestamp, key: binary>"
        )
        .load(name)
    )
    assert sorted(x.id for x in r.collect()) == [0, 1, 2]
    assert r.where("_metadata.partition = 0").count() == 3


@pytest.mark.parametrize("fmt", ["avro", "arrow"])
def test_schema_through_json_nullable(spark, gateway, name, fmt, tmp_path):
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("s", pa.string()),
            pa.field(
                "l",
                pa.list_(
                    pa.field(
                        "item",
                        pa.struct([pa.field("x", pa.int32(), nullable=False)]),
                        nullable=False,
                    )
                ),
                nullable=False,
            ),
        ]
    )
    c = gateway.channel(name, schema, format=fmt)
    with c.writer() as w:
        w.write([{"id": 1, "s": "a", "l": [{"x": 1}]}])
    frame = (
        spark.read.format("channel")
        .option("includeMetadata", "true")
        .option("includeHeaders", "true")
        .load(name)
    )
    nullable = spark.createDataFrame([], frame.schema)
    nullable.write.parquet(str(tmp_path / "p"))
    struct = spark.read.parquet(str(tmp_path / "p")).schema
    again = (
        spark.read.format("channel")
        .option("includeMetadata", "true")
        .option("includeHeaders", "true")
        .schema(struct)
        .load(name)
    )
    assert again.count() == 1
    assert again.collect()[0].l[0].x == 1


@pytest.mark.parametrize("fmt", ["avro", "arrow"])
def test_large_var_types(spark, gateway, name, fmt):
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        df = spark.createDataFrame(
            [(1, "a", [b"x"], {"k": "v"})],
            "id long, s string, b array<binary>, m map<string,string>",
        )
        df.write.format("channel").option("create", "true").option("format", fmt).mode(
            "append"
        ).save(name)
        out = spark.read.format("channel").load(name).collect()
        assert out[0].s == "a" and out[0].m == {"k": "v"} and bytes(out[0].b[0]) == b"x"
        assert spark.read.format("channel").load(name).where("s = 'a'").count() == 1
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_self_join_and_cache(spark, gateway, name):
    c = gateway.channel(name, SCHEMA, partitions=2)
    fill(c, range(10))
    fill(c, range(10, 20), partition=1)

    def load(**o):
        return spark.read.format("channel").options(**o).load(name)

    whole = load()
    half = load(startingOffsets='{"0": 5, "1": 5}')
    assert whole.join(half, "id").count() == 10
    assert whole.groupBy("s").count().join(half.groupBy("s").count(), "s").count() == 10
    assert whole.union(half).count() == 30
    whole.cache()
    assert whole.count() == 20
    assert half.count() == 10
    fill(c, range(20, 25))
    assert load().count() == 25
    assert whole.count() == 20
    whole.unpersist()
    assert whole.select("id").count() == 25
    v = load()
    v.createOrReplaceTempView("vv")
    spark.sql("cache table vv")
    assert load(startingOffsets='{"0": 5, "1": 5}').count() == 15
    spark.sql("uncache table vv")
    x = load()
    assert x.alias("a").join(x.alias("b"), "id").count() == 25


def test_limits(spark, gateway, name):
    c = gateway.channel(name, SCHEMA, partitions=3)
    for p in range(3):
        fill(c, range(p * 1000, p * 1000 + 1000), partition=p)
    f = spark.read.format("channel").option("minPartitions", 9).load(name)
    assert f.limit(5).count() == 5
    assert len(f.take(7)) == 7
    assert len(f.tail(7)) == 7
    assert f.limit(5).union(f.limit(6)).count() == 11
    assert f.orderBy("id").limit(3).collect()[2].id == 2
    assert f.count() == 3000
    assert sorted(r.id for r in f.toLocalIterator()) == [*range(3000)]
    assert f.first().id is not None
    assert f.isEmpty() is False
    assert len(f.sample(1.0).collect()) == 3000


def test_ends(spark, gateway, name):
    for fmt in ("avro", "arrow"):
        df = spark.sql("""
          SELECT * FROM VALUES
          (1L, timestamp'0001-01-01 00:00:00', timestamp_ntz'0001-01-01 00:00:00', date'0001-01-01', cast('99999999999999999999999999999999999999' as decimal(38,0)), cast('0.12345678901234567890123456789012345678' as decimal(38,38)), double('NaN'), float('-Infinity'), cast(-128 as tinyint), cast(-32768 as smallint)),
          (2L, timestamp'9999-12-31 23:59:59.999999', timestamp_ntz'9999-12-31 23:59:59.999999', date'9999-12-31', cast('-99999999999999999999999999999999999999' as decimal(38,0)), cast('-0.12345678901234567890123456789012345678' as decimal(38,38)), double('-0.0'), float('1e-45'), cast(127 as tinyint), cast(32767 as smallint)),
          (3L, timestamp_micros(9223372036854775807), timestamp_ntz'+290000-01-01 00:00:00', date'+290000-01-01', cast(0 as decimal(38,0)), cast(0 as decimal(38,38)), null, null, null, null),
          (4L, timestamp_micros(-9223372036854775807), timestamp_ntz'-200000-01-01 00:00:00', date'-5000-01-01', null, null, null, null, null, null),
          (5L, timestamp'2026-03-08 02:30:00', timestamp_ntz'2026-03-08 02:30:00', date'2026-03-08', null, null, null, null, null, null),
          (6L, timestamp'1969-12-31 23:59:59.999999', timestamp_ntz'1969-12-31 23:59:59.999999', date'1969-12-31', null, null, null, null, null, null)
          AS t(id, ts, ntz, d, d1, d2, dbl, f, b, sm)""")
        n = f"{name}-{fmt}"
        df.write.format("channel").option("create", "true").option("format", fmt).mode(
            "append"
        ).save(n)
        out = spark.read.format("channel").load(n)
        cast = "id, cast(ts as string) ts, unix_micros(ts) us, cast(ntz as string) ntz, cast(d as string) d, unix_date(d) ud, cast(d1 as string) d1, cast(d2 as string) d2, cast(dbl as string) dbl, cast(f as string) f, cast(b as int) b, cast(sm as int) sm"
        a = [tuple(r) for r in df.selectExpr(*cast.split(", ")).orderBy("id").collect()]
        b = [tuple(r) for r in out.selectExpr(*cast.split(", ")).orderBy("id").collect()]
        for x, y in zip(a, b):
            print(x)
            print(y)
        assert a == b


def test_pushdown_equals(spark_session, gateway_url, gateway, name):
    c = gateway.channel(name, SCHEMA, partitions=3)
    for p in range(3):
        fill(c, range(p * 10, p * 10 + 10), partition=p)
    conds = [
        "_metadata.partition = 1 or id = 3",
        "not (_metadata.partition = 1)",
        "_metadata.partition <> 1",
        "_metadata.offset < 0",
        "_metadata.offset > -5",
        "_metadata.offset <= -1",
        "_metadata.offset = -1",
        "_metadata.offset <=> 3",
        "_metadata.offset <=> null",
        "_metadata.offset in (1, null)",
        "_metadata.offset not in (1, 2)",
        "_metadata.offset not in (1, null)",
        "_metadata.partition in (0, 1) and _metadata.partition in (1, 2)",
        "_metadata.partition in (0, 1) and not(_metadata.partition in (1, 2))",
        "_metadata.offset >= 3.5",
        "_metadata.offset = '4'",
        "_metadata.offset > 4.0",
        "_metadata.partition = 4294967297",
        "_metadata.offset between 3 and 5",
        "_metadata.timestamp >= timestamp'2020-01-01 00:00:00 America/Lima'",
        "_metadata.timestamp >= '2020-01-01'",
        "_metadata.timestamp > timestamp_ntz'2020-01-01 00:00:00'",
        "_metadata.timestamp < '2020-01-01'",
        "_metadata.timestamp > '1960-01-01'",
        "_metadata.timestamp > '9999-01-01'",
        "_metadata.timestamp is null",
        "_metadata.timestamp is not null",
        "_metadata.timestamp in (timestamp'2020-01-01', timestamp'2999-01-01')",
        "_metadata.timestamp >= timestamp'+200000-01-01 00:00:00'",
        "_metadata.timestamp >= timestamp'-200000-01-01 00:00:00'",
        "_metadata.offset = 9223372036854775807",
        "_metadata.offset > 9223372036854775807",
        "_metadata.offset >= -9223372036854775808",
        "_metadata.offset < -9223372036854775807",
        "_metadata.key is null",
        "_metadata.key = X'00'",
        "coalesce(_metadata.offset, 0) = 3",
        "_metadata.offset = id",
        "_metadata.offset % 2 = 0",
        "_metadata.partition = 1 and s > '12'",
        "s like '1%' and _metadata.offset > 2",
        "id in (1,2,3)",
        "s in ('1', null)",
        "s <=> null",
        "s is null or _metadata.offset > 4",
        "_metadata.partition = true",
        "_metadata.partition < 1 and false",
        "_metadata.partition in (0) or _metadata.partition in (2)",
        "_metadata.partition = 0 and _metadata.timestamp >= current_timestamp() - interval 1 hour",
        "_metadata.timestamp >= current_timestamp() - interval 1 hour",
        "_metadata.timestamp >= current_date()",
        "_metadata.timestamp <= current_timestamp()",
        "_metadata.offset = cast(3 as tinyint)",
        "_metadata.partition = cast(1 as decimal(10,0))",
        "_metadata.offset < 3e0",
        "_metadata.offset <= double('NaN')",
        "struct(_metadata.partition, _metadata.offset) = struct(1, 3L)",
        "_metadata.offset = (select 3)",
    ]
    results = {}
    for push in ("false", "true"):
        spark_session.conf.set("spark.sql.python.filterPushdown.enabled", push)
        sluiceway.spark.register(spark_session, gateway=gateway_url)
        f = spark_session.read.format("channel").option("includeMetadata", "true").load(name)
        for cnd in conds:
            try:
                results.setdefault(cnd, []).append(sorted(r.id for r in f.where(cnd).collect()))
            except Exception as e:
                results.setdefault(cnd, []).append(str(e)[:300])
    spark_session.conf.unset("spark.sql.python.filterPushdown.enabled")
    sluiceway.spark.register(spark_session, gateway=gateway_url)
    bad = {k: v for k, v in results.items() if v[0] != v[1]}
    for k, v in results.items():
        print(k, "=>", v[1] if isinstance(v[1], str) else (len(v[1]), v[1][:4]))
    assert not bad, bad


def test_empty(spark, gateway, name, ledger):
    df = spark.range(3).selectExpr("id", "cast(id as string) s")
    o = dict(create="true", delivery="exactly_once", partitions="2")

    def w(f, **x):
        f.write.format("channel").options(**o).options(**x).mode("append").save(name)

    w(df.repartition(8))
    w(df.where("id > 100").coalesce(1), batchKey="x")
    w(df.where("id > 100").repartition(4), batchKey="x")
    w(spark.createDataFrame([], df.schema), BATCHKEY="x")
    w(df.limit(0))
    w(df.where("false"))
    w(df.coalesce(1), batchkey="y")
    w(df.repartition(3), batchkey="y")
    c = gateway.channel(name)
    assert ledger.ids(c) == sorted([*range(3)] * 2)
    assert (
        spark.read.format("CHANNEL").option("STARTINGOFFSETS", " Earliest ").load(name).count() == 6
    )
    print(ledger.kinds(c))


def test_case_and_nullability(spark, gateway, name):
    df = spark.sql("select cast(1 as bigint) ID, 'a' s")
    c = gateway.channel(name, SCHEMA)
    for act in (
        lambda: df.write.format("channel").mode("append").save(name),
        lambda: spark.read.format("channel").schema("ID long").load(name).collect(),
        lambda: (
            spark.sql("select cast(1 as bigint) id, 'a' s, 'b' S")
            .write.format("channel")
            .mode("append")
            .save(name)
        ),
        lambda: (
            spark.sql("select cast(null as bigint) id, 'a' s")
            .write.format("channel")
            .mode("append")
            .save(name)
        ),
        lambda: (
            spark.sql("select null id, 'a' s").write.format("channel").mode("append").save(name)
        ),
        lambda: spark.sql("select 1L id, 'a' s").write.format("channel").save(name),
        lambda: spark.sql("select 1L id, 'a' s").write.format("channel").mode("ignore").save(name),
        lambda: spark.sql("select 1L id, 'a' s").write.format("channel").mode("append").save(),
        lambda: (
            spark.sql("select 1L id, 'a' s")
            .write.format("channel")
            .mode("append")
            .partitionBy("id")
            .save(name)
        ),
        lambda: (
            spark.sql("select 1L id, 'a' s")
            .write.format("channel")
            .mode("append")
            .bucketBy(2, "id")
            .save(name)
        ),
        lambda: (
            spark.sql("select 1L id, 'a' s")
            .write.format("channel")
            .mode("append")
            .option("key", "S")
            .save(name)
        ),
        lambda: spark.read.format("channel").load(),
        lambda: spark.read.format("channel").load([name, name]),
        lambda: spark.read.format("channel").option("startingOffset", "x").load(name),
        lambda: (
            spark.read.format("channel")
            .option("startingTimestamp", "2000")
            .option("endingTimestamp", "1000")
            .load(name)
            .count()
        ),
        lambda: spark.sql(f"select * from channel.`{name}`").count(),
        lambda: (
            spark.sql("select cast(X'ff' as string) s, 1L id")
            .write.format("channel")
            .mode("append")
            .save(name)
        ),
        lambda: (
            spark.sql("select interval 1 day s, 1L id")
            .write.format("channel")
            .mode("append")
            .save(name)
        ),
        lambda: (
            spark.sql("select parse_json('1') s, 1L id")
            .write.format("channel")
            .option("create", "true")
            .mode("append")
            .save(name + "x")
        ),
        lambda: (
            spark.sql("select null s, 1L id")
            .write.format("channel")
            .option("create", "true")
            .mode("append")
            .save(name + "y")
        ),
        lambda: (
            spark.sql("select 1 `a b`")
            .write.format("channel")
            .option("create", "true")
            .mode("append")
            .save(name + "z")
        ),
        lambda: (
            spark.sql("select 1 a")
            .write.format("channel")
            .option("create", "true")
            .mode("append")
            .save("_bad name/")
        ),
    ):
        try:
            print("OK", act())
        except Exception as e:
            t = str(e)
            lines = [
                l
                for l in t.splitlines()
                if l.strip() and not l.startswith(("  File", "    ", "\tat", "JVM"))
            ]
            print("ERR", type(e).__name__, "|", " / ".join(lines)[:700])
    assert all_ids(c) == []


def test_char_nested_order(spark, gateway, name):
    df = spark.sql(
        "select named_struct('b', 1, 'a', 'x') st, cast('ab' as char(5)) c, cast('v' as varchar(3)) v, map('k', null) m, array(1, null) l, 1L id"
    )
    df.write.format("channel").option("create", "true").mode("append").save(name)
    df2 = spark.sql(
        "select 2L id, array(2, null) l, map('k', 'z') m, cast('v' as varchar(3)) v, 'ab' c, named_struct('a', 'y', 'b', 2) st"
    )
    df2.selectExpr("id", "l", "cast(m as map<string,string>) m", "v", "c", "st")
    try:
        df2.write.format("channel").mode("append").save(name)
    except Exception as e:
        print(str(e)[:600])
    for r in spark.read.format("channel").load(name).collect():
        print(r)
    for r in (
        spark.read.format("channel").schema("st struct<a:string,b:int>").load(name).collect()
        if 0
        else []
    ):
        print(r)


def test_new_checkpoint_loses(spark, gateway, name, ledger, tmp_path):
    src = gateway.channel(f"{name}-in", SCHEMA)
    sink = gateway.channel(f"{name}-out", SCHEMA, delivery="exactly_once")

    def write(batch, number):
        batch.write.format("channel").mode("append").option("batchKey", f"c-{number}").save(
            sink.name
        )

    def run(cp, **o):
        f = spark.readStream.format("channel").options(**o).load(src.name)
        q = (
            f.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / cp))
            .trigger(availableNow=True)
            .start()
        )
        q.awaitTermination(TIMEOUT_S)

    fill(src, range(10))
    run("a")
    fill(src, range(10, 20))
    run("b", startingOffsets='{"0": 10}')
    print("NEWCP", ledger.ids(sink))


def test_available_now_growth(spark, gateway, name, tmp_path):
    src = gateway.channel(f"{name}-in", SCHEMA, partitions=2)
    fill(src, range(10))
    seen = []

    def write(batch, number):
        seen.append((number, sorted(r.id for r in batch.collect())))
        fill(src, range(100 * (number + 1), 100 * (number + 1) + 3), partition=1)

    for _ in range(3):
        f = spark.readStream.format("channel").load(src.name)
        q = (
            f.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        q.awaitTermination(TIMEOUT_S)
    print(seen)
    assert seen[0][1] == [*range(10)]


def test_max_records_per_batch(spark, gateway, name):
    for n in ("0", "-1", "1"):
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", n)
        try:
            spark.range(5).selectExpr("id", "cast(id as string) s").write.format("channel").option(
                "create", "true"
            ).mode("append").save(name)
            print(n, "wrote")
            print(n, spark.read.format("channel").load(name).count())
        except Exception as e:
            print(n, "ERR", str(e)[:500])
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_ansi_off(spark, gateway, name):
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        c = gateway.channel(name, SCHEMA)
        fill(c, range(3))
        f = spark.read.format("channel").option("includeMetadata", "true").load(name)
        assert f.where("_metadata.offset >= '1'").count() == 2
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v9 USING channel OPTIONS (path '{name}')")
        for q in (
            "INSERT INTO v9 VALUES ('x', 'b')",
            "INSERT INTO v9 VALUES (3000000000000000000000, 'b')",
            "INSERT INTO v9 (id) VALUES (7)",
            "INSERT INTO v9 (s) VALUES ('7')",
            "INSERT INTO v9 VALUES (null, 'b')",
        ):
            try:
                spark.sql(q)
                print("OK", q)
            except Exception as e:
                print("ERR", q, str(e)[:300].replace("\n", " "))
        print(all_ids(c))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def test_stale_frames(spark, gateway, name):
    c = gateway.channel(name, SCHEMA)
    fill(c, range(3))
    f = spark.read.format("channel").load(name)
    a = f.count()
    fill(c, range(3, 5))
    b = f.count()
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW vst USING channel OPTIONS (path '{name}')")
    c1 = spark.sql("select count(*) c from vst").first().c
    spark.sql("INSERT INTO vst VALUES (100, 'x')")
    c2 = spark.sql("select count(*) c from vst").first().c
    print("STALE", a, b, c1, c2)


def test_pushdown_unions(spark_session, gateway_url, gateway, name):
    c = gateway.channel(name, SCHEMA, partitions=2)
    fill(c, range(5))
    fill(c, range(10, 15), partition=1)
    spark_session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        sluiceway.spark.register(spark_session, gateway=gateway_url)
        f = spark_session.read.format("channel").option("includeMetadata", "true").load(name)
        u = f.where("_metadata.partition = 0").union(f.where("_metadata.partition = 1"))
        ids = sorted(r.id for r in u.collect())
        j = f.where("_metadata.offset >= 3").alias("a").join(f.alias("b"), "id").count()
        x = f.count()
        f.where("_metadata.partition = 0").count()
        y = f.count()
        print("UNION", ids, j, x, y)
        assert ids == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    finally:
        spark_session.conf.unset("spark.sql.python.filterPushdown.enabled")
        sluiceway.spark.register(spark_session, gateway=gateway_url)


def test_empty_schema(spark, gateway, name):
    from pyspark.sql.types import StructType

    c = gateway.channel(name, SCHEMA)
    fill(c, range(3))
    try:
        print(
            "EMPTY SCHEMA", spark.read.format("channel").schema(StructType([])).load(name).count()
        )
    except Exception as e:
        print("ERR", str(e)[:300])
