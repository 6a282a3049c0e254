"""Open, copy and remove files and folders below a root without ever leaving it."""

from __future__ import annotations

import ctypes
import errno
import os
import posixpath
import secrets
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from sandboxes.errors import SandboxError
from sandboxes.types import CopyLimits, CopyReport
from sandboxes.values import A_LINK

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
