"""One digest over everything in a folder: names, executable bits, link targets and contents."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LEFTOVERS = frozenset({"__pycache__", ".DS_Store"})
"""Names that tools drop into any folder; never part of what a digest covers."""


class UnreadableContentError(Exception):
    """Something in a folder cannot be part of a digest: it cannot be read, or is neither file nor link."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One file, folder or link below a folder."""

    path: str
    """Relative to the folder, `/` between parts."""
    mode: int
    stamp: tuple[int, int, int, int]
    """Modification and change time, size, inode: as long as these stay, so does the content."""


@dataclass(slots=True)
class FolderDigests:
    """Digests of folders; a folder that did not change since is not read again."""

    _known: dict[Path, tuple[bytes, str]] = field(default_factory=dict)
    """Folder → (what its files looked like, its digest)."""

    def whole(self, folder: Path) -> str:
        """Return the digest of everything in `folder`."""
        return self.known_or_read(folder, tuple(walk_folder(os.fspath(folder), ".")))

    def known_or_read(self, folder: Path, entries: Sequence[FolderEntry]) -> str:
        """Return the digest of `entries` of `folder`, from memory where none of them changed."""
        looks = hashlib.sha256(repr(entries).encode("utf-8", "surrogateescape")).digest()
        known = self._known.get(folder)
        if known is not None and known[0] == looks:
            return known[1]
        digest = digest_entries(folder, entries)
        self._known[folder] = (looks, digest)
        return digest


def folder_digest(folder: Path) -> str:
    """Return the digest of everything in one folder, wherever it is."""
    return digest_entries(folder, [*walk_folder(os.fspath(folder), ".")])


def walk_folder(path: str, relative: str, left_out: frozenset[str] = LEFTOVERS) -> Iterator[FolderEntry]:
    """Yield what is below `path`, sorted by name, without the names in `left_out`; links are not followed."""
    with os.scandir(path) as found:
        entries = sorted((entry for entry in found if entry.name not in left_out), key=lambda e: e.name)
    for entry in entries:
        below = f"{relative}/{entry.name}"
        yield entry_of(below, entry.stat(follow_symlinks=False))
        if entry.is_dir(follow_symlinks=False):
            yield from walk_folder(entry.path, below, left_out)


def entry_of(path: str, info: os.stat_result) -> FolderEntry:
    """Return the entry for a path with this status."""
    if stat.S_ISDIR(info.st_mode):
        # A folder's own times change with leftovers in it; what it holds is listed below it anyway.
        return FolderEntry(path, info.st_mode, (0, 0, 0, info.st_ino))
    return FolderEntry(path, info.st_mode, (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino))


def digest_entries(folder: Path, entries: Sequence[FolderEntry]) -> str:
    """Read and digest the entries. Raises UnreadableContentError."""
    total = hashlib.sha256()
    for entry in entries:
        if stat.S_ISDIR(entry.mode):
            kind, content = "folder", b""
        elif stat.S_ISLNK(entry.mode):
            kind, content = "link", os.fsencode((folder / entry.path).readlink())
        elif stat.S_ISREG(entry.mode):
            kind = "program" if entry.mode & 0o111 else "file"
            content = file_digest(folder / entry.path)
        else:
            raise UnreadableContentError(f"{folder / entry.path} is neither file, folder nor link; remove it")
        # Lengths first: no two different lists of entries may give the same bytes.
        name = os.fsencode(entry.path)
        total.update(f"{kind} {len(name)} {len(content)}\n".encode() + name + content)
    return total.hexdigest()


def file_digest(path: Path) -> bytes:
    """Return the sha256 of a file that is no link. Raises UnreadableContentError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise UnreadableContentError(f"cannot read {path}: {error.strerror}") from error
