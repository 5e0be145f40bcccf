"""Record classes of each library: as schemas, as records, and read back as instances."""

import dataclasses
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from pydantic.alias_generators import to_camel

from flight_classes import CLASSES, Cabin, PydanticFlight, StructFlight
from sluiceway.errors import InvalidSchema, OptionError, SchemaMismatch, UnsupportedType
from sluiceway.records import copies, to_batches
from sluiceway.records.instances import Instances, InvalidInstance
from sluiceway.records.row_buffer import RowBuffer
from sluiceway.schema import Schema

SCHEMA = Schema.of(CLASSES["dataclass"][0])


def flight(kind: str, note: str | None = None) -> Any:
    cls, leg = CLASSES[kind]
    return cls(
        id=UUID(int=7),
        sold=datetime(2026, 11, 30, tzinfo=UTC),
        price=Decimal("10.50"),
        cabin=Cabin.BUSINESS,
        legs=[leg(origin="JFK", minutes=90)],
        extras={"stop": leg(origin="BOS", minutes=1)},
        **({} if note is None else {"note": note}),
    )


def struct_flight(note: str | None = None) -> Any:
    """The constructor of a Struct has the attributes' names."""
    made = flight("attrs", note)
    leg = CLASSES["msgspec"][1]
    values = {name: getattr(made, name) for name in ("sold", "price", "cabin", "note")}
    legs = [leg(made_leg.origin, made_leg.minutes) for made_leg in made.legs]
    extras = {key: leg(made_leg.origin, made_leg.minutes) for key, made_leg in made.extras.items()}
    return StructFlight(flight_id=made.id, legs=legs, extras=extras, **values)


def instance(kind: str, note: str | None = None) -> Any:
    return struct_flight(note) if kind == "msgspec" else flight(kind, note)


def read_back(records: Any, cls: type, schema: Schema) -> list[Any]:
    instances = Instances(cls, schema, "flights")
    read_instances: list[Any] = []
    for batch in to_batches(records, schema):
        made, invalid = instances.of(batch)
        assert invalid is None
        read_instances += made
    return read_instances


KINDS = pytest.mark.parametrize("kind", list(CLASSES))


@KINDS
def test_a_class_of_each_library_has_the_same_schema(kind: str) -> None:
    # A TypedDict has no defaults.
    expected = [(field.name, field.type) for field in SCHEMA.record.fields]
    fields = Schema.of(CLASSES[kind][0]).record.fields
    assert [(field.name, field.type) for field in fields] == expected
    defaults = [field.default for field in fields]
    wanted = [field.default for field in SCHEMA.record.fields]
    assert defaults == (wanted if kind != "TypedDict" else [*[None] * 6, "null"])


@KINDS
@pytest.mark.parametrize("many", [list, iter, lambda records: records[0]])
def test_instances_are_written_and_read_back(kind: str, many: Callable[[Any], Any]) -> None:
    wrote = [instance(kind), instance(kind, "late")]
    read = read_back(many(wrote), CLASSES[kind][0], SCHEMA)
    assert read == wrote[: len(read)]
    assert type(read[0]) is type(wrote[0])


@KINDS
def test_a_single_instance_is_buffered_as_one_record(kind: str) -> None:
    record = dataclasses.make_dataclass("Simple", [("a", int)])(1)
    simple = {
        "dataclass": record,
        "pydantic": pydantic.create_model("Simple", a=(int, ...))(a=1),
        "msgspec": msgspec.defstruct("Simple", [("a", int)])(1),
        "attrs": attrs.make_class("Simple", ["a"])(1),
        "NamedTuple": NamedTuple("Simple", [("a", int)])(1),
        "TypedDict": {"a": 1},
    }[kind]
    buffer = RowBuffer(Schema.of(type(record)), max_row_bytes=1000)
    rows = buffer.check(simple)
    assert rows is not None
    assert rows.values == [(1,)]


@KINDS
def test_a_copy_of_an_instance_does_not_change_with_it(kind: str) -> None:
    record = instance(kind)
    (copied,) = copies(iter([record]))
    legs = record["legs"] if kind == "TypedDict" else record.legs
    legs.clear()
    assert to_batches([copied], SCHEMA) == to_batches([instance(kind)], SCHEMA)


@dataclass
class Cat:
    lives: int


class Dog(pydantic.BaseModel):
    name: str
    legs: int = pydantic.Field(le=4)


