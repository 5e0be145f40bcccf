"""A Spark session for a job of the demo, and its progress."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

import sluiceway.spark
from sluiceway_gateway.demo.events import Events

_POLL_S = 0.1
# Most of a short job is starting Java: the full compiler and collector would cost more than
# they bring, on the few cores of a laptop.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def spark_session(name: str) -> Iterator[SparkSession]:
    """Start Spark with two executors in processes of their own, and stop it at the end."""
    java = f"-Djava.io.tmpdir={os.environ['TMPDIR']} {_SHORT_LIVED}"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .appName(name)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.executor.extraJavaOptions", java)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.files.maxPartitionBytes", "4m")
        .getOrCreate()
    )
    try:
        sluiceway.spark.register(spark)
        yield spark
    finally:
        spark.stop()


@contextmanager
def watched(spark: SparkSession, events: Events, text: str, *, tasks: int) -> Iterator[None]:
    """Report the tasks that Spark has done while the block runs; `tasks` are expected."""
    tracker = spark.sparkContext.statusTracker()
    group = f"demo: {text}"
    spark.sparkContext.setJobGroup(group, text)
    over = threading.Event()

    def report() -> None:
        while not over.wait(_POLL_S):
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            numbers = {number for job in jobs if job for number in job.stageIds}
            stages = [stage for number in numbers if (stage := tracker.getStageInfo(number))]
            # Those that never start had their output kept from before.
            begun = [stage for stage in stages if stage.numActiveTasks + stage.numCompletedTasks]
            done = sum(stage.numCompletedTasks for stage in begun)
            events.progress(done, max(tasks, sum(stage.numTasks for stage in begun)))

    events.step(text)
    events.progress(0, tasks)
    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()
    events.progress(tasks, tasks)
