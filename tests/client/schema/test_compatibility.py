"""Compatibility of schemas: rule by rule, and compared with fastavro."""

import time

import pytest

from sluiceway.schema import Schema
from sluiceway.schema.compatibility import (
    incompatibilities,
    possible_renames,
    reasons_by_version,
)


def schema(**fields: object) -> Schema:
    """Fields given as their types, or as (type, default)."""
    members = []
    for name, given_ in fields.items():
        if isinstance(given_, tuple):
            members.append({"name": name, "type": given_[0], "default": given_[1]})
        else:
            members.append({"name": name, "type": given_})
    return Schema.parse({"type": "record", "name": "Reading", "fields": members})


def nested(**fields: object) -> dict[str, object]:
    return {**schema(**fields).definition, "name": "Nested"}


def array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


def map_(values: object) -> dict[str, object]:
    return {"type": "map", "values": values}


def enum(*symbols: str, **default: str) -> dict[str, object]:
    return {"type": "enum", "name": "E", "symbols": symbols, **default}


def fixed(size: int) -> dict[str, object]:
    return {"type": "fixed", "name": "F", "size": size}


def decimal(precision: int, scale: int) -> dict[str, object]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


DATE = {"type": "int", "logicalType": "date"}
INSTANT = {"type": "long", "logicalType": "timestamp-micros"}
NEEDED = "is read but not written, and has no default: give it a default"
CANNOT = "and cannot be read as"
NULL = "is nullable where it is written, but not where it is read: make it nullable in both"

READABLE = {
    "the same": (schema(a="int"), schema(a="int")),
    "a field that was not written has a default": (schema(a="int", b=("int", 0)), schema(a="int")),
    "a nullable field that was not written has a default": (
        schema(a="int", b=(["null", "int"], None)),
        schema(a="int"),
    ),
    "a field that is not read": (schema(a="int"), schema(a="int", b="int")),
    "fields in another order": (schema(b="int", a="string"), schema(a="string", b="int")),
    "int as long": (schema(a="long"), schema(a="int")),
    "int as float": (schema(a="float"), schema(a="int")),
    "int as double": (schema(a="double"), schema(a="int")),
    "long as float": (schema(a="float"), schema(a="long")),
    "long as double": (schema(a="double"), schema(a="long")),
    "float as double": (schema(a="double"), schema(a="float")),
    "string as bytes": (schema(a="bytes"), schema(a="string")),
    "bytes as string": (schema(a="string"), schema(a="bytes")),
    "null allowed now": (schema(a=["null", "int"]), schema(a="int")),
    "null allowed now, and longer": (schema(a=["long", "null"]), schema(a="int")),
    "the branches of a union the other way round": (
        schema(a=["int", "null"]),
        schema(a=["null", "int"]),
    ),
    "items promoted": (schema(a=array("long")), schema(a=array("int"))),
    "values promoted": (schema(a=map_(["null", "long"])), schema(a=map_("int"))),
    "a nested field with a default": (
        schema(n=nested(a="int", b=("string", ""))),
        schema(n=nested(a="int")),
    ),
    "a record of another name": (
        Schema.parse({**schema(a="int").definition, "name": "other.Name"}),
        schema(a="int"),
    ),
    "more symbols": (schema(a=enum("A", "B")), schema(a=enum("B"))),
    "fewer symbols and a default": (schema(a=enum("B", default="B")), schema(a=enum("A", "B"))),
    "a fixed of another name": (schema(a=fixed(4)), schema(a={**fixed(4), "name": "Other"})),
    "a decimal that is stored otherwise": (
        schema(a=decimal(8, 2)),
        schema(a={**decimal(8, 2), "type": "fixed", "name": "D", "size": 4}),
    ),
    "a logical type as itself": (schema(a=DATE), schema(a=DATE)),
}