@dataclass
class Pet:
    animal: Cat | Dog | None
    tag: int | str


def test_branches_of_unions_are_instances_too() -> None:
    pets = [Pet(Cat(9), 1), Pet(Dog(name="Rex", legs=4), "a"), Pet(None, 2)]
    assert read_back(pets, Pet, Schema.of(Pet)) == pets
    plain = read_back(pets, TypedDict("Any", {"animal": Any, "tag": Any}), Schema.of(Pet))  # type: ignore[operator]
    assert plain[:2] == [
        {"animal": {"lives": 9}, "tag": 1},
        {"animal": {"name": "Rex", "legs": 4}, "tag": "a"},
    ]


def invalid(cls: type, schema: Schema, *records: dict[str, Any]) -> tuple[list[Any], Any]:
    (batch,) = to_batches(records, schema)
    return Instances(cls, schema, "flights").of(batch)


GOOD: dict[str, Any] = {
    "id": UUID(int=7),
    "sold": datetime(2026, 11, 30, tzinfo=UTC),
    "price": Decimal(1),
    "cabin": "Y",
    "legs": [{"origin": "JFK", "minutes": 90}],
}
WRONG_LEG = GOOD | {"legs": [*GOOD["legs"], {"origin": "BOS", "minutes": 0}]}


@pytest.mark.parametrize(
    ("kind", "record", "field", "reason"),
    [
        ("pydantic", GOOD | {"price": Decimal(-1)}, "price", "greater than or equal to 0"),
        ("pydantic", WRONG_LEG, "legs[].minutes", "greater than 0"),
        ("msgspec", WRONG_LEG, "legs[].minutes", "Expected `int` >= 1"),
        ("attrs", WRONG_LEG, "legs[]", "ValueError: 'minutes' must be > 0"),
    ],
)
def test_a_record_that_its_class_refuses_ends_the_instances_before_it(
    kind: str, record: dict[str, Any], field: str, reason: str
) -> None:
    made, refused = invalid(CLASSES[kind][0], SCHEMA, GOOD, record, GOOD)
    assert len(made) == 1
    assert isinstance(refused, InvalidInstance)
    assert refused.path == field
    assert reason in refused.reason
    assert refused.__cause__ is not None


def test_an_unknown_symbol_is_not_valid() -> None:
    @dataclass
    class Seat:
        cabin: Cabin

    more = Schema.of(dataclasses.make_dataclass("Seat", [("cabin", str)]))
    _, refused = invalid(Seat, more, {"cabin": "F"})
    assert (refused.path, refused.reason) == ("cabin", "'F' is no member of Cabin")


def test_defaults_and_further_fields_are_up_to_the_class() -> None:
    narrow = Schema.of(dataclasses.make_dataclass("Narrow", [("carrier", str), ("more", int)]))
    row = [{"carrier": "AA", "more": 1}]

    class Lenient(pydantic.BaseModel):
        carrier: str
        stops: int = 3

    class Keeping(Lenient, extra="allow"):
        pass

    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        carrier: str

    @attrs.define
    class Fewer:
        carrier: str = attrs.field(converter=str.lower)
        stops: list[int] = attrs.field(factory=list)
        size: int = attrs.field(init=False, default=2)

    assert read_back(row, Lenient, narrow) == [Lenient(carrier="AA")]
    assert read_back(row, Keeping, narrow) == [Keeping(carrier="AA", more=1)]  # type: ignore[call-arg]
    assert read_back(row, Fewer, narrow) == [Fewer("aa")]
    _, refused = invalid(Strict, narrow, *row)
    assert "unknown field `more`" in refused.reason


def test_a_key_that_may_be_missing_is_null_in_records() -> None:
    class Partial(TypedDict, total=False):
        carrier: str
        stops: int | None

    rows = [{"carrier": "AA"}, {"stops": None}]
    assert read_back(rows, Partial, Schema.of(Partial)) == [
        {"carrier": "AA", "stops": None},
        {"stops": None},
    ]


LONG = Schema.of(dataclasses.make_dataclass("R", [("n", int), ("s", str | None, None)]))


@dataclass
class WrongType:
    n: str


@dataclass
class NeverNull:
    s: str


class Needy(NamedTuple):
    n: int
    m: int


@dataclass
class WrongList:
    n: list[int]


class Validating(pydantic.BaseModel):
    n: str


