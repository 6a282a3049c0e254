"""Open, read, write, copy, find and remove files below a root from the host, while the agent inside may
plant traps."""

from __future__ import annotations

import ctypes
import errno
import os
import posixpath
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from sandboxes.errors import SandboxCrowdedError, SandboxError, SandboxFileNotFoundError, SandboxFullError
from sandboxes.protocol import A_LINK, CopyLimits, CopyReport

_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_PATH_MAX = 4096
_RACES = 64
"""Tries while the kernel says that a rename crossed our path; an agent can make it say so for ever."""

_KERNEL_FILE_SYSTEMS = frozenset(
    {0x9FA0, 0x62656572, 0x64626720, 0x27E0EB, 0x63677270, 0x74726163, 0xCAFE4A11}
)
"""procfs, sysfs, debugfs, cgroup, cgroup2, tracefs, bpf: their files are the kernel's, not the sandbox's."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def parts_of(path: str) -> list[str]:
    """The components of a sandbox path; `..` is resolved by text and stops at the root."""
    if "\0" in path:
        raise FileNotFoundError(errno.ENOENT, "a path cannot hold a NUL character")
    if len(path) > _PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise FileNotFoundError(errno.ENOENT, "a path cannot hold half a character") from None
    return [part for part in posixpath.normpath("/" + path).split("/") if part]


@lru_cache(maxsize=1)
def has_openat2() -> bool:
    """Return whether the kernel (5.6 or later, and no seccomp filter in the way) offers openat2."""
    try:
        fd = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            os.close(_openat2(fd, b".", os.O_PATH))
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return False
        raise
    return True


def open_below(root_fd: int, parts: list[str], flags: int) -> int:
    """Open a name below `root_fd`; links in its parents lead to places below the root only."""
    flags |= os.O_CLOEXEC
    if has_openat2():
        return _openat2(root_fd, os.fsencode("/".join(parts)) or b".", flags)
    return open_without_links(root_fd, parts, flags)


def open_without_links(root_fd: int, parts: list[str], flags: int) -> int:
    """The same for older kernels: component by component, where any link is refused."""
    if not parts:
        return os.open(".", flags, dir_fd=root_fd)
    folder = root_fd
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            if folder != root_fd:
                os.close(folder)
            folder = below
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        if folder != root_fd:
            os.close(folder)


def _openat2(root_fd: int, path: bytes, flags: int) -> int:
    how = _OpenHow(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    code = 0
    for _ in range(_RACES):
        fd: int = _libc().syscall(_SYS_OPENAT2, root_fd, path, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code), os.fsdecode(path))


def is_kernel_file_system(fd: int) -> bool:
    """Return whether the open file belongs to procfs, sysfs and their like."""
    buffer = ctypes.create_string_buffer(256)
    if _libc().fstatfs(fd, buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF in _KERNEL_FILE_SYSTEMS


def printable(name: str) -> str:
    """A file name that can be stored and sent: bytes which are not UTF-8 are replaced."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return name.encode("utf-8", "replace").decode("utf-8")


def is_utf8(name: str) -> bool:
    """Return whether the name holds no bytes that failed to decode."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


# Whole folders on the border of a sandbox: copied in, copied out, removed.
#
# Everything works on open folders and single names in them, so nothing that is moved or replaced by a link
# meanwhile can lead elsewhere. Nothing recurses, and the number of open descriptors is bounded.

CHUNK_BYTES = 1 << 20
MAX_DEPTH = 64
"""Copies leave folders below this depth behind: each level costs two descriptors."""
MAX_PATH_BYTES = 2048
"""Nor do they bring out folders with a longer path: the host could not name what is in them."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_EXPORT = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whom new files belong to; None leaves them to the process that makes them."""

    ids: tuple[int, int] | None = None

    def apply(self, fd: int, mode: int) -> None:
        """Give an open file or folder its owner and mode (never set-id bits)."""
        if self.ids is not None:
            os.fchown(fd, *self.ids)
        os.fchmod(fd, mode & 0o1777)

    def apply_to_link(self, name: str, folder: int) -> None:
        """Give a link its owner: one with an unmapped owner could not be deleted inside."""
        if self.ids is not None:
            os.chown(name, *self.ids, dir_fd=folder, follow_symlinks=False)


def temporary_name() -> str:
    """A name nobody can have planted."""
    return f".valkyrie-{secrets.token_hex(8)}"


