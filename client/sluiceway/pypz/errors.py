"""Errors that are pypz's by kind, and Sluiceway's by what they tell."""

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
    """Return the class that the first of these modules defines; Exception where none does."""
    for module in modules:
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return Exception


class MissingLocation(OptionError, AttributeError):
    """The channel was not told where the gateway is."""

    code = "missing_location"


# avro defines it in avro.schema up to 1.10, which pypz asks for, and in avro.errors from 1.11 on.
_AvroError: Any = _installed("SchemaParseException", "avro.schema", "avro.errors")


class SchemaParseException(InvalidSchema, _AvroError):  # type: ignore[misc]
    """A port's schema is missing, empty, or none; avro's exception too, where avro is installed."""


class InvalidRecordValue(InvalidRecord, ValueError):
    """A record does not fit the port's schema; nothing of the list was sent."""


class NoRecordList(OptionError, TypeError):
    """What is to be sent is no list of records."""

    code = "no_record_list"


class OperatorFailed(SluicewayError):
    """Why an endpoint ends in error when its port has told of one; nobody has to catch it."""

    code = "operator_failed"
    message_is_public = True