@pytest.mark.parametrize(
    ("cls", "error", "message"),
    [
        (WrongType, SchemaMismatch, "WrongType.n is annotated as str, but .* of the type int"),
        (NeverNull, SchemaMismatch, "NeverNull.s is annotated as str, but .*'s' may be null"),
        (WrongList, SchemaMismatch, r"WrongList.n is annotated as list\[int\]"),
        (Needy, SchemaMismatch, "Needy needs the field 'm'.*: give it a default"),
        (
            msgspec.defstruct("Unreadable", [("n", Cat | Dog | int)]),
            OptionError,
            "msgspec does not read Unreadable: Type unions",
        ),
        (int, OptionError, "as_ is <class 'int'>; it takes a dataclass, a pydantic model"),
        ("Flight", OptionError, "as_ is 'Flight'"),
    ],
)
def test_classes_that_the_records_cannot_fit_are_refused(
    cls: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Instances(cls, LONG, "numbers")


def test_a_class_that_validates_decides_by_itself() -> None:
    _, refused = invalid(Validating, LONG, {"n": 1})
    assert (refused.path, refused.reason) == ("n", "Input should be a valid string")


def test_names_outside_of_python_are_those_of_the_records() -> None:
    class Camel(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(alias_generator=to_camel)
        arrival_delay: int
        secret: int = pydantic.Field(default=0, exclude=True)

    class Renamed(msgspec.Struct, rename="camel"):
        arrival_delay: int

    schema = Schema.of(Camel)
    assert [field.name for field in schema.record.fields] == ["arrivalDelay"]
    camel = Camel(arrivalDelay=5)  # type: ignore[call-arg]
    assert read_back([camel], Camel, schema) == [camel]
    assert read_back([camel], Renamed, schema) == [Renamed(5)]


class Level(enum.IntEnum):
    LOW = 1


class Bad(pydantic.BaseModel):
    price: Decimal


class Untyped(pydantic.BaseModel):
    value: pydantic.HttpUrl


def test_what_has_no_type_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedType, match=r"'price'.*Annotated\[Decimal"):
        Schema.of(Bad)
    with pytest.raises(UnsupportedType, match=r"'value'.*HttpUrl.*a pydantic model"):
        Schema.of(Untyped)
    with pytest.raises(InvalidSchema, match=r"use typing\.NamedTuple"):
        Schema.of(__import__("collections").namedtuple("Pair", "a b"))
    annotated = pydantic.create_model("M", level=(Level, ...), size=(Annotated[int, "int"], 1))
    assert '"symbols":["LOW"]' in Schema.of(annotated).canonical


def test_the_flight_of_pydantic_is_strict() -> None:
    with pytest.raises(pydantic.ValidationError):
        PydanticFlight.model_validate(GOOD)
    assert read_back([GOOD], PydanticFlight, SCHEMA)[0].cabin is Cabin.ECONOMY


def table_of_classes() -> dict[str, tuple[str, str]]:
    """By kind, how docs/types.md says that instances are made, and what that checks."""
    page = (Path(__file__).parents[3] / "docs" / "types.md").read_text()
    section = page.partition("\n## Record classes\n")[2].partition("\n## ")[0]
    rows = [row.strip("|").split("|") for row in re.findall(r"^\|.*\|$", section, re.MULTILINE)[2:]]
    return {row[0].strip(): (row[2].strip(" `"), row[3].strip()) for row in rows}


@KINDS
def test_instances_are_made_and_checked_as_documented(kind: str) -> None:
    expression, checks = table_of_classes()[kind]

    class Model(pydantic.BaseModel):
        n: int = pydantic.Field(gt=0)

    made = {
        "dataclass": dataclasses.make_dataclass("Made", [("n", int)]),
        "pydantic": Model,
        "msgspec": msgspec.defstruct("Made", [("n", Annotated[int, msgspec.Meta(gt=0)])]),
        "attrs": attrs.make_class(
            "Made", {"n": attrs.field(type=int, validator=attrs.validators.gt(0))}
        ),
        "NamedTuple": NamedTuple("Made", [("n", int)]),
        "TypedDict": TypedDict("Made", {"n": int}),
    }[kind]
    assert set(table_of_classes()) == set(CLASSES)
    (value,) = read_back([{"n": 1}], made, LONG)
    names = {"Flight": made, "values": {"n": 1}, "msgspec": msgspec}
    assert value == eval(expression, names)  # noqa: S307 - of the page
    _, refused = invalid(made, LONG, {"n": -1})
    assert (refused is None) is (checks == "nothing")
