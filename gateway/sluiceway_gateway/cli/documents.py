"""Channels as files: documents of channels in YAML or JSON.

A document is the body of `PUT /v1/channels/{name}` with the name in its metadata. The gateway
validates it; this module only checks that it is one JSON value with a unique name.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import yaml

from sluiceway.api.arguments import channel_path
from sluiceway.errors import InvalidRequest

_SUFFIXES = (".yaml", ".yml", ".json")
_ENDINGS = " ".join(_SUFFIXES)
_STDIN, _STANDARD_INPUT = "-", "standard input"
_MAX_DEPTH = 100
_MAX_NODES = 200_000
_MAX_BYTES = 64 << 20
_TAG = "tag:yaml.org,2002:"
_TEXTS = {f"{_TAG}str", f"{_TAG}timestamp", f"{_TAG}value"}
_SCALARS = {f"{_TAG}{tag}": tag for tag in ("null", "bool", "int", "float")}
_ALSO_OTHERWISE_READ = re.compile(r"[-+]?0[0-7_]+|[-+]?[0-9][0-9_]*(:[0-9.]+)+")
"""Numbers of YAML 1.1 that are others, or texts, in YAML 1.2 and to most readers: 010, 1:30."""
_NOT_SPACE = re.compile(r"\S")
_YAML_OF_JSON = str.maketrans({"\t": " ", "\r": " ", "\x7f": "\\x7f"})
"""Replaces what YAML takes otherwise. In JSON, the first two are only between tokens."""
_OF_THE_TOPIC = ("partitions", "replication", "retention", "config")
"""Fields of the spec that follow an adopted topic."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A value in a file."""

    file: str
    number: int
    """From 1 within the file."""
    root: Callable[[], yaml.Node]
    """Composes the value's nodes, which know their lines."""

    def line(self, pointer: str = "") -> int:
        """Return the line of a JSON pointer or, if unknown, of what contains it."""
        return _line(self._part(pointer)[0])

    def place(self, pointer: str = "") -> str:
        """Return file, line and document of a JSON pointer."""
        return _place(self.file, self.line(pointer), self.number)

    def explained(self, pointer: str) -> str:
        """Return the pointer and, for a word that YAML does not take as text, its type."""
        _, node = self._part(pointer)
        if node is None or node.tag not in _SCALARS:
            return pointer
        return f"{pointer} ({f'{_SCALARS[node.tag]} {node.value}'.strip()})"

    def _part(self, pointer: str) -> tuple[yaml.Node, yaml.Node | None]:
        """Return the node where a part starts, its key in a mapping, and the part's own.

        Without such a part, return the start of the last one on its way, and None.
        """
        start = node = self.root()
        for name in pointer.split("/")[1:]:
            if isinstance(node, yaml.MappingNode):
                parts = {key.value: (key, part) for key, part in node.value}
            elif isinstance(node, yaml.SequenceNode):
                parts = {str(index): (item, item) for index, item in enumerate(node.value)}
            else:
                return start, None
            start, node = parts.get(name.replace("~1", "/").replace("~0", "~"), (start, None))
        return start, node


@dataclass(frozen=True, kw_only=True)
class Document:
    """One channel of a file; `body` is the body of its PUT."""

    name: str
    body: Mapping[str, Any]
    source: Source


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
    faults: list[str] = []
    documents: dict[str, Document] = {}
    for file, text in _texts(paths, faults):
        for document in _documents(file, text, faults):
            other = documents.setdefault(document.name, document)
            if other is not document:
                faults.append(
                    f"{document.source.place('/metadata/name')}: the channel {document.name!r} is "
                    f"also in {other.source.place('/metadata/name')}; remove one of the two"
                )
    if not documents and not faults:
        faults.append(f"{', '.join(paths)}: no channel is in it; files end with {_ENDINGS}")
    if faults:
        raise click.ClickException("\n".join(faults))
    return list(documents.values())


