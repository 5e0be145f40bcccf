"""Decoder: messages of many schemas, and foreign ones, decoded to records of one schema."""

import pytest

from sluiceway.codecs import Decoder, codec
from sluiceway.errors import GatewayUnavailable, OptionError
from sluiceway.records import to_batches, to_records
from sluiceway.schema import Schema

NO_LIMIT = 2**31


def schema(*fields: dict) -> Schema:
    return Schema.parse({"type": "record", "name": "Reading", "fields": list(fields)})


OLD = schema({"name": "at", "type": "int"}, {"name": "place", "type": "string"})
NEW = schema(
    {"name": "at", "type": "long"},
    {"name": "unit", "type": "string", "default": "m"},
    {"name": "place", "type": ["null", "string"]},
)
OTHER = schema({"name": "name", "type": "string"})
SCHEMAS = {7: OLD, 8: NEW}
STRANGERS = {
    "a tombstone": None,
    "nothing": b"",
    "text": b'{"at": 1}',
    "a number": b"\0\0\1",
    "another registry's": b"\0\0\0\0\x63\x02",
    "another registry's batch": b"SLWA\x01\0\0\0\0\0\0\x63\0\0\0\x01",
    "damaged": b"\0\0\0\0\x07\x02",
    "a damaged batch": b"SLWA\x01\0\0\0\0\0\0\x07\0\0\0\x01",
}


@pytest.fixture(params=["avro", "arrow"])
def each_format(request):
    return request.param


def old(at: int) -> dict:
    return {"at": at, "place": f"p{at}"}


def new(at: int) -> dict:
    return {"at": at, "unit": "s", "place": f"p{at}"}


def read(at: int) -> dict:
    return {"at": at, "unit": "m", "place": f"p{at}"}


def messages(format_: str, id_: int, schema: Schema, rows: list) -> list[bytes]:
    """One message a record in both formats."""
    encode = codec(format_, schema, id_).encode
    return [
        value
        for row in rows
        for batch in to_batches([row], schema)
        for value in encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    ]


def rows_of(decoded) -> list:
    return [row for batch in decoded.batches for row in to_records(batch)]


def test_one_schema_is_decoded_as_by_its_codec(each_format):
    written = messages(each_format, 8, NEW, [new(at) for at in range(20)])
    decoding = Decoder(each_format, NEW, SCHEMAS)
    for _ in range(2):
        decoded = decoding.decode(written)
        alone = codec(each_format, NEW, 8).decode(written)
        assert decoded.batches == alone.batches
        assert decoded.counts == alone.counts
        assert decoded.corrupt == []


def test_an_older_schema_alone_is_resolved(each_format):
    written = messages(each_format, 7, OLD, [old(at) for at in range(20)])
    decoding = Decoder(each_format, NEW, SCHEMAS)
    for _ in range(2):
        assert rows_of(decoding.decode(written)) == [read(at) for at in range(20)]
    assert rows_of(decoding.decode([])) == []


def test_old_and_new_messages_may_interleave(each_format):
    olds = messages(each_format, 7, OLD, [old(at) for at in range(10)])
    news = messages(each_format, 8, NEW, [new(at) for at in range(10)])
    decoding = Decoder(each_format, NEW, SCHEMAS)
    assert rows_of(decoding.decode(olds)) == [read(at) for at in range(10)]
    # The first and last messages have the usual schema, the others do not.
    mixed = [olds[0], news[1], olds[2], *news[3:9], olds[9]]
    expected = [read(0), new(1), read(2), *map(new, range(3, 9)), read(9)]
    assert rows_of(decoding.decode(mixed)) == expected
    assert rows_of(decoding.decode(news)) == [new(at) for at in range(10)]
    assert rows_of(decoding.decode(olds + news)) == [
        *(read(at) for at in range(10)),
        *(new(at) for at in range(10)),
    ]


