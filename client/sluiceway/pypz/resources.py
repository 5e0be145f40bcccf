"""Resources of a pypz channel: the gateway and the channel."""

import json
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from sluiceway import Channel, Gateway, Heartbeat, Schema
from sluiceway.errors import (
    ChannelNotFound,
    ChannelNotReady,
    Conflict,
    InvalidSchema,
    OptionError,
    SluicewayError,
    UnsupportedType,
)
from sluiceway.pypz.config import ChannelLogger, channel_name
from sluiceway.pypz.values import ValueSchema

__all__ = ["MissingLocation", "Resources", "SchemaParseException"]


class MissingLocation(OptionError, AttributeError):
    """The gateway's address is missing."""

    code = "missing_location"


def _installed(name: str, *modules: str) -> type[Exception]:
    """Return the class from the first of these modules that has it, or else Exception."""
    for module in modules:
        try:
            attribute = getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
        if isinstance(attribute, type) and issubclass(attribute, Exception):
            return attribute
    return Exception


# avro defines it in avro.schema up to 1.10, which pypz requires, and in avro.errors from 1.11 on.
_AvroError: Any = _installed("SchemaParseException", "avro.schema", "avro.errors")


class SchemaParseException(InvalidSchema, _AvroError):  # type: ignore[misc]
    """A port's schema is missing or invalid; also avro's exception, if avro is installed."""


class Resources:
    """Opens, creates and deletes a channel at a gateway, and connects to it when needed."""

    def __init__(self, name: str, context: Any, logger: ChannelLogger, *, grace_s: float) -> None:
        self.location: str | None = None
        self.name = channel_name(name)
        self._context = context
        self._logger = logger
        self._grace_s = grace_s
        self._gateway: Gateway | None = None
        self._held = False
        self._schema: tuple[Any, Schema, ValueSchema | None] | None = None

    @property
    def gateway(self) -> Gateway:
        """The gateway. Raises MissingLocation, and OptionError for an invalid address."""
        if self._gateway is None:
            self._gateway = Gateway(self._url(), control_grace_s=self._grace_s)
        return self._gateway

    @property
    def schema(self) -> Schema:
        """The schema of the channel's records. Raises SchemaParseException, UnsupportedType."""
        return self._parsed[1]

    @property
    def values(self) -> ValueSchema | None:
        """The port's schema, if its values are carried as bytes; None if they are records."""
        return self._parsed[2]

    @property
    def _parsed(self) -> tuple[Any, Schema, ValueSchema | None]:
        definition = self._context.get_schema()
        if self._schema is None or self._schema[0] != definition:
            self._schema = (definition, *_parsed(definition))
        return self._schema

    def release(self) -> None:
        """Close the connections to the gateway."""
        self._held = False
        # First: an interrupt of its end would leave a gateway that refuses everything.
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.close()

    def attempt(self, act: Callable[[], bool], *, opening: bool = False) -> bool:
        """Return the result of `act`; log an error that may pass, and return False.

        Before `opening` has succeeded, only retriable errors may pass: a token may be wrong.
        From then on, connections to the gateway are kept until `release`.
        """
        try:
            done = act()
            self._held = self._held or (opening and done)
        except ChannelNotFound:
            return False
        except SluicewayError as error:
            if error.is_final or not (self._held or error.retriable):
                raise
            self._logger.warning(str(error))
            return False
        else:
            return done
        finally:
            if not self._held:
                self.release()

    def create(self, partitions: int, heartbeat: Heartbeat) -> bool:
        """Create the channel, or grow the existing one; its records stay."""
        schema = self.schema
        try:
            channel = self.gateway.channel(self.name)
        except (ChannelNotFound, ChannelNotReady) as error:
            present = self._listed() if isinstance(error, ChannelNotReady) else None
            if present is not None and present.status.phase != "deleting":
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
        """Delete the channel; False while it has live endpoints.

        A channel with uncommitted records is kept, which is logged: a reader may stop early
        without an error. With `unread` it is deleted anyway.
        """
        channel = self._listed()
        if channel is None:
            return True
        if any(endpoint.lives for endpoint in channel.endpoints()):
            return False
        try:
            channel.delete(force=unread)
        except Conflict as error:
            if error.code == "endpoints_live":
                return False
            if error.code != "unread_data":
                raise
            self._logger.warning(
                f"the channel {self.name!r} is kept with its records, and a later run continues at "
                f"the last commit. {error} To delete it after a run, set deleteUnread=True in "
                "channelConfig; to delete it now, run "
                f"`sluiceway channels delete --force {self.name}`"
            )
        return True

    def writable_channel(self) -> Channel:
        """Return the channel with the port's schema, registered as a version of the channel's.

        Raises ChannelNotFound until the reader has created it, and Conflict `schema_incompatible`.
        """
        schema, channel = self.schema, self.gateway.channel(self.name)
        if any(Schema.parse(version.definition) == schema for version in channel.schemas()):
            return self.gateway.channel(self.name, schema)
        channel.update(schema=schema)
        return channel

    def readable_channel(self) -> Channel:
        """Return the channel with the port's schema, which must be able to read all versions.

        Raises ChannelNotFound until the principal has created it, and SchemaMismatch.
        """
        self.channel()
        return self.gateway.channel(self.name, self.schema)

    def channel(self) -> Channel:
        """Return the channel with its own schema. Raises ChannelNotFound."""
        return self.gateway.channel(self.name)

    def _url(self) -> str | None:
        if not self.location and not os.environ.get("SLUICEWAY_URL"):
            raise MissingLocation(
                "Missing channel location parameter: set channelLocation to the gateway's address "
                "(http://host:8900), or SLUICEWAY_URL in the environment"
            )
        return self.location or None

    def _listed(self) -> Channel | None:
        """Return the channel in any phase, without waiting until it is ready; None without one."""
        return next(
            (channel for channel in self.gateway.channels() if channel.name == self.name), None
        )


def _parsed(definition: Any) -> tuple[Schema, ValueSchema | None]:
    if definition is None or definition == "":
        raise SchemaParseException(
            "the port has no schema: give it the Avro schema of its records, schema=…"
        )
    avro = _avro_json(definition)
    try:
        return Schema.of(definition), None
    except InvalidSchema as error:
        if avro is None or (isinstance(avro, Mapping) and avro.get("type") == "record"):
            raise SchemaParseException(f"the port's schema is invalid: {error}") from error
    except UnsupportedType:
        if avro is None:
            raise
    try:
        values = ValueSchema(avro)
    except UnsupportedType:
        raise
    except Exception as error:
        raise SchemaParseException(
            f"the port's schema is invalid: {type(error).__name__}: {error}"
        ) from error
    return values.schema, values


def _avro_json(definition: Any) -> Any:
    """Return Avro JSON as values; None for other sources of schemas."""
    if not isinstance(definition, str):
        return definition if isinstance(definition, Mapping | list) else None
    try:
        loaded = json.loads(definition)
    except ValueError:
        loaded = None
    # Else the name of a type, such as `string`.
    return definition if loaded is None else loaded
