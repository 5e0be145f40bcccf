"""What tests of Spark's tasks share: the schema of channels made by hand, and fixtures' types."""

from collections.abc import Callable

import pyarrow as pa

from sluiceway.protocol import Connection
from sluiceway_gateway.embedded import KafkaServer

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])

Produce = Callable[..., None]
"""Puts raw messages into a connection's topic, in the order given."""

Fragile = tuple[KafkaServer, Connection]
"""A broker that the test may stop, and how to reach a topic in it."""

Measure = Callable[..., tuple[int, int]]
"""Runs an expression over a pickled task in a process of its own: records, growth in MB."""