@pytest.mark.parametrize("value", STRANGERS.values(), ids=STRANGERS)
def test_foreign_messages_are_reported_and_the_others_kept(each_format, value):
    olds = messages(each_format, 7, OLD, [old(at) for at in range(4)])
    news = messages(each_format, 8, NEW, [new(at) for at in range(4)])
    decoding = Decoder(each_format, NEW, SCHEMAS, look_up=lambda _: {})
    for _ in range(2):
        decoded = decoding.decode([olds[0], value, *news[1:], value, olds[3]])
        assert rows_of(decoded) == [read(0), new(1), new(2), new(3), read(3)]
        assert decoded.counts == [1, 0, 1, 1, 1, 0, 1]
        assert [c.index for c in decoded.corrupt] == [1, 5]
        assert all(c.reason and c.skippable for c in decoded.corrupt)
        assert rows_of(decoding.decode(news)) == [new(at) for at in range(4)]
        decoded = decoding.decode([news[0], value, news[2]])
        assert rows_of(decoded) == [new(0), new(2)]
        assert [c.index for c in decoded.corrupt] == [1]


def test_an_unknown_id_is_reported(each_format):
    decoding = Decoder(each_format, NEW, SCHEMAS, look_up=lambda _: {})
    (corrupt,) = decoding.decode(messages(each_format, 9, NEW, [new(1)])).corrupt
    assert "schema id 9 is not one of the channel's" in corrupt.reason
    assert corrupt.skippable


def test_without_a_lookup_an_unknown_id_is_not_skippable(each_format):
    decoding = Decoder(each_format, NEW, SCHEMAS)
    (corrupt,) = decoding.decode(messages(each_format, 9, NEW, [new(1)])).corrupt
    assert "may belong to a newer schema of the channel" in corrupt.reason
    assert not corrupt.skippable


def test_an_unknown_id_is_looked_up_once(each_format):
    asked = []

    def learn(ids):
        asked.append(list(ids))
        return {8: NEW}

    decoding = Decoder(each_format, NEW, {7: OLD}, look_up=learn)
    strange = messages(each_format, 9, NEW, [new(1)])
    news = messages(each_format, 8, NEW, [new(2)])
    olds = messages(each_format, 7, OLD, [old(3)])
    for _ in range(2):
        decoded = decoding.decode([*olds, *strange, *news, *strange])
        assert rows_of(decoded) == [read(3), new(2)]
        assert [c.index for c in decoded.corrupt] == [1, 3]
    assert asked == [[8, 9]]


def test_a_failed_lookup_is_repeated():
    responses = [GatewayUnavailable("it is away"), {8: NEW}]

    def learn(ids):
        response = responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return response

    decoding = Decoder("avro", NEW, {7: OLD}, look_up=learn)
    news = messages("avro", 8, NEW, [new(2)])
    with pytest.raises(GatewayUnavailable):
        decoding.decode(news)
    assert rows_of(decoding.decode(news)) == [new(2)]


def test_an_incompatible_schema_is_not_skippable(each_format):
    decoding = Decoder(each_format, NEW, {**SCHEMAS, 9: OTHER})
    olds = messages(each_format, 7, OLD, [old(1)])
    decoded = decoding.decode([*olds, *messages(each_format, 9, OTHER, [{"name": "x"}])])
    assert rows_of(decoded) == [read(1)]
    (corrupt,) = decoded.corrupt
    assert not corrupt.skippable
    assert "the channel's schema 9" in corrupt.reason
    assert "field 'at' is read but not written" in corrupt.reason


def test_an_unresolvable_value_rejects_only_its_message():
    writer = schema({"name": "a", "type": "bytes"})
    reader = schema({"name": "a", "type": "string"})
    rows = [{"a": b"x"}, {"a": b"\xff"}, {"a": b"y"}]
    decoded = Decoder("avro", reader, {1: writer}).decode(messages("avro", 1, writer, rows))
    assert rows_of(decoded) == [{"a": "x"}, {"a": "y"}]
    assert decoded.counts == [1, 0, 1]
    # The records of an arrow message are read together.
    (batch,) = to_batches(rows, writer)
    whole = codec("arrow", writer, 1).encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    fine = messages("arrow", 1, writer, [{"a": b"z"}])
    decoded = Decoder("arrow", reader, {1: writer}).decode(whole + fine)
    assert rows_of(decoded) == [{"a": "z"}]
    assert decoded.counts == [0, 1]
    assert decoded.corrupt[0].skippable


def test_other_formats_are_rejected():
    with pytest.raises(OptionError, match="the format is 'xml'"):
        Decoder("xml", NEW, SCHEMAS)
