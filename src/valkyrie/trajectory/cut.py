"""An agent's account that was too large to be kept whole: its whole steps are, with a mark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from valkyrie import config
from valkyrie.trajectory.transcript import TRANSCRIPT, Json

DEFAULT_LIMIT = 32 << 20
"""Bytes that are kept of an account where nothing else is configured."""
CUT = "cut"
"""In `extra` of a trajectory, or at the top of a transcript: what was left out. Nothing after it is known, so
nobody may take such an account for a whole one."""
_SPACE = re.compile(r"[ \t\r\n]*")
_LISTS = ("steps", "events")
_decoder = json.JSONDecoder()


class _EndError(Exception):
    """The text ends in the middle of a value."""


def configured_limit() -> int:
    """Return how many bytes are kept of an account: `trajectory_max_mb`."""
    return int(config.effective("trajectory_max_mb").value or 0) << 20


def is_too_large(size: int) -> bool:
    """Whether a kept account has more bytes than are read; a mended one may be longer than what was kept."""
    return size > 2 * DEFAULT_LIMIT and size > 2 * configured_limit()


def mend_cut(path: Path, limit: int) -> int | None:
    """Make an account readable that was cut at `limit` bytes: whole steps stay, the last says what is gone.

    Returns how many stayed; None: it is whole, and left as it is.
    """
    text = path.read_text("utf-8", "replace")
    try:
        json.loads(text)
        return None
    except (ValueError, RecursionError):
        pass
    name = "events" if path.name == TRANSCRIPT else "steps"
    try:
        found = _whole_part(text)
    except RecursionError:
        found = {}
    if not isinstance(found.get(name), list):
        found = {name: []}
    kept = len(found[name])
    _mark(found, name, f"The account is larger than {limit >> 20} MiB: what follows step {kept} is not kept.")
    path.write_text(json.dumps(found, ensure_ascii=False), "utf-8", "replace")
    return kept


def is_cut(data: Json) -> bool:
    """Whether something of an account is missing."""
    extra = data.get("extra")
    return CUT in data or (isinstance(extra, dict) and CUT in extra)


def _mark(found: Json, name: str, message: str) -> None:
    if name == "events":
        found["events"].append({"type": "error", "data": {"message": message}})
        found[CUT] = message
        return
    found["steps"].append({"step_id": len(found["steps"]) + 1, "source": "system", "message": message})
    extra = found.get("extra")
    found["extra"] = {**(extra if isinstance(extra, dict) else {}), CUT: message}


def _whole_part(text: str) -> Json:
    """Return the members of an object before its text ends, and the whole items of a list it ends in."""
    found: Json = {}
    try:
        at = _after(text, 0, "{")
        while True:
            name, at = _decoder.raw_decode(text, _skip(text, at))
            at = _skip(text, _after(text, at, ":"))
            if name in _LISTS and text[at : at + 1] == "[":
                found[name] = []
                at = _items(text, at + 1, found[name])
            else:
                found[name], at = _decoder.raw_decode(text, at)
            at = _after(text, at, ",")
    except (ValueError, _EndError):
        return found


def _items(text: str, at: int, items: list[Any]) -> int:
    """Read items of a list up to its end; what is whole is in `items` when the text ends before that."""
    while True:
        item, at = _decoder.raw_decode(text, _skip(text, at))
        at = _skip(text, at)
        if text[at : at + 1] not in (",", "]"):
            raise _EndError
        items.append(item)
        if text[at] == "]":
            return at + 1
        at += 1


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _after(text: str, at: int, mark: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise _EndError
    return at + 1
