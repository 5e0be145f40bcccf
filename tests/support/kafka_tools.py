"""Kafka's own `kafka-consumer-groups`, run as its shell script runs it."""

import subprocess

from sluiceway_gateway.embedded.jars import JarSet, Module, fetch_jars, find_java, kafka_jars

_VERSION = "4.3.1"
_JARS = JarSet(
    title=f"Kafka's tools {_VERSION}",
    name=f"kafka-tools-{_VERSION}",
    # What it needs besides is there with the broker.
    modules=(
        Module(
            organisation="org.apache.kafka",
            name="kafka-tools",
            version=_VERSION,
            transitive=False,
        ),
    ),
    sums={
        f"kafka-tools-{_VERSION}.jar": (
            "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c"
        )
    },
)


def described(bootstrap_servers: str, group: str) -> list[dict[str, str]]:
    """Return the table that `--describe --group` prints, a dict a row."""
    classpath = f"{fetch_jars(_JARS)}/*:{fetch_jars(kafka_jars())}/*"
    done = subprocess.run(
        [
            *(str(find_java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath),
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            *("--bootstrap-server", bootstrap_servers, "--describe", "--group", group),
        ],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    heads, *rows = [
        line.split()
        for line in done.stdout.splitlines()
        if line and "no active members" not in line
    ]
    return [dict(zip(heads, row, strict=True)) for row in rows]
