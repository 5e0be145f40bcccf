import pytest
from spark_tasks import SCHEMA, all_ids, fill


def attempt(label, act):
    try:
        print(label, "=>", act())
    except Exception as e:
        t = [l for l in str(e).splitlines() if l.strip() and not l.startswith(("  File", "    ", "\tat", "JVM"))]
        print(label, "ERR", type(e).__name__, " / ".join(t)[:300])


def test_with_options(spark, gateway, name, tmp_path):
    c = gateway.channel(name, SCHEMA)
    fill(c, range(5))
    t = name.replace("-", "_")
    spark.sql(f"CREATE TABLE {t} USING channel OPTIONS (path '{name}')")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW vx USING channel OPTIONS (path '{name}')")
    ids = lambda q: sorted(r.id for r in spark.sql(q).collect())
    w = """WITH (startingOffsets '{"0": 3}')"""
    e = """WITH (endingOffsets '{"0": 2}')"""
    attempt("table with", lambda: ids(f"SELECT * FROM {t} {w}"))
    attempt("union w, plain", lambda: ids(f"SELECT * FROM {t} {w} UNION ALL SELECT * FROM {t}"))
    attempt("union plain, w", lambda: ids(f"SELECT * FROM {t} UNION ALL SELECT * FROM {t} {w}"))
    attempt("union w, e", lambda: ids(f"SELECT * FROM {t} {w} UNION ALL SELECT * FROM {t} {e}"))
    attempt("join", lambda: ids(f"SELECT a.id FROM {t} a JOIN (SELECT id FROM {t} {e}) b ON a.id = b.id"))
    attempt("join2", lambda: ids(f"SELECT a.id FROM (SELECT id FROM {t} {e}) a FULL JOIN {t} b ON a.id = b.id"))
    attempt("cte", lambda: ids(f"WITH q AS (SELECT * FROM {t} {e}) SELECT * FROM q UNION ALL SELECT * FROM {t}"))
    attempt("view with", lambda: ids(f"SELECT * FROM vx {w}"))
    attempt("view union", lambda: ids(f"SELECT * FROM vx UNION ALL SELECT * FROM vx"))
    attempt("read.table opt", lambda: sorted(r.id for r in spark.read.option("startingOffsets", '{"0": 3}').table(t).collect()))
    attempt("read.table opts twice", lambda: sorted(r.id for r in spark.read.option("startingOffsets", '{"0": 3}').table(t).union(spark.table(t)).collect()))
    attempt("insert with 2 sources", lambda: spark.sql(f"INSERT INTO {t} WITH (path '{name}') SELECT id + 100 id, s FROM {t} {e}") and all_ids(c))
    attempt("insert key", lambda: spark.sql(f"INSERT INTO {t} WITH (path '{name}', key 'id') VALUES (200, 'x')") and all_ids(c))
    q = lambda **o: spark.readStream.table(t).writeStream.options(**o).option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).toTable(t)
    attempt("toTable path", lambda: q(path=name).awaitTermination(100))
    attempt("after", lambda: all_ids(c))


def test_static_side(spark, gateway, name, tmp_path):
    c = gateway.channel(name, SCHEMA); d = gateway.channel(name + "d", SCHEMA)
    fill(c, range(5)); fill(d, range(5))
    static = spark.read.format("channel").load(d.name)
    seen = []
    f = spark.readStream.format("channel").load(c.name).join(static.withColumnRenamed("s", "t"), "id")
    def each(b, n):
        seen.append(sorted(r.id for r in b.collect()))
        if n == 0:
            fill(d, range(5, 8)); fill(c, range(5, 8))
    q = f.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "c")).start()
    import time
    t0 = time.monotonic()
    while len(seen) < 2 and time.monotonic() - t0 < 60:
        time.sleep(0.2)
    q.stop()
    print("STATIC", seen)