def remove_entry(name: str, folder: int) -> None:
    """Delete `name` in the open folder, with all below it; links are not followed, depth is no matter."""
    if not empty_folder(name, folder):
        return
    os.rmdir(name, dir_fd=folder)


def empty_folder(name: str, folder: int) -> bool:
    """Delete what is in the folder `name`, or `name` itself if it is none; whether a folder is left."""
    if unlink_if_there(name, folder):
        return False
    top = _open_to_empty(name, folder)
    try:
        while _empty(top):
            pass
    finally:
        os.close(top)
    return True


def unlink_if_there(name: str, folder: int) -> bool:
    """Unlink what is not a folder; whether nothing has that name any more."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
        return False
    return True


def _empty(top: int) -> bool:
    """Delete what is in `top`; whether folders too deep to reach were lifted into it for another pass."""
    lifted = False
    stack: list[tuple[int, str, list[str]]] = [(top, "", _names(top))]
    try:
        while stack:
            fd, own_name, names = stack[-1]
            if not names:
                stack.pop()
                if stack:
                    os.close(fd)
                    os.rmdir(own_name, dir_fd=stack[-1][0])
                continue
            name = names.pop()
            if unlink_if_there(name, fd):
                continue
            if len(stack) < MAX_DEPTH:
                below = _open_to_empty(name, fd)
                stack.append((below, name, _names(below)))
            else:
                os.rename(name, temporary_name(), src_dir_fd=fd, dst_dir_fd=top)
                lifted = True
    finally:
        for fd, _, _ in stack[1:]:
            os.close(fd)
    return lifted


def _names(fd: int) -> list[str]:
    with os.scandir(fd) as entries:
        return [entry.name for entry in entries]


def _open_to_empty(name: str, folder: int) -> int:
    try:
        fd = os.open(name, FOLDER, dir_fd=folder)
        if os.fstat(fd).st_mode & 0o700 == 0o700:
            return fd
        os.close(fd)
    except PermissionError:
        pass
    # Without the owner's bits an ordinary user cannot empty a folder of their own.
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        Path(f"/proc/self/fd/{handle}").chmod(0o700)
        return os.open(".", FOLDER, dir_fd=handle)
    finally:
        os.close(handle)


def copy_file_in(source: str, folder: int, name: str, owner: Ownership) -> None:
    """Copy one regular host file to `name` in the open folder, replacing what has that name."""
    fd = os.open(source, READ)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise SandboxError(
                f"cannot upload {printable(source)}: it is neither a regular file nor a folder"
            )
        try:
            out = os.open(name, CREATE, 0o600, dir_fd=folder)
        except FileExistsError:
            remove_entry(name, folder)
            out = os.open(name, CREATE, 0o600, dir_fd=folder)
        try:
            while os.sendfile(out, fd, None, CHUNK_BYTES):
                pass
            owner.apply(out, info.st_mode)
        finally:
            os.close(out)
    finally:
        os.close(fd)


def copy_tree_in(source: Path, folder: int, name: str | None, owner: Ownership) -> None:
    """Merge a host folder into `name` in the open folder (into that folder itself, if no name)."""
    top = os.path.realpath(source)
    first = os.dup(folder) if name is None else _folder_to_fill(name, folder)
    mode = None if name is None else _mode_of(top)
    stack: list[tuple[int, int | None, str, list[str]]] = [(first, mode, top, [])]
    try:
        stack[-1][3].extend(_copy_files_in(top, top, first, owner))
        while stack:
            fd, mode, host_path, folders = stack[-1]
            if not folders:
                stack.pop()
                try:
                    if mode is not None:
                        owner.apply(fd, mode)
                finally:
                    os.close(fd)
                continue
            if len(stack) >= MAX_DEPTH:
                raise SandboxError(f"cannot upload {printable(host_path)}: nested deeper than {MAX_DEPTH}")
            host_path = f"{host_path}/{folders[-1]}"
            below = _folder_to_fill(folders.pop(), fd)
            stack.append((below, _mode_of(host_path), host_path, []))
            stack[-1][3].extend(_copy_files_in(host_path, top, below, owner))
    finally:
        for fd, *_ in stack:
            os.close(fd)


def _mode_of(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def _folder_to_fill(name: str, folder: int) -> int:
    """Open a folder that is there, or make it in place of whatever else has its name."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        if unlink_if_there(name, folder):
            os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, FOLDER, dir_fd=folder)


