"""Conditions of searches: texts, expressions and fields of messages of each format."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from sluiceway.codecs import codec
from sluiceway.schema import Schema
from sluiceway.schema.protobuf import numbered
from sluiceway_gateway.core.errors import InvalidRequest
from sluiceway_gateway.core.kafka.model import ReadMessage
from sluiceway_gateway.messages.matching import MAX_TEXT, Matcher
from sluiceway_gateway.messages.model import SearchCondition
from sluiceway_gateway.messages.records import MAX_SEARCHED_RECORDS, MessageDecoder, encode
from sluiceway_gateway.schemas.model import Format, SchemaVersion

SCHEMA = {
    "type": "record",
    "name": "Landing",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "double"], "default": None},
        {
            "name": "legs",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Leg",
                    "fields": [{"name": "to", "type": "string"}],
                },
            },
            "default": [],
        },
    ],
}
VERSION = SchemaVersion(
    id=7,
    version=1,
    fingerprint="",
    # Numbers are for Protobuf; other formats ignore them.
    definition=numbered(Schema.parse(SCHEMA)).text,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)
LANDINGS: list[Mapping[str, Any]] = [
    {"carrier": "UA", "delay": 12.5, "legs": [{"to": "ORD"}, {"to": "SFO"}]},
    {"carrier": "Ünited", "delay": None, "legs": []},
    {"carrier": "AA", "delay": 125.0, "legs": [{"to": "JFK"}]},
]


def message(
    offset: int, value: bytes | None, key: bytes | None = None, **headers: bytes | None
) -> ReadMessage:
    return ReadMessage(
        partition=0,
        offset=offset,
        timestamp_ms=0,
        timestamp_type="create",
        key=key,
        value=value,
        headers=tuple(headers.items()),
    )


def landings(format_: Format) -> list[ReadMessage]:
    """Return a message of each landing, with a key and a header; the last one is corrupt."""
    encoded = [
        encode([record], format_, VERSION, limit_bytes=1_000_000)[0].value for record in LANDINGS
    ]
    messages = [
        message(number, value, key=f"k{number}".encode(), trace=f"t-{number}".encode())
        for number, value in enumerate(encoded)
    ]
    return [*messages, message(9, b"broken")]


def matches(format_: Format, messages: Sequence[ReadMessage], **condition: str) -> list[int]:
    matcher = Matcher(SearchCondition(**condition), format_, [VERSION])
    return [match.offset for match in matcher.matching(messages)]


@pytest.mark.parametrize("format_", [Format.AVRO, Format.ARROW, Format.JSON, Format.PROTOBUF])
@pytest.mark.parametrize(
    ("condition", "offsets"),
    [
        ({}, [0, 1, 2, 9]),
        ({"text": "ünited"}, [1]),
        ({"text": "12.5"}, [0]),
        ({"text": "T-2"}, [2]),
        ({"text": "BROKEN"}, [9]),
        ({"regex": '"carrier": "[A-Z]{2}"'}, [0, 2]),
        ({"regex": "(?i)ua"}, [0]),
        ({"text": "A", "field": "carrier"}, [0, 2]),
        ({"regex": "^12", "field": "delay"}, [0, 2]),
        ({"regex": "^null$", "field": "delay"}, [1]),
        ({"regex": "^SFO$", "field": "legs.to"}, [0]),
        ({"text": "k1", "field": "@key"}, [1]),
        ({"regex": "^t-[01]$", "field": "@header.trace"}, [0, 1]),
        ({"text": "t", "field": "@header.other"}, []),
        ({"text": "a", "regex": "JFK"}, [2]),
        ({"text": "UA", "field": "carrier.code"}, []),
    ],
)
def test_messages_that_meet_a_condition_are_found(
    format_: Format, condition: dict[str, str], offsets: list[int]
) -> None:
    assert matches(format_, landings(format_), **condition) == offsets


def test_every_record_of_a_message_is_searched() -> None:
    records = [{"carrier": f"C{number}", "delay": None, "legs": []} for number in range(300)]
    (encoded,) = encode(records, Format.ARROW, VERSION, limit_bytes=1_000_000)
    messages = [message(0, encoded.value), message(1, None)]
    assert matches(Format.ARROW, messages, regex="^C299$", field="carrier") == [0]


def test_the_first_records_of_a_message_with_very_many_are_searched() -> None:
    schema = {
        "type": "record",
        "name": "Flag",
        "fields": [{"name": "on", "type": "boolean"}],
    }
    version = replace(VERSION, definition=json.dumps(schema))
    many = pa.record_batch({"on": pa.array([True], pa.bool_()).take(pa.array([0] * 2_000_000))})
    parsed = Schema.parse(version.definition)
    coder = codec("arrow", parsed, version.id)
    large, small = (
        coder.encode(batch.cast(parsed.arrow), limit_bytes=1_000_000).values[0].as_py()
        for batch in (many, many.slice(0, 2))
    )
    contents = MessageDecoder(Format.ARROW, [version]).records([small, large, b"broken", small])
    assert [None if records is None else len(records) for records in contents] == [
        *(2, MAX_SEARCHED_RECORDS, None, 2),
    ]


def test_messages_of_bytes_are_searched_as_text_and_as_json() -> None:
    values = [
        b'{"a": {"b": 1.50}}',
        b"plain text",
        b"\xff\x00",
        None,
        b'{"a": "\\ud800x"}',
        b"[" * 9,
    ]
    messages = [message(number, value) for number, value in enumerate(values)]
    assert matches(Format.BYTES, messages, text="TEXT") == [1]
    assert matches(Format.BYTES, messages, regex="^1.50$", field="a.b") == [0]
    assert matches(Format.BYTES, messages, text="x", field="a") == [4]
    assert matches(Format.BYTES, messages, text="/wA=") == [2]


@pytest.mark.parametrize("depth", [900, 100_000])
def test_json_of_a_hostile_depth_ends_no_search(depth: int) -> None:
    deep = b'{"a": ' + b"[" * depth + b"2" + b"]" * depth + b"}"
    messages = [message(0, deep), message(1, b'{"a": 1}')]
    assert matches(Format.BYTES, messages, text="1", field="a") == [1]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({"regex": "(a"}, "missing )"),
        ({"regex": "(?=a)"}, "RE2, which has no look-around"),
        ({"regex": r"(a)\1"}, "invalid escape sequence"),
        ({"regex": ".{0,200}.{0,200}x"}, "takes too long"),
        ({"regex": "(x{0,30}){0,30}y"}, "takes too long"),
        ({"regex": "x{30}{30}"}, "takes too long"),
        ({"regex": "((x{9,}){9,}){9,}"}, "takes too long"),
        ({"regex": r"\pL{1,90}" * 4}, "takes too long"),
        ({"regex": r"\pL{270}1"}, "takes too long"),
        ({"regex": r"[^]\p{Greek}[:digit:]]{40}"}, "takes too long"),
        ({"field": "carrier"}, "without text or regex"),
        ({"field": "carier", "text": "a"}, "there are carrier, delay, legs"),
        ({"field": "@offset", "text": "a"}, "@key, @header.NAME"),
    ],
)
def test_a_condition_that_cannot_be_searched_is_refused(
    condition: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words.replace("(", r"\(").replace(")", r"\)")):
        Matcher(SearchCondition(**condition), Format.AVRO, [VERSION])


@pytest.mark.parametrize(
    "regex",
    [
        "[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}",
        r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}",
        r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b",
        "(a+)+$",
        r"[\p{L}\p{N}]+@[a-z.]+",
        r"\pL+ [0-9a-f]{32}",
        r"[\p{L}-]{3}",
    ],
)
def test_usual_expressions_are_accepted(regex: str) -> None:
    Matcher(SearchCondition(regex=regex), Format.AVRO, [VERSION])


def test_an_expression_that_backtracks_elsewhere_takes_linear_time() -> None:
    texts = [message(number, b"a" * MAX_TEXT) for number in range(20)]
    begun_s = time.process_time()
    assert matches(Format.BYTES, texts, regex="(a+)+$b") == []
    # Backtracking, one of 40 characters takes hours.
    assert time.process_time() - begun_s < 10


def test_the_beginning_of_a_large_message_is_searched() -> None:
    large = [message(0, b"x" * (MAX_TEXT - 3) + b"\nabc"), message(1, b"x" * MAX_TEXT + b"abc")]
    assert matches(Format.BYTES, large, text="ab") == [0]
