"""One record as a class of each library: a flight with nested classes, an enum and a decimal."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic

__all__ = ["CLASSES", "Cabin", "PydanticFlight", "StructFlight"]


class Cabin(Enum):
    ECONOMY = "Y"
    BUSINESS = "J"


Price = Annotated[Decimal, "decimal(10, 2)"]


@dataclass
class Leg:
    origin: str
    minutes: Annotated[int, "int"]


@dataclass
class Flight:
    id: UUID
    sold: datetime
    price: Price
    cabin: Cabin
    legs: list[Leg]
    extras: dict[str, Leg] = field(default_factory=dict)
    note: str | None = None


DataclassFlight, DataclassLeg = Flight, Leg


class Leg(pydantic.BaseModel):  # type: ignore[no-redef]
    origin: str
    minutes: Annotated[int, "int"] = pydantic.Field(gt=0)


class Flight(pydantic.BaseModel):  # type: ignore[no-redef]
    model_config = pydantic.ConfigDict(strict=True)

    flight_id: UUID = pydantic.Field(alias="id")
    sold: datetime
    price: Decimal = pydantic.Field(max_digits=10, decimal_places=2, ge=0)
    cabin: Cabin
    legs: list[Leg]
    extras: dict[str, Leg] = {}
    note: str | None = None


PydanticFlight, PydanticLeg = Flight, Leg


class Leg(msgspec.Struct):  # type: ignore[no-redef]
    origin: str
    minutes: Annotated[int, "int", msgspec.Meta(gt=0)]


class Flight(msgspec.Struct, rename={"flight_id": "id"}):  # type: ignore[no-redef]
    flight_id: UUID
    sold: datetime
    price: Price
    cabin: Cabin
    legs: list[Leg]
    extras: dict[str, Leg] = {}
    note: str | None = None


StructFlight, StructLeg = Flight, Leg


@attrs.frozen
class Leg:  # type: ignore[no-redef]
    origin: str
    minutes: Annotated[int, "int"] = attrs.field(validator=attrs.validators.gt(0))


@attrs.frozen
class Flight:  # type: ignore[no-redef]
    id: UUID
    sold: datetime
    price: Price
    cabin: Cabin
    legs: list[Leg]
    extras: dict[str, Leg] = attrs.field(factory=dict)
    note: str | None = None


AttrsFlight, AttrsLeg = Flight, Leg


class Leg(NamedTuple):  # type: ignore[no-redef]
    origin: str
    minutes: Annotated[int, "int"]


class Flight(NamedTuple):  # type: ignore[no-redef]
    id: UUID
    sold: datetime
    price: Price
    cabin: Cabin
    legs: list[Leg]
    extras: dict[str, Leg] = {}  # noqa: RUF012 - its default
    note: str | None = None


TupleFlight, TupleLeg = Flight, Leg


class Leg(TypedDict):  # type: ignore[no-redef]
    origin: str
    minutes: Annotated[int, "int"]


class Flight(TypedDict):  # type: ignore[no-redef]
    id: UUID
    sold: datetime
    price: Price
    cabin: Cabin
    legs: list[Leg]
    extras: dict[str, Leg]
    note: NotRequired[str]


DictFlight, DictLeg = Flight, Leg

CLASSES: dict[str, tuple[Any, Any]] = {
    "dataclass": (DataclassFlight, DataclassLeg),
    "pydantic": (PydanticFlight, PydanticLeg),
    "msgspec": (StructFlight, StructLeg),
    "attrs": (AttrsFlight, AttrsLeg),
    "NamedTuple": (TupleFlight, TupleLeg),
    "TypedDict": (DictFlight, DictLeg),
}
