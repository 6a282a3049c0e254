"""An agent's folder as one zip: packed the same way every time, unpacked without trusting it."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

PLACE = "/bundle"
"""Bundles stand in `/bundle/<root>` in the sandbox."""
MOST_FILES = 10_000
MOST_BYTES = 256 * 1024 * 1024
LEFT_OUT = (
    *("__pycache__", ".git", ".venv", "venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".DS_Store"),
    *(".env", ".env.*", "*.egg-info", "*.pyc", "*.pyo", "*.pyd"),
)
"""Names that are never sent: what a machine makes for itself, and what holds keys."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Bundle:
    """An agent's files, checked."""

    root: str
    content: bytes = field(repr=False)
    """The zip."""
    sha256: str

    @property
    def place(self) -> str:
        """Where it stands in a sandbox."""
        return f"{PLACE}/{self.root}"

    def unpack(self, folder: Path) -> Path:
        """Write the files below `folder`; returns the bundle's own folder in it."""
        with zipfile.ZipFile(io.BytesIO(self.content)) as archive:
            for info in archive.infolist():
                target = folder / info.filename
                if info.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(info))
                target.chmod(0o755 if _mode(info) & 0o111 else 0o644)
        return folder / self.root


def pack_bundle(folder: Path, root: str) -> Bundle:
    """A folder as a bundle. The same files give the same digest. ValueError for what cannot go in."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; an agent's bundle is made from one.")
    packed = io.BytesIO()
    total = 0
    # Stored as they are: compressors of different versions differ, and the digest is not to.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        count = 0
        for name, path in _files(folder.resolve()):
            count += 1
            total += path.stat().st_size
            if count > MOST_FILES or total > MOST_BYTES:
                raise ValueError(f"{folder} is too large for a bundle: {_bounds()}.")
            info = zipfile.ZipInfo(f"{root}/{name}", _EPOCH)
            mode = 0o755 if path.stat().st_mode & 0o111 else 0o644
            info.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(info, path.read_bytes())
    if not count:
        raise ValueError(f"{folder} has no files to send.")
    return checked_bundle(packed.getvalue(), str(folder))


def load_bundle(path: Path, sha256: str | None = None) -> Bundle:
    """A bundle from a zip, which is the one that is meant where its digest is given. ValueError otherwise."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path} is too large for a bundle: {_bounds()}.")
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"The agent's bundle {path}: {error.strerror}.") from None
    bundle = checked_bundle(content, str(path))
    if sha256 is not None and bundle.sha256 != sha256:
        raise ValueError(
            f"{path} is not the bundle that was pinned: sha256 {bundle.sha256[:12]}…, not {sha256[:12]}…. "
            "Get the right file, or make the manifest anew."
        )
    return bundle


def checked_bundle(content: bytes, origin: str) -> Bundle:
    """A zip that holds one folder of plain files, within bounds; ValueError otherwise."""
    names = _Names()
    total = 0
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if len(archive.infolist()) > MOST_FILES:
                raise ValueError(f"{origin} is too large for a bundle: {_bounds()}.")
            for info in archive.infolist():
                if wrong := names.wrong(info):
                    raise ValueError(f"{origin}: {info.filename[:200]!r} {wrong}.")
                # The size an archive claims is not the size it has.
                with archive.open(info) as member:
                    while chunk := member.read(1 << 20):
                        total += len(chunk)
                        if total > MOST_BYTES:
                            raise ValueError(f"{origin} is too large for a bundle: {_bounds()}.")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{origin} is no zip that can be read: {error}") from None
    roots = {path.parts[0] for path in names.files}
    if len(roots) != 1:
        raise ValueError(f"{origin} must hold exactly one folder, the agent's; it has {len(roots)}.")
    return Bundle(roots.pop(), content, hashlib.sha256(content).hexdigest())


class _Names:
    """The entries of an archive so far."""

    def __init__(self) -> None:
        self.files: set[PurePosixPath] = set()
        self.folders: set[PurePosixPath] = set()

    def wrong(self, info: zipfile.ZipInfo) -> str | None:
        """Why an entry cannot be taken; None once it is."""
        name, path = info.filename, PurePosixPath(info.filename)
        parts = name.removesuffix("/").split("/")
        if "\\" in name or not name.isprintable() or {"", ".", ".."} & set(parts):
            return "is no path below the agent's folder"
        if len(parts) == 1 and not info.is_dir():
            return "is not in the agent's folder"
        if info.flag_bits & 1:
            return "is encrypted"
        if stat.S_IFMT(_mode(info)) not in (0, stat.S_IFREG, stat.S_IFDIR):
            return "is neither file nor folder"
        if {path, *path.parents} & self.files or (not info.is_dir() and path in self.folders):
            return "is there twice"
        (self.folders if info.is_dir() else self.files).add(path)
        self.folders.update(path.parents)
        return None


def _mode(info: zipfile.ZipInfo) -> int:
    return info.external_attr >> 16


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """What of a folder is sent, sorted. Links are followed as long as they stay inside."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not _is_left_out(name))
        for name in folders:
            if (here / name).is_symlink():
                raise ValueError(f"{here / name} links to a folder; copy it instead.")
        for name in sorted(names):
            if not _is_left_out(name):
                yield _relative(root, here / name), _inside(root, here / name)


def _relative(root: Path, path: Path) -> str:
    name = path.relative_to(root).as_posix()
    if "\\" in name or not name.isprintable():
        raise ValueError(f"{name!r}: rename it; names may not hold backslashes or control characters.")
    return name


def _inside(root: Path, path: Path) -> Path:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise ValueError(f"{path} links to nothing; remove it or make its target.") from None
    if not target.is_relative_to(root) or any(map(_is_left_out, target.relative_to(root).parts)):
        raise ValueError(f"{path} links to {target}, which is not sent; copy the file instead.")
    if not target.is_file():
        raise ValueError(f"{path} is neither file nor folder; remove it.")
    return target


def _is_left_out(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in LEFT_OUT)


def _bounds() -> str:
    return f"at most {MOST_FILES:,} files and {MOST_BYTES >> 20} MiB"
