"""The messages that meet a search's condition: texts of messages, matched by Arrow's RE2.

The libraries of records take memory and time, so the first search imports this module.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluiceway_gateway.core.errors import InvalidRequest
from sluiceway_gateway.core.kafka.model import ReadMessage
from sluiceway_gateway.messages.model import SearchCondition
from sluiceway_gateway.messages.records import MessageDecoder
from sluiceway_gateway.schemas.model import Format, SchemaVersion

MAX_TEXT = 64 * 1024
"""Characters of a message's text that are searched, and of the texts that are matched at once.

RE2's time is linear in the text, but its factor grows with the expression: the largest that is
accepted takes some seconds for this much text, and cannot be interrupted meanwhile.
"""
_MAX_COST = 300
_COUNTED = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
_CLASS_COST = 20
_UNICODE_CLASS = re.compile(r"\\[pP]")
#: An operand at the end that is, or may have, classes of Unicode.
_CLASSES = re.compile(r"(?s)(?:\\[pP].|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\])\Z")
KEY = "@key"
HEADER = "@header."


class Matcher:
    """Finds the messages of one channel that meet a condition."""

    def __init__(
        self, condition: SearchCondition, format_: Format, versions: Sequence[SchemaVersion]
    ) -> None:
        """Raise InvalidRequest for an expression or a field that cannot be searched."""
        self._condition = condition
        self._format = format_
        self._decoder = MessageDecoder(format_, versions)
        self._path: list[str] = []
        if condition.regex is not None:
            _check_expression(condition.regex)
        if condition.field is not None:
            if condition.text is None and condition.regex is None:
                raise InvalidRequest.at("query:field", "without text or regex there is no search")
            if not condition.field.startswith("@"):
                self._path = condition.field.split(".")
                _check_field(self._path[0], format_, versions)
            elif condition.field != KEY and not condition.field.startswith(HEADER):
                raise InvalidRequest.at(
                    "query:field", f"give {KEY}, {HEADER}NAME, or a field of the records"
                )

    def matching(self, messages: Sequence[ReadMessage]) -> list[ReadMessage]:
        """Return the messages that meet the condition, in their order."""
        condition = self._condition
        if condition.text is None and condition.regex is None:
            return list(messages)
        texts = self._texts(messages)
        matches: list[ReadMessage] = []
        for start, end in _slices(texts):
            array = pa.array(texts[start:end], pa.large_string())
            mask = pa.array([True] * (end - start))
            if condition.text is not None:
                hits = pc.match_substring(array, condition.text, ignore_case=True)
                mask = pc.and_(mask, hits)
            if condition.regex is not None:
                # ^ and $ are the beginning and end of a line: each value of a field is one.
                hits = pc.match_substring_regex(array, f"(?m:{condition.regex})")
                mask = pc.and_(mask, hits)
            matches += [messages[start + index] for index in pc.indices_nonzero(mask).to_pylist()]
        return matches

    def _texts(self, messages: Sequence[ReadMessage]) -> list[str]:
        field = self._condition.field
        if field == KEY:
            texts = [text_of(message.key) for message in messages]
        elif field is not None and field.startswith(HEADER):
            name = field.removeprefix(HEADER)
            texts = ["\n".join(_headers(message, name)) for message in messages]
        elif field is not None:
            contents = self._contents(messages)
            texts = [_field_text(records, self._path) for records in contents]
        else:
            contents = self._contents(messages, as_text=True)
            texts = [
                "\n".join(
                    filter(None, (text_of(message.key), *_headers(message), *map(_text, records)))
                )
                for message, records in zip(messages, contents, strict=True)
            ]
        # JSON may have halves of surrogate pairs, which Arrow refuses.
        return [text[:MAX_TEXT].encode(errors="replace").decode() for text in texts]

    def _contents(
        self, messages: Sequence[ReadMessage], *, as_text: bool = False
    ) -> Iterable[Sequence[Any]]:
        """Return the records of each message; of bytes, their value as JSON or `as_text`."""
        if self._format is Format.BYTES:
            return [
                [text_of(message.value)] if as_text else _parsed(message.value)
                for message in messages
            ]
        values = [message.value for message in messages]
        return [
            [text_of(value)] if records is None and as_text else records or []
            for value, records in zip(values, self._decoder.records(values), strict=True)
        ]


def text_of(value: bytes | None) -> str:
    """Return bytes as text, if they are UTF-8, else in base64."""
    try:
        return (value or b"").decode()
    except UnicodeDecodeError:
        return base64.b64encode(value or b"").decode("ascii")


def _check_expression(regex: str) -> None:
    """Raise InvalidRequest unless RE2 accepts the expression, and matches it fast enough.

    A counted repetition is so many copies of its operand, which multiply where they are nested.
    """
    count, factor = len(regex), 1
    for match in _COUNTED.finditer(regex):
        copies = int(match[3] or match[1]) + 1
        before = regex[: match.start()]
        if before.endswith((")", "}")):
            factor *= copies
        elif (classes := _CLASSES.search(before)) is not None:
            count += copies * max(1, _class_cost(classes[0]))
        else:
            count += copies
    count += _class_cost(regex)
    if count * factor > _MAX_COST:
        raise InvalidRequest.at(
            "query:regex",
            "it takes too long to search with: use smaller numbers in braces, or + and *",
        )
    try:
        pc.match_substring_regex(pa.array([""]), f"(?m:{regex})")
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise InvalidRequest.at(
            "query:regex", f"not an expression of RE2, which has no look-around: {reason}"
        ) from None


def _class_cost(regex: str) -> int:
    return _CLASS_COST * len(_UNICODE_CLASS.findall(regex))


def _check_field(name: str, format_: Format, versions: Sequence[SchemaVersion]) -> None:
    if format_ is Format.BYTES:
        return
    names = {
        field["name"]: None
        for version in versions
        for field in json.loads(version.definition)["fields"]
    }
    if name not in names:
        listed = ", ".join(list(names)[:20])
        raise InvalidRequest.at(
            "query:field", f"no version of the schema has a field {name!r}; there are {listed}"
        )


def _slices(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield slices of texts that are matched at once."""
    start, size = 0, 0
    for index, text in enumerate(texts):
        if size and size + len(text) > MAX_TEXT:
            yield start, index
            start, size = index, 0
        size += len(text)
    if start < len(texts):
        yield start, len(texts)


def _headers(message: ReadMessage, name: str | None = None) -> list[str]:
    return [text_of(value) for key, value in message.headers if name in (None, key)]


def _parsed(value: bytes | None) -> list[Any]:
    """Return bytes that are JSON, with numbers as they are written."""
    try:
        return [json.loads(value or b"", parse_float=str, parse_int=str)]
    except (ValueError, RecursionError):
        return []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _field_text(records: Sequence[Any], path: Sequence[str]) -> str:
    try:
        return "\n".join(_values(list(records), path))
    except RecursionError:
        # JSON of a hostile depth.
        return ""


def _values(part: Any, path: Sequence[str]) -> Iterator[str]:
    """Yield the texts at a path of names, of each item of the lists on the way."""
    if isinstance(part, list):
        for item in part:
            yield from _values(item, path)
    elif not path:
        yield _text(part)
    elif isinstance(part, dict) and path[0] in part:
        yield from _values(part[path[0]], path[1:])
