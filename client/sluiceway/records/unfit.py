"""How the parts of a write say which value of a column does not fit."""

from __future__ import annotations

from typing import Final

from sluiceway.errors import InvalidRecord
from sluiceway.schema.types import (
    Array,
    Decimal,
    Enum,
    Fixed,
    Kind,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
    Uuid,
)

_SHOWN: Final = 60
_SYMBOLS: Final = 20
_WANTED: Final = {
    Kind.BOOLEAN: "True or False",
    Kind.INT: "an integer of 32 bits",
    Kind.LONG: "an integer of 64 bits",
    Kind.FLOAT: "a number that a 32-bit float can hold",
    Kind.DOUBLE: "a number that a 64-bit float can hold",
    Kind.STRING: "a str of whole characters",
    Kind.BYTES: "bytes",
    Kind.DATE: "a datetime.date (of a datetime, take .date())",
    Kind.TIME_MILLIS: "a datetime.time without a time zone, in whole milliseconds",
    Kind.TIME: "a datetime.time without a time zone",
    Kind.TIMESTAMP_MILLIS: "a datetime.datetime with a time zone, in whole milliseconds",
    Kind.TIMESTAMP: "a datetime.datetime with a time zone, in whole microseconds",
    Kind.TIMESTAMP_NANOS: "a datetime.datetime with a time zone, of the years 1678 to 2261",
    Kind.LOCAL_TIMESTAMP_MILLIS: "a datetime.datetime without a time zone, in whole milliseconds",
    Kind.LOCAL_TIMESTAMP: "a datetime.datetime without a time zone, in whole microseconds",
    Kind.LOCAL_TIMESTAMP_NANOS: (
        "a datetime.datetime without a time zone, of the years 1678 to 2261"
    ),
}


class Unfit(Exception):
    """The value at `position` of a column does not fit: `path` names the field, `reason` says why.

    Raised with positions within the column at hand; each level above turns them into its own.
    `public_reason` holds no value (without one, the reason holds none), and `schema_path` no name
    that the schema does not have, as keys of a map are.
    """

    def __init__(
        self,
        position: int,
        path: str,
        reason: str,
        *,
        public_reason: str | None = None,
        schema_path: str | None = None,
    ) -> None:
        super().__init__(position, path, reason)
        self.position = position
        self.path = path
        self.reason = reason
        self.public_reason = reason if public_reason is None else public_reason
        self.schema_path = path if schema_path is None else schema_path

    @classmethod
    def of_value(cls, position: int, path: str, wanted: str, value: object) -> Unfit:
        """Return it for a value that is not what is wanted; its type alone is public."""
        must = f"it must be {wanted}, and is"
        public = f"{must} {type(value).__name__}"
        return cls(position, path, f"{must} {shown(value)}", public_reason=public)

    def moved(self, position: int, path: str | None = None) -> Unfit:
        """Return the same for the level above: the value's position there, and its path."""
        return Unfit(
            position,
            self.path if path is None else path,
            self.reason,
            public_reason=self.public_reason,
            schema_path=self.schema_path,
        )

    def in_write(self, start: int = 0) -> InvalidRecord:
        """Return what to raise to the user; the records of the column begin at `start`."""
        return InvalidRecord(
            index=start + self.position,
            field=self.path,
            reason=self.reason,
            schema_path=self.schema_path,
            public_reason=self.public_reason,
        )


class TooMuch(Exception):
    """So much text or so many bytes that one Arrow array cannot hold them: halve the records."""


NULL: Final = "it is null, and the schema allows no null there"


def shown(value: object) -> str:
    """Write `value` for a message: its type and the beginning of what it looks like."""
    text = repr(value)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{type(value).__name__} {text}"


def wanted(type_: Type) -> str:
    """Say what a value of `type_` must be."""
    match type_:
        case Nullable(item=item):
            return wanted(item)
        case Scalar(kind=kind):
            return _WANTED[kind]
        case Fixed(size=size):
            return f"bytes, {size} of them"
        case Decimal(precision=precision, scale=scale):
            return f"a decimal.Decimal of at most {precision} digits, {scale} behind the point"
        case Uuid():
            return "a uuid.UUID, or the text of one"
        case Enum(symbols=symbols):
            more = ", …" if len(symbols) > _SYMBOLS else ""
            return f"one of the symbols {', '.join(symbols[:_SYMBOLS])}{more}"
        case Array():
            return "a list"
        case Map():
            return "a dict with str keys"
        case Record():
            return "a dict or a dataclass"
