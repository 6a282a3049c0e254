"""Find what changed in a local sandbox: in the layers of its overlays, or in an ordinary user's private
root."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sandboxes.local import processes, root_filesystem, skeleton
from sandboxes.protocol import ChangeKind, is_below
from sandboxes.work import (
    KERNEL_FOLDERS,
    MAX_DEPTH,
    MAX_PATH_BYTES,
    DifferenceEntry,
    FolderLister,
    open_file,
    open_folder,
)
from sandboxes.work_archive import Attributes

_OPAQUE = "trusted.overlay.opaque"


@dataclass(frozen=True, slots=True)
class PreparedPaths:
    """What was put into a layer before the sandbox started, and is no change: by path."""

    folders: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    """Paths of the lower folder that were never to be seen."""


@dataclass(frozen=True, slots=True)
class OverlayLayer:
    """One overlay: where it is mounted (empty for the root), and its folders as descriptors."""

    target: str
    upper: str
    """The name of the upper folder in the sandbox's box."""
    lower: int
    prepared: PreparedPaths = PreparedPaths()


@dataclass(slots=True)
class _OverlayFolder:
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


class OverlayChanges:
    """The difference of one sandbox. `box` is the folder with its upper folders."""

    def __init__(self, box: int, layers: Sequence[OverlayLayer], mounted: frozenset[str], owner: int) -> None:
        self._box = box
        self._layers = layers
        self._mounted = mounted | KERNEL_FOLDERS | {layer.target for layer in layers}
        self._owner = owner
        self.too_deep: list[str] = []
        self.cut_short = False
        self._listing = FolderLister()

    def entries(self) -> Iterator[DifferenceEntry]:
        """Yield what differs, layer by layer."""
        self.too_deep = []
        self.cut_short = False
        self._listing = FolderLister()
        for layer in self._layers:
            yield from self._walk(layer)
        self.cut_short = self._listing.is_over

    def _walk(self, layer: OverlayLayer) -> Iterator[DifferenceEntry]:
        gone: list[str] = []
        seen: set[str] = set()
        top = _OverlayFolder(layer.target, open_folder(layer.upper, self._box), os.dup(layer.lower), [])
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
                try:
                    entry = self._entry(layer, level, found, path)
                except FileNotFoundError:
                    continue  # a session that is being closed still tidies up
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
                try:
                    below = self._enter(level, found.name, path, entry)
                except FileNotFoundError:
                    continue
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
                yield DifferenceEntry(path, "removed", None)

    def _entry(
        self, layer: OverlayLayer, level: _OverlayFolder, found: os.DirEntry[str], path: str
    ) -> DifferenceEntry | None:
        """Return what a name in an upper folder means; None for what is no change."""
        info = found.stat(follow_symlinks=False)
        lower = None if path in layer.prepared.hidden else _look(found.name, level.lower)
        if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
            return None if lower is None else DifferenceEntry(path, "removed", None)
        if stat.S_ISDIR(info.st_mode):
            if path in layer.prepared.folders:
                before = Attributes(layer.prepared.folders[path], self._owner, self._owner)
            elif lower is not None and stat.S_ISDIR(lower.st_mode):
                before = Attributes.of(lower)
            else:
                return DifferenceEntry(
                    path, "added" if lower is None else "changed", info, level.upper, found.name
                )
            kind: ChangeKind | None = None if Attributes.of(info) == before else "changed"
            return DifferenceEntry(path, kind, info, level.upper, found.name, before)
        if path in layer.prepared.files:
            if self._is_as_prepared(layer.prepared.files[path], info, level.upper, found.name):
                return None
            return DifferenceEntry(path, "changed", info, level.upper, found.name)
        return DifferenceEntry(path, "added" if lower is None else "changed", info, level.upper, found.name)

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

    def _enter(self, level: _OverlayFolder, name: str, path: str, entry: DifferenceEntry) -> _OverlayFolder:
        upper = open_folder(name, level.upper)
        lower = -1
        try:
            if entry.before is not None and level.lower >= 0:
                lower = _open_lower(name, level.lower)
            return _OverlayFolder(
                path, upper, lower, self._listing.entries(upper), level.opaque or _is_opaque(upper)
            )
        except BaseException:
            os.close(upper)
            if lower >= 0:
                os.close(lower)
            raise

    def _hidden(self, layer: OverlayLayer, below: _OverlayFolder) -> Iterator[DifferenceEntry]:
        """Yield what an opaque folder no longer shows of the one it was."""
        now = {entry.name for entry in below.to_do}
        for entry in reversed(self._listing.entries(below.lower)):
            path = f"{below.path}/{entry.name}"
            if entry.name not in now and path not in self._mounted | layer.prepared.hidden:
                yield DifferenceEntry(path, "removed", None)


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


