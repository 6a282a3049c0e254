"""Data that knows where it was written, and what its relative paths are relative to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from valkyrie.specs.model import Place

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One value of a file. Nodes are shared where the file shares them (aliases)."""

    value: Mapping[str, Node] | Sequence[Node] | Scalar
    place: Place
    base: Path
    """The folder that paths in it are relative to."""
    raw: str = ""
    """A scalar as its author spelled it (`1.10`, which is not 1.1)."""
    plain: bool = False
    """A scalar without quotes: its text decides its type."""
    keys: Mapping[str, Place] = field(default_factory=dict)
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
        """What stands under this key; nothing and an empty value are alike."""
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


def from_data(data: Any, place: Place, base: Path) -> Node:
    """Plain data as nodes, all of it at one place."""
    if isinstance(data, Mapping):
        entries = {str(key): from_data(value, place, base) for key, value in data.items()}
        return Node(entries, place, base, keys=dict.fromkeys(entries, place))
    if isinstance(data, list | tuple):
        return Node([from_data(item, place, base) for item in data], place, base)
    return Node(data, place, base, raw="" if data is None else str(data))


def with_entries(node: Node, entries: Mapping[str, Node], keys: Mapping[str, Place] | None = None) -> Node:
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
