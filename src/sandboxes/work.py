"""What an agent changed in its sandbox: which of it is carried, and how it is listed, packed, unpacked and
undone."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from sandboxes import work_archive as tar
from sandboxes.errors import SandboxError, SandboxFullError
from sandboxes.protocol import (
    MOST_LISTED,
    CarryRules,
    ChangedPath,
    ChangeKind,
    PackedWork,
    WorkLimits,
    is_below,
)
from sandboxes.rooted_files import (
    CREATE,
    FOLDER,
    READ,
    open_below,
    open_without_links,
    printable,
    remove_entry,
)
from sandboxes.work_archive import ArchiveWriter, Attributes, Ids, TarMember, WorkTarget, is_folder_in


def outermost(paths: Iterable[str]) -> Sequence[str]:
    """The paths without those that are below another of them."""
    found: list[str] = []
    for path in sorted(paths):
        if not found or not (path == found[-1] or is_below(path, found[-1])):
            found.append(path)
    return found


# What differs in a sandbox from what it was made from, one entry at a time.


MAX_DEPTH = 128
"""Folders nested deeper are left out: each level costs descriptors."""
MAX_PATH_BYTES = 3500
"""So are those with a longer path: the kernel takes 4096 bytes."""

MAX_NAMES = 500_000
"""No walk looks at more: an agent may have made millions."""

KERNEL_FOLDERS = frozenset({"/proc", "/sys", "/dev", "/run"})


@dataclass(frozen=True, slots=True)
class DifferenceEntry:
    """One path that was looked at."""

    path: str
    kind: ChangeKind | None
    """None: a folder that is what it was, and below which something differs."""
    info: os.stat_result | None
    """What is there now; None when it was removed."""
    folder: int = -1
    """The open folder it is in, until the next entry is asked for."""
    name: str = ""
    before: Attributes | None = None
    """Of a folder that was one before: its attributes then."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder now."""
        return self.info is not None and stat.S_ISDIR(self.info.st_mode)


class Difference(Protocol):
    """Walks what differs. Every call walks anew; everything here blocks."""

    too_deep: list[str]
    """Folders that were left out by the last walk."""
    cut_short: bool
    """The last walk came to more than MAX_NAMES."""

    def entries(self) -> Iterator[DifferenceEntry]:
        """Yield what differs in a fixed order, folders before what is in them."""
        ...


class FolderLister:
    """Lists folders, up to a number of names in all."""

    def __init__(self) -> None:
        self._left = MAX_NAMES

    @property
    def is_over(self) -> bool:
        """Whether there were more names."""
        return self._left < 0

    def entries(self, fd: int) -> list[os.DirEntry[str]]:
        """Return the entries of an open folder, the first name last."""
        with os.scandir(fd) as entries:
            found = list(islice(entries, max(0, self._left) + 1))
        self._left -= len(found)
        return sorted(found, key=lambda entry: entry.name, reverse=True)


def open_folder(name: str, folder: int) -> int:
    """Open a folder for listing, never through a link; one that is closed to its owner is opened first."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    found = _open(name, folder, flags, 0o500)
    mode = stat.S_IMODE(os.fstat(found).st_mode)
    if mode & 0o500 != 0o500 and os.geteuid() != 0:
        os.fchmod(found, mode | 0o500)  # it can be listed, but what is in it cannot be looked at
    return found


def open_file(name: str, folder: int) -> int:
    """Open a file for reading in the same way; a fifo does not block."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    return _open(name, folder, flags, 0o400)


def _open(name: str, folder: int, flags: int, needed: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        pass
    # An ordinary user's sandbox has root inside, who may read what its owner on the host may not.
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        place = f"/proc/self/fd/{handle}"
        os.chmod(place, mode | needed)  # noqa: PTH101 - a descriptor, no path
        try:
            return os.open(place, flags & ~os.O_NOFOLLOW)
        finally:
            if not flags & os.O_DIRECTORY:  # what is in a folder can only be looked at while it is open to us
                os.chmod(place, mode)  # noqa: PTH101
    finally:
        os.close(handle)


# Where a link in a sandbox leads, found from the host one name at a time.

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
        """Return whether the link `text` at `path` leads to a place the rules forbid, or into /proc; or
        whether it stands where no link may be."""
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


# List, pack and unpack what differs in a sandbox, or put back what it was made from.

_LEFT_LOOKED_AT = MOST_LISTED
_KEPT_MODE = 0o1777
_UNREADABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
)


