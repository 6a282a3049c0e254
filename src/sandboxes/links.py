"""Where a link in a sandbox leads, found from the host one name at a time."""

from __future__ import annotations

import errno
import os

from sandboxes.openat import open_below
from sandboxes.work import CarryRules, is_below

MOST_HOPS = 40
MOST_STEPS = 1000
MOST_STEPS_IN_ALL = 2_000_000
"""Names looked at for one link, and for all: an agent can make links whose resolution takes for ever."""
_NO_LINK = frozenset({errno.ENOENT, errno.EINVAL, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES})


class Links:
    """Links below the open folder `root_fd`, which is the sandbox's root and stays the caller's to close."""

    def __init__(self, root_fd: int) -> None:
        self._root = root_fd
        self._known: dict[str, str | None] = {}
        self._steps_left = MOST_STEPS_IN_ALL

    def end_of(self, path: str, text: str) -> str | None:
        """Return the absolute path to which the link `text` at `path` leads; None when it goes in circles.

        What is not there is taken to be a folder, for it may come to be. `/proc` is not entered: what is
        below it depends on who looks. A way that is too long is taken to lead to `/`.
        """
        parts = path.strip("/").split("/")[:-1]
        return self._walk(parts, text)

    def real_path(self, path: str) -> str | None:
        """Return `path` with the links in its folders resolved, and not one at its end."""
        above, _, name = path.rstrip("/").rpartition("/")
        folder = self._walk([], above)
        return None if folder is None else f"{folder.rstrip('/')}/{name}"

    def is_forbidden(self, path: str, text: str, rules: CarryRules) -> bool:
        """Whether the link `text` at `path` leads to a place the rules forbid, or into /proc; or whether it
        stands where no link may be."""
        if rules.refuses_link_at(path):
            return True
        end = self.end_of(path, text)
        if end is None:
            return False
        return rules.is_forbidden_target(end) or end == "/proc" or is_below(end, "/proc")

    def _walk(self, parts: list[str], text: str) -> str | None:
        parts = [] if text.startswith("/") else list(parts)
        to_do = text.split("/")[::-1]
        hops = steps = 0
        while to_do:
            name = to_do.pop()
            steps += 1
            self._steps_left -= 1
            if steps > MOST_STEPS or self._steps_left < 0:
                return "/"
            if name in ("", "."):
                continue
            if name == "..":
                if parts:
                    parts.pop()
                continue
            if parts == ["proc"]:
                return "/" + "/".join((*parts, name, *to_do[::-1]))
            link = self._read(parts, name)
            if link is None:
                parts.append(name)
                continue
            hops += 1
            if hops > MOST_HOPS:
                return None
            to_do += link.split("/")[::-1]
            if link.startswith("/"):
                parts = []
        return "/" + "/".join(parts)

    def _read(self, parts: list[str], name: str) -> str | None:
        """The text of the link, or None where none is. Nothing changes while links are looked at."""
        path = "/".join((*parts, name))
        if path not in self._known:
            self._known[path] = self._read_now(parts, name)
        return self._known[path]

    def _read_now(self, parts: list[str], name: str) -> str | None:
        try:
            fd = open_below(self._root, [*parts, name], os.O_PATH | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in _NO_LINK:
                return None
            raise
        try:
            return os.readlink("", dir_fd=fd)
        except OSError as error:
            if error.errno in _NO_LINK:
                return None
            raise
        finally:
            os.close(fd)
