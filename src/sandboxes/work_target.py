"""The sandbox that work is put into, written to one entry at a time below its root.

No link is followed on the way to an entry: a member whose folder is a link in this sandbox is left out.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from sandboxes import archive as tar
from sandboxes.archive import Member
from sandboxes.difference import Attributes
from sandboxes.trees import CREATE, FOLDER, remove_entry, unlink_if_there
from sandboxes.work import is_below

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOBODY = 65_534
_ID_COUNT = 65_536
_KEPT_MODE = 0o1777
_SMALL_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Ids:
    """User and group ids on both sides of a sandbox.

    `first`: the host's id of the sandbox's root. `alone`: it is the only one the sandbox has.
    """

    first: int
    alone: bool = False

    def inside(self, number: int) -> int:
        """Return the id inside for one of the host's."""
        inside = number - self.first
        if self.alone:
            return 0 if inside == 0 else _NOBODY
        return inside if 0 <= inside < _ID_COUNT else _NOBODY

    def outside(self, number: int) -> int:
        """Return the host's id for one inside."""
        if self.alone:
            return self.first
        return self.first + (number if 0 <= number < _ID_COUNT else _NOBODY)


@dataclass(slots=True)
class _Level:
    """An open folder on the way to the entry of the moment; its member's attributes are given at its end."""

    path: str
    fd: int
    member: Member | None = None


class WorkTarget:
    """Entries below the open folder `root`, which stays the caller's to close."""

    def __init__(self, root: int, ids: Ids) -> None:
        self.root = root
        self._ids = ids
        self._stack = [_Level("", os.dup(root))]

    def write(self, path: str, member: Member, archive: int) -> None:
        """Make the member's entry, in place of whatever has its name."""
        above, _, name = path.rpartition("/")
        folder = self.folder(above, make=True)
        if folder is None:
            return
        if member.kind == tar.FOLDER:
            self._make_folder(path, name, folder, member)
        elif member.kind == tar.LINK:
            self._make_link(name, folder, member)
        else:
            self._make_file(name, folder, member, archive)

    def remove(self, path: str) -> None:
        """Delete what is at `path`, with all below it; nothing there is fine."""
        above, _, name = path.rpartition("/")
        folder = self.folder(above)
        if folder is None:
            return
        try:
            remove_entry(name, folder)
        except PermissionError:
            self._unlock(folder)
            remove_entry(name, folder)

    def set_attributes(self, path: str, attributes: Attributes) -> None:
        """Give the folder at `path` its mode and owner, as the host sees them."""
        above, _, name = path.rpartition("/")
        folder = self.folder(above)
        if folder is None:
            return
        try:
            fd = os.open(name, FOLDER, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            self._own(fd, attributes.uid, attributes.gid)
            os.fchmod(fd, attributes.mode)
        finally:
            os.close(fd)

    def folder(self, path: str, *, make: bool = False) -> int | None:
        """Return the open folder at `path`, until the next call; None where a link or a file is in the way,
        or where one is missing and is not to be made."""
        while not (path == self._stack[-1].path or is_below(path, self._stack[-1].path or "/")):
            self._finish(self._stack.pop())
        while (level := self._stack[-1]).path != path:
            name = path[len(level.path) + 1 :].partition("/")[0]
            fd = self._open(name, level.fd, make=make)
            if fd is None:
                return None
            self._stack.append(_Level(f"{level.path}/{name}", fd))
        return self._stack[-1].fd

    def finish(self) -> None:
        """Give all folders their attributes."""
        while len(self._stack) > 1:
            self._finish(self._stack.pop())

    def close(self) -> None:
        """Close what is open."""
        for level in self._stack:
            os.close(level.fd)
        self._stack.clear()

    def _open(self, name: str, folder: int, *, make: bool) -> int | None:
        try:
            return os.open(name, _PLACE, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                return None
        except PermissionError:
            self._unlock(folder)
            return os.open(name, _PLACE, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            return None
        os.mkdir(name, 0o755, dir_fd=folder)
        fd = os.open(name, FOLDER, dir_fd=folder)
        try:
            self._own(fd, self._ids.first, self._ids.first)
            os.fchmod(fd, 0o755)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _unlock(self, folder: int) -> None:
        """Give the owner all rights to a folder: inside, an ordinary user's root has them anyway.

        Such a folder was made by a set-up, so that it is in the archive, too, and gets its mode from there.
        """
        if not self._ids.alone:
            raise PermissionError(errno.EPERM, "the host may not change a folder of the sandbox")
        os.chmod(f"/proc/self/fd/{folder}", 0o700)  # noqa: PTH101 - a descriptor, no path

    def _make_folder(self, path: str, name: str, folder: int, member: Member) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if unlink_if_there(name, folder):
                os.mkdir(name, 0o700, dir_fd=folder)
            elif self._ids.alone:
                os.chmod(name, 0o700, dir_fd=folder)
        self._stack.append(_Level(path, os.open(name, FOLDER, dir_fd=folder), member))

    def _make_link(self, name: str, folder: int, member: Member) -> None:
        try:
            os.symlink(member.link, name, dir_fd=folder)
        except FileExistsError:
            remove_entry(name, folder)
            os.symlink(member.link, name, dir_fd=folder)
        if not self._ids.alone:
            uid, gid = self._ids.outside(member.uid), self._ids.outside(member.gid)
            os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
        times = (member.mtime_ns, member.mtime_ns)
        os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)

    def _make_file(self, name: str, folder: int, member: Member, archive: int) -> None:
        try:
            fd = os.open(name, CREATE, 0o600, dir_fd=folder)
        except FileExistsError:
            remove_entry(name, folder)
            fd = os.open(name, CREATE, 0o600, dir_fd=folder)
        try:
            _fill(fd, archive, member.offset, member.size)
            self._apply(fd, member)
        finally:
            os.close(fd)

    def _finish(self, level: _Level) -> None:
        try:
            if level.member is not None:
                self._apply(level.fd, level.member)
        finally:
            os.close(level.fd)

    def _apply(self, fd: int, member: Member) -> None:
        self._own(fd, self._ids.outside(member.uid), self._ids.outside(member.gid))
        os.fchmod(fd, member.mode & _KEPT_MODE)
        os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))

    def _own(self, fd: int, uid: int, gid: int) -> None:
        if not self._ids.alone:
            os.fchown(fd, uid, gid)


def _fill(fd: int, archive: int, offset: int, size: int) -> None:
    if size <= _SMALL_BYTES:
        data = memoryview(os.pread(archive, size, offset))
        while data:
            data = data[os.write(fd, data) :]
        return
    while size and (sent := os.sendfile(fd, archive, offset, min(size, _CHUNK_BYTES))):
        offset += sent
        size -= sent


def mode_in(folder: int, name: str) -> int | None:
    """Return the mode of what has the name, links not followed; None when nothing has it."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def is_folder_in(folder: int, name: str) -> bool:
    """Whether a real folder has the name."""
    mode = mode_in(folder, name)
    return mode is not None and stat.S_ISDIR(mode)
