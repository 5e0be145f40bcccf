"""Where a channel of pypz's lies: its gateway, and its channel there."""

import os
from collections.abc import Callable
from typing import Any

from sluiceway.channel import Channel
from sluiceway.errors import (
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    InvalidSchema,
    SluicewayError,
)
from sluiceway.gateway import Gateway
from sluiceway.pypz.config import ChannelLogger, channel_name
from sluiceway.pypz.errors import MissingLocation, SchemaParseException
from sluiceway.rest.models import Heartbeat
from sluiceway.schema import Schema

__all__ = ["Resources"]


class Resources:
    """Opens, makes and deletes a channel at a gateway, which is connected to when it is needed."""

    def __init__(self, name: str, context: Any, logger: ChannelLogger, *, grace_s: float) -> None:
        self.location: str | None = None
        self.name = channel_name(name)
        self._context = context
        self._logger = logger
        self._grace_s = grace_s
        self._gateway: Gateway | None = None
        self._held = False
        self._schema: tuple[Any, Schema] | None = None

    @property
    def gateway(self) -> Gateway:
        """The gateway. Raises MissingLocation, and OptionError for what is no address of one."""
        if self._gateway is None:
            self._gateway = Gateway(self._located(), control_grace_s=self._grace_s)
        return self._gateway

    @property
    def schema(self) -> Schema:
        """The port's schema. Raises SchemaParseException, UnsupportedType."""
        given = self._context.get_schema()
        if self._schema is None or self._schema[0] != given:
            self._schema = (given, _parsed(given))
        return self._schema[1]

    def release(self) -> None:
        """Let go of the connections to the gateway."""
        self._held = False
        if self._gateway is not None:
            self._gateway.close()
            self._gateway = None

    def attempt(self, act: Callable[[], bool], *, opening: bool = False) -> bool:
        """Return what `act` does; False where it may succeed later, which the log tells why.

        Connections to the gateway are kept once `opening` has succeeded, until `release`.
        """
        try:
            done = act()
            self._held = self._held or (opening and done)
        except ChannelNotFound:
            return False
        except SluicewayError as error:
            if not error.retriable:
                raise
            self._logger.warning(str(error))
            return False
        else:
            return done
        finally:
            if not self._held:
                self.release()

    def create(self, partitions: int, heartbeat: Heartbeat) -> bool:
        """Make the channel, or let the one that is there grow; its records stay."""
        schema = self.schema
        try:
            channel = self.gateway.channel(self.name)
        except (ChannelNotFound, ChannelNotReady) as error:
            if isinstance(error, ChannelNotReady) and not self._goes():
                raise
            channel = self.gateway.channel(
                self.name, schema, partitions=partitions, heartbeat=heartbeat
            )
        else:
            channel = self.gateway.channel(self.name, schema)
        if channel.partitions < partitions:
            channel.update(partitions=partitions)
        return True

    def delete(self, *, unread: bool) -> bool:
        """Delete the channel; False while somebody is at work at it.

        A channel with records that a group has not committed stays, and the log says so: a reader
        that has enough has not failed. With `unread` it is deleted all the same.
        """
        channel = next((each for each in self.gateway.channels() if each.name == self.name), None)
        if channel is None:
            return True
        if any(each.lives for each in channel.endpoints()):
            return False
        try:
            channel.delete(force=unread)
        except Conflict as error:
            if error.code == "endpoints_live":
                return False
            if error.code != "unread_data":
                raise
            self._logger.warning(
                f"the channel {self.name!r} is kept with its records, and a later run goes on at "
                f"the last commit. {error} To have it deleted here, set deleteUnread=True in "
                "channelConfig; to delete it now, run "
                f"`sluiceway channels delete --force {self.name}`"
            )
        return True

    def to_write(self) -> Channel:
        """Return the channel for the port's schema, which becomes a version of the channel's.

        Raises ChannelNotFound while nobody has made it, and Conflict `schema_incompatible`.
        """
        schema, channel = self.schema, self.gateway.channel(self.name)
        if any(Schema.parse(each.definition) == schema for each in channel.schemas()):
            return self.gateway.channel(self.name, schema)
        channel.update(schema=schema)
        return channel

    def to_read(self) -> Channel:
        """Return the channel for the port's schema, which has to be able to read all versions.

        Raises ChannelNotFound while nobody has made it, and SchemaMismatch.
        """
        schema = self.schema
        self.gateway.channel(self.name)
        return self.gateway.channel(self.name, schema)

    def to_watch(self) -> Channel:
        """Return the channel as it is. Raises ChannelNotFound."""
        return self.gateway.channel(self.name)

    def _located(self) -> str | None:
        if not self.location and not os.environ.get("SLUICEWAY_URL"):
            raise MissingLocation(
                "Missing channel location parameter: set channelLocation to the gateway's address "
                "(http://host:8900), or SLUICEWAY_URL in the environment"
            )
        return self.location or None

    def _goes(self) -> bool:
        """Whether the channel is being deleted, so that its name is free in a moment."""
        return any(
            each.name == self.name and each.status.phase == "deleting"
            for each in self.gateway.channels()
        )


def _parsed(given: Any) -> Schema:
    if given is None or given == "":
        raise SchemaParseException(
            "the port has no schema: give it the Avro schema of its records, schema=…"
        )
    try:
        return Schema.of(given)
    except InvalidSchema as error:
        raise SchemaParseException(f"the port's schema is none: {error}") from error
