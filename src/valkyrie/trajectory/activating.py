"""Which skills an agent took up, seen in the tools it called."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_SKILL_TOOLS = frozenset({"skill", "activate_skill", "load_skill", "use_skill", "loadskill"})
_SAID_IN = ("skill", "name", "command", "skill_name", "skillName")
_CHANGES = re.compile(r"write|edit|create|patch|replace|insert|delete|todo", re.IGNORECASE)
_FILE = re.compile(r"[^\s'\"=:;|&<>()]*[/\\]([A-Za-z0-9._-]{1,64})[/\\]SKILL\.md")
_DEEPEST = 6


def skill_called(tool: str, arguments: Mapping[str, Any]) -> str | None:
    """The skill an agent's own tool for skills was called with."""
    if tool.lower() not in _SKILL_TOOLS:
        return None
    for key in _SAID_IN:
        said = arguments.get(key)
        if isinstance(said, str) and said.strip():
            # Those of a plugin are called plugin:skill; a slash before it or words after it are no part.
            return said.split()[0].lstrip("/").rpartition(":")[2][:64] or None
    return None


def skills_read(tool: str, arguments: Mapping[str, Any], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """(name, path) of each known skill whose SKILL.md a tool was pointed at to look at it."""
    if not known or _CHANGES.search(tool):
        return
    seen = set()
    for text in _texts(arguments):
        if "SKILL.md" not in text:
            continue
        for match in _FILE.finditer(text):
            if match[1] in known and match[1] not in seen:
                seen.add(match[1])
                yield match[1], match[0]


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item, depth + 1)
    elif depth < _DEEPEST and isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, depth + 1)