UNREADABLE = {
    "a field that was not written has no default": (
        schema(a="int", b="int"),
        schema(a="int"),
        [f"field 'b' {NEEDED}, write it, or give it an alias if it was renamed"],
    ),
    "a nullable field that was not written has no default": (
        schema(a="int", b=["null", "int"]),
        schema(a="int"),
        [f"field 'b' {NEEDED}, write it, or give it an alias if it was renamed"],
    ),
    "long as int": (
        schema(a="int"),
        schema(a="long"),
        [
            f"field 'a' is written as long {CANNOT} int: keep its type, make it float "
            "or double, or use a new name for the new type"
        ],
    ),
    "double as float": (
        schema(a="float"),
        schema(a="double"),
        [
            f"field 'a' is written as double {CANNOT} float: keep its type, or use a "
            "new name for the new type"
        ],
    ),
    "string as long": (schema(a="long"), schema(a="string"), [f"written as string {CANNOT} long"]),
    "boolean as int": (schema(a="int"), schema(a="boolean"), [f"written as boolean {CANNOT} int"]),
    "int as bytes": (schema(a="bytes"), schema(a="int"), [f"written as int {CANNOT} bytes"]),
    "null no longer allowed": (schema(a="int"), schema(a=["null", "int"]), [f"field 'a' {NULL}"]),
    "null no longer allowed, and shorter": (
        schema(a="int"),
        schema(a=["null", "long"]),
        [f"field 'a' {NULL}", f"field 'a' is written as long {CANNOT} int"],
    ),
    "an array as a map": (
        schema(a=map_("int")),
        schema(a=array("int")),
        [f"written as array of int {CANNOT} map of int"],
    ),
    "a single value as an array": (
        schema(a=array("int")),
        schema(a="int"),
        [f"written as int {CANNOT} array of int"],
    ),
    "a record as a string": (
        schema(a="string"),
        schema(a=nested(b="int")),
        [f"written as record {CANNOT} string"],
    ),
    "deep inside": (
        schema(a=array(map_(nested(b="int", c="int")))),
        schema(a=array(map_(["null", nested(b="string")]))),
        [
            f"field 'a[]{{}}' {NULL}",
            f"field 'a[]{{}}.b' is written as string {CANNOT} int",
            f"field 'a[]{{}}.c' {NEEDED}",
        ],
    ),
    "fewer symbols": (
        schema(a=enum("B", "D")),
        schema(a=enum("A", "B", "C")),
        [
            "field 'a' is written with symbols unknown to the reader, A, C: add them to "
            "the reader's enum, or give it a default"
        ],
    ),
    "a symbol as a string": (
        schema(a="string"),
        schema(a=enum("A")),
        [f"written as enum of A {CANNOT} string"],
    ),
    "a longer fixed": (
        schema(a=fixed(8)),
        schema(a=fixed(4)),
        [f"written as fixed of 4 bytes {CANNOT} fixed of 8 bytes"],
    ),
    "a fixed as bytes": (
        schema(a="bytes"),
        schema(a=fixed(4)),
        [f"written as fixed of 4 bytes {CANNOT} bytes"],
    ),
    "a decimal of more digits": (
        schema(a=decimal(10, 2)),
        schema(a=decimal(8, 2)),
        [f"written as decimal(8, 2) {CANNOT} decimal(10, 2)"],
    ),
    "a uuid in bytes as its text": (
        schema(a={"type": "string", "logicalType": "uuid"}),
        schema(a={**fixed(16), "logicalType": "uuid"}),
        [f"written as uuid in 16 bytes {CANNOT} uuid"],
    ),
    "an instant in another unit": (
        schema(a=INSTANT),
        schema(a={"type": "long", "logicalType": "timestamp-millis"}),
        [f"written as timestamp-millis {CANNOT} timestamp-micros"],
    ),
    "a date as the int that it travels as": (
        schema(a="int"),
        schema(a=DATE),
        [f"written as date {CANNOT} int"],
    ),
    "a long as an instant": (
        schema(a=INSTANT),
        schema(a="long"),
        [f"written as long {CANNOT} timestamp-micros"],
    ),
}


@pytest.mark.parametrize(("reader", "writer"), READABLE.values(), ids=READABLE)
def test_compatible_schemas_can_be_read(reader: Schema, writer: Schema) -> None:
    assert incompatibilities(reader, writer) == ()


@pytest.mark.parametrize(("reader", "writer", "reasons"), UNREADABLE.values(), ids=UNREADABLE)
def test_each_broken_rule_is_reported_with_its_path_and_a_remedy(
    reader: Schema, writer: Schema, reasons: list[str]
) -> None:
    sentences = incompatibilities(reader, writer)
    assert len(sentences) == len(reasons)
    for reason, sentence in zip(reasons, sentences, strict=True):
        assert reason in sentence
        assert ": " in sentence


