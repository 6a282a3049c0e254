"""YAML as nodes that know where they were written, and their keys taken one by one, types checked."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from benchmark_runner.yaml_documents import explain, syntax_hint
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.specs.model import Finding, SourceLocation, SpecError, parse_duration
from valkyrie.text import did_you_mean, read_regular

# Data that knows where it was written, and what its relative paths are relative to.

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One value of a file. Nodes are shared where the file shares them (aliases)."""

    value: Mapping[str, Node] | Sequence[Node] | Scalar
    place: SourceLocation
    base: Path
    """The folder that paths in it are relative to."""
    raw: str = ""
    """A scalar as its author spelled it (`1.10`, which is not 1.1)."""
    plain: bool = False
    """A scalar without quotes: its text decides its type."""
    keys: Mapping[str, SourceLocation] = field(default_factory=dict)
    """Where each key of a map stands."""

    @property
    def mapping(self) -> Mapping[str, Node] | None:
        """Its entries, where it is a map."""
        value = self.value
        if isinstance(value, dict):  # what nearly all of them are; the abstract type is slow to ask
            return value
        return value if isinstance(value, Mapping) else None

    @property
    def items(self) -> Sequence[Node] | None:
        """Its items, where it is a list."""
        return self.value if isinstance(self.value, list | tuple) else None

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        if self.mapping is not None:
            return "a map"
        if self.items is not None:
            return "a list"
        if self.value is None:
            return "nothing"
        if isinstance(self.value, bool):
            return f"{self.raw or str(self.value).lower()}"
        if isinstance(self.value, str):
            return "text"
        return f"the number {self.raw or self.value}"

    def get(self, key: str) -> Node | None:
        """Return what stands under this key; nothing and an empty value are alike."""
        mapping = self.mapping
        found = mapping.get(key) if mapping is not None else None
        return None if found is None or found.value is None else found

    def data(self) -> Any:
        if self.mapping is not None:
            return {key: node.data() for key, node in self.mapping.items()}
        if self.items is not None:
            return [node.data() for node in self.items]
        return self.value


def from_data(data: Any, place: SourceLocation, base: Path) -> Node:
    """Plain data as nodes, all of it at one place."""
    if isinstance(data, Mapping):
        entries = {str(key): from_data(value, place, base) for key, value in data.items()}
        return Node(entries, place, base, keys=dict.fromkeys(entries, place))
    if isinstance(data, list | tuple):
        return Node([from_data(item, place, base) for item in data], place, base)
    return Node(data, place, base, raw="" if data is None else str(data))


def with_entries(
    node: Node, entries: Mapping[str, Node], keys: Mapping[str, SourceLocation] | None = None
) -> Node:
    return replace(node, value=dict(entries), keys={**node.keys, **(keys or {})})


def overlay(under: Node | None, over: Node) -> Node:
    """`over` laid on `under`: maps merge, everything else is replaced."""
    if under is None or under.mapping is None or over.mapping is None:
        return over
    merged = dict(under.mapping)
    for key, node in over.mapping.items():
        merged[key] = overlay(merged.get(key), node)
    return with_entries(under, merged, over.keys)


# The keys of a map, taken one by one with their types checked; what was never asked for is unknown.


@dataclass(slots=True)
class Notes:
    """Everything found in a file, so that all of it can be told at once."""

    findings: list[Finding] = field(default_factory=list)
    _seen: set[object] = field(default_factory=set)

    def error(self, code: str, message: str, at: Node | SourceLocation | None) -> None:
        self._add(Finding(code, "error", message, at.place if isinstance(at, Node) else at))

    def warning(self, code: str, message: str, at: Node | SourceLocation | None) -> None:
        self._add(Finding(code, "warning", message, at.place if isinstance(at, Node) else at))

    def info(self, code: str, message: str, at: Node | SourceLocation | None) -> None:
        self._add(Finding(code, "info", message, at.place if isinstance(at, Node) else at))

    def once(self, code: str, key: str, message: str, at: SourceLocation | None) -> None:
        """A warning that one telling of is enough, however often the file does it."""
        if (code, key) not in self._seen:
            self._seen.add((code, key))
            self.warning(code, message, at)

    def _add(self, finding: Finding) -> None:
        # A node shared through an alias is read more than once, and is wrong only once.
        if finding not in self._seen:
            self._seen.add(finding)
            self.findings.append(finding)

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    def raise_errors(self) -> None:
        """SpecError with all errors, where there are any."""
        if errors := self.errors:
            raise SpecError(errors)


