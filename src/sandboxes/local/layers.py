"""The writable layers of a sandbox whose root is made of overlays: they are what changed in it.

An overlay keeps what was written in its upper folder, with marks for what was removed: a device 0:0 stands
for one name, and a folder that is opaque hides all the lower one has.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from sandboxes.work import ChangeKind, is_below

_OPAQUE = "trusted.overlay.opaque"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was put into a layer before the sandbox started, and is no change: by path."""

    folders: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    """Paths of the lower folder that were never to be seen."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One overlay: where it is mounted (empty for the root), and its folders as descriptors."""

    target: str
    upper: str
    """The name of the upper folder in the sandbox's box."""
    lower: int
    prepared: Prepared = Prepared()


@dataclass(slots=True)
class _Folder:
    path: str
    upper: int
    lower: int
    """The folder it was before; -1 when it was none."""
    to_do: list[os.DirEntry[str]]
    opaque: bool = False
    """Nothing of the folder it was is seen in it."""

    def close(self) -> None:
        os.close(self.upper)
        if self.lower >= 0:
            os.close(self.lower)


class Layers:
    """The difference of one sandbox. `box` is the folder with its upper folders."""

    def __init__(self, box: int, layers: Sequence[Layer], mounted: frozenset[str], owner: int) -> None:
        self._box = box
        self._layers = layers
        self._mounted = mounted | KERNEL_FOLDERS | {layer.target for layer in layers}
        self._owner = owner
        self.too_deep: list[str] = []
        self.cut_short = False
        self._listing = Listing()

    def entries(self) -> Iterator[Entry]:
        """Yield what differs, layer by layer."""
        self.too_deep = []
        self.cut_short = False
        self._listing = Listing()
        for layer in self._layers:
            yield from self._walk(layer)
        self.cut_short = self._listing.is_over

    def _walk(self, layer: Layer) -> Iterator[Entry]:
        gone: list[str] = []
        seen: set[str] = set()
        top = _Folder(layer.target, open_folder(layer.upper, self._box), os.dup(layer.lower), [])
        top.to_do = self._listing.entries(top.upper)
        stack = [top]
        try:
            while stack:
                level = stack[-1]
                if not level.to_do:
                    stack.pop().close()
                    continue
                found = level.to_do.pop()
                path = f"{level.path}/{found.name}"
                if path in self._mounted:
                    continue
                entry = self._entry(layer, level, found, path)
                seen.add(path)
                if entry is None:
                    continue
                if entry.info is None:
                    gone.append(path)
                    yield entry
                    continue
                if entry.kind is not None:
                    yield entry
                if not entry.is_folder:
                    continue
                if len(stack) >= MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
                    self.too_deep.append(path)
                    continue
                below = self._enter(level, found.name, path, entry)
                stack.append(below)
                if below.opaque and below.lower >= 0:
                    yield from self._hidden(layer, below)
        finally:
            for level in stack:
                level.close()
        for path in sorted((*layer.prepared.folders, *layer.prepared.files)):
            lost = path not in seen and path not in self._mounted
            if lost and not any(path == one or is_below(path, one) for one in gone):
                gone.append(path)
                yield Entry(path, "removed", None)

    def _entry(self, layer: Layer, level: _Folder, found: os.DirEntry[str], path: str) -> Entry | None:
        """What a name in an upper folder means; None for what is no change."""
        info = found.stat(follow_symlinks=False)
        lower = None if path in layer.prepared.hidden else _look(found.name, level.lower)
        if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
            return None if lower is None else Entry(path, "removed", None)
        if stat.S_ISDIR(info.st_mode):
            if path in layer.prepared.folders:
                before = Attributes(layer.prepared.folders[path], self._owner, self._owner)
            elif lower is not None and stat.S_ISDIR(lower.st_mode):
                before = Attributes.of(lower)
            else:
                return Entry(path, "added" if lower is None else "changed", info, level.upper, found.name)
            kind: ChangeKind | None = None if Attributes.of(info) == before else "changed"
            return Entry(path, kind, info, level.upper, found.name, before)
        if path in layer.prepared.files:
            if self._is_as_prepared(layer.prepared.files[path], info, level.upper, found.name):
                return None
            return Entry(path, "changed", info, level.upper, found.name)
        return Entry(path, "added" if lower is None else "changed", info, level.upper, found.name)

    def _is_as_prepared(self, text: str, info: os.stat_result, folder: int, name: str) -> bool:
        content = text.encode()
        if not stat.S_ISREG(info.st_mode) or info.st_size != len(content):
            return False
        if Attributes.of(info) != Attributes(0o644, self._owner, self._owner):
            return False
        fd = open_file(name, folder)
        try:
            return os.read(fd, len(content) + 1) == content
        finally:
            os.close(fd)

    def _enter(self, level: _Folder, name: str, path: str, entry: Entry) -> _Folder:
        upper = open_folder(name, level.upper)
        lower = -1
        try:
            if entry.before is not None and level.lower >= 0:
                lower = _open_lower(name, level.lower)
            return _Folder(
                path, upper, lower, self._listing.entries(upper), level.opaque or _is_opaque(upper)
            )
        except BaseException:
            os.close(upper)
            if lower >= 0:
                os.close(lower)
            raise

    def _hidden(self, layer: Layer, below: _Folder) -> Iterator[Entry]:
        """What an opaque folder no longer shows of the one it was."""
        now = {entry.name for entry in below.to_do}
        for entry in reversed(self._listing.entries(below.lower)):
            path = f"{below.path}/{entry.name}"
            if entry.name not in now and path not in self._mounted | layer.prepared.hidden:
                yield Entry(path, "removed", None)


def _look(name: str, folder: int) -> os.stat_result | None:
    if folder < 0:
        return None
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _open_lower(name: str, folder: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return -1


def _is_opaque(fd: int) -> bool:
    try:
        return os.getxattr(fd, _OPAQUE) == b"y"
    except OSError:
        return False