class _Choice:
    """The rules, asked only where their answer may change from a folder to what is in it."""

    def __init__(self, rules: CarryRules) -> None:
        self._rules = rules
        self._borders = {"", "/"}
        for path in (*rules.carried, *rules.left, *rules.forbidden, *rules.homes):
            parts = path.strip("/").split("/")
            depth = len(parts) + (1 if path in rules.homes else 0)
            self._borders.update("/" + "/".join(parts[:at]) for at in range(1, depth))
        self._any_home = tuple(home.removesuffix("/*") for home in rules.homes if home.endswith("/*"))
        self._folders: dict[str, bool] = {}

    def carries(self, path: str) -> bool:
        """Return whether what is at `path` is carried."""
        above = path.rpartition("/")[0]
        if above in self._borders or above.rpartition("/")[0] in self._any_home:
            return self._rules.carries(path)
        found = self._folders.get(above)
        if found is None:
            found = self._folders[above] = self._rules.carries(path)
        return found


def list_changed_paths(difference: Difference, rules: CarryRules | None) -> list[ChangedPath]:
    """Return what differs, and if rules are given what they carry of it."""
    choice = _Choice(rules) if rules is not None else None
    found: list[ChangedPath] = []
    with _unreadable_explained():
        for entry in difference.entries():
            if entry.kind is None or (choice is not None and not choice.carries(entry.path)):
                continue
            found.append(ChangedPath(entry.path, entry.kind))
            if len(found) >= MOST_LISTED:
                break
    return found


def pack_changes(
    difference: Difference, root: int, ids: Ids, rules: CarryRules, archive: Path, limits: WorkLimits
) -> PackedWork:
    """Write what differs and is carried to a new archive."""
    fd = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        packer = _Packer(ArchiveWriter(fd), Links(root), ids, rules, limits)
        with _unreadable_explained():
            packed = packer.pack(difference)
    except BaseException:
        archive.unlink()
        raise
    finally:
        os.close(fd)
    return packed


class _Packer:
    def __init__(
        self, writer: ArchiveWriter, links: Links, ids: Ids, rules: CarryRules, limits: WorkLimits
    ) -> None:
        self._writer = writer
        self._links = links
        self._ids = ids
        self._rules = rules
        self._limits = limits
        self._entries = 0
        self.packed = PackedWork()

    def pack(self, difference: Difference) -> PackedWork:
        packed, choice = self.packed, _Choice(self._rules)
        removed: list[str] = []
        for entry in difference.entries():
            if entry.kind is None:
                continue
            if not choice.carries(entry.path):
                packed.leave(entry.path, entry.kind)
                if packed.left_count >= _LEFT_LOOKED_AT:
                    packed.cut_short = True
                    break
            elif entry.info is None:
                removed.append(entry.path)
            elif self._entries >= self._limits.max_entries:
                packed.cut_short = True
                packed.skip(entry.path, f"more than {self._limits.max_entries} entries")
                break
            else:
                self._entries += 1
                try:
                    self._add(entry, entry.info)
                except FileNotFoundError:
                    packed.skip(entry.path, "removed while it was packed")
        packed.cut_short = packed.cut_short or difference.cut_short
        for path in difference.too_deep:
            packed.skip(path, "nested too deep")
        packed.removed = list(outermost(removed))
        self._writer.close()
        return packed

    def _add(self, entry: DifferenceEntry, info: os.stat_result) -> None:
        member = TarMember(
            name=entry.path[1:],
            kind=tar.TAR_FILE,
            mode=info.st_mode & _KEPT_MODE,
            uid=self._ids.inside(info.st_uid),
            gid=self._ids.inside(info.st_gid),
            mtime_ns=info.st_mtime_ns,
        )
        if stat.S_ISDIR(info.st_mode):
            self._write(replace(member, kind=tar.TAR_FOLDER))
        elif stat.S_ISLNK(info.st_mode):
            text = os.readlink(entry.name, dir_fd=entry.folder)
            if self._links.is_forbidden(entry.path, text, self._rules):
                self.packed.skip(entry.path, f"a link to {printable(text)}")
            else:
                self._write(replace(member, kind=tar.TAR_LINK, mode=0o777, link=text))
        elif stat.S_ISREG(info.st_mode):
            self._add_file(entry, member)
        else:
            self.packed.skip(entry.path, "neither a regular file nor a folder nor a link")

    def _add_file(self, entry: DifferenceEntry, member: TarMember) -> None:
        fd = open_file(entry.name, entry.folder)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                self.packed.skip(entry.path, "not a regular file")
            elif info.st_size > self._limits.max_file_bytes:
                limit = self._limits.max_file_bytes
                self.packed.skip(entry.path, f"{info.st_size} bytes, over the limit of {limit} for a file")
            elif self.packed.bytes + info.st_size > self._limits.max_bytes:
                self.packed.cut_short = True
                limit = self._limits.max_bytes
                self.packed.skip(entry.path, f"{info.st_size} bytes, over what is left of {limit}")
            else:
                self._write(replace(member, size=info.st_size), fd)
                self.packed.files += 1
                self.packed.bytes += info.st_size
        finally:
            os.close(fd)

    def _write(self, member: TarMember, content: int = -1) -> None:
        self._writer.add(member, content)


