"""The decoder of a channel's messages, made of what a Connection says."""

from collections.abc import Callable, Collection, Mapping

from sluiceway.codecs import Decoder, decoder
from sluiceway.protocol import Connection
from sluiceway.schema import Schema

__all__ = ["decoder_for"]


def decoder_for(
    connection: Connection,
    *,
    target: Schema | None = None,
    refresh: Callable[[], Connection] | None = None,
) -> Decoder:
    """Make the decoder of the channel's messages, whatever schema of its own they have.

    It gives records of `target`, by default of the schema that the connection says this job uses.
    `refresh` asks the gateway for the connection as it is now, when a message has a schema that
    `connection` does not know yet. Raises InvalidSchema, UnsupportedType.
    """

    def learn(_: Collection[int]) -> Mapping[int, Schema]:
        return {} if refresh is None else _schemas(refresh())

    if target is None:
        target = Schema.parse(connection.schema_definition)
    return decoder(connection.format, target, _schemas(connection), learn=learn)


def _schemas(connection: Connection) -> dict[int, Schema]:
    return {kept.id: Schema.parse(kept.definition) for kept in connection.schemas}
