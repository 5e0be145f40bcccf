"""JSON Schema of channels: every message of the format `json` fits its own."""

import json

import jsonschema
from hypothesis import given

from generated import schema, schema_of, with_rows
from sluiceway.codecs import codec
from sluiceway.records import to_batches
from sluiceway.schema.json_schema import json_schema


@given(with_rows())
def test_every_message_fits_the_json_schema(given_):
    written, rows = given_
    definition = json_schema(written)
    jsonschema.Draft7Validator.check_schema(definition)
    validator = jsonschema.Draft7Validator(
        definition, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
    )
    encode = codec("json", written, 7).encode
    for batch in to_batches(rows, written):
        for message in encode(batch, limit_bytes=2**31).values.to_pylist():
            validator.validate(json.loads(message))


def test_optional_fields_and_documentation_are_told():
    made = json_schema(
        schema(
            {"name": "a", "type": "long", "doc": "One."},
            {"name": "b", "type": "long", "default": 1},
            {"name": "c", "type": ["null", "string"]},
        )
    )
    assert made["required"] == ["a"]
    assert made["properties"]["a"]["description"] == "One."


def test_values_of_other_types_do_not_fit():
    definition = json_schema(schema_of({"type": "map", "values": "int"}))
    validator = jsonschema.Draft7Validator(definition)
    assert validator.is_valid({"x": {"a": 1}, "unknown": 5})
    for wrong in ({"x": {"a": 1.5}}, {"x": {"a": 2**31}}, {"x": []}, {}):
        assert not validator.is_valid(wrong)
