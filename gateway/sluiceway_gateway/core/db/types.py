"""Column types, the naming of constraints, and columns that tables share."""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB


class UtcTime(TypeDecorator[datetime]):
    """A time zone aware time, stored and returned in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Convert to UTC, which SQLite stores without a zone; raises ValueError for naive times."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Return the time in UTC."""
        if value is None:
            return None
        time: datetime = value
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


# Compared bytewise, so that pages have the same order in both databases.
Word = Text().with_variant(Text(collation="C"), "postgresql")


class EnumText(TypeDecorator[StrEnum]):
    """A member of an enum, stored as its text."""

    impl = Word
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind
        # A dict is ten times as fast as a call of the enum.
        self._members = {str(member): member for member in kind}

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Return the member's text."""
        return None if value is None else str(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> StrEnum | None:  # noqa: ARG002
        """Return the member of a text."""
        return None if value is None else self._members[value]


Document = JSON().with_variant(JSONB(), "postgresql")
# None is stored as NULL instead of JSON null.
OptionalDocument = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
# SQLite generates values only for INTEGER primary keys.
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
    """Return the CHECK that a column holds one of these values."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


def partial_index(
    name: str, *columns: str, where: str, sqlite: str | None = None, unique: bool = False
) -> Index:
    """Return an index of the rows `where`; SQLite has no boolean columns, so it may differ."""
    own, others = text(where), text(sqlite or where)
    return Index(name, *columns, unique=unique, postgresql_where=own, sqlite_where=others)


def channel_column(*, primary_key: bool = False) -> Column[str]:
    """Return the column of the channel that owns a row; the row is deleted with it."""
    return Column(
        "channel_uid",
        Word,
        ForeignKey("channels.uid", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
    )
