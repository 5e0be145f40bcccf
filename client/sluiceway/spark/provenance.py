"""Provenance markers on messages of streaming writes."""

import hashlib
import itertools
import struct
import uuid
from base64 import urlsafe_b64decode
from collections import defaultdict
from dataclasses import replace
from typing import Final

from sluiceway.codecs import Envelope, Provenance
from sluiceway.kafka.accumulator import Messages
from sluiceway.rest.models import Connection

HEADER: Final = "sluiceway.provenance"
STAMP_BYTES: Final = 96
"""No less than what a stamp adds to a message: 56 bytes, and a header's name and lengths."""

_PERSON: Final = b"sluiceway.batch"


def batch_key(query_id: uuid.UUID, batch: int) -> bytes:
    """Return the 16 bytes that stand for a micro-batch, the same on every replay of it."""
    hashed = hashlib.blake2b(query_id.bytes, digest_size=16, person=_PERSON)
    hashed.update(struct.pack(">q", batch))
    return hashed.digest()


class ProvenanceMarker:
    """Marks the messages of one attempt at one task's part of a batch.

    The attempt's id is drawn here. Sequences count the attempt's records in each partition from 0.
    """

    def __init__(self, connection: Connection, batch_id: bytes) -> None:
        self.attempt_id = uuid.uuid4().bytes
        self._format = connection.format
        self._provenance = Provenance(
            topic_id=topic_bytes(connection.topic_id),
            batch_id=batch_id,
            attempt_id=self.attempt_id,
            sequence=0,
        )
        self._written: defaultdict[int, int] = defaultdict(int)

    def mark(self, messages: Messages) -> Messages:
        """Return the messages with their provenance."""
        partitions = list(itertools.islice(messages.partitions, len(messages.values)))
        if self._format == "arrow":
            values = [
                self._enveloped(value, partition)
                for value, partition in zip(messages.values, partitions, strict=True)
            ]
            return replace(messages, values=values, partitions=partitions)
        headers = [(HEADER, self._next(partition, 1).pack()) for partition in partitions]
        return replace(messages, headers=headers, partitions=partitions)

    def _enveloped(self, value: bytes | None, partition: int) -> bytes:
        value = value or b""  # there are no tombstones among batches
        head = Envelope.unpack(value)
        marked = replace(head, provenance=self._next(partition, head.records))
        return b"".join((marked.pack(), memoryview(value)[head.size_bytes :]))

    def _next(self, partition: int, records: int) -> Provenance:
        sequence = self._written[partition]
        self._written[partition] += records
        return replace(self._provenance, sequence=sequence)


def topic_bytes(topic_id: str | None) -> bytes:
    """Return Kafka's topic id, base64 of 22 characters, as its 16 bytes; zeros where unknown."""
    if topic_id is None:
        return bytes(16)
    return urlsafe_b64decode(topic_id.replace("+", "-").replace("/", "_") + "==")
