"""Column types, and the metadata of all tables."""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer, MetaData, Text, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB


class UtcTime(TypeDecorator[datetime]):
    """A moment, aware and in UTC on the way in and out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Refuse naive times; SQLite keeps the wall clock of UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Give UTC back."""
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


# Compared byte by byte in both databases, so that pages are cut at the same places.
Word = Text().with_variant(Text(collation="C"), "postgresql")
Document = JSON().with_variant(JSONB(), "postgresql")
# Without a value it is NULL, not JSON's null.
OptionalDocument = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
# SQLite counts up INTEGER primary keys only.
Serial = BigInteger().with_variant(Integer(), "sqlite")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def one_of(column: str, values: Iterable[StrEnum]) -> str:
    """Return the condition that the column holds one of these words."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"
