"""Read YAML with the lines of its parts, without aliases, and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from benchmark_runner.errors import ContractValidationError


def explain(error: yaml.MarkedYAMLError) -> tuple[int, int, str]:
    """Return line, column and what is wrong, of a parser's error."""
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "cannot be read"
    return (mark.line + 1, mark.column + 1, problem) if mark else (1, 1, problem)


def syntax_hint(problem: str, char: str = "") -> str:
    """Return what usually is behind a complaint; `char` is what the parser stumbled over, if known."""
    if char in ("`", "@", "%") or "'`'" in problem or "'@'" in problem or "'%'" in problem:
        return " Put the value in quotes or in a block (`key: |`)."
    if char == "\t" or "'\\t'" in problem or "mapping values" in problem:
        return " Indent with spaces, and put a value that holds `: ` in quotes or in a block (`key: |`)."
    if "expected ',' or" in problem:
        return " Inside { } and [ ], put a value that holds braces, brackets or commas in quotes."
    return ""


# YAML as a contract needs it: no duplicate keys, no aliases, and every value knows its line.

MAX_BYTES = 1024 * 1024

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """Plain data and the line each part of it stands on."""

    data: object
    lines: Mapping[KeyPath, int]

    def line(self, path: KeyPath) -> int:
        """Return the line of this key, or of the nearest thing around it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Loader(yaml.SafeLoader):
    """Refuses aliases: they can make a small text explode, and a contract has no need of them."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not allowed, write it out", mark
            )
        return super().compose_node(parent, index)


def parse(text: str, where: str) -> YamlDocument:
    """Read one YAML document; every fault is an error with file, line and column."""
    if len(text) > MAX_BYTES:
        raise ContractValidationError(f"{where}: too large for a contract ({len(text):,} characters, 1 MiB).")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines: dict[KeyPath, int] = {}
            data = _build(loader, node, (), lines, where) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line, column, problem = explain(error)
        raise ContractValidationError(
            f"{where}:{line}:{column}: not valid YAML: {problem}.{syntax_hint(problem)}"
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ContractValidationError(f"{where}:{line}: not valid YAML: {error.reason}.") from None
    except RecursionError:
        raise ContractValidationError(f"{where}: nested too deeply.") from None
    return YamlDocument(data, lines)


def _build(
    loader: yaml.SafeLoader, node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], where: str
) -> object:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, item, (*path, at), lines, where) for at, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(loader, node, where)
    built: dict[str, object] = {}
    for key_node, value_node in node.value:
        mark = f"{where}:{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ContractValidationError(
                f"{mark}: a key must be plain text. A command that holds braces needs quotes or a block "
                "(`run_cmd: |`)."
            )
        key = str(key_node.value)
        if key in built:
            first = lines[(*path, key)]
            raise ContractValidationError(f"{mark}: `{key}` is given twice (first on line {first}).")
        lines[(*path, key)] = key_node.start_mark.line + 1
        built[key] = _build(loader, value_node, (*path, key), lines, where)
    return built


def _scalar(loader: yaml.SafeLoader, node: yaml.Node, where: str) -> object:
    mark = f"{where}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
    try:
        value: Any = loader.construct_object(node)
    except (ValueError, OverflowError) as error:
        raise ContractValidationError(f"{mark}: not a valid value: {error}.") from None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    # YAML turns 2024-01-01 into a date; in a contract it is the text that was meant.
    return str(node.value)