def _copy_files_in(host_path: str, top: str, folder: int, owner: Ownership) -> list[str]:
    """Copy the files and links of one host folder; return the names of its folders."""
    folders: list[str] = []
    with os.scandir(host_path) as entries:
        for entry in entries:
            if entry.is_symlink():
                _copy_link_in(entry.path, top, folder, entry.name, owner)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                copy_file_in(entry.path, folder, entry.name, owner)
    return folders


def _copy_link_in(source: str, top: str, folder: int, name: str, owner: Ownership) -> None:
    target = os.path.realpath(source)
    if target != top and not target.startswith(f"{top}/"):
        raise SandboxError(
            f"cannot upload {printable(source)}: the link leaves the folder (to {printable(target)})"
        )
    text = os.path.relpath(target, Path(source).parent)
    try:
        os.symlink(text, name, dir_fd=folder)
    except FileExistsError:
        remove_entry(name, folder)
        os.symlink(text, name, dir_fd=folder)
    owner.apply_to_link(name, folder)


def copy_tree_out(fd: int, destination: Path, limits: CopyLimits) -> CopyReport:
    """Copy the regular files below the open folder to a host folder, as far as the limits go."""
    destination.mkdir(parents=True, exist_ok=True)
    export = _Export(limits)
    stack: list[_Level] = []
    try:
        stack.append(_Level(os.dup(fd), os.open(destination, FOLDER), ""))
        export.copy_files(stack[-1])
        while stack and not export.stopped:
            level = stack[-1]
            if not level.folders:
                stack.pop().close()
                continue
            name = level.folders.pop()
            below = export.enter(level, name, len(stack))
            if below is not None:
                stack.append(below)
                export.copy_files(below)
    finally:
        for level in stack:
            level.close()
    return export.report


@dataclass(slots=True)
class _Level:
    """A folder being copied out: both sides open, its path, the folders in it still to do."""

    fd: int
    out: int
    prefix: str
    folders: list[str] = field(default_factory=list)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.out)


def _target(folder: int, name: str) -> str:
    """Return what a link says; nothing where it is gone by now, or says no UTF-8."""
    try:
        found = os.readlink(name, dir_fd=folder)
    except OSError:
        return ""
    return found if is_utf8(found) else ""


class _Export:
    """What one download has brought out so far, and what it may still bring."""

    def __init__(self, limits: CopyLimits) -> None:
        self.report = CopyReport()
        self.stopped = False
        self._limits = limits
        self._seen = 0

    def copy_files(self, level: _Level) -> None:
        """Copy the files of one folder, and note its folders."""
        with os.scandir(level.fd) as entries:
            for entry in entries:
                if self._seen >= self._limits.max_entries:
                    reason = f"more than {self._limits.max_entries} entries; the rest was not looked at"
                    self.report.skip(level.prefix or ".", reason)
                    self.stopped = True
                    return
                self._seen += 1
                path = level.prefix + entry.name
                if not is_utf8(entry.name):
                    self.report.skip(printable(path), "its name is not UTF-8")
                elif entry.is_symlink():
                    self.report.link(path, _target(level.fd, entry.name))
                elif entry.is_dir(follow_symlinks=False):
                    level.folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    self._copy_file(level, entry.name, path)
                else:
                    self.report.skip(path, "not a regular file")

    def enter(self, level: _Level, name: str, depth: int) -> _Level | None:
        """Open a folder on both sides; None if it stays behind."""
        path = level.prefix + name
        if depth >= MAX_DEPTH:
            self.report.skip(path, f"nested deeper than {MAX_DEPTH} folders")
            return None
        if len(path.encode()) > MAX_PATH_BYTES:
            self.report.skip(path[:100] + "…", f"its path has more than {MAX_PATH_BYTES} bytes")
            return None
        fd = self._open(level, name, path, FOLDER)
        if fd is None:
            return None
        if is_kernel_file_system(fd):
            os.close(fd)
            self.report.skip(path, "belongs to the kernel")
            return None
        try:
            try:
                os.mkdir(name, 0o755, dir_fd=level.out)
            except FileExistsError:
                pass
            return _Level(fd, os.open(name, FOLDER, dir_fd=level.out), f"{path}/")
        except BaseException:
            os.close(fd)
            raise

    def _open(self, level: _Level, name: str, path: str, flags: int) -> int | None:
        try:
            return os.open(name, flags, dir_fd=level.fd)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            self.report.skip(path, A_LINK if error.errno == errno.ELOOP else os.strerror(error.errno or 0))
            return None

    def _copy_file(self, level: _Level, name: str, path: str) -> None:
        fd = self._open(level, name, path, READ)
        if fd is None:
            return
        try:
            info = os.fstat(fd)
            refusal = self._refusal(info)
            if refusal is not None:
                self.report.skip(path, refusal)
                return
            out = os.open(name, _EXPORT, 0o755 if info.st_mode & 0o100 else 0o644, dir_fd=level.out)
            try:
                # No further than the size just checked: a file may grow for ever while it is read.
                left = info.st_size
                while left and (sent := os.sendfile(out, fd, None, min(left, CHUNK_BYTES))):
                    left -= sent
            finally:
                os.close(out)
            self.report.files += 1
            self.report.bytes += info.st_size - left
        finally:
            os.close(fd)

    def _refusal(self, info: os.stat_result) -> str | None:
        if not stat.S_ISREG(info.st_mode):
            return "not a regular file"
        if info.st_size > self._limits.max_file_bytes:
            return f"{info.st_size} bytes, over the limit of {self._limits.max_file_bytes} for a file"
        if self.report.bytes + info.st_size > self._limits.max_bytes:
            return f"{info.st_size} bytes, over what is left of {self._limits.max_bytes} for the folder"
        return None