class Fields:
    """A map being read."""

    def __init__(self, node: Node, notes: Notes, what: str) -> None:
        self.node = node
        self.notes = notes
        self.what = what
        """`stimulus 'x'`, `environment`: begins the messages."""
        self.asked: set[str] = set()
        self.given = node.mapping is not None
        if not self.given and node.value is not None:
            notes.error("wrong-type", f"{what} must be a map, not {node.kind}.", node)

    def take(self, name: str, *aliases: str) -> Node | None:
        """Return what stands under this key, or under another name of it."""
        if not aliases:
            self.asked.add(name)
            return self.node.get(name)
        self.asked.update((name, *aliases))
        present = [(key, found) for key in (name, *aliases) if (found := self.node.get(key)) is not None]
        if len(present) > 1:
            keys = " and ".join(f"`{key}`" for key, _ in present)
            self.notes.warning(
                "given-twice",
                f"{self.what}: {keys} mean the same; `{present[0][0]}` counts.",
                self.key_place(present[1][0]),
            )
        return present[0][1] if present else None

    def has(self, name: str) -> bool:
        return self.node.get(name) is not None

    def key_place(self, key: str) -> SourceLocation:
        return self.node.keys.get(key, self.node.place)

    def text(self, name: str, *aliases: str, required: bool = False) -> str | None:
        """A text; a number or a truth value is taken as it is spelled."""
        node = self.take(name, *aliases)
        if node is None:
            if required and self.given:
                self.notes.error("missing-key", f"{self.what} has no `{name}`.{self.slip(name)}", self.node)
            return None
        return text_of(node, self.notes, f"{self.what}: `{name}`")

    def texts(self, name: str, *aliases: str) -> tuple[str, ...] | None:
        """A list of texts, or one text."""
        node = self.take(name, *aliases)
        return None if node is None else texts_of(node, self.notes, f"{self.what}: `{name}`")

    def items(self, name: str, *aliases: str) -> list[Node] | None:
        node = self.take(name, *aliases)
        if node is None:
            return None
        if node.items is None:
            self.wrong(name, "a list", node)
            return []
        return list(node.items)

    def integer(self, name: str, *, least: int = 0) -> int | None:
        node = self.take(name)
        if node is None:
            return None
        value = node.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            self.wrong(name, "a whole number", node)
            return None
        if value < least:
            self.notes.error(
                "bad-value", f"{self.what}: `{name}` must be {least} or more, not {value}.", node
            )
            return None
        return value

    def number(self, name: str, *, least: float = 0.0, most: float = math.inf) -> float | None:
        """A finite number within these bounds."""
        node = self.take(name)
        return None if node is None else self.number_of(name, node, least=least, most=most)

    def number_of(self, name: str, node: Node, *, least: float = 0.0, most: float = math.inf) -> float | None:
        value = node.value
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.wrong(name, "a number", node)
            return None
        if not (least <= value <= most) or not math.isfinite(value):
            bounds = f"between {least:g} and {most:g}" if math.isfinite(most) else f"{least:g} or more"
            self.notes.error("bad-value", f"{self.what}: `{name}` must be {bounds}, not {value:g}.", node)
            return None
        return float(value)

    def boolean(self, name: str) -> bool | None:
        node = self.take(name)
        if node is None or isinstance(node.value, bool):
            return None if node is None else bool(node.value)
        self.wrong(name, "true or false", node)
        return None

    def duration(self, name: str, *aliases: str) -> float | None:
        """Return seconds of `90s`, `5m`; a bare number has no meaning."""
        node = self.take(name, *aliases)
        return None if node is None else duration_of(node, self.notes, f"{self.what}: `{name}`")

    def data(self, name: str) -> Json:
        node = self.take(name)
        if node is None:
            return {}
        if node.mapping is None:
            self.wrong(name, "a map", node)
            return {}
        return dict(node.data())

    def slip(self, name: str) -> str:
        """` `promt` looks like it.`: a key nobody asked for that may be the missing one."""
        near = get_close_matches(name, [key for key in self.node.mapping or {} if key not in self.asked], n=1)
        return f" `{near[0]}` looks like it." if near else ""

    def wrong(self, name: str, wanted: str, node: Node) -> None:
        self.notes.error("wrong-type", f"{self.what}: `{name}` must be {wanted}, not {node.kind}.", node)

    def finish(
        self, *, others: Mapping[str, str] | None = None, near: Collection[str] = (), within: str = ""
    ) -> None:
        """Warn of every key nobody asked for. `others`: keys known from elsewhere and what to say of them.

        `near` may be meant as well; where `within` is given, they stand under that key.
        """
        known = self.asked | set(near)
        for key in self.node.mapping or {}:
            if key in self.asked:
                continue
            if others and key in others:
                self.notes.once("ignored-key", key, f"`{key}` {others[key]}", self.key_place(key))
                continue
            below = within and key in near
            hint = f" It belongs under `{within}`." if below else did_you_mean(key, known)
            known_keys = "" if hint else f" Known: {', '.join(sorted(self.asked))}."
            self.notes.warning(
                "unknown-key",
                f"{self.what}: unknown key `{key}` is ignored.{hint or known_keys}",
                self.key_place(key),
            )


