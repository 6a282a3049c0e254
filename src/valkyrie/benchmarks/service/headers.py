"""Headers people give for a service: which of them can be sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from valkyrie.errors import UsageError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN = ("connection", "content-length", "host", "transfer-encoding", "upgrade")


def header_problem(name: str, content: str) -> str | None:
    """Why a header cannot be sent; its value may be secret and is not in it."""
    if not _NAME.fullmatch(name):
        return f"{name!r} is not the name of a header."
    if name.lower() in _OWN or name.lower().startswith("sec-websocket-"):
        return f"{name} belongs to the connection itself."
    if not (content.isascii() and content.isprintable()):
        return f"the value of {name} is not plain ASCII on one line."
    return None


def check_headers(headers: Mapping[str, str]) -> None:
    """UsageError unless all of them can be sent."""
    seen: set[str] = set()
    for name, content in headers.items():
        if problem := header_problem(name, content):
            raise UsageError(f"-H: {problem}")
        if name.lower() in seen:
            raise UsageError(f"-H: {name} is given twice.")
        seen.add(name.lower())