# What changed in an ordinary user's sandbox: its root is one file system, with the host's folders over it.
#
# What bubblewrap was told to make there is known, and no change; what is mounted is no part of it.

_NEW_FOLDER = 0o755
_NEW_FILE = 0o644


@dataclass(frozen=True, slots=True)
class InitialRoot:
    """What a new sandbox has of its own: by path, folders with their modes, links with their texts, files."""

    folders: Mapping[str, int]
    links: Mapping[str, str]
    files: Mapping[str, str]

    @classmethod
    def of(cls, spec: processes.Message) -> InitialRoot:
        """Return what the command line for `spec` makes."""
        folders: dict[str, int] = {}
        links: dict[str, str] = {}
        words = iter(root_filesystem.rootless((), (), None, spec))
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
class _PrivateFolder:
    path: str
    fd: int
    to_do: list[os.DirEntry[str]]


class PrivateRoot:
    """The difference of one sandbox whose root is open as `root_fd`."""

    def __init__(self, root_fd: int, start: InitialRoot) -> None:
        self._root = root_fd
        self._start = start
        self.too_deep: list[str] = []
        self.cut_short = False

    def entries(self) -> Iterator[DifferenceEntry]:
        """Yield what differs from the start."""
        self.too_deep = []
        self.cut_short = False
        listing = FolderLister()
        seen: set[str] = set()
        device = os.fstat(self._root).st_dev
        top = open_folder(".", self._root)
        stack = [_PrivateFolder("", top, listing.entries(top))]
        try:
            while stack:
                level = stack[-1]
                if not level.to_do:
                    os.close(stack.pop().fd)
                    continue
                found = level.to_do.pop()
                path = f"{level.path}/{found.name}"
                try:
                    info = found.stat(follow_symlinks=False)
                    if info.st_dev != device or path in KERNEL_FOLDERS:
                        seen.add(path)
                        continue
                    entry = self._entry(path, info, level.fd, found.name)
                except FileNotFoundError:
                    continue  # a session that is being closed still tidies up
                seen.add(path)
                if entry is None:
                    continue
                if entry.kind is not None:
                    yield entry
                if not entry.is_folder:
                    continue
                if len(stack) >= MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
                    self.too_deep.append(path)
                    continue
                try:
                    below = open_folder(found.name, level.fd)
                except FileNotFoundError:
                    continue
                stack.append(_PrivateFolder(path, below, listing.entries(below)))
        finally:
            for level in stack:
                os.close(level.fd)
        self.cut_short = listing.is_over
        if not self.cut_short:
            yield from self._removed(seen)

    def _removed(self, seen: set[str]) -> Iterator[DifferenceEntry]:
        gone: list[str] = []
        for path in sorted((*self._start.folders, *self._start.links, *self._start.files)):
            if path in seen or path == "/" or any(is_below(path, one) for one in (*gone, *KERNEL_FOLDERS)):
                continue
            gone.append(path)
            yield DifferenceEntry(path, "removed", None)

    def _entry(self, path: str, info: os.stat_result, folder: int, name: str) -> DifferenceEntry | None:
        start = self._start
        if path in start.folders and stat.S_ISDIR(info.st_mode):
            before = Attributes(start.folders[path], info.st_uid, info.st_gid)
            changed = Attributes.of(info) != before
            return DifferenceEntry(path, "changed" if changed else None, info, folder, name, before)
        if path in start.links and stat.S_ISLNK(info.st_mode):
            if os.readlink(name, dir_fd=folder) == start.links[path]:
                return None
        elif path in start.files and self._is_as_started(start.files[path], info, folder, name):
            return None
        known = path in start.folders or path in start.links or path in start.files
        return DifferenceEntry(path, "changed" if known else "added", info, folder, name)

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