def nullable(*branches: object) -> Schema:
    return schema(a=["null", *branches])


POINT = {"type": "record", "name": "geo.Point", "fields": [{"name": "x", "type": "int"}]}
FLAT = {**POINT, "name": "flat.Point"}
PLACE = {**POINT, "name": "Place"}
NEW = {**POINT, "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}]}


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        (["int", "string"], ["string", "int"], None),
        (["long", "bytes"], ["string", "int"], None),
        (["string", POINT], [FLAT], None),
        ([PLACE, POINT], [FLAT, PLACE], None),
        (["double"], ["int", "long", "float"], None),
        (["int", "string"], ["int", "string", "boolean"], "written as boolean and cannot be read"),
        (["string"], ["int", "string"], "written as int and cannot be read as string"),
        ([PLACE, "string"], [POINT], "written as record and cannot be read as any branch"),
        ([NEW, "string"], ["string", POINT], "field 'a.y' is read but not written"),
        ([enum("A"), "int"], [enum("A", "B"), "int"], "unknown to the reader, B"),
        ([DATE, "string"], ["int", "string"], "written as int and cannot be read as date"),
    ],
)
def test_every_branch_of_a_union_must_be_readable(
    reader: list[object], writer: list[object], reason: str | None
) -> None:
    sentences = incompatibilities(nullable(*reader), nullable(*writer))
    if reason is None:
        assert sentences == ()
    else:
        (sentence,) = sentences
        assert reason in sentence
        assert "field 'a" in sentence
        assert ": " in sentence


def _renames(new: list[dict], old: list[dict]) -> tuple[str, ...]:
    schemas = (Schema.parse({"type": "record", "name": "R", "fields": f}) for f in (new, old))
    return possible_renames(*schemas)


def test_a_new_field_with_a_default_in_place_of_one_of_its_type_may_be_renamed() -> None:
    old = [{"name": "a", "type": ["null", "int"], "default": None}, {"name": "c", "type": "bytes"}]
    new = [{"name": "b", "type": ["null", "long"], "default": None}]
    (warning,) = _renames(new, old)
    assert "field 'b' is new, and 'a' of its type is gone" in warning
    assert 'add "aliases": ["a"] to it' in warning
    inner = [
        [{"name": "r", "type": {"type": "record", "name": "I", "fields": f}}] for f in (new, old)
    ]
    (warning,) = _renames(*inner)
    assert "field 'r.b' is new" in warning


@pytest.mark.parametrize(
    "field",
    [
        {"name": "b", "type": ["null", "int"], "default": None, "aliases": ["a"]},
        {"name": "b", "type": ["null", "string"], "default": None},
        {"name": "b", "type": ["null", "int"]},
    ],
    ids=["with its alias", "of another type", "without a default"],
)
def test_other_new_fields_are_no_renamed_ones(field: dict) -> None:
    assert _renames([field], [{"name": "a", "type": ["null", "int"], "default": None}]) == ()


def test_a_reason_is_named_once_with_its_versions() -> None:
    reasons = {1: ["a"], 2: ["a", "b"], 3: ["a"], 4: ["c"], 5: ["b"], 7: ["b"]}
    assert reasons_by_version(reasons) == [
        ("versions 1 to 3", "a"),
        ("versions 2, 5 and 7", "b"),
        ("version 4", "c"),
    ]


def test_enums_of_many_symbols_in_many_fields_are_compared_fast() -> None:
    def wide(*symbols: str) -> Schema:
        first, *others = (f"f{number}" for number in range(500))
        return schema(**{first: enum(*symbols)}, **dict.fromkeys(others, "E"))

    symbols = [f"S{number}" for number in range(5_000)]
    begin_s = time.process_time()
    assert incompatibilities(wide(*symbols), wide(*symbols)) == ()
    reasons = incompatibilities(wide("A"), wide(*symbols))
    # A minute and more where each symbol is looked for among all.
    assert time.process_time() - begin_s < 5
    assert len(reasons) == 500
    assert "S18, S19 and 4980 more: add them" in reasons[0]
