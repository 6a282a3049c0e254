"""Digest everything in a folder, and apply the rules of its `.dockerignore`."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
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


# Which files beside a Dockerfile its `.dockerignore` keeps out of the build, by Docker's own rules.

DOCKERIGNORE = ".dockerignore"
MOST_IGNORE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    includes: bool
    """It began with `!`: what it matches is part of the build after all."""


class Dockerignore:
    """The rules of one folder. The last rule that matches a path, or a folder above it, decides."""

    def __init__(self, text: str, kept: Sequence[str] = (), top: str = "") -> None:
        self.rules = [rule for line in text.lstrip("\ufeff").splitlines() if (rule := _read(line))]
        self._kept = frozenset(kept)
        """Always sent: the builder needs them, and takes them away itself."""
        self._top = top

    @classmethod
    def of(cls, context: Path, dockerfile: str = "Dockerfile") -> Dockerignore:
        """Read the rules of a folder; a file named for the Dockerfile comes before the folder's own."""
        for name in (f"{dockerfile}{DOCKERIGNORE}", DOCKERIGNORE):
            path = context / name
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    text = file.read(MOST_IGNORE_BYTES).decode("utf-8", "replace")
                return cls(text, kept=(dockerfile, name), top=os.fspath(context))
        return cls("")

    def leaves_out(self, path: str) -> bool:
        """Return whether a path relative to the folder is no part of the build."""
        if path in self._kept:
            return False
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        out = False
        for rule in self.rules:
            if out == rule.includes and any(rule.pattern.fullmatch(one) for one in above):
                out = not rule.includes
        return out

    def leaves_out_all_of(self, folder: str) -> bool:
        """Return whether nothing below a folder is part of the build, so that nobody need look into it."""
        return not any(rule.includes for rule in self.rules) and self.leaves_out(folder)

    def names_left_out(self, folder: str, names: list[str]) -> list[str]:
        """Return the same of a folder's names, as `shutil.copytree` asks for it."""
        below = os.path.relpath(folder, self._top)
        found = []
        for name in names:
            path = posixpath.normpath(posixpath.join(below, name))
            is_folder = Path(folder, name).is_dir() and not Path(folder, name).is_symlink()
            if self.leaves_out_all_of(path) if is_folder else self.leaves_out(path):
                found.append(name)
        return found


def _read(line: str) -> _Rule | None:
    if line.startswith("#"):
        return None
    text = line.strip()
    includes = text.startswith("!")
    text = text[1:].strip() if includes else text
    if not text:
        return None
    normal = posixpath.normpath(text)
    return _Rule(_compiled(normal.lstrip("/") or "."), includes)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of Go's `filepath.Match`, with `**` for any number of folders."""
    out, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*" and pattern[at : at + 1] == "*":
            at += 1
            if pattern[at : at + 1] == "/":
                at += 1
            out += ".*" if at >= len(pattern) else "(?:.*/)?"
        elif char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and (end := _class_end(pattern, at)) > 0:
            inner = pattern[at:end]
            negated = inner.startswith("^")
            inner = inner[1:] if negated else inner
            out += f"[{'^' if negated else ''}{inner.replace('[', chr(92) + '[')}]"
            at = end + 1
        elif char == "\\" and at < len(pattern):
            out += re.escape(pattern[at])
            at += 1
        else:
            out += re.escape(char)
    try:
        return re.compile(out, re.DOTALL)
    except re.error:
        return re.compile(re.escape(pattern))


def _class_end(pattern: str, at: int) -> int:
    """Return where a `[…]` ends that begins before `at`; -1 when it does not."""
    start = at + (1 if pattern[at : at + 1] == "^" else 0)
    return pattern.find("]", start + 1)
