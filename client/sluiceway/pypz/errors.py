"""Errors of pypz's kinds with Sluiceway's messages."""

from importlib import import_module
from typing import Any

from sluiceway.errors import InvalidRecord, InvalidSchema, OptionError, SluicewayError

__all__ = [
    "InvalidRecordValue",
    "MissingLocation",
    "NoRecordList",
    "OperatorFailed",
    "SchemaParseException",
]


def _installed(name: str, *modules: str) -> type[Exception]:
    """Return the class from the first of these modules that has it, or else Exception."""
    for module in modules:
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return Exception


class MissingLocation(OptionError, AttributeError):
    """The gateway's address is missing."""

    code = "missing_location"


# avro defines it in avro.schema up to 1.10, which pypz asks for, and in avro.errors from 1.11 on.
_AvroError: Any = _installed("SchemaParseException", "avro.schema", "avro.errors")


class SchemaParseException(InvalidSchema, _AvroError):  # type: ignore[misc]
    """A port's schema is missing or invalid; also avro's exception, if avro is installed."""


class InvalidRecordValue(InvalidRecord, ValueError):
    """A record does not match the port's schema; nothing of the list was sent."""


class NoRecordList(OptionError, TypeError):
    """The argument is not a list of records."""

    code = "no_record_list"


class OperatorFailed(SluicewayError):
    """The cause of an endpoint whose port has sent the status Error; it is never raised."""

    code = "operator_failed"
    message_is_public = True
