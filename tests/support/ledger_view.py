"""Visible records of channels, read without a `ChannelReader`, and copies between channels."""

from dataclasses import dataclass
from typing import Any

from sluiceway import Channel, ChannelReader, ChannelWriter, Gateway
from sluiceway.api.ledger import Committed, LedgerCalls
from sluiceway.codecs.decoder import decoder_for
from sluiceway.schema import Schema
from topics import messages_of


@dataclass(frozen=True)
class LedgerView:
    """The visible records of channels: Kafka's messages at the offsets in runs."""

    calls: LedgerCalls

    def committed(self, channel: Channel) -> Committed:
        return self.calls.all_committed(channel.name, uid=channel.uid, starts={})

    def records(self, channel: Channel) -> list[dict[str, Any]]:
        """Return the visible records, by partition and offset."""
        runs = self.committed(channel).runs
        connection = channel.connection("read")
        values = [
            message.value()
            for message in messages_of(connection)
            if any(
                first <= message.offset() < end for first, end in runs.get(message.partition(), ())
            )
        ]
        if not values:
            return []
        schema = Schema.parse(connection.schema_definition)
        decoded = decoder_for(connection, target=schema, refresh=None).decode(values)
        assert not decoded.corrupt
        return [row for batch in decoded.batches for row in batch.to_pylist()]

    def ids(self, channel: Channel) -> list[int]:
        """Return the ids of the visible records, in order."""
        return sorted(record["id"] for record in self.records(channel))

    def messages(self, channel: Channel) -> int:
        """Return the number of messages in Kafka, visible or not."""
        return len(messages_of(channel.connection("read")))

    def kinds(self, channel: Channel) -> list[str]:
        """Return how batches ended, oldest first."""
        return [event.kind for event in reversed(channel.commits().events)]

    def open_keys(self, channel: Channel) -> list[str]:
        """Return the keys of open batches."""
        return [batch.key for batch in channel.commits().open]


def copy(gateway: Gateway, reader: ChannelReader, writer: ChannelWriter, count: int) -> int:
    """Copy some records in a transaction, and return how many."""
    with gateway.transaction(reader, writer):
        records = reader.read(count, timeout=None)
        writer.write(records)
    return len(records)
