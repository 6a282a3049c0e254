"""Data that knows where it was written, and its keys taken one by one with their types checked."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.specs.model import Finding, SourceLocation, SpecError
from valkyrie.text import did_you_mean

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h)\s*", re.ASCII)
_PARTS = re.compile(r"\s*(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?\s*", re.ASCII)
MOST_S = 365 * 24 * 3600.0


def parse_duration(text: str) -> float:
    """Return seconds of `5m`, `300s`, `30000ms`, `1.5h`, `2m40s`; the unit is not optional."""
    if (match := _FORM.fullmatch(text)) is not None:
        seconds = float(match[1]) * _SECONDS[match[2]]
    elif (match := _PARTS.fullmatch(text)) is not None and text.strip():
        seconds = sum(
            float(part) * unit for part, unit in zip(match.groups("0"), (3600, 60, 1, 0.001), strict=True)
        )
    else:
        raise UsageError(f"{text!r} is not a duration. {_hint(text)}")
    if seconds > MOST_S:
        raise UsageError(f"{text!r} is longer than a year.")
    return seconds


def _hint(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number) and number >= 0:
        return f"Add the unit: `{text.strip()}s` for seconds (or ms, m, h)."
    return "Write a number and a unit, such as `90s`, `5m`, `2m40s`, `1.5h` or `500ms`."


def format_duration(seconds: float) -> str:
    """A short spelling that `parse_duration` reads back, to the millisecond."""
    for unit in ("h", "m", "s"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s" if seconds >= 1 else f"{seconds * 1000:g}ms"


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
        """Plain data."""
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
    """The same map with other entries."""
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
        """A list."""
        node = self.take(name, *aliases)
        if node is None:
            return None
        if node.items is None:
            self.wrong(name, "a list", node)
            return []
        return list(node.items)

    def integer(self, name: str, *, least: int = 0) -> int | None:
        """A whole number."""
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
        """A map as plain data."""
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