def text_of(node: Node, notes: Notes, what: str) -> str | None:
    """Its text; numbers and truth values as they are spelled."""
    if isinstance(node.value, str):
        return node.value
    if isinstance(node.value, bool | int | float):
        return node.raw or str(node.value)
    notes.error("wrong-type", f"{what} must be text, not {node.kind}.", node)
    return None


def texts_of(node: Node, notes: Notes, what: str) -> tuple[str, ...]:
    """Its texts, of a list or of one text alone."""
    if node.items is None:
        alone = text_of(node, notes, what)
        return () if alone is None else (alone,)
    found = (text_of(item, notes, f"{what} item {at}") for at, item in enumerate(node.items, 1))
    return tuple(text for text in found if text is not None)


def duration_of(node: Node, notes: Notes, what: str) -> float | None:
    """Seconds; a fault is noted."""
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        shown = node.raw or f"{node.value:g}"
        notes.error(
            "duration-without-unit",
            f"{what} is {shown} without a unit: write `{shown}s` for seconds (or ms, m, h).",
            node,
        )
        return None
    if not isinstance(node.value, str):
        notes.error("wrong-type", f"{what} must be a duration such as `90s` or `5m`, not {node.kind}.", node)
        return None
    try:
        seconds = parse_duration(node.value)
    except UsageError as error:
        notes.error("bad-duration", f"{what}: {error}", node)
        return None
    if seconds == 0:
        notes.error("bad-duration", f"{what} must be longer than nothing.", node)
        return None
    return seconds


# YAML as spec authors write it: anchors, aliases and merge keys are fine, a key given twice is not.
#
# Scalars are read as YAML 1.2 has them (`yes` is a word, `2026-01-15` and `1:30` are text), which is what
# the authors' own tool does. Every node keeps its line and column. Nodes are built from the parser's events,
# so that depth and size are bounded whatever the text is.

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