def _texts(paths: Sequence[str], faults: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each file."""
    for path in paths:
        for file in _files(path, faults):
            name = _STANDARD_INPUT if file == _STDIN else file
            try:
                with click.open_file(file, "rb") as stream:
                    content = stream.read(_MAX_BYTES + 1)
                if len(content) > _MAX_BYTES:
                    faults.append(f"{name}: larger than {_MAX_BYTES >> 20} MiB; no documents are")
                else:
                    yield name, content.decode("utf-8-sig")
            except OSError as error:
                faults.append(f"{name}: not readable: {error.strerror or error}")
            except UnicodeDecodeError as error:
                faults.append(f"{name}: not UTF-8 at byte {error.start + 1}; save it as UTF-8")


def _files(path: str, faults: list[str]) -> Sequence[str]:
    """Return the file, or the documents' files in a folder and its subfolders, in order.

    What cannot be read is a fault: `--prune` would delete the channels in it.
    """
    if not os.path.isdir(path):  # noqa: PTH112 - pathlib raises for a path that is too long
        return [path]

    def refuse(error: OSError) -> None:
        faults.append(f"{error.filename}: not readable: {error.strerror or error}")

    files: list[Path] = []
    before = len(faults)
    for place, folders, names in os.walk(path, onerror=refuse):
        # Mounted ConfigMaps contain each file a second time in a hidden folder.
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = (Path(place, name) for name in folders if Path(place, name).is_symlink())
        faults.extend(
            f"{link}: a link to a folder, which is not followed; give it with -f" for link in links
        )
        for file in (Path(place, name) for name in names):
            # Editors mark open files by hidden links that lead nowhere.
            broken = file.is_symlink() and not file.name.startswith(".")
            if file.suffix.lower() in _SUFFIXES and (file.is_file() or broken):
                files.append(file)
    if not files and len(faults) == before:
        faults.append(f"{path}: the folder has no file that ends with {_ENDINGS}")
    return [str(file) for file in sorted(files)]


def _documents(file: str, text: str, faults: list[str]) -> Iterator[Document]:
    """Yield the documents of a text. One that is refused does not hide the faults of others."""
    number = 0
    try:
        values = _json_values(text) if _is_json(file, text) else _yaml_values(text)
        for number, (value, root) in enumerate(values, 1):
            try:
                document = _document(Source(file=file, number=number, root=root), value)
            except _NotUsable as error:
                faults.append(f"{_place(file, error.line, number)}: {error}")
            else:
                yield document
    except _NotUsable as error:
        faults.append(f"{_place(file, error.line, number + 1)}: {error}")


def _place(file: str, line: int, number: int) -> str:
    return f"{file}:{line} (document {number})"


def _is_json(file: str, text: str) -> bool:
    if file != _STANDARD_INPUT or text.lstrip()[:1] != "{":
        return file.lower().endswith(".json")
    try:
        list(_json_values(text))
    except _NotUsable:
        return False
    return True


def _json_values(text: str) -> Iterator[tuple[Any, Callable[[], yaml.Node]]]:
    """Yield the values that follow each other in the text, and what composes their nodes."""
    repeated: list[str] = []

    def mapping(items: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in items)
        repeated.extend(key for key in counts if counts[key] > 1)
        return dict(items)

    decoder = json.JSONDecoder(object_pairs_hook=mapping)
    end = 0
    while (begin := _NOT_SPACE.search(text, end)) is not None:
        line = text.count("\n", 0, begin.start()) + 1
        try:
            value, end = decoder.raw_decode(text, begin.start())
        except json.JSONDecodeError as error:
            raise _NotUsable(
                f"not JSON: {error.msg} (column {error.colno})", error.lineno
            ) from None
        except ValueError:
            # Python's limit of digits.
            raise _NotUsable("a number has too many digits", line) from None
        except RecursionError:
            raise _NotUsable(f"nested deeper than {_MAX_DEPTH} levels", line) from None
        root = partial(_json_root, text[begin.start() : end], line)
        if repeated:
            # This raises with the line, unless there are no nodes.
            _Builder().value(root())
            raise _NotUsable(f"the key {repeated[0]!r} occurs twice in an object", line)
        yield value, root


def _json_root(text: str, line: int) -> yaml.Node:
    """Compose the nodes of a JSON value that begins at a line; all scalars are text.

    The rare value that is no YAML, such as one with a key of more than 1024 characters, becomes a
    node without parts.
    """
    ascii_text = text.translate(_YAML_OF_JSON).encode("ascii", "backslashreplace").decode()
    try:
        return yaml.compose("\n" * (line - 1) + ascii_text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):
        return yaml.ScalarNode(f"{_TAG}str", "", yaml.Mark(None, 0, line - 1, 0, None, None))


def _yaml_values(text: str) -> Iterator[tuple[Any, Callable[[], yaml.Node]]]:
    """Yield the value of each YAML document that is not empty, and what returns its nodes."""
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            value = _Builder().value(node)
            if value is not None:
                yield value, _composed(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise _NotUsable(f"not YAML: {error.problem or error.context}", line) from None
    except yaml.YAMLError as error:
        raise _NotUsable(f"not YAML: {' '.join(str(error).split())}", 1) from None
    except RecursionError:
        raise _NotUsable(f"nested deeper than {_MAX_DEPTH} levels", 1) from None


class _Builder:
    """Builds a JSON value from YAML nodes, and limits expanded aliases."""

    def __init__(self) -> None:
        self._nodes = 0
        self._scalars = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, depth: int = 0) -> Any:
        """Return the value of a node. Raises _NotUsable."""
        self._nodes += 1
        if self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            limit = f"{_MAX_NODES} values or {_MAX_DEPTH} levels"
            raise _unusable(node, f"more than {limit}, with aliases counted each time")
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.value(item, depth + 1) for item in node.value]
        if isinstance(node, yaml.ScalarNode) and node.tag in _TEXTS:
            return node.value
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self._scalar(node)
        raise _unusable(node, f"the tag {node.tag!r} has no form in JSON; leave it out")

    def _scalar(self, node: yaml.ScalarNode) -> Any:
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
        return value

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, part in node.value:
            if key.tag == f"{_TAG}merge":
                raise _unusable(key, "merging with << is not supported; write the fields out")
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _TEXTS:
                shown = f"{key.value!r} " if isinstance(key, yaml.ScalarNode) else ""
                raise _unusable(key, f"the key {shown}is not text; quote it")
            if key.value in mapping:
                raise _unusable(key, f"the key {key.value!r} occurs twice in a mapping; remove one")
            mapping[key.value] = self.value(part, depth + 1)
        return mapping


def _composed(node: yaml.Node) -> Callable[[], yaml.Node]:
    return lambda: node


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _unusable(node: yaml.Node, message: str) -> _NotUsable:
    return _NotUsable(message, _line(node))


def _document(source: Source, value: Any) -> Document:
    """Return the document of a value. Raises _NotUsable."""
    if not isinstance(value, dict):
        raise _NotUsable(
            "not a mapping; a channel is {metadata: {name: …}, spec: {…}}", source.line()
        )
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") is None:
        raise _NotUsable("metadata.name is missing; it names the channel", source.line())
    others = dict(metadata)
    name = others.pop("name")
    try:
        # Requests are JSON in UTF-8, which has no NaN and no lone surrogates.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        channel_path(name)
    except (UnicodeEncodeError, RecursionError):
        reason = "a text has a lone surrogate, or values are nested too deeply"
        raise _NotUsable(reason, source.line()) from None
    except ValueError:
        raise _NotUsable("NaN and infinity are no numbers of JSON", source.line()) from None
    except InvalidRequest as error:
        raise _NotUsable(str(error), source.line("/metadata/name")) from None
    # Editors find the JSON Schema of a file by this key.
    body = {key: part for key, part in value.items() if key != "$schema"} | {"metadata": others}
    return Document(name=name, body=body, source=source)


def document_of(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a channel: the fields that a user would set.

    Omits defaults, and fields that an adopted topic determines.
    """
    # Imported on use: reading files needs none of the gateway's models.
    from sluiceway_gateway.channels.model import Spec

    spec = resource["spec"]
    omitted = {"schema"} if spec["format"] == "bytes" else set()
    if spec["topic"] is not None:
        omitted.update(_OF_THE_TOPIC)
    kept = {name: part for name, part in spec.items() if name not in omitted}
    defaults = Spec().model_dump(mode="json", by_alias=True)
    metadata = {key: resource["metadata"][key] for key in ("name", "labels")}
    return {"metadata": _without(metadata, {"labels": {}}), "spec": _without(kept, defaults)}


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
    name = {"type": "string", "pattern": NAME_PATTERN, "maxLength": NAME_LENGTH}
    metadata = schema["$defs"]["MetadataPut"]
    metadata["properties"] = {
        "name": name | {"description": "The channel's name"},
        **metadata["properties"],
    }
    metadata["required"] = ["name"]
    schema["properties"]["$schema"] = {"type": "string", "description": "Of this schema"}
    return schema | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A channel of Sluiceway",
        "description": "A document for `sluiceway apply`",
        "required": ["metadata"],
    }
