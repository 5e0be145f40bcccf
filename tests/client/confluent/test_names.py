"""Every public name of confluent_kafka can be imported from sluiceway.confluent."""

import importlib
import subprocess
import sys

import confluent_kafka
import pytest

from confluent_facade import KafkaError, error_code_of
from sluiceway import confluent

OWN = {
    "confluent_kafka": {
        *("Consumer", "Producer", "DeserializingConsumer", "SerializingProducer"),
        *("ShareConsumer", "DeserializingShareConsumer", "admin", "aio"),
    },
    "confluent_kafka.admin": {"AdminClient"},
    "confluent_kafka.aio": {
        *("AIOConsumer", "AIOProducer"),
        *("AsyncDeserializingConsumer", "AsyncSerializingProducer"),
    },
}
MODULES = (
    *("confluent_kafka", "confluent_kafka.admin", "confluent_kafka.aio", "confluent_kafka.error"),
    *("confluent_kafka.serialization", "confluent_kafka.schema_registry"),
    *("confluent_kafka.schema_registry.avro", "confluent_kafka.schema_registry.error"),
    *("confluent_kafka.schema_registry.json_schema", "confluent_kafka.schema_registry.protobuf"),
)


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_that_of_confluent_kafka_or_a_client_of_channels(module: str) -> None:
    original = importlib.import_module(module)
    ours = importlib.import_module(module.replace("confluent_kafka", "sluiceway.confluent"))
    names = getattr(original, "__all__", None) or [n for n in dir(original) if n[0] != "_"]
    assert len(names) > 3
    differing = {name for name in names if getattr(ours, name) is not getattr(original, name)}
    assert differing == OWN.get(module, set())


def test_an_unknown_name_is_an_import_error() -> None:
    with pytest.raises(AttributeError, match=r"'sluiceway\.confluent' has no attribute 'Konsumer'"):
        _ = confluent.Konsumer
    assert {*confluent_kafka.__all__, "Consumer", "error"} <= {*dir(confluent)}


def test_serializers_and_asynchronous_clients_are_imported_on_first_use() -> None:
    program = """
import sys
import sluiceway.confluent
late = ("confluent_kafka.aio", "confluent_kafka.schema_registry")
print([module for module in sys.modules if module.startswith(late)])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["ShareConsumer", "DeserializingShareConsumer"])
def test_a_share_consumer_is_refused(name: str) -> None:
    client = getattr(confluent, name)
    assert error_code_of(client, {"group.id": "g"}) == KafkaError._UNSUPPORTED_FEATURE