# Read, write, list and resolve files of a sandbox from the host while the agent inside may plant traps.

MAX_GLOB_ENTRIES = 100_000
"""How many names one search looks at before it gives up."""
MAX_GLOB_DEPTH = 64
"""How far below the fixed part of its pattern a search descends."""

NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_OUT_OF_REACH = (*NOT_THERE, errno.EACCES)

Opener = Callable[[list[str], int], int]


class GlobSearch:
    """One glob: `*`, `?` and `[…]` within a name, `**` for any folders. Hidden names need a dot."""

    def __init__(self, open_at: Opener, parts: list[str]) -> None:
        self._open = open_at
        self._left = MAX_GLOB_ENTRIES
        self._found: set[str] = set()
        fixed = 0
        while fixed < len(parts) - 1 and not _is_pattern(parts[fixed]):
            fixed += 1
        rest = parts[fixed:]
        if rest and rest[-1] == "**":
            rest.append("*")
        self._todo = [(parts[:fixed], rest)]
        self._fixed = fixed

    def run(self) -> list[str]:
        """The regular files found, sorted, as absolute paths."""
        while self._todo:
            where, rest = self._todo.pop()
            if not rest or len(where) > self._fixed + MAX_GLOB_DEPTH:
                continue
            if rest[0] == "**":
                self._todo.append((where, rest[1:]))
                self._scan(where, rest, None)
            elif _is_pattern(rest[0]):
                self._scan(where, rest, re.compile(translate(rest[0])))
            else:
                mode = mode_at(self._open, [*where, rest[0]])
                if mode is not None:
                    self._take([*where, rest[0]], rest[1:], stat.S_ISDIR(mode), stat.S_ISREG(mode))
        return sorted(self._found)

    def _take(self, path: list[str], rest: list[str], folder: bool, regular: bool) -> None:
        if rest and folder:
            self._todo.append((path, rest))
        elif not rest and regular:
            self._found.add("/" + "/".join(path))

    def _scan(self, where: list[str], rest: list[str], name_pattern: re.Pattern[str] | None) -> None:
        """Match the names in one folder; no pattern means: descend into its folders."""
        # The parents the caller named may be links, as everywhere; what was matched may not.
        nofollow = os.O_NOFOLLOW if len(where) > self._fixed else 0
        try:
            fd = self._open(where, os.O_RDONLY | os.O_DIRECTORY | nofollow)
        except OSError as error:
            if error.errno in _OUT_OF_REACH:
                return
            raise
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        raise SandboxCrowdedError(
                            f"more than {MAX_GLOB_ENTRIES} names to look at; use a narrower pattern"
                        )
                    self._consider(entry, where, rest, name_pattern)
        finally:
            os.close(fd)

    def _consider(
        self, entry: os.DirEntry[str], where: list[str], rest: list[str], name_pattern: re.Pattern[str] | None
    ) -> None:
        name = entry.name
        if not is_utf8(name) or (name.startswith(".") and not rest[0].startswith(".")):
            return
        folder = entry.is_dir(follow_symlinks=False)
        if name_pattern is None:
            if folder:
                self._todo.append(([*where, name], rest))
        elif name_pattern.match(name):
            self._take([*where, name], rest[1:], folder, entry.is_file(follow_symlinks=False))


