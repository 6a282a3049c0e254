"""Artifacts in a folder that several hosts may share, reached by handles that follow no link."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from valkyrie.artifact_store.protocol import LINK_SECONDS, StoredArtifact, check_key, check_prefix
from valkyrie.domain import Json
from valkyrie.errors import DiskFullError, InfrastructureError, UnknownError, UsageError, UserError

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
        """Keep what was renamed into it through a power cut."""
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


# Artifacts in a folder, which several hosts may share.

OWN = ".valkyrie"
"""What is being written, and what objects were put with; no key begins with it."""
_PIECE = 1 << 20
_TRIES = 8
_STALE_S = 86_400


class DiskArtifacts:
    """Objects as files of the same relative path, each put in its place whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()

    def __repr__(self) -> str:
        return f"DiskArtifacts({str(self.folder)!r})"

    @property
    def place(self) -> Json:
        return {"kind": "disk", "folder": str(self.folder)}

    def put(self, key: str, file: Path, metadata: Json | None = None) -> None:
        with disk_errors(f"read {file}"):
            source = file.open("rb")
        with source, disk_errors(f"keep {self.url(key)}"):
            self._put(key, source, metadata)

    def put_text(self, key: str, text: str) -> None:
        with disk_errors(f"keep {self.url(key)}"):
            self._put(key, io.BytesIO(text.encode()), None)

    def read(self, key: str) -> Iterator[bytes]:
        with disk_errors(f"read {self.url(key)}"), closing(self._open(key)) as source:
            while piece := source.read(_PIECE):
                yield piece

    def get(self, key: str, file: Path) -> None:
        with disk_errors(f"fetch {self.url(key)} to {file}"), closing(self._open(key)) as source:
            with whole_file(file) as target:
                shutil.copyfileobj(source, target, _PIECE)

    def find(self, key: str) -> StoredArtifact | None:
        with disk_errors(f"look at {self.url(key)}"):
            try:
                with closing(self._open(key)) as source:
                    status = os.fstat(source.fileno())
            except UnknownError:
                return None
            return StoredArtifact(key, status.st_size, status.st_mtime, self._metadata(key, status))

    def list(self, prefix: str) -> Iterator[StoredArtifact]:
        bare = self._checked(below) if (below := check_prefix(prefix)) else ""
        with disk_errors(f"list {self.folder / bare}"):
            yield from self._walk(bare)

    def copy(self, source: str, target: str) -> None:
        with disk_errors(f"copy {self.url(source)}"), closing(self._open(source)) as opened:
            self._put(target, opened, self._metadata(source, os.fstat(opened.fileno())))

    def delete(self, prefix: str) -> None:
        whole, bare = prefix.endswith("/"), self._checked(prefix.removesuffix("/"))
        with disk_errors(f"remove {self.folder / bare}"):
            for top in ("", f"{OWN}/metadata/"):
                self._remove(top + bare, whole)

    def url(self, key: str) -> str:
        return str(self.folder / self._checked(key))

    def link(self, key: str, seconds: int = LINK_SECONDS) -> str | None:  # noqa: ARG002 - the protocol's
        return None

    def console_url(self, prefix: str) -> str | None:  # noqa: ARG002 - the protocol's
        return None

    def check(self) -> None:
        self._sweep()
        key = f"probe-{uuid.uuid4().hex}"
        try:
            self.put_text(key, key)
            if b"".join(self.read(key)) != key.encode():
                raise UsageError(f"{self.folder} gives back other bytes than it was given.")
        finally:
            self.delete(key)

    def close(self) -> None:
        """Nothing waits here."""

    def _sweep(self) -> None:
        with disk_errors(f"use {self.folder}"), Folder.make(self.folder, f"{OWN}/parts") as parts:
            for entry in parts.entries():
                if entry.modified_at < time.time() - _STALE_S:
                    with suppress(FileNotFoundError):
                        parts.unlink(entry.name)

    def _checked(self, key: str) -> str:
        if check_key(key).partition("/")[0] == OWN:
            raise UsageError(f"Keys that begin with {OWN} are the store's own.", cause="artifact_key")
        return key

    def _open(self, key: str) -> IO[bytes]:
        """The object's file; no part of its path may be a symbolic link."""
        folder, _, name = self._checked(key).rpartition("/")
        try:
            with Folder.open(self.folder, folder) as parent:
                handle = parent.open_file(name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            raise UnknownError(f"Nothing is kept as {key}.") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise UnknownError(f"Nothing is kept as {key}.")
        return open(handle, "rb", buffering=0)

    def _put(self, key: str, source: IO[bytes], metadata: Json | None) -> None:
        self._checked(key)
        with self._part() as (parts, part):
            handle = parts.open_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with open(handle, "wb") as target:
                shutil.copyfileobj(source, target, _PIECE)
                target.flush()
                os.fsync(handle)
                status = os.fstat(handle)
            if metadata is not None:
                self._keep_metadata(key, status, metadata)
            self._move(parts, part, key)

    def _keep_metadata(self, key: str, status: os.stat_result, metadata: Json) -> None:
        """Before the object itself: it says which file it is about, so an older one is not taken for it."""
        record = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "metadata": metadata}
        with self._part() as (parts, part):
            handle = parts.open_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with open(handle, "w", encoding="utf-8") as target:
                json.dump(record, target)
            self._move(parts, part, f"{OWN}/metadata/{key}")

    def _metadata(self, key: str, status: os.stat_result) -> Json | None:
        folder, _, name = f"{OWN}/metadata/{key}".rpartition("/")
        try:
            with Folder.open(self.folder, folder) as parent:
                handle = parent.open_file(name, os.O_RDONLY | os.O_NONBLOCK)
            with open(handle, encoding="utf-8") as source:
                record = json.load(source)
            own = (record["size"], record["mtime_ns"]) == (status.st_size, status.st_mtime_ns)
            metadata: Json | None = record["metadata"] if own else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return metadata

    @contextmanager
    def _part(self) -> Iterator[tuple[Folder, str]]:
        """A name to write to, on the same file system; whatever is left there is removed."""
        with Folder.make(self.folder, f"{OWN}/parts") as parts:
            name = uuid.uuid4().hex
            try:
                yield parts, name
            finally:
                with suppress(FileNotFoundError):
                    parts.unlink(name)

    def _move(self, parts: Folder, part: str, key: str) -> None:
        folder, _, name = key.rpartition("/")
        for tries_left in reversed(range(_TRIES)):
            try:
                with Folder.make(self.folder, folder) as parent:
                    parts.rename(part, parent, name)
                    parent.sync()
                    return
            except FileNotFoundError:
                # Someone removed the folder meanwhile because it was empty.
                if not tries_left:
                    raise

    def _remove(self, path: str, whole: bool) -> None:
        folder, _, name = path.rpartition("/")
        with suppress(FileNotFoundError, NotADirectoryError):
            with Folder.open(self.folder, folder) as parent:
                if whole:
                    parent.remove_tree(name)
                else:
                    parent.unlink(name)
            self._drop_empty(folder)

    def _drop_empty(self, folder: str) -> None:
        while folder and folder != f"{OWN}/metadata":
            folder, _, name = folder.rpartition("/")
            try:
                with Folder.open(self.folder, folder) as parent:
                    parent.rmdir(name)
            except OSError:
                return

    def _walk(self, below: str) -> Iterator[StoredArtifact]:
        """Files below a folder, in the order of their whole keys."""
        try:
            with Folder.open(self.folder, below) as folder:
                entries = [entry for entry in folder.entries() if below or entry.name != OWN]
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in sorted(entries, key=lambda one: (one.name + "/" * one.is_folder).encode()):
            key = f"{below}/{entry.name}" if below else entry.name
            if entry.is_folder:
                yield from self._walk(key)
            else:
                yield StoredArtifact(key, entry.size, entry.modified_at)
