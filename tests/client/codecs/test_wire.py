from dataclasses import replace

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.api.models import Connection
from sluiceway.codecs import Decoder, codec
from sluiceway.codecs.base import RUN_BYTES
from sluiceway.codecs.wire import WireFormatValidator
from sluiceway.errors import OptionError, RecordTooLarge
from sluiceway.records import to_batches, to_records
from sluiceway.schema import Schema
from sluiceway.schema.schema import bytes_schema, holds_messages

NO_LIMIT = 2**31
NULLABLE = bytes_schema()
VALUES = st.lists(st.none() | st.binary(max_size=20))


def schema(*types: object, name: str = "value") -> Schema:
    fields = [
        {"name": f"{name}{number or ''}", "type": type_} for number, type_ in enumerate(types)
    ]
    return Schema.parse({"type": "record", "name": "Mine", "fields": fields})


PRESENT = schema("bytes")


def encoded(values, of=NULLABLE, limit_bytes=NO_LIMIT):
    (batch,) = to_batches([{"value": value} for value in values], of)
    return codec("bytes", of, 7).encode(batch, limit_bytes=limit_bytes).values.to_pylist()


def records(decoded):
    return [record for batch in decoded.batches for record in to_records(batch)]


@given(VALUES.filter(bool))
def test_a_message_is_exactly_the_value_of_its_record(values):
    assert encoded(values) == values
    decoded = codec("bytes", NULLABLE, 7).decode(values)
    assert [record["value"] for record in records(decoded)] == values
    assert (decoded.counts, decoded.corrupt) == (None, [])
    assert all(batch.schema == NULLABLE.arrow for batch in decoded.batches)


def test_a_tombstone_is_corrupt_unless_the_schema_is_nullable():
    decoded = codec("bytes", PRESENT, 7).decode([b"a", None, b""])
    assert [record["value"] for record in records(decoded)] == [b"a", b""]
    assert decoded.counts == [1, 0, 1]
    assert [(corrupt.index, corrupt.skippable) for corrupt in decoded.corrupt] == [(1, True)]


def test_a_value_beyond_the_limit_is_reported():
    with pytest.raises(RecordTooLarge) as raised:
        encoded([b"12345", None, b"123456"], limit_bytes=5)
    assert (raised.value.index, raised.value.size_bytes) == (2, 6)


def test_messages_beyond_the_size_of_a_batch_give_several():
    values = [b"1234", None, bytes(RUN_BYTES), b"", b"1"]
    decoded = codec("bytes", NULLABLE, 7).decode(values)
    lengths = [pc.binary_length(batch["value"]).to_pylist() for batch in decoded.batches]
    assert lengths == [[4, None], [RUN_BYTES, 0], [1]]


@pytest.mark.parametrize(
    ("kept", "target", "expected"),
    [
        ({7: NULLABLE}, NULLABLE, [b"a", None]),
        ({7: PRESENT, 8: NULLABLE}, NULLABLE, [b"a", None]),
        ({7: NULLABLE, 8: PRESENT}, NULLABLE, [b"a", None]),
        ({7: PRESENT}, PRESENT, [b"a"]),
    ],
)
def test_messages_of_all_schema_versions_are_decoded(kept, target, expected):
    decoded = Decoder("bytes", target, kept).decode([b"a", None])
    assert [record["value"] for record in records(decoded)] == expected
    assert len(decoded.corrupt) == 2 - len(expected)


def test_a_value_in_another_format_is_a_plain_value():
    messages = (b"\0\0\0\0\x63\x02", b"SLWA\x01")
    decoding = Decoder("bytes", NULLABLE, {7: NULLABLE}, look_up=lambda _: pytest.fail("asked"))
    for _ in range(2):
        assert [record["value"] for record in records(decoding.decode(messages))] == list(messages)


@pytest.mark.parametrize(
    "other", [schema("string"), schema("bytes", "bytes"), schema("bytes", name="payload")]
)
def test_schemas_with_other_fields_are_rejected(other):
    assert not holds_messages(other)
    with pytest.raises(OptionError, match="one field, 'value'"):
        codec("bytes", other, 7)


@pytest.mark.parametrize("type_", ["bytes", ["null", "bytes"], ["bytes", "null"]])
def test_the_field_may_be_nullable(type_):
    assert holds_messages(schema(type_))


@pytest.mark.parametrize("value", [b"{}", b" \r\n\t{", b'\0\0\0\0\x63{"a":1}'])
def test_values_of_json_channels_begin_with_an_object(value):
    assert JSON.error(value) is None
    assert not JSON.may_refresh(value)


@pytest.mark.parametrize("value", [b"", b"[1]", b"5", b"\0\0\0\0", b"\xff{", b"SLWA{}"])
def test_values_that_are_no_json_object_are_refused_with_advice(value):
    assert "must be a JSON object; this one begins with" in JSON.error(value)
    assert "format bytes" in JSON.error(value)
    assert not JSON.may_refresh(value)


def test_only_compacted_channels_have_tombstones():
    assert "does not accept tombstones" in JSON.error(None)
    assert not JSON.accepts_any
    compacted = WireFormatValidator(replace(CHANNEL, compacted=True), refresh=no_refresh)
    assert compacted.error(None) is None
    assert compacted.error(b"5") is not None


def no_refresh():
    raise AssertionError


CHANNEL = Connection(
    channel_name="c",
    channel_uid="0" * 32,
    generation=1,
    format="json",
    schema_id=7,
    schema_definition=PRESENT.definition,
    topic_name="t",
    topic_id="i",
    partitions=1,
    max_message_bytes=1000,
    kafka={},
)
JSON = WireFormatValidator(CHANNEL, refresh=no_refresh)


def test_values_of_protobuf_channels_begin_with_a_schema_id():
    connection = replace(CHANNEL, format="protobuf")
    validator = WireFormatValidator(connection, refresh=lambda: connection)
    assert validator.error(b"\0\0\0\0\7\0") is None
    assert "the byte 0 and one of the schema ids 7; this one has no schema id" in validator.error(
        b"\x0a\0"
    )
    assert "the unknown schema id 8" in validator.error(b"\0\0\0\0\x08\0")
