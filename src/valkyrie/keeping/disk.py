"""Artifacts in a folder, which several hosts may share."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO

from valkyrie.errors import UnknownError, UsageError
from valkyrie.keeping.folders import Folder, disk_errors, whole_file
from valkyrie.keeping.keys import check_key, check_prefix
from valkyrie.keeping.protocol import LINK_SECONDS, Artifact
from valkyrie.nouns import Json

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

    def find(self, key: str) -> Artifact | None:
        with disk_errors(f"look at {self.url(key)}"):
            try:
                with closing(self._open(key)) as source:
                    status = os.fstat(source.fileno())
            except UnknownError:
                return None
            return Artifact(key, status.st_size, status.st_mtime, self._metadata(key, status))

    def list(self, prefix: str) -> Iterator[Artifact]:
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
        """Remove what killed programs were writing."""
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

    def _walk(self, below: str) -> Iterator[Artifact]:
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
                yield Artifact(key, entry.size, entry.modified_at)