def mode_at(open_at: Opener, parts: list[str]) -> int | None:
    """The mode of what is there, a link not followed; None if nothing is."""
    try:
        fd = open_at(parts, os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in NOT_THERE:
            return None
        raise
    try:
        return os.fstat(fd).st_mode
    finally:
        os.close(fd)


def _is_pattern(part: str) -> bool:
    return any(character in part for character in "*?[")


# Files of a sandbox, handled from the host while the agent inside may be planting traps.
#
# Every name is resolved below one root folder. A link in the middle of a path leads to a place below the
# root at most; a link at its end is never followed. What is opened is checked to be a regular file or a
# folder before it is used. Names which are not UTF-8 are never handed out.

_PLACE = os.O_PATH | os.O_DIRECTORY


class RootedFiles:
    """File operations below `root_fd`, which stays the caller's to close. Everything here blocks.

    `owner` is the host's uid and gid that new files and folders get. `openat2=False` forces the way of
    kernels before 5.6, where links in the middle of a path are refused as well.
    """

    def __init__(self, root_fd: int, owner: tuple[int, int] = (0, 0), *, openat2: bool | None = None) -> None:
        self._root = root_fd
        self._owner = Ownership(owner if owner != (os.geteuid(), os.getegid()) else None)
        resolve_in_root = has_openat2() if openat2 is None else openat2
        self._open_at = open_below if resolve_in_root else open_without_links

    def read(self, path: str, *, max_bytes: int | None = None) -> Iterator[bytes]:
        """Yield one regular file in pieces; more than `max_bytes` is an error."""
        with _explained("read", path):
            fd = self._open(parts_of(path), READ)
            try:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode) or is_kernel_file_system(fd):
                    raise SandboxFileNotFoundError(f"{path} in the sandbox is not a regular file")
                if max_bytes is not None and info.st_size > max_bytes:
                    raise SandboxError(f"{path} in the sandbox has {info.st_size} bytes, over {max_bytes}")
                total = 0
                while chunk := os.read(fd, CHUNK_BYTES):
                    total += len(chunk)
                    if max_bytes is not None and total > max_bytes:
                        raise SandboxError(f"{path} in the sandbox grew over {max_bytes} bytes")
                    yield chunk
            finally:
                os.close(fd)

    def write(self, path: str, chunks: Iterable[bytes], mode: int = 0o644) -> None:
        """Write one file, making its parents; whatever file or link has the name is replaced whole."""
        with _explained("write", path), self._parent(path) as (folder, name):
            temporary = temporary_name()
            fd = os.open(temporary, CREATE, 0o600, dir_fd=folder)
            try:
                try:
                    for chunk in chunks:
                        _write_all(fd, chunk)
                    self._owner.apply(fd, mode)
                finally:
                    os.close(fd)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                unlink_if_there(temporary, folder)
                raise

    def make_folder(self, path: str, mode: int = 0o755) -> None:
        """Make a folder and its parents; one that is there keeps its mode."""
        with _explained("make folder", path):
            os.close(self._folder_for(parts_of(path), mode))

    def exists(self, path: str) -> bool:
        """Return whether anything, a link included, is at `path`."""
        with _explained("look at", path):
            return mode_at(self._open, parts_of(path)) is not None

    def is_folder(self, path: str) -> bool:
        """Return whether a real folder is at `path`; a link to one is not."""
        with _explained("look at", path):
            mode = mode_at(self._open, parts_of(path))
            return mode is not None and stat.S_ISDIR(mode)

    def clear_folder(self, path: str) -> None:
        """An empty folder at `path`. One that is there stays itself: something may be mounted on it."""
        with _explained("clear", path), self._parent(path) as (folder, name):
            if not empty_folder(name, folder):
                self.make_folder(path)

    def give_folder(self, path: str, uid: int, gid: int) -> None:
        """Change the owner of the real folder at `path`, by the host's ids."""
        with _explained("change the owner of", path), self._parent(path) as (folder, name):
            fd = os.open(name, FOLDER, dir_fd=folder)
            try:
                os.fchown(fd, uid, gid)
            finally:
                os.close(fd)

    def remove(self, path: str) -> None:
        """Delete the file, link or whole folder at `path`; nothing there is fine."""
        with _explained("remove", path):
            parts = _below_root(path)
            try:
                folder = self._open(parts[:-1], _PLACE)
            except OSError as error:
                if error.errno in NOT_THERE:
                    return
                raise
            try:
                remove_entry(parts[-1], folder)
            finally:
                os.close(folder)

    def copy_in(self, source: Path, path: str) -> None:
        """Copy a host file or folder to `path`; folders are merged, files and links replaced.

        Links inside the source are kept, made relative; one that leaves the source is an error.
        """
        with _explained(f"copy {source} to", path):
            if source.is_dir() and not parts_of(path):
                copy_tree_in(source, self._root, None, self._owner)
                return
            with self._parent(path) as (folder, name):
                if source.is_dir():
                    copy_tree_in(source, folder, name, self._owner)
                else:
                    copy_file_in(os.fspath(source), folder, name, self._owner)

    def copy_out(self, path: str, destination: Path, limits: CopyLimits | None = None) -> CopyReport:
        """Copy the regular files of a folder to the host folder `destination`, within limits."""
        with _explained("copy out", path, to_host=True):
            fd = self._open(parts_of(path), FOLDER)
            try:
                if is_kernel_file_system(fd):
                    raise SandboxFileNotFoundError(f"{path} in the sandbox belongs to the kernel")
                return copy_tree_out(fd, destination, limits or CopyLimits())
            finally:
                os.close(fd)

    def glob(self, pattern: str) -> list[str]:
        """Sorted absolute paths of the regular files that match; `**` stands for any folders."""
        with _explained("list", pattern):
            return GlobSearch(self._open, parts_of(pattern)).run()

    def _open(self, parts: list[str], flags: int) -> int:
        return self._open_at(self._root, parts, flags)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The open folder that `path` is in, made if missing, and its name there."""
        parts = _below_root(path)
        folder = self._folder_for(parts[:-1])
        try:
            yield folder, parts[-1]
        finally:
            os.close(folder)

    def _folder_for(self, parts: list[str], mode: int = 0o755) -> int:
        """An open folder, made with its parents if missing; `mode` is for the last one."""
        try:
            return self._open(parts, _PLACE)
        except FileNotFoundError:
            pass
        folder = self._open([], _PLACE)
        for depth in range(1, len(parts) + 1):
            try:
                below = self._open_or_make(folder, parts[:depth], mode if depth == len(parts) else 0o755)
            finally:
                os.close(folder)
            folder = below
        return folder

    def _open_or_make(self, folder: int, parts: list[str], mode: int) -> int:
        try:
            return self._open(parts, _PLACE)
        except FileNotFoundError:
            pass
        try:
            os.mkdir(parts[-1], 0o700, dir_fd=folder)
        except FileExistsError:
            # Made by someone else just now, or a link to nowhere: opening it again tells which.
            return self._open(parts, _PLACE)
        made = os.open(parts[-1], FOLDER, dir_fd=folder)
        try:
            self._owner.apply(made, mode)
        except BaseException:
            os.close(made)
            raise
        return made


def _below_root(path: str) -> list[str]:
    parts = parts_of(path)
    if not parts:
        raise SandboxError(f"{path!r} is the root of the sandbox; name something in it")
    return parts


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


@contextmanager
def _explained(action: str, path: str, *, to_host: bool = False) -> Iterator[None]:
    try:
        yield
    except SandboxError:
        raise
    except OSError as error:
        what = f"cannot {action} {printable(path)} in the sandbox"
        if error.errno == errno.ELOOP:
            raise SandboxFileNotFoundError(f"{what}: it is a link, and links are not followed") from error
        if error.errno in NOT_THERE:
            raise SandboxFileNotFoundError(f"{what}: {error.strerror}") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            if to_host:
                raise  # the host's own disk is full, which is nobody's fault in the sandbox
            raise SandboxFullError(f"{what}: {error.strerror}") from error
        raise SandboxError(f"{what}: {error.strerror}") from error
