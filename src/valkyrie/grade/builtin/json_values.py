"""Graders of JSON in what an agent said or left: values found by JSONPath, shapes by JSON Schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from valkyrie.errors import GraderError
from valkyrie.grade.base import (
    MOST_BYTES,
    BuiltIn,
    Config,
    UnreadableError,
    clipped,
    is_file,
    read_text,
    workspace_of,
)
from valkyrie.grade.calls import as_text
from valkyrie.grade.protocol import GraderInput, GraderResult, Need
from valkyrie.specs.globs import TooManyFilesError, WorkspaceGlob

_FENCE = re.compile(r"^```[ \t]*(?:json|JSON)?[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


class NoJsonError(Exception):
    """There is no JSON where it was looked for."""


class JsonSource:
    """Where a grader takes its JSON from: the output, or with `file` the one file of the workspace."""

    def __init__(self, config: Config) -> None:
        self.file = config.text("file", default="")
        self._glob = WorkspaceGlob(self.file)

    def load(self, given: GraderInput) -> Any:
        """The document. Raises NoJsonError when it is missing or broken, GraderError without a workspace."""
        return self._from_file(given) if self.file else from_text(given.transcript.output)

    def _from_file(self, given: GraderInput) -> Any:
        root = workspace_of(given.workspace)
        try:
            files = [path for path in self._glob.find(root, given.unseen) if is_file(path)]
            if len(files) != 1:
                raise NoJsonError(f"{len(files) or 'no'} files match {self.file}")
            return _parsed(read_text(files[0]), self.file)
        except TooManyFilesError as error:
            raise NoJsonError(str(error)) from None
        except UnreadableError as error:
            raise NoJsonError(f"{self.file} cannot be read: {error}") from None


def from_text(text: str) -> Any:
    """A text that is JSON, or whose last fenced block is."""
    if len(text) > MOST_BYTES:
        raise NoJsonError("the output is too large")
    try:
        return _parsed(text, "the output")
    except NoJsonError:
        blocks = _FENCE.findall(text)
        if not blocks:
            raise
    return _parsed(blocks[-1], "the output's last code block")


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except ValueError as error:
        raise NoJsonError(f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise NoJsonError(f"{what} is nested too deeply") from None


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


# A part of JSONPath (RFC 9535): names, wildcards, indexes, slices, unions, descendants; no filters.
#
# `$.a.b`, `$['a b'][0]`, `$.list[-1]`, `$.list[1:3]`, `$.*`, `$..name`, `$['a','b']`.

MOST_FOUND = 10_000
_NAME = re.compile(r"[A-Za-z_\u0080-\U0010ffff][\w\u0080-\U0010ffff-]*")
_SLICE = re.compile(r"\s*(-?\d{1,15})?\s*:\s*(-?\d{1,15})?\s*(?::\s*(-?\d{1,15})?\s*)?")
_INDEX = re.compile(r"\s*(-?\d{1,15})\s*")
_QUOTED = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*""", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

Selector = Callable[[Any], Iterator[Any]]


class QueryError(ValueError):
    """This is no JSONPath, or a part of it that is not read here."""


class JsonQuery:
    """A compiled query."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps = list(_steps(text))

    def find(self, document: Any) -> list[Any]:
        """Return every value it selects, at most `MOST_FOUND`."""
        found = [document]
        for descends, selectors in self._steps:
            following: list[Any] = []
            for value in found:
                for node in _descendants(value) if descends else (value,):
                    for selector in selectors:
                        following += selector(node)
                    if len(following) > MOST_FOUND:
                        return following[:MOST_FOUND]
            found = following
        return found


def _steps(text: str) -> Iterator[tuple[bool, Sequence[Selector]]]:
    text = text.strip()
    if not text.startswith("$"):
        raise QueryError(f"{text!r} does not begin with $")
    at = 1
    while at < len(text):
        descends = text.startswith("..", at)
        dotted = descends or text[at] == "."
        at += 2 if descends else 1 if dotted else 0
        if text.startswith("[", at) and (descends or not dotted):
            end = _closing(text, at)
            yield descends, [_selector(part) for part in _parts(text[at + 1 : end])]
            at = end + 1
        elif dotted and text.startswith("*", at):
            yield descends, [_children]
            at += 1
        elif dotted and (name := _NAME.match(text, at)):
            yield descends, [_member(name[0])]
            at = name.end()
        else:
            raise QueryError(f"{text!r} is no JSONPath at character {at + 1}")


def _closing(text: str, at: int) -> int:
    """Return where the bracket that opens at `at` is closed; quoted ones do not count."""
    quote = ""
    position = at + 1
    while position < len(text):
        here = text[position]
        if quote:
            if here == "\\":
                position += 1
            elif here == quote:
                quote = ""
        elif here in "'\"":
            quote = here
        elif here == "]":
            return position
        position += 1
    raise QueryError(f"{text!r} has a bracket that is not closed")


def _parts(inside: str) -> list[str]:
    """Return what stands between the commas of a bracket."""
    parts, start, quote = [], 0, ""
    for at, here in enumerate(inside):
        if quote:
            quote = "" if here == quote and inside[at - 1] != "\\" else quote
        elif here in "'\"":
            quote = here
        elif here == ",":
            parts.append(inside[start:at])
            start = at + 1
    return [*parts, inside[start:]]


def _selector(part: str) -> Selector:
    if part.strip() == "*":
        return _children
    if quoted := _QUOTED.fullmatch(part):
        return _member(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), quoted[1] or quoted[2] or ""))
    if index := _INDEX.fullmatch(part):
        return _item(int(index[1]))
    if cut := _SLICE.fullmatch(part):
        start, stop, step = (None if number is None else int(number) for number in cut.groups())
        return _slice(start, stop, step)
    if part.strip().startswith(("?", "(")):
        raise QueryError(f"[{part}] is a filter, which is not read here; use a plugin or json-schema")
    raise QueryError(f"[{part}] is no selector")


def _member(name: str) -> Selector:
    def select(node: Any) -> Iterator[Any]:
        if isinstance(node, dict) and name in node:
            yield node[name]

    return select


def _item(index: int) -> Selector:
    def select(node: Any) -> Iterator[Any]:
        if isinstance(node, list) and -len(node) <= index < len(node):
            yield node[index]

    return select


def _slice(start: int | None, stop: int | None, step: int | None) -> Selector:
    def select(node: Any) -> Iterator[Any]:
        if isinstance(node, list) and step != 0:
            yield from node[start:stop:step]

    return select


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _descendants(value: Any) -> Iterator[Any]:
    """The value itself and everything below it, in document order."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(list(_children(node)))


