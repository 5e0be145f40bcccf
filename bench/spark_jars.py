"""The jars of Spark's Kafka connector and Avro functions, which pyspark does not contain."""

from pathlib import Path

from sluiceway_gateway.dev.embedded.jars import JarSet, Module, fetch_jars, read_sums

_SUMS = Path(__file__).with_name("spark-connector.sha256")
_SPARK, _KAFKA, _COMMONS = "org.apache.spark", "org.apache.kafka", "org.apache.commons"
_VERSIONS = (
    (_SPARK, "spark-sql-kafka-0-10_2.13", "4.1.1"),
    (_SPARK, "spark-avro_2.13", "4.1.1"),
    (_SPARK, "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    (_KAFKA, "kafka-clients", "4.3.1"),
    (_COMMONS, "commons-pool2", "2.12.0"),
)


def connector_jars() -> list[Path]:
    """Return the jars, downloaded and verified by their pinned sums. Raises JarsUnavailable."""
    jars = JarSet(
        title="Spark's Kafka connector",
        name="spark-connector-4.1.1",
        modules=tuple(
            Module(organisation=organisation, name=name, version=version, transitive=False)
            for organisation, name, version in _VERSIONS
        ),
        sums=read_sums(_SUMS.read_text()),
    )
    return sorted(fetch_jars(jars).glob("*.jar"))
