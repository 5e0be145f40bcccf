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
MARKER_BYTES: Final = 96
"""Upper limit of a marker's size in a message: 56 bytes, and the header's name and lengths."""

_PERSON: Final = b"sluiceway.batch"


def provenance_batch_id(query_id: uuid.UUID, batch: int) -> bytes:
    """Return the 16-byte id of a micro-batch, which is the same on every replay."""
    hashed = hashlib.blake2b(query_id.bytes, digest_size=16, person=_PERSON)
    hashed.update(struct.pack(">q", batch))
    return hashed.digest()


class ProvenanceMarker:
    """Marks the messages of one task attempt with a new random attempt id.

    Sequence numbers count the attempt's records in each partition from 0.
    """

    def __init__(self, connection: Connection, batch_id: bytes) -> None:
        self._format = connection.format
        self._provenance = Provenance(
            topic_id=topic_id_bytes(connection.topic_id),
            batch_id=batch_id,
            attempt_id=uuid.uuid4().bytes,
            sequence=0,
        )
        self._sequences: defaultdict[int, int] = defaultdict(int)

    def mark(self, messages: Messages) -> Messages:
        """Return the messages with provenance in a header or, in `arrow`, in the envelope."""
        partitions = list(itertools.islice(messages.partitions, len(messages.values)))
        if self._format == "arrow":
            values = [
                self._with_provenance(value, partition)
                for value, partition in zip(messages.values, partitions, strict=True)
            ]
            return replace(messages, values=values, partitions=partitions)
        headers = [(HEADER, self._advance(partition, 1).pack()) for partition in partitions]
        return replace(messages, headers=headers, partitions=partitions)

    def _with_provenance(self, value: bytes | None, partition: int) -> bytes:
        value = value or b""  # Spark writes no tombstones
        envelope = Envelope.unpack(value)
        marked = replace(envelope, provenance=self._advance(partition, envelope.records))
        return b"".join((marked.pack(), memoryview(value)[envelope.size_bytes :]))

    def _advance(self, partition: int, records: int) -> Provenance:
        sequence = self._sequences[partition]
        self._sequences[partition] += records
        return replace(self._provenance, sequence=sequence)


def topic_id_bytes(topic_id: str | None) -> bytes:
    """Return the 16 bytes of Kafka's base64 topic id; zeros if unknown."""
    if topic_id is None:
        return bytes(16)
    return urlsafe_b64decode(topic_id.replace("+", "-").replace("/", "_") + "==")
