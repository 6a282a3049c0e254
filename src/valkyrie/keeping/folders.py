"""Folders by handle: a path walked part by part, where no part may be a symbolic link."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from valkyrie.errors import DiskFullError, InfrastructureError, UserError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PART = ".valkyrie-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR)
_IN_THE_WAY = (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """A file or folder in a folder."""

    name: str
    is_folder: bool
    size: int
    modified_at: float


class Folder:
    """An open folder; names given to it are single parts of a path."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @classmethod
    @contextmanager
    def open(cls, top: Path, below: str) -> Iterator[Folder]:
        """The folder `below` (`a/b`, or nothing) of `top`, which itself may be a link."""
        with cls._walk(top, below, make=False) as folder:
            yield folder

    @classmethod
    @contextmanager
    def make(cls, top: Path, below: str) -> Iterator[Folder]:
        """Likewise, made where it is not there."""
        top.mkdir(parents=True, exist_ok=True)
        with cls._walk(top, below, make=True) as folder:
            yield folder

    @classmethod
    @contextmanager
    def _walk(cls, top: Path, below: str, *, make: bool) -> Iterator[Folder]:
        handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in below.split("/") if below else ():
                if make:
                    _make_folder(handle, part)
                inner = os.open(part, _FOLDER, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield cls(handle)
        finally:
            os.close(handle)

    def open_file(self, name: str, flags: int) -> int:
        """A handle of a file in it; a symbolic link is refused."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=self._handle)

    def rename(self, name: str, target: Folder, target_name: str) -> None:
        """Move a file of this folder into another, over one that is there."""
        os.replace(name, target_name, src_dir_fd=self._handle, dst_dir_fd=target._handle)

    def unlink(self, name: str) -> None:
        """Remove a file; a folder of that name is left, as if there were no file."""
        try:
            os.unlink(name, dir_fd=self._handle)
        except (IsADirectoryError, PermissionError):
            if not self._is_folder(name):
                raise

    def rmdir(self, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=self._handle)

    def remove_tree(self, name: str) -> None:
        """Remove a folder and all in it; what is no folder is left."""
        if self._is_folder(name):
            shutil.rmtree(name, dir_fd=self._handle)

    def entries(self) -> list[ListedEntry]:
        """Plain files and folders in it; links and the like are not told of."""
        found = []
        for name in os.listdir(self._handle):  # noqa: PTH208 - of a handle
            try:
                status = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
                found.append(ListedEntry(name, stat.S_ISDIR(status.st_mode), status.st_size, status.st_mtime))
        return found

    def sync(self) -> None:
        """What was renamed into it stays there through a power cut."""
        os.fsync(self._handle)

    def _is_folder(self, name: str) -> bool:
        return stat.S_ISDIR(os.stat(name, dir_fd=self._handle, follow_symlinks=False).st_mode)


def _make_folder(parent: int, name: str) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        pass


@contextmanager
def whole_file(file: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes its name when the block ends well, and is removed otherwise."""
    part = file.with_name(f"{_PART}{secrets.token_hex(16)}")
    try:
        opened = part.open("xb")
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = part.open("xb")
    try:
        with opened as target:
            yield target
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove_parts(folder: Path) -> None:
    """Remove what a killed process was writing to a folder that nobody else writes to now."""
    for part in folder.glob(f"{_PART}*"):
        part.unlink(missing_ok=True)


@contextmanager
def disk_errors(what: str, cause: str = "artifacts") -> Iterator[None]:
    """Errors of the file system leave this block as ours: `what` (`keep /a/b`) cannot be done."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        if error.errno in _FULL:
            raise DiskFullError(f"Cannot {what}: {why}. Make room there.") from None
        if error.errno in _IN_THE_WAY:
            a_file = isinstance(error, FileExistsError)
            there, wanted = ("file", "folder") if a_file else ("folder", "file")
            raise UserError(
                f"Cannot {what}: a {there} stands where a {wanted} belongs.", cause=f"{cause}_config"
            ) from None
        if error.errno in _REFUSED or isinstance(error, FileNotFoundError):
            raise UserError(f"Cannot {what}: {why}. See to the folder.", cause=f"{cause}_config") from None
        raise InfrastructureError(f"Cannot {what}: {why}.", cause=cause) from None