# JSON that must have a value somewhere.


class JsonPathGrader(BuiltIn):
    """`json-path`: what `query` selects in the output, or in `file`, is there and as asked.

    A condition holds when any selected value fulfils it; with `all: true`, when every one does.
    """

    type = "json-path"

    def read(self, config: Config) -> None:
        self.source = JsonSource(config)
        if self.source.file:
            self.needs = frozenset({Need.WORKSPACE})  # type: ignore[misc]  # only this one looks at files
        try:
            self.query = JsonQuery(config.text("query", "path"))
        except QueryError as error:
            raise config.wrong(f"`query`: {error}.") from None
        self.exists = config.flag("exists", default=True)
        self.count = config.whole("count", low=0, high=10_000, default=None)
        self.every = config.flag("all")
        self.has_equals = "equals" in config.spec.config
        config.known.update(("equals", "contains"))
        self.equals = config.spec.config.get("equals")
        self.contains = config.value("contains")
        self.matches = config.pattern_list("matches")
        self.least = config.number("min", low=-math.inf, default=None)
        self.most = config.number("max", low=-math.inf, default=None)

    async def look(self, given: GraderInput) -> GraderResult:
        try:
            values = self.query.find(self.source.load(given))
        except NoJsonError as error:
            return self.failed(str(error))
        shown = f"{self.query.text} selects {len(values)}: {clipped(_shown(values), 300)}"
        if not self.exists:
            return self.found(not values, shown)
        if self.count is not None and len(values) != self.count:
            return self.failed(f"{shown}; {self.count} expected")
        if not values and self.count is None:
            return self.failed(f"{self.query.text} selects nothing")
        holding = [not any(self._problems(value)) for value in values]
        if not holding or (all(holding) if self.every else any(holding)):
            return self.found(True, shown)
        return self.failed(
            f"{shown}; {next(problem for value in values for problem in self._problems(value))}"
        )

    def _problems(self, value: Any) -> Iterator[str]:
        if self.has_equals and not same(value, self.equals):
            yield f"it does not equal {_shown(self.equals)}"
        if self.contains is not None and not _contains(value, self.contains):
            yield f"it does not contain {_shown(self.contains)}"
        for pattern in self.matches:
            if pattern.search(as_text(value)) is None:
                yield f"it does not match /{pattern.source}/"
        if self.least is not None or self.most is not None:
            low = -math.inf if self.least is None else self.least
            high = math.inf if self.most is None else self.most
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                yield f"it is not a number from {low:g} to {high:g}"


def same(left: Any, right: Any) -> bool:
    """Equal as JSON: true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _contains(value: Any, wanted: Any) -> bool:
    if isinstance(value, str):
        return isinstance(wanted, str) and wanted in value
    if isinstance(value, list):
        return any(same(one, wanted) for one in value)
    return isinstance(value, dict) and wanted in value


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# JSON that must have a shape.

_SHOWN = 5
_MOST_BACKTRACKING = 200_000


class JsonSchemaGrader(BuiltIn):
    """`json-schema`: the output, or `file`, fits `schema` (a schema, or the path of one)."""

    type = "json-schema"

    def read(self, config: Config) -> None:
        self.source = JsonSource(config)
        if self.source.file:
            self.needs = frozenset({Need.WORKSPACE})  # type: ignore[misc]  # only this one looks at files
        self.validator = _validator(config, _schema(config))

    async def look(self, given: GraderInput) -> GraderResult:
        try:
            document = self.source.load(given)
        except NoJsonError as error:
            return self.failed(str(error))
        try:
            errors = list(_first(self.validator.iter_errors(document)))
        except ValueError as error:
            raise GraderError(f"the document cannot be validated: {error}") from error
        if not errors:
            return self.found(True, "it fits the schema")
        told = [f"{_place(error.instance_path)}: {error.message}" for error in errors[:_SHOWN]]
        return self.failed("; ".join([*told, "…"] if len(errors) > _SHOWN else told))


def _first(errors: Any) -> Any:
    for _, error in zip(range(_SHOWN + 1), errors, strict=False):
        yield error


def _schema(config: Config) -> Any:
    said = config.value("schema")
    if isinstance(said, Mapping | bool):
        return said
    if not isinstance(said, str) or not said:
        raise config.wrong("`schema` is missing: give a schema, or the path of a JSON file with one.")
    path = config.beside_spec(said)
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise config.wrong(f"`schema`: {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise config.wrong(f"`schema`: {path} is not JSON: {error}.") from None


def _validator(config: Config, schema: Any) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(
            schema,
            retriever=_nothing_elsewhere,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MOST_BACKTRACKING),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise config.wrong(f"`schema` is no JSON Schema: {str(error).splitlines()[0]}.") from None


def _nothing_elsewhere(uri: str) -> Any:
    raise ValueError(f"{uri} is elsewhere; a schema holds all it refers to")


def _place(path: Any) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