def unpack_changes(
    difference: Difference, root: int, ids: Ids, rules: CarryRules, archive: Path, removed: Sequence[str]
) -> None:
    """Make a sandbox at the carried paths what the packed one was. `difference` is its own."""
    with explained("unpack work"), archive.open("rb") as file:
        members = {f"/{member.name}": member for member in tar.read_members(file)}
        for path in (*members, *removed):
            if not _is_normal(path) or not rules.carries(path):
                raise SandboxError(f"work cannot be unpacked: {printable(path)} is not a path to carry")
        target = WorkTarget(root, ids)
        try:
            _forget_own(target, difference, rules, members, removed)
            for path, member in members.items():
                target.write(path, member, file.fileno())
            target.finish()
            links = Links(root)
            for path, member in members.items():
                # In the packed sandbox, an agent may have bent the folders its links lead through.
                if member.kind == tar.TAR_LINK and links.is_forbidden(path, member.link, rules):
                    target.remove(path)
        finally:
            target.close()


@contextmanager
def explained(action: str) -> Iterator[None]:
    """Say what was tried when the file system of a sandbox refuses it."""
    try:
        yield
    except SandboxError:
        raise
    except OSError as error:
        kind = SandboxFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else SandboxError
        raise kind(f"cannot {action} in the sandbox: {error}") from error


@contextmanager
def _unreadable_explained() -> Iterator[None]:
    """Say that what is in a sandbox cannot be looked at; that the host's disk is full stays what it is."""
    try:
        yield
    except SandboxError:
        raise
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        raise SandboxError(f"cannot look at what changed in the sandbox: {error}") from error


def _is_normal(path: str) -> bool:
    return path.startswith("/") and not {"", ".", ".."} & set(path[1:].split("/")) and "\0" not in path


def _forget_own(
    target: WorkTarget,
    difference: Difference,
    rules: CarryRules,
    members: dict[str, TarMember],
    removed: Sequence[str],
) -> None:
    """Remove what the other sandbox no longer has, and what this one's set-up made and that one lost."""
    choice, links = _Choice(rules), Links(target.root)
    lost: list[str] = []
    restored: list[tuple[str, Attributes]] = []
    for entry in difference.entries():
        if entry.path in members or entry.info is None or not choice.carries(entry.path):
            continue
        if entry.kind == "added" and _could_be_packed(entry, links, rules):
            lost.append(entry.path)
        elif entry.kind == "changed" and entry.before is not None:
            restored.append((entry.path, entry.before))
    for path in outermost((*lost, *removed)):
        target.remove(path)
    for path, before in restored:
        target.set_attributes(path, before)


def _could_be_packed(entry: DifferenceEntry, links: Links, rules: CarryRules) -> bool:
    """Return whether an entry that is not in an archive was gone: fifos and forbidden links never are in
    one."""
    assert entry.info is not None
    mode = entry.info.st_mode
    if stat.S_ISLNK(mode):
        return not links.is_forbidden(entry.path, os.readlink(entry.name, dir_fd=entry.folder), rules)
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


