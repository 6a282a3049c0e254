"""What changed in an ordinary user's sandbox: its root is one file system, with the host's folders over it.

What bubblewrap was told to make there is known, and no change; what is mounted is no part of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sandboxes.difference import (
    KERNEL_FOLDERS,
    MAX_DEPTH,
    MAX_PATH_BYTES,
    Attributes,
    Entry,
    Listing,
    open_file,
    open_folder,
)
from sandboxes.local import bwrap, skeleton, wire
from sandboxes.work import is_below

_NEW_FOLDER = 0o755
_NEW_FILE = 0o644


@dataclass(frozen=True, slots=True)
class Start:
    """What a new sandbox has of its own: by path, folders with their modes, links with their texts, files."""

    folders: Mapping[str, int]
    links: Mapping[str, str]
    files: Mapping[str, str]

    @classmethod
    def of(cls, spec: wire.Message) -> Start:
        """Return what the command line for `spec` makes."""
        folders: dict[str, int] = {}
        links: dict[str, str] = {}
        words = iter(bwrap.rootless((), (), None, spec))
        mode = _NEW_FOLDER
        for word in words:
            if word == "--":
                break
            if word == "--perms":
                mode = int(next(words), 8)
                continue
            if word == "--dir":
                path = next(words).rstrip("/") or "/"
                _add_above(folders, path)
                folders[path] = mode
            elif word == "--symlink":
                text = next(words)
                links[next(words)] = text
            elif word == "--tmpfs":
                _add_above(folders, next(words))
            elif word == "--ro-bind":
                next(words)
                _add_above(folders, next(words))
            elif word == "--size":
                next(words)
                continue
            mode = _NEW_FOLDER
        own = {**skeleton.own_files(), "resolv.conf": spec["resolv_conf"]}
        return cls(folders, links, {f"/etc/{name}": text for name, text in own.items()})


def _add_above(folders: dict[str, int], path: str) -> None:
    parts = path.strip("/").split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        folders.setdefault("/" + "/".join(parts[:depth]), _NEW_FOLDER)


@dataclass(slots=True)
class _Folder:
    path: str
    fd: int
    to_do: list[os.DirEntry[str]]


class PrivateRoot:
    """The difference of one sandbox whose root is open as `root_fd`."""

    def __init__(self, root_fd: int, start: Start) -> None:
        self._root = root_fd
        self._start = start
        self.too_deep: list[str] = []
        self.cut_short = False

    def entries(self) -> Iterator[Entry]:
        """Yield what differs from the start."""
        self.too_deep = []
        self.cut_short = False
        listing = Listing()
        seen: set[str] = set()
        device = os.fstat(self._root).st_dev
        top = open_folder(".", self._root)
        stack = [_Folder("", top, listing.entries(top))]
        try:
            while stack:
                level = stack[-1]
                if not level.to_do:
                    os.close(stack.pop().fd)
                    continue
                found = level.to_do.pop()
                path = f"{level.path}/{found.name}"
                info = found.stat(follow_symlinks=False)
                seen.add(path)
                if info.st_dev != device or path in KERNEL_FOLDERS:
                    continue
                entry = self._entry(path, info, level.fd, found.name)
                if entry is None:
                    continue
                if entry.kind is not None:
                    yield entry
                if not entry.is_folder:
                    continue
                if len(stack) >= MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
                    self.too_deep.append(path)
                    continue
                below = open_folder(found.name, level.fd)
                stack.append(_Folder(path, below, listing.entries(below)))
        finally:
            for level in stack:
                os.close(level.fd)
        self.cut_short = listing.is_over
        if not self.cut_short:
            yield from self._removed(seen)

    def _removed(self, seen: set[str]) -> Iterator[Entry]:
        gone: list[str] = []
        for path in sorted((*self._start.folders, *self._start.links, *self._start.files)):
            if path in seen or path == "/" or any(is_below(path, one) for one in (*gone, *KERNEL_FOLDERS)):
                continue
            gone.append(path)
            yield Entry(path, "removed", None)

    def _entry(self, path: str, info: os.stat_result, folder: int, name: str) -> Entry | None:
        start = self._start
        if path in start.folders and stat.S_ISDIR(info.st_mode):
            before = Attributes(start.folders[path], info.st_uid, info.st_gid)
            changed = Attributes.of(info) != before
            return Entry(path, "changed" if changed else None, info, folder, name, before)
        if path in start.links and stat.S_ISLNK(info.st_mode):
            if os.readlink(name, dir_fd=folder) == start.links[path]:
                return None
        elif path in start.files and self._is_as_started(start.files[path], info, folder, name):
            return None
        known = path in start.folders or path in start.links or path in start.files
        return Entry(path, "changed" if known else "added", info, folder, name)

    def _is_as_started(self, text: str, info: os.stat_result, folder: int, name: str) -> bool:
        content = text.encode()
        if not stat.S_ISREG(info.st_mode) or info.st_size != len(content):
            return False
        if stat.S_IMODE(info.st_mode) != _NEW_FILE:
            return False
        fd = open_file(name, folder)
        try:
            return os.read(fd, len(content) + 1) == content
        finally:
            os.close(fd)
