"""Channels as files: documents of channels in YAML or JSON.

A document is the body of `PUT /v1/channels/{name}` with the name in its metadata. The gateway
validates it; this module only checks that it is one JSON value with a unique name.
"""

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

from sluiceway.api.arguments import channel_path
from sluiceway.errors import InvalidRequest

_SUFFIXES = (".yaml", ".yml", ".json")
_ENDINGS = " ".join(_SUFFIXES)
_STDIN = "-"
_FORM = "{metadata: {name: …}, spec: {…}}"
_MAX_DEPTH = 100
_SPACE = re.compile(r"\s*")
_MAX_NODES = 200_000
_MAX_BYTES = 64 << 20
_TAG = "tag:yaml.org,2002:"
_TEXTS = {f"{_TAG}str", f"{_TAG}timestamp", f"{_TAG}value"}
_SCALARS = {f"{_TAG}{tag}": tag for tag in ("null", "bool", "int", "float")}
_ALSO_OTHERWISE_READ = re.compile(r"[-+]?0[0-7_]+|[-+]?[0-9][0-9_]*(:[0-9.]+)+")
"""Numbers of YAML 1.1 that are others, or texts, in YAML 1.2 and to most readers: 010, 1:30."""
_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}:,]|[^][{}:,"\s]+')
_OF_THE_TOPIC = ("partitions", "replication", "retention", "config")
"""Fields of the spec that follow an adopted topic."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """One channel of a file; `body` is the body of its PUT."""

    source: str
    number: int
    """From 1 within the file."""
    name: str
    body: Mapping[str, Any]
    parts: "_Parts" = field(repr=False)

    def place(self, pointer: str = "") -> str:
        """Return file, line and document of a JSON pointer or, if unknown, of what contains it."""
        lines = self.parts.lines
        while pointer and pointer not in lines:
            pointer = pointer.rpartition("/")[0]
        return _place(self.source, lines[pointer], self.number)

    def explained(self, pointer: str) -> str:
        """Return the pointer and, for a word that YAML does not take as text, its type."""
        plain = self.parts.plain.get(pointer)
        return pointer if plain is None else f"{pointer} ({plain})"


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Details about the parts of a document, by JSON pointer."""

    lines: dict[str, int]
    plain: dict[str, str] = field(default_factory=dict)
    """Words that are not text in YAML, after their types: "bool yes"."""


_Faults = list[str]
"""The problems of all files, each after its place; reported together."""


class _NotUsable(Exception):
    """A value of a document cannot be expressed in JSON; with its line."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def read_documents(paths: Sequence[str]) -> list[Document]:
    """Return the documents of files, folders (with their subfolders) or `-`, in order.

    Raises ClickException with a line for every problem: unreadable files, values that are not
    mappings, missing names, names that occur twice, no document at all.
    """
    faults: _Faults = []
    documents: list[Document] = []
    for source, text in _texts(paths, faults):
        documents.extend(_parsed(source, text, faults))
    first: dict[str, Document] = {}
    for document in documents:
        other = first.setdefault(document.name, document)
        if other is not document:
            faults.append(
                f"{document.place('/metadata/name')}: the channel {document.name!r} is also in "
                f"{other.place('/metadata/name')}; remove one of the two"
            )
    if not documents and not faults:
        faults.append(f"{', '.join(paths)}: no channel is in it; files end with {_ENDINGS}")
    if faults:
        raise click.ClickException("\n".join(faults))
    return documents


def _texts(paths: Sequence[str], faults: _Faults) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each file."""
    for path in paths:
        if path == _STDIN:
            files = [Path(_STDIN)]
        elif os.path.isdir(path):  # noqa: PTH112 - pathlib raises for a path that is too long
            before = len(faults)
            files = _listed(Path(path), faults)
            if not files and len(faults) == before:
                faults.append(f"{path}: the folder has no file that ends with {_ENDINGS}")
        else:
            files = [Path(path)]
        for file in files:
            try:
                with nullcontext(sys.stdin.buffer) if path == _STDIN else file.open("rb") as stream:
                    content = stream.read(_MAX_BYTES + 1)
                if len(content) > _MAX_BYTES:
                    faults.append(f"{file}: larger than {_MAX_BYTES >> 20} MiB; no documents are")
                    continue
                name = "standard input" if path == _STDIN else str(file)
                yield name, content.decode("utf-8-sig")
            except OSError as error:
                faults.append(f"{file}: not readable: {error.strerror or error}")
            except UnicodeDecodeError as error:
                faults.append(f"{file}: not UTF-8 at byte {error.start + 1}; save it as UTF-8")


def _listed(folder: Path, faults: _Faults) -> list[Path]:
    """Return the documents' files in a folder and its subfolders, in order.

    What cannot be read is a fault: `--prune` would delete the channels in it.
    """

    def refuse(error: OSError) -> None:
        faults.append(f"{error.filename}: not readable: {error.strerror or error}")

    paths = []
    for place, folders, files in os.walk(folder, onerror=refuse):
        # Mounted ConfigMaps contain each file a second time in a hidden folder.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in folders):
            if path.is_symlink():
                faults.append(f"{path}: a link to a folder, which is not followed; give it with -f")
        for path in (Path(place, name) for name in files):
            # Editors mark open files by hidden links that lead nowhere.
            broken = path.is_symlink() and not path.name.startswith(".")
            if path.suffix.lower() in _SUFFIXES and (path.is_file() or broken):
                paths.append(path)
    return sorted(paths)


def _parsed(source: str, text: str, faults: _Faults) -> Iterator[Document]:
    is_json = source.lower().endswith(".json")
    if source == "standard input" and text.lstrip()[:1] == "{":
        is_json = _is_json(text)
    values = _json_values(text) if is_json else _yaml_values(text)
    number = 0
    try:
        for number, (value, parts) in enumerate(values, 1):
            document = _document(source, number, value, parts, faults)
            if document is not None:
                yield document
    except _NotUsable as error:
        faults.append(f"{_place(source, error.line, number + 1)}: {error}")


def _is_json(text: str) -> bool:
    try:
        list(_json_values(text))
    except _NotUsable:
        return False
    return True


def _json_values(text: str) -> Iterator[tuple[Any, _Parts]]:
    """Yield the values that follow each other in the text, and their parts."""
    decoder = json.JSONDecoder()
    place = _after_space(text, 0)
    while place < len(text):
        line = text.count("\n", 0, place) + 1
        try:
            value, end = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise _NotUsable(
                f"not JSON: {error.msg} (column {error.colno})", error.lineno
            ) from None
        except ValueError:
            # Python's limit of digits.
            raise _NotUsable("a number has too many digits", line) from None
        except RecursionError:
            raise _NotUsable(f"nested deeper than {_MAX_DEPTH} levels", line) from None
        yield value, _Parts(lines=_json_lines(text, place, end, line))
        place = _after_space(text, end)


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()


def _json_lines(text: str, start: int, end: int, line: int) -> dict[str, int]:
    """Return the line of each part of a JSON value. Raises _NotUsable for repeated keys."""
    lines = {"": line}
    # The pointers of the open containers; the index of the current item, None in objects.
    open_: list[tuple[str, int | None]] = []
    pointer, is_key, counted = "", False, start
    for token in _JSON_TOKEN.finditer(text, start, end):
        line += text.count("\n", counted, token.start())
        counted = token.start()
        mark = token[0]
        if mark in ("]", "}"):
            open_.pop()
        elif mark == ",":
            parent, index = open_[-1]
            is_key = index is None
            if index is not None:
                open_[-1] = parent, index + 1
        elif mark == ":":
            is_key = False
        elif is_key:
            key = json.loads(mark, strict=False)
            pointer = _pointer(open_[-1][0], key)
            if pointer in lines:
                raise _NotUsable(f"the key {key!r} occurs twice in an object; remove one", line)
            lines[pointer] = line
        else:
            if open_ and open_[-1][1] is not None:
                pointer = f"{open_[-1][0]}/{open_[-1][1]}"
                lines[pointer] = line
            if mark in ("[", "{"):
                open_.append((pointer, 0 if mark == "[" else None))
                is_key = mark == "{"
    return lines


def _pointer(parent: str, key: str) -> str:
    return f"{parent}/{key.replace('~', '~0').replace('/', '~1')}"


def _yaml_values(text: str) -> Iterator[tuple[Any, _Parts]]:
    """Yield the value of each YAML document that is not empty, and its parts."""
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            parts = _Parts(lines={"": node.start_mark.line + 1})
            value = _Builder(parts).value(node, "", 0)
            if value is not None:
                yield value, parts
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise _NotUsable(f"not YAML: {error.problem or error.context}", line) from None
    except yaml.YAMLError as error:
        raise _NotUsable(f"not YAML: {' '.join(str(error).split())}", 1) from None
    except RecursionError:
        raise _NotUsable(f"nested deeper than {_MAX_DEPTH} levels", 1) from None


class _Builder:
    """Builds JSON values from YAML nodes and records their parts; limits expanded aliases."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self._nodes = 0
        self._scalars = yaml.constructor.SafeConstructor()

    def value(self, node: Any, pointer: str, depth: int) -> Any:
        """Return the value of a node. Raises _NotUsable."""
        self._nodes += 1
        if self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            limit = f"{_MAX_NODES} values or {_MAX_DEPTH} levels"
            raise _unusable(node, f"more than {limit}, with aliases counted each time")
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, pointer, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [
                self._part(item, item, f"{pointer}/{index}", depth)
                for index, item in enumerate(node.value)
            ]
        if isinstance(node, yaml.ScalarNode) and node.tag in _TEXTS:
            return node.value
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self._scalar(node, pointer)
        raise _unusable(node, f"the tag {node.tag!r} has no form in JSON; leave it out")

    def _scalar(self, node: Any, pointer: str) -> Any:
        kind = _SCALARS[node.tag]
        try:
            value = self._scalars.construct_object(node)
        except (ValueError, KeyError, yaml.YAMLError):
            raise _unusable(node, f"{node.value!r} is no {kind}") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise _unusable(node, f"{node.value} is no number of JSON; quote it if it is text")
        if kind in ("int", "float") and _ALSO_OTHERWISE_READ.fullmatch(node.value):
            raise _unusable(
                node,
                f"{node.value} is {value} in YAML 1.1; write the number that you mean, or quotes "
                "around a text",
            )
        self._parts.plain[pointer] = f"{kind} {node.value}".strip()
        return value

    def _mapping(self, node: Any, pointer: str, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, part in node.value:
            if key.tag == f"{_TAG}merge":
                raise _unusable(key, "merging with << is not supported; write the fields out")
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _TEXTS:
                shown = f"{key.value!r} " if isinstance(key, yaml.ScalarNode) else ""
                raise _unusable(key, f"the key {shown}is not text; quote it")
            if key.value in mapping:
                raise _unusable(key, f"the key {key.value!r} occurs twice in a mapping; remove one")
            mapping[key.value] = self._part(key, part, _pointer(pointer, key.value), depth)
        return mapping

    def _part(self, start: Any, node: Any, pointer: str, depth: int) -> Any:
        self._parts.lines[pointer] = start.start_mark.line + 1
        return self.value(node, pointer, depth + 1)


def _unusable(node: Any, message: str) -> _NotUsable:
    return _NotUsable(message, node.start_mark.line + 1)


def _document(
    source: str, number: int, value: Any, parts: _Parts, faults: _Faults
) -> Document | None:
    """Return the document of a value; None after adding to the faults."""
    lines = parts.lines
    place = _place(source, lines[""], number)
    if not isinstance(value, dict):
        faults.append(f"{place}: not a mapping; a channel is {_FORM}")
        return None
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or name is None:
        faults.append(f"{place}: metadata.name is missing; it names the channel")
        return None
    try:
        # Requests are JSON in UTF-8, which has no NaN and no lone surrogates.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        channel_path(name)
    except (UnicodeEncodeError, RecursionError):
        faults.append(f"{place}: a text has a lone surrogate, or values are nested too deeply")
        return None
    except ValueError:
        faults.append(f"{place}: NaN and infinity are no numbers of JSON")
        return None
    except InvalidRequest as error:
        place = _place(source, lines.get("/metadata/name", lines[""]), number)
        faults.append(f"{place}: {error}")
        return None
    others = {key: part for key, part in metadata.items() if key != "name"}
    # Editors find the JSON Schema of a file by this key.
    body = {key: part for key, part in value.items() if key != "$schema"} | {"metadata": others}
    return Document(source=source, number=number, name=name, body=body, parts=parts)


def _place(source: str, line: int, number: int) -> str:
    return f"{source}:{line} (document {number})"


def document_of(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a channel: the fields that a user would set.

    Omits defaults, and fields that an adopted topic determines.
    """
    # Imported on use: reading files needs none of the gateway's models.
    from sluiceway_gateway.channels.wire import SpecPut

    spec = dict(resource["spec"])
    left_out = {"schema"} if spec["format"] == "bytes" else set()
    if spec["topic"] is not None:
        left_out.update(_OF_THE_TOPIC)
    kept = {name: part for name, part in spec.items() if name not in left_out}
    defaults = SpecPut().model_dump(mode="json", by_alias=True)
    metadata = {"name": resource["metadata"]["name"]}
    labels = {"labels": resource["metadata"]["labels"]} if resource["metadata"]["labels"] else {}
    return {"metadata": {**metadata, **labels}, "spec": _without(kept, defaults)}


def _without(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ from the defaults."""
    differing: dict[str, Any] = {}
    for name, value in values.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            value = _without(value, default)
            default = {}
        if value != default:
            differing[name] = value
    return differing


def document_schema() -> dict[str, Any]:
    """Return the JSON Schema of a document, generated from the model of the request."""
    from sluiceway_gateway.channels.wire import ChannelPut
    from sluiceway_gateway.core.names import NAME_LENGTH, NAME_PATTERN

    schema = ChannelPut.model_json_schema(by_alias=True)
    metadata = schema["$defs"]["MetadataPut"]
    metadata["properties"] = {
        "name": {
            "type": "string",
            "description": "The channel's name",
            "pattern": NAME_PATTERN,
            "maxLength": NAME_LENGTH,
        },
        **metadata["properties"],
    }
    metadata["required"] = ["name"]
    schema["properties"]["$schema"] = {"type": "string", "description": "Of this schema"}
    schema.update(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "A channel of Sluiceway",
            "description": "A document for `sluiceway apply`",
            "required": ["metadata"],
        }
    )
    return schema
