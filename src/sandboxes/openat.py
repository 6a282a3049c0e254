"""Opening names below a folder without ever leaving it."""

from __future__ import annotations

import ctypes
import errno
import os
import posixpath
from functools import lru_cache

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
    """Whether the kernel (5.6 or later, and no seccomp filter in the way) offers openat2."""
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
    """Whether the open file belongs to procfs, sysfs and their like."""
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
    """Whether the name holds no bytes that failed to decode."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)
