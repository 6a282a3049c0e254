"""The config file as text: read with line numbers, changed a few lines at a time, replaced whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from valkyrie.config.schema import (
    OLD_PROVIDER_SECRETS,
    SANDBOX_PROVIDERS,
    SERVICES,
    Entry,
    Key,
    Map,
    Value,
    find_map,
    find_setting,
)
from valkyrie.errors import UsageError, UserError
from valkyrie.text import read_regular

PROVIDER = "daytona"
RENAMED = {"default_sandbox_provider": "default_provider"}
PASSED_OVER = ("environment",)
_BECAME = {
    **dict.fromkeys(
        OLD_PROVIDER_SECRETS, f"is read as {SANDBOX_PROVIDERS}.{PROVIDER} (`valk config provider set`)"
    ),
    **{old: f"is read as {new}" for old, new in RENAMED.items()},
    **dict.fromkeys(PASSED_OVER, "has no meaning here; tracker_url says which tracker is used"),
    "aws": "is read as if its keys stood at the left margin",
}


def older_pairs(root: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and values of a file as nodes, those below `aws` and `aws.credentials` among them."""
    for key, value in root.value:
        if key.value == "aws":
            yield from _below(value)
        elif key.value not in PASSED_OVER:
            yield key, value


def _below(node: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "credentials":
            yield from _below(value)
        else:
            yield key, value


def older_notices(root: Any) -> list[str]:
    """Return what was read otherwise than it is written."""
    return [f"{key.value} {_BECAME[key.value]}." for key, _ in root.value if key.value in _BECAME]


MOST_BYTES = 8 << 20
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
    """How far a map's entries are indented; of a key, how far it is itself."""


class ConfigFile:
    """The file at a path, which need not be there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def held(self) -> dict[str, Held]:
        """Return every key and map the file has, checked; UserError names file and line of what is wrong."""
        return parse(_read(self._path), self._path)

    def notices(self) -> list[str]:
        """Return what of the file is read otherwise than it is written."""
        root = _compose(_read(self._path), self._path)
        return older_notices(root) if root else []

    def write_keys(self, values: Mapping[str, Value | None]) -> None:
        """Replace the lines of some keys, append them, or (None) take them out: all of them or none."""
        self._edit([_key_edit(name, value) for name, value in values.items()])

    def write_entry(self, name: str, key: str, value: Entry, *, remove: bool = False) -> None:
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

        self._edit([_Edit(name, lambda held: wanted(_entries(held)), change)])

    def _edit(self, edits: Sequence[_Edit]) -> None:
        """Change lines under a lock; nothing is written unless each key then says just what is wanted."""
        target = self._path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(target.parent):
            text = _read(target)
            for edit in edits:
                text = _edited(text, edit, self._path)
            _replace(target, text)


def _read(path: Path) -> str:
    """The file's text; nothing when there is none."""
    try:
        return read_regular(path, MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise UserError(f"Config file {path}: {reason}.", cause="config") from error


def parse(text: str, path: Path) -> dict[str, Held]:
    """Every key and map the file has, checked; UserError names file and line of what is wrong."""
    root = _compose(text, path)
    found: dict[str, Held] = {}
    older: dict[str, Held] = {}
    for key_node, value_node in older_pairs(root) if root else ():
        lines, column = (key_node.start_mark.line, _after(value_node)), key_node.start_mark.column
        name = RENAMED.get(key_node.value, str(key_node.value))
        if name in OLD_PROVIDER_SECRETS:
            with _blamed_on(path, key_node, name):
                secret = find_map(SANDBOX_PROVIDERS).entry(PROVIDER, _plain(value_node))
            older[name] = Held({PROVIDER: secret}, lines)
            continue
        with _blamed_on(path, key_node):
            setting = find_setting(name)
            if setting.name in found:
                raise ValueError(f"key {setting.name!r} is given twice")
        if isinstance(setting, Key):
            with _blamed_on(path, key_node):
                found[setting.name] = Held(setting.parse(_plain(value_node)), lines, column=column)
        else:
            found[setting.name] = _map(setting, value_node, lines, path)
    return _with_older_provider(found, older)


def _with_older_provider(found: dict[str, Held], older: dict[str, Held]) -> dict[str, Held]:
    """The secret's name under its old key counts where the map says nothing of that provider."""
    named = next((older[name] for name in OLD_PROVIDER_SECRETS if name in older), None)
    if named is None:
        return found
    now = found.get(SANDBOX_PROVIDERS)
    merged = replace(now, value={**_entries(named), **_entries(now)}) if now else named
    return {**found, SANDBOX_PROVIDERS: merged}


def _compose(text: str, path: Path) -> Any:
    """The file as a node; None when it says nothing."""
    if not text.strip():
        return None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise _wrong(path, f"not valid YAML: {problem}", getattr(error, "problem_mark", None)) from None
    except RecursionError:
        raise _wrong(path, "nested too deeply", None) from None
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise _wrong(path, "must be `key: value` lines", root.start_mark)
    return root


def _map(setting: Map, node: Any, lines: Lines, path: Path) -> Held:
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
    return yaml.constructor.SafeConstructor().construct_document(node)


def _after(node: Any) -> int:
    """The line after a node's last one; comments below a block belong to what follows."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.line) + (1 if node.end_mark.column else 0)


@contextmanager
def _blamed_on(path: Path, node: Any, prefix: str = "") -> Iterator[None]:
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
    services = find_map(SERVICES)
    try:
        held = yaml.safe_load(read_regular(path, MOST_BYTES).decode("utf-8")) or {}
        if isinstance(held, dict) and isinstance(held.get("services"), dict):
            held = held["services"]
        if not isinstance(held, dict):
            raise ValueError("must be `name: url` lines")
        return {str(name): services.entry(str(name), raw) for name, raw in held.items()}
    except RecursionError:
        raise UserError(f"Service registry {path}: nested too deeply.", cause="config") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise UserError(f"Service registry {path}: {reason}.", cause="config") from None


def _key_edit(name: str, value: Value | None) -> _Edit:
    def change(lines: list[str], held: Held | None) -> None:
        first, after = held.lines if held else (len(lines), len(lines))
        column = held.column if held else 0
        lines[first:after] = [] if value is None else [_indented(_dumped(name, value), column)]

    return _Edit(name, lambda _: value, change)


def _entries(held: Held | None) -> dict[str, Entry]:
    return held.value if held and isinstance(held.value, dict) else {}


def _dumped(name: str, value: object) -> str:
    return str(
        yaml.safe_dump(
            {name: value}, allow_unicode=True, width=100_000, sort_keys=False, default_flow_style=False
        )
    )


def _indented(text: str, column: int) -> str:
    return "".join(" " * column + line for line in text.splitlines(keepends=True))


@dataclass(frozen=True, slots=True)
class _Edit:
    """What one key is to say, and how its lines get there."""

    name: str
    wanted: Callable[[Held | None], Value | dict[str, Entry] | None]
    change: Callable[[list[str], Held | None], None]


def _edited(text: str, edit: _Edit, path: Path) -> str:
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    before = parse(text, path)
    expected = {key: held.value for key, held in before.items()}
    expected.pop(edit.name, None)
    if (value := edit.wanted(before.get(edit.name))) is not None:
        expected[edit.name] = value
    edit.change(lines, before.get(edit.name))
    changed = "".join(lines)
    if _values(changed, path) != expected:
        raise UserError(
            f"Config file {path}: {edit.name} is written in a way only a person can edit.", cause="config"
        )
    return changed


def _values(text: str, path: Path) -> dict[str, Value | dict[str, Entry]] | None:
    """Return what a text says; None when it is no config file."""
    try:
        return {key: held.value for key, held in parse(text, path).items()}
    except UserError:
        return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time."""
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
