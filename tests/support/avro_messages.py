"""Schemas of one field, and messages in the format avro put together by hand."""

from sluiceway.schema import Schema

PREFIX = b"\x00\x00\x00\x00\x07"
"""What a message of the schema 7 begins with."""


def schema_of(type_, **more):
    """Return the schema of a record with one field, `x`."""
    field = {"name": "x", "type": type_, **more}
    return Schema.parse({"type": "record", "name": "r", "fields": [field]})


def number(value):
    """Return an Avro int or long as it is written."""
    raw, out = ((value << 1) ^ (value >> 63)) & (2**64 - 1), bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def without_pyruhvro(codec_):
    """Return the codec, which from now on goes the slow way."""
    codec_._columnar = None
    return codec_
