"""Secrets that hold several values: a JSON object, of which `name#key` names one."""

from __future__ import annotations

import json


def split_name(name: str) -> tuple[str, str | None]:
    """A secret's name and the key in it: `openai#dev` is (`openai`, `dev`)."""
    secret, mark, key = name.partition("#")
    return secret, key if mark else None


def parts_of(text: str) -> dict[str, str] | None:
    """The values of a JSON object by key, as texts; None when it is no such object."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {key: _as_text(value) for key, value in held.items() if value is not None}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
