"""Well-known sandbox paths in commands, replaced by places in a host folder."""

from __future__ import annotations

import re

FOLDERS = ("app", "workspace", "bundle", "tests", "logs", "solution", "tmp", "home")
"""Folders every process sandbox has."""

_NAMES = ("app", "workspace", "bundle", "tests", "logs", "solution", "oracle", "tmp", r"instruction(?:\.md)?")
# Not part of a longer path or word before (`/usr/app`, `$HOME/app`, `${X}/app`, `$(pwd)/app`, `s/app/…/`),
# and the whole of a name (`/apps` and `/app.txt` are others).
_BEFORE = r"(?<![\w./~})\]*?-])"
_AFTER = r"(?![\w.-])"


class PathRewriter:
    """Replaces `/app` by `<root>/app`, and its like, wherever one begins a path in a text."""

    __slots__ = ("_pattern", "_root")

    def __init__(self, root: str) -> None:
        self._root = root
        own = f"(?!{re.escape(root)})"
        self._pattern = re.compile(f"{_BEFORE}{own}(/(?:{'|'.join(_NAMES)})){_AFTER}")

    def rewrite(self, text: str) -> str:
        """The text with every well-known path moved into the folder."""
        return self._pattern.sub(lambda match: self._root + match[1], text) if "/" in text else text
