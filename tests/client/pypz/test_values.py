"""Values of schemas that a channel's records cannot have, without a gateway."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypz_rig import StandinPort
from sluiceway.errors import InvalidRecord, SchemaMismatch, UnsupportedType
from sluiceway.pypz.config import ChannelLogger
from sluiceway.pypz.resources import Resources, SchemaParseException
from sluiceway.pypz.values import ValueSchema

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [
        {"name": "label", "type": "string"},
        {"name": "children", "type": {"type": "array", "items": "Node"}},
        {"name": "weight", "type": ["null", "double"]},
        {"name": "by_name", "type": {"type": "map", "values": ["null", "Node"]}, "default": {}},
    ],
}
NOTHING = {"type": "record", "name": "R", "fields": [{"name": "nothing", "type": "null"}]}
LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


def resources(schema: Any) -> Resources:
    port = StandinPort("pipeline.port", schema)
    return Resources("channel", port, ChannelLogger(port.get_logger(), "p", "c"), grace_s=1)


def there_and_back(schema: ValueSchema, value: Any) -> Any:
    return schema.from_record(schema.to_record(0, value), {})


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ("string", "Zürich"),
        ('"string"', ""),
        ("null", None),
        ('{"type": "array", "items": "long"}', [1, -(2**63)]),
        ({"type": "map", "values": "double"}, {"a": 1.5}),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        (["null", "string", NODE], {"label": "l", "children": [], "weight": None, "by_name": {}}),
        (NOTHING, {"nothing": None}),
        (NODE, {"label": "l", "children": [], "weight": 1.0, "by_name": {"none": None}}),
    ],
)
def test_every_schema_of_avro_carries_its_values(definition: Any, value: Any) -> None:
    values = resources(definition).values
    assert values is not None
    assert there_and_back(values, value) == value
    if not isinstance(definition, str):
        assert resources(json.dumps(definition)).schema == resources(definition).schema


def test_schemas_of_records_that_channels_have_stay_typed() -> None:
    plain = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    assert resources(plain).values is None
    assert resources(plain).schema.record.name == "R"


nodes = st.recursive(
    st.builds(
        lambda label, weight: {"label": label, "children": [], "weight": weight, "by_name": {}},
        st.text(max_size=5),
        st.none() | st.floats(allow_nan=False),
    ),
    lambda inner: st.builds(
        lambda label, children, by_name: {
            "label": label,
            "children": children,
            "weight": None,
            "by_name": by_name,
        },
        st.text(max_size=5),
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), st.none() | inner, max_size=3),
    ),
    max_leaves=10,
)


@given(value=nodes, cut=st.integers(0, 40), flip=st.integers(0, 255))
def test_recursive_records_come_back_and_damaged_ones_are_refused(
    value: Any, cut: int, flip: int
) -> None:
    schema = ValueSchema(NODE)
    record = schema.to_record(0, value)
    assert schema.from_record(record, {}) == value
    body = record["value"]
    at = cut % len(body)
    for damaged in (body[:at], body + b"\0", body[:at] + bytes([flip]) + body[at + 1 :]):
        try:
            schema.from_record({**record, "value": damaged}, {})
        except SchemaMismatch:
            continue
        assert len(damaged) == len(body), "another value"


def test_missing_nullable_fields_and_booleans_are_completed_as_in_pypz() -> None:
    schema = ValueSchema(NODE)
    inner = {"label": "i", "children": [], "weight": True}
    assert there_and_back(schema, {"label": "o", "children": [inner]}) == {
        "label": "o",
        "children": [{"label": "i", "children": [], "weight": 1.0, "by_name": {}}],
        "weight": None,
        "by_name": {},
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"label": 1, "children": []}, "record 7, field 'Node.label'"),
        ({"label": "a", "children": [], "colour": 1}, "field 'colour': the schema has no such"),
        ({"label": "a"}, "Node.children"),
        ("text", "record 7"),
    ],
)
def test_an_invalid_value_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        ValueSchema(NODE).to_record(7, value)


def test_values_are_nested_a_hundred_levels_deep_at_most() -> None:
    """At some thousand levels, fastavro ends the process."""
    schema, value = ValueSchema(LIST), dict[str, Any]()
    for _ in range(99):
        value = {"next": value}
    assert there_and_back(schema, value)["next"]["next"]["next"]
    with pytest.raises(InvalidRecord, match="deeper than 100 levels"):
        schema.to_record(0, {"next": {"next": value}})
    for body in (b"\x02" * 100_000 + b"\0", b"\x02" * 100_000):
        with pytest.raises(SchemaMismatch, match="deeper than 100 records"):
            schema.from_record({"fingerprint": schema.fingerprint, "value": body}, {})


@pytest.mark.parametrize(
    "definition",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": NOTHING},
        {
            "type": "map",
            "values": {
                **NOTHING,
                "fields": [{"name": f"n{number}", "type": "null"} for number in range(200)],
            },
        },
    ],
)
def test_a_schema_whose_values_outgrow_their_bytes_is_refused(definition: Any) -> None:
    with pytest.raises(UnsupportedType, match="a small message could have millions"):
        _ = resources(definition).schema


@pytest.mark.parametrize("definition", ["strin", '{"type": "recrd"}', ["null", "Node"], "{"])
def test_an_invalid_schema_is_refused(definition: Any) -> None:
    with pytest.raises(SchemaParseException, match="the port's schema is invalid"):
        _ = resources(definition).schema


def test_a_later_schema_reads_the_values_of_an_earlier_one() -> None:
    weight = {"name": "size", "type": "int", "default": 7}
    later = ValueSchema({**LIST, "fields": [*LIST["fields"], weight]})
    earlier = ValueSchema(LIST)
    record = earlier.to_record(0, {"next": {}})
    versions = ValueSchema.of_versions([{"fields": []}, earlier.schema.definition])
    assert later.from_record(record, versions) == {"next": {"next": None, "size": 7}, "size": 7}
    with pytest.raises(SchemaMismatch, match="is no version of the channel's"):
        later.from_record(record, {})
    with pytest.raises(SchemaMismatch, match="cannot be read with the port's schema"):
        ValueSchema("string").from_record(record, versions)
