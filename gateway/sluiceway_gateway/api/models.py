"""Parts of models that features share. Pure."""

import re
from collections.abc import Callable, Hashable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sluiceway_gateway.core.names import GROUP_LENGTH, check_group

INT64_MAX = 2**63 - 1

Uid = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", examples=["0" * 32])]


class RequestModel(BaseModel):
    """Base of request models, frozen; refuses unknown fields and other types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


GroupName = Annotated[
    str, AfterValidator(check_group), Field(min_length=1, max_length=GROUP_LENGTH)
]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
Number = Annotated[int, Field(ge=1, le=INT64_MAX)]
"""Of things that are numbered from 1: instances, generations, commits."""
PartitionText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,5})$")]
Ends = Annotated[
    dict[PartitionText, Count],
    Field(max_length=100_000, description="By partition, the offset after the last record"),
]

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?(.*)")
_ZONE = re.compile(r"[Zz]|[+-][0-9]{2}:?[0-9]{2}")


def _time(value: Any) -> Any:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("not a time in ISO 8601, such as 2026-01-31T12:00:00Z")
    if not match[3]:
        raise ValueError("a time without a time zone; add one, such as Z")
    if not _ZONE.fullmatch(match[3]):
        raise ValueError("not a time zone; write Z, or an offset such as %2B01:00 for +01:00")
    return value


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def _utc(moment: datetime) -> datetime:
    """Return the time in UTC; beyond the calendar of UTC, its first or last time."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return _FIRST if moment.year == _FIRST.year else _LAST


# In bodies, strict models would only take datetime objects.
Time = Annotated[datetime, Field(strict=False), BeforeValidator(_time), AfterValidator(_utc)]
"""A parameter, or a field of a body, that is a time with its zone, in UTC."""


def each_once(key: Callable[[Any], Hashable], message: str) -> AfterValidator:
    """Return the validator of a list whose items have different keys."""

    def check(items: Sequence[Any]) -> Sequence[Any]:
        if len({key(item) for item in items}) != len(items):
            raise ValueError(message)
        return items

    return AfterValidator(check)
