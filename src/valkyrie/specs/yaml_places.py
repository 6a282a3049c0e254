"""YAML as spec authors write it: anchors, aliases and merge keys are fine, a key given twice is not.

Scalars are read as YAML 1.2 has them (`yes` is a word, `2026-01-15` and `1:30` are text), which is what the
authors' own tool does. Every node keeps its line and column. Nodes are built from the parser's events, so
that depth and size are bounded whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmark_runner.yaml_documents import explain, syntax_hint
from valkyrie.specs.fields import Node, Scalar
from valkyrie.specs.model import Finding, SourceLocation, SpecError
from valkyrie.text import read_regular

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64
MAX_NODES = 200_000
"""After aliases are written out: a short text can stand for a very long one."""

_TAG = "tag:yaml.org,2002:"
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}|0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def load_yaml(file: Path, base: Path | None = None) -> Node:
    """Read a YAML file; every fault is a SpecError with file, line and column."""
    where = SourceLocation(file)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise SpecError([Finding("too-large", "error", f"Larger than {MAX_BYTES >> 20} MiB.", where)])
        text = read_regular(file, MAX_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise SpecError([Finding("missing-file", "error", f"There is no file {file}.")]) from None
    except IsADirectoryError:
        raise SpecError([Finding("missing-file", "error", f"{file} is a folder, not a file.")]) from None
    except UnicodeDecodeError as error:
        raise SpecError([Finding("yaml", "error", f"Not UTF-8 text: {error.reason}.", where)]) from None
    except OSError as error:
        raise SpecError(
            [Finding("missing-file", "error", f"Cannot read {file}: {error.strerror}.")]
        ) from None
    return parse_yaml(text, file, base)


def parse_yaml(text: str, file: Path, base: Path | None = None) -> Node:
    """Read one YAML document; an empty one is a node without a value."""
    if len(text) > MAX_BYTES:
        raise SpecError(
            [Finding("too-large", "error", f"Larger than {MAX_BYTES >> 20} MiB.", SourceLocation(file))]
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        parser = loader(text)
        try:
            return _Builder(parser, file, base or file.parent).document()
        finally:
            parser.dispose()
    except yaml.MarkedYAMLError as error:
        line, column, problem = explain(error)
        message = f"Not valid YAML: {problem}.{syntax_hint(problem, _char_at(text, line, column))}"
        raise SpecError([Finding("yaml", "error", message, SourceLocation(file, line, column))]) from None
    except (yaml.YAMLError, UnicodeError) as error:
        reason = getattr(error, "reason", None) or str(error)
        line = text.count("\n", 0, getattr(error, "position", None) or 0) + 1
        raise SpecError(
            [Finding("yaml", "error", f"Not valid YAML: {reason}.", SourceLocation(file, line))]
        ) from None


def _char_at(text: str, line: int, column: int) -> str:
    lines = text.split("\n", line)
    return lines[line - 1][column - 1 : column] if len(lines) >= line else ""


@dataclass(slots=True)
class _Builder:
    parser: Any
    """A loader of PyYAML; only its events are used."""
    file: Path
    base: Path
    anchors: dict[str, tuple[Node, int] | None] = field(default_factory=dict)
    """With the size of each; None while it is still being read."""

    def document(self) -> Node:
        self.parser.get_event()
        event = self.parser.get_event()
        if isinstance(event, yaml.StreamEndEvent):
            return Node(None, SourceLocation(self.file), self.base)
        node, _ = self.node(self.parser.get_event(), 0)
        self.parser.get_event()
        event = self.parser.get_event()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.fault("yaml", "One document is expected, here begins another (`---`).", event)
        return node

    def node(self, event: Any, depth: int) -> tuple[Node, int]:
        """The node that begins with this event, and how many nodes it stands for."""
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if depth > MAX_DEPTH:
            raise self.fault("yaml", f"Nested more than {MAX_DEPTH} deep.", event)
        if event.anchor:
            self.anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            built: tuple[Node, int] = (self.scalar(event), 1)
        elif isinstance(event, yaml.SequenceStartEvent):
            built = self.sequence(event, depth)
        else:
            built = self.mapping(event, depth)
        if built[1] > MAX_NODES:
            raise self.fault("yaml", f"Stands for more than {MAX_NODES:,} values.", event)
        if event.anchor:
            self.anchors[event.anchor] = built
        return built

    def alias(self, event: Any) -> tuple[Node, int]:
        if event.anchor not in self.anchors:
            raise self.fault(
                "yaml", f"`*{event.anchor}` refers to nothing: no `&{event.anchor}` above.", event
            )
        found = self.anchors[event.anchor]
        if found is None:
            raise self.fault("yaml", f"`*{event.anchor}` refers to itself.", event)
        return found

    def sequence(self, start: Any, depth: int) -> tuple[Node, int]:
        items = [self.node(event, depth + 1) for event in self.until_end()]
        size = 1 + sum(size for _, size in items)
        return Node([node for node, _ in items], self.place(start), self.base), size

    def mapping(self, start: Any, depth: int) -> tuple[Node, int]:
        entries: dict[str, Node] = {}
        keys: dict[str, SourceLocation] = {}
        merged: list[Node] = []
        size = 1
        for event in self.until_end():
            merge = self.is_merge(event)
            key, at = self.key(event), self.place(event)
            value, weight = self.node(self.parser.get_event(), depth + 1)
            size += weight
            if merge:
                merged += self.merged_maps(value, at)
            elif key in entries:
                raise SpecError([_twice(key, at, keys[key])])
            else:
                entries[key], keys[key] = value, at
        for other in merged:
            for name, node in (other.mapping or {}).items():
                if name not in entries:
                    entries[name], keys[name] = node, other.keys[name]
        return Node(entries, self.place(start), self.base, keys=keys), size

    def key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.anchor:
            raise self.fault(
                "yaml", "A key must be plain text. A value that holds braces needs quotes or a block.", event
            )
        if not isinstance(self.scalar(event).value, str):
            raise self.fault("yaml", f"The key `{event.value}` is not text: put it in quotes.", event)
        return str(event.value)

    def is_merge(self, event: Any) -> bool:
        return getattr(event, "value", None) == "<<" and bool(event.implicit[0])

    def merged_maps(self, value: Node, at: SourceLocation) -> list[Node]:
        maps = [value] if value.items is None else list(value.items)
        if any(one.mapping is None for one in maps):
            raise SpecError([Finding("yaml", "error", "`<<` takes a map, or a list of maps.", at)])
        return maps

    def until_end(self) -> Iterator[Any]:
        while not isinstance(event := self.parser.get_event(), yaml.CollectionEndEvent):
            yield event

    def scalar(self, event: Any) -> Node:
        plain = bool(event.implicit[0])
        text = str(event.value)
        value: Scalar
        if event.tag is None or event.tag == "!":
            value = resolve(text) if plain else text
        else:
            value = self.tagged(event, text)
        return Node(value, self.place(event), self.base, raw=text, plain=plain)

    def tagged(self, event: Any, text: str) -> Scalar:
        tag = str(event.tag)
        if tag == f"{_TAG}str":
            return text
        value = resolve(text)
        kinds = {"int": int, "float": int | float, "bool": bool, "null": type(None)}
        wanted = kinds.get(tag.removeprefix(_TAG)) if tag.startswith(_TAG) else None
        if wanted is None or not isinstance(value, wanted):
            raise self.fault("yaml", f"The tag `{tag}` is not known here, or does not fit.", event)
        return value

    def place(self, event: Any) -> SourceLocation:
        return SourceLocation(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def fault(self, code: str, message: str, event: Any) -> SpecError:
        return SpecError([Finding(code, "error", message, self.place(event))])


def resolve(text: str) -> Scalar:
    """Return what an unquoted scalar means, by the core schema of YAML 1.2."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INTEGER.fullmatch(text):
        return int(text, 10 if text[:2] not in ("0o", "0x") else 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _twice(key: str, at: SourceLocation, first: SourceLocation) -> Finding:
    return Finding(
        "duplicate-key", "error", f"`{key}` is given twice (first at {first.line}:{first.column}).", at
    )
