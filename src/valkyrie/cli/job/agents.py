"""`agent[:model]`, read: the agent ends at the first colon, unless a folder or a class has one itself."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from valkyrie.job_views import JobAgent

_CLASS = re.compile(r"(?P<package>[A-Za-z_]\w*)(\.[A-Za-z_]\w*)+:[A-Za-z_]\w*(?=:|$)")


def parse_agent(word: str) -> JobAgent:
    """The agent and the model a word names; ValueError says what is wrong with it."""
    name, model = _split(word)
    if not name:
        raise ValueError(f"{word!r} names no agent; it is AGENT or AGENT:MODEL.")
    if model == "":
        raise ValueError(f"{word!r} has a colon and no model after it; it is AGENT or AGENT:MODEL.")
    if model is None and _needs_model(name):
        raise ValueError(f"{name} needs a model: --agent {name}:MODEL")
    return JobAgent(name, model)


def _split(word: str) -> tuple[str, str | None]:
    if ":" not in word:
        return word, None
    end = _path_end(word) or _class_end(word) or word.index(":")
    rest = word[end:]
    return word[:end], rest[1:] if rest else None


def _path_end(word: str) -> int | None:
    """Where a path to something that exists ends; a colon may be part of it."""
    if "/" not in word and not word.startswith((".", "~")):
        return None
    ends = [place for place, character in enumerate(word) if character == ":"]
    for end in (len(word), *reversed(ends)):
        if end and Path(word[:end]).expanduser().exists():
            return end
    return None


def _class_end(word: str) -> int | None:
    """Where `package.module:Class` ends, if there is such a package."""
    found = _CLASS.match(word)
    return found.end() if found and find_spec(found["package"]) is not None else None


def _needs_model(name: str) -> bool:
    from valkyrie.agents.catalog import CATALOG

    return name in CATALOG and CATALOG[name].needs_model