# Putting back what changed in a sandbox from one that nothing ran in.

_PLACE = os.O_PATH | os.O_DIRECTORY
_CHUNK_BYTES = 1 << 20
_ALL_MODE = 0o7777
_MAX_DEPTH = 64


def put_back(difference: Difference, root: int, pristine: int, ids: Ids, paths: Sequence[str]) -> None:
    """Make each path, and all below it, what it is below the open folder `pristine`.

    `difference` is that of the sandbox whose root is `root`: what is no part of it needs no work.
    """
    links = Links(pristine)
    wanted = {real for path in paths if (real := links.real_path(path)) is not None}
    entries = [entry for entry in difference.entries() if _concerns(entry, wanted)]
    target = WorkTarget(root, ids)
    try:
        whole: list[str] = []
        for entry in entries:
            if any(is_below(entry.path, one) for one in whole):
                continue
            if not _restore(entry, target, pristine, ids):
                whole.append(entry.path)
    finally:
        target.close()


def _concerns(entry: DifferenceEntry, wanted: set[str]) -> bool:
    """Return whether the entry is a path that is wanted, or in one; or whether it blocks the way to one."""
    if entry.kind is None or entry.path in KERNEL_FOLDERS:
        return False
    if any(entry.path == one or is_below(entry.path, one) for one in wanted):
        return True
    is_as_before = entry.is_folder and entry.before is not None
    return not is_as_before and any(is_below(one, entry.path) for one in wanted)


def _restore(entry: DifferenceEntry, target: WorkTarget, pristine: int, ids: Ids) -> bool:
    """Restore one entry; whether what is below it has yet to be."""
    above, _, name = entry.path.rpartition("/")
    source = _open_parent(pristine, above)
    try:
        info = None if source is None else _stat_in(source, name)
        folder = target.folder(above, make=info is not None)
        if folder is None:
            return False
        stays = entry.before is not None and is_folder_in(folder, name)
        if stays and info is not None and stat.S_ISDIR(info.st_mode):
            target.set_attributes(entry.path, Attributes.of(info))
            return True
        remove_entry(name, folder)
        if info is not None and source is not None:
            _copy(source, folder, name, info, ids, 0)
        return False
    finally:
        if source is not None:
            os.close(source)


def _open_parent(pristine: int, above: str) -> int | None:
    try:
        return open_without_links(pristine, above.split("/")[1:], _PLACE | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _stat_in(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _copy(source: int, folder: int, name: str, info: os.stat_result, ids: Ids, depth: int) -> None:
    """Copy an entry of an open folder to another one, with all below it."""
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=folder)
        if not ids.alone:
            os.chown(name, info.st_uid, info.st_gid, dir_fd=folder, follow_symlinks=False)
    elif stat.S_ISREG(info.st_mode):
        _copy_file(source, folder, name, info, ids)
    elif stat.S_ISDIR(info.st_mode) and depth < _MAX_DEPTH:
        _copy_folder(source, folder, name, info, ids, depth)


def _copy_file(source: int, folder: int, name: str, info: os.stat_result, ids: Ids) -> None:
    fd = os.open(name, READ, dir_fd=source)
    try:
        out = os.open(name, CREATE, 0o600, dir_fd=folder)
        try:
            while os.sendfile(out, fd, None, _CHUNK_BYTES):
                pass
            _apply(out, info, ids)
        finally:
            os.close(out)
    finally:
        os.close(fd)


def _copy_folder(source: int, folder: int, name: str, info: os.stat_result, ids: Ids, depth: int) -> None:
    os.mkdir(name, 0o700, dir_fd=folder)
    fd = os.open(name, FOLDER, dir_fd=source)
    try:
        out = os.open(name, FOLDER, dir_fd=folder)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    below = entry.stat(follow_symlinks=False)
                    _copy(fd, out, entry.name, below, ids, depth + 1)
            _apply(out, info, ids)
        finally:
            os.close(out)
    finally:
        os.close(fd)


def _apply(fd: int, info: os.stat_result, ids: Ids) -> None:
    if not ids.alone:
        os.fchown(fd, info.st_uid, info.st_gid)
    os.fchmod(fd, info.st_mode & _ALL_MODE)
    os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))
