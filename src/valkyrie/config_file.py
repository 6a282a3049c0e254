"""The config file as text: read with line numbers, changed a few lines at a time, replaced whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from valkyrie.config_keys import SERVICES, Entry, Key, Map, Value, find_map, find_setting
from valkyrie.errors import UsageError, UserError

Lines = tuple[int, int]
"""The first line, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one key of the file says, and in which lines."""

    value: Value | dict[str, Entry]
    lines: Lines
    entries: Mapping[str, Lines] = field(default_factory=dict)
    """Lines of a map's entries, where each stands in lines of its own."""
    column: int = 0
    """How far those are indented."""


def read(path: Path) -> str:
    """The file's text; nothing when there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise UserError(f"Config file {path}: {reason}.", cause="config") from error


def parse(text: str, path: Path) -> dict[str, Held]:
    """Every key and map the file has, checked; UserError names file and line of what is wrong."""
    if not text.strip():
        return {}
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise _wrong(path, f"not valid YAML: {problem}", getattr(error, "problem_mark", None)) from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise _wrong(path, "must be `key: value` lines", root.start_mark)
    found: dict[str, Held] = {}
    for key_node, value_node in root.value:
        with _blamed_on(path, key_node):
            setting = find_setting(str(key_node.value))
            if setting.name in found:
                raise ValueError(f"key {setting.name!r} is given twice")
        lines = (key_node.start_mark.line, _after(value_node))
        if isinstance(setting, Key):
            with _blamed_on(path, key_node):
                found[setting.name] = Held(setting.parse(_plain(value_node)), lines)
        else:
            found[setting.name] = _map(setting, value_node, lines, path)
    return found


def _map(setting: Map, node: Any, lines: Lines, path: Path) -> Held:
    import yaml

    if isinstance(node, yaml.ScalarNode) and node.value in ("", "~", "null"):
        return Held({}, lines)
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(path, f"{setting.name} wants a line `name: …` per entry", node.start_mark)
    values: dict[str, Entry] = {}
    entries: dict[str, Lines] = {}
    for key_node, value_node in node.value:
        name = str(key_node.value)
        with _blamed_on(path, key_node, setting.name):
            if name in values:
                raise ValueError(f"{name!r} is given twice")
            values[name] = setting.entry(name, _plain(value_node))
        entries[name] = (key_node.start_mark.line, _after(value_node))
    column = node.value[0][0].start_mark.column if node.value else 0
    return Held(values, lines, {} if node.flow_style else entries, column)


def _plain(node: Any) -> object:
    import yaml

    return yaml.constructor.SafeConstructor().construct_document(node)


def _after(node: Any) -> int:
    """The line after a node's last one; comments below a block belong to what follows."""
    import yaml

    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.line) + (1 if node.end_mark.column else 0)


@contextmanager
def _blamed_on(path: Path, node: Any, prefix: str = "") -> Iterator[None]:
    import yaml

    try:
        yield
    except yaml.YAMLError as error:
        raise _wrong(path, f"not valid YAML: {getattr(error, 'problem', error)}", node.start_mark) from None
    except (ValueError, UsageError) as error:
        message = str(error).rstrip(".")
        raise _wrong(path, f"{prefix}: {message}" if prefix else message, node.start_mark) from None


def _wrong(path: Path, message: str, mark: Any) -> UserError:
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    return UserError(f"Config file {where}: {message}.", cause="config")


def read_registry(path: Path) -> dict[str, Entry]:
    """A file of services in YAML or JSON: `name: url` or `name: {url, grading}`, perhaps below `services`."""
    import yaml

    services = find_map(SERVICES)
    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        if isinstance(held, dict) and isinstance(held.get("services"), dict):
            held = held["services"]
        if not isinstance(held, dict):
            raise ValueError("must be `name: url` lines")
        return {str(name): services.entry(str(name), raw) for name, raw in held.items()}
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise UserError(f"Service registry {path}: {reason}.", cause="config") from None


def write_key(path: Path, name: str, value: Value | None) -> None:
    """Replace the lines of a key, append them, or (None) take them out."""

    def change(lines: list[str], held: Held | None) -> None:
        first, after = held.lines if held else (len(lines), len(lines))
        lines[first:after] = [] if value is None else [_dumped(name, value)]

    _edit(path, name, lambda _: value, change)


def write_entry(path: Path, name: str, key: str, value: Entry, *, remove: bool = False) -> None:
    """Replace the lines of a map's entry, append them, or take them out."""

    def wanted(old: dict[str, Entry]) -> dict[str, Entry] | None:
        left = {known: entry for known, entry in old.items() if known != key or not remove}
        return (left or None) if remove else {**left, key: value}

    def change(lines: list[str], held: Held | None) -> None:
        new = wanted(_entries(held))
        if held is None or not held.entries or new is None:
            first, after = held.lines if held else (len(lines), len(lines))
            lines[first:after] = [_dumped(name, new)] if new else []
            return
        end = held.lines[1]
        first, after = held.entries.get(key, (end, end))
        lines[first:after] = [] if remove else [_indented(_dumped(key, value), held.column)]

    _edit(path, name, lambda held: wanted(_entries(held)), change)


def _entries(held: Held | None) -> dict[str, Entry]:
    return held.value if held and isinstance(held.value, dict) else {}


def _dumped(name: str, value: object) -> str:
    import yaml

    return str(
        yaml.safe_dump(
            {name: value}, allow_unicode=True, width=100_000, sort_keys=False, default_flow_style=False
        )
    )


def _indented(text: str, column: int) -> str:
    return "".join(" " * column + line for line in text.splitlines(keepends=True))


def _edit(
    path: Path,
    name: str,
    wanted: Callable[[Held | None], Value | dict[str, Entry] | None],
    change: Callable[[list[str], Held | None], None],
) -> None:
    """Change the lines of one key under a lock; it is not written unless it then says just what is wanted."""
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(target.parent):
        text = read(target)
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        before = parse(text, path)
        expected = {key: held.value for key, held in before.items()}
        expected.pop(name, None)
        if (value := wanted(before.get(name))) is not None:
            expected[name] = value
        change(lines, before.get(name))
        changed = "".join(lines)
        if _values(changed, path) != expected:
            raise UserError(
                f"Config file {path}: {name} is written in a way only a person can edit.", cause="config"
            )
        _replace(target, changed)


def _values(text: str, path: Path) -> dict[str, Value | dict[str, Entry]] | None:
    """What a text says; None when it is no config file."""
    try:
        return {key: held.value for key, held in parse(text, path).items()}
    except UserError:
        return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(target: Path, text: str) -> None:
    """Whole or not at all, readable by its owner only."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
