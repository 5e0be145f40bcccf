"""Decoding a channel's messages by what a Connection says, and refusing those that cannot be."""

from collections.abc import Callable, Collection, Mapping

from confluent_kafka import Message

from sluiceway.codecs import Corrupt, Decoder, decoder
from sluiceway.errors import CorruptMessage, SchemaMismatch
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema

__all__ = ["decoder_for", "refusal"]


def decoder_for(
    connection: Connection,
    *,
    target: Schema | None = None,
    refresh: Callable[[], Connection] | None = None,
) -> Decoder:
    """Make the decoder of the channel's messages, whatever schema of its own they have.

    It gives records of `target`, by default of the schema that the connection says this job uses.
    `refresh` gives the connection as it is now, when a message has a schema that `connection` does
    not know yet; what it raises, decoding raises. Without it nobody can tell a newer schema of the
    channel from a stranger's, so no such message is skippable. Raises InvalidSchema,
    UnsupportedType.
    """

    def learn(_: Collection[int]) -> Mapping[int, Schema]:
        return {} if refresh is None else _schemas(refresh())

    if target is None:
        target = Schema.parse(connection.schema_definition)
    asked = None if refresh is None else learn
    return decoder(connection.format, target, _schemas(connection), learn=asked)


def refusal(channel: str, message: Message, corrupt: Corrupt) -> CorruptMessage | SchemaMismatch:
    """Return what to raise for a message that gave no records."""
    partition, offset = message.partition(), message.offset()
    if corrupt.skippable:
        return CorruptMessage(
            channel=channel, partition=partition, offset=offset, reason=corrupt.reason
        )
    error = SchemaMismatch(
        f"channel {channel!r}, partition {partition}, offset {offset}: {corrupt.reason}. It "
        "may well be a record of the channel, so it is never skipped: read on from there with a "
        "schema that can, as the channel's newest may, or begin behind it"
    )
    # What is never skipped is refused for its schema's sake, before its record was looked at.
    error.tells_no_values = True
    return error


def _schemas(connection: Connection) -> dict[int, Schema]:
    return {kept.id: Schema.parse(kept.definition) for kept in connection.schemas}
