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


def _theirs(module: str, name: str) -> type[Exception]:
    """Return a class that code of pypz's may catch, where it is installed; else Exception."""
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return Exception
    return found if isinstance(found, type) and issubclass(found, Exception) else Exception


class MissingLocation(OptionError, AttributeError):
    """The channel was not told where the gateway is."""

    code = "missing_location"


_AvroError: Any = _theirs("avro.errors", "SchemaParseException")


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
