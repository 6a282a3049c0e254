"""An agent's folder as one zip: packed the same way every time, and unpacked without trusting it.

Names that are left out are compared whole, part by part of the path; upstream looks for substrings and so
also loses `.gitignore` or `my_venv_tool.py`. Native libraries (`.so`, `.dll`, `.dylib`) are kept, unlike
upstream: an agent that ships one needs it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark_runner.agent_bundle import CONTRACT_FILES
from benchmark_runner.archive import (
    DEEPEST,
    ArchivePacker,
    OpenArchive,
    disk_error,
    new_archive,
    new_file,
    open_archive,
)
from benchmark_runner.errors import BundleError
from sandboxes.folder_contents import FolderEntry, UnreadableContentError, file_digest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What an agent may be called: its name becomes a file name and a folder in the sandbox."""
NAME_RULE = "1 to 64 letters, digits, `.`, `_` or `-`, starting with a letter or digit"
PLACE = "/bundle"
"""A bundle stands in `/bundle/<name>` in the sandbox."""
IGNORE_FILE = ".valkyrieignore"
"""Says what of an agent's folder stays at home."""
NEVER_BUNDLED = (
    *("__pycache__", ".git", ".venv", "venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".DS_Store"),
    *(".env", ".env.*", "*.egg-info", "*.pyc", "*.pyo", "*.pyd"),
)
"""Names that stay at home whatever the file says: what a machine makes for itself, and what holds keys."""
_LARGEST_IGNORE = 64 * 1024
_MAX_CONTRACT_BYTES = 1024 * 1024
_CHUNK = 1024 * 1024


class ContentDigest:
    """Digest of names, contents and executable bits; not of time stamps, order or compression."""

    def __init__(self) -> None:
        self._entries: list[str] = []

    def add(self, name: str, executable: bool, content_sha256: str) -> None:
        """Add one file; an empty folder has an empty content digest."""
        self._entries.append(f"{content_sha256}\0{int(executable)}\0{name}")

    def hexdigest(self) -> str:
        """Return the sha256 over all entries."""
        return hashlib.sha256("\n".join(sorted(self._entries)).encode()).hexdigest()


def digest_folder(folder: Path) -> str:
    """Return the digest `pack` would give, without packing."""
    return _add_all(folder, ArchivePacker(None, "agent", folder))


def pack(folder: Path, name: str, destination: Path, *, compressed: bool = True) -> str:
    """Write the agent's folder as a zip under the top folder `name`; returns its content digest."""
    with new_archive(folder, name, destination, compressed=compressed) as packer:
        digest = _add_all(folder, packer)
        packer.set_comment(digest)
    return digest


def copy_archive(archive: Path, destination: Path) -> None:
    """Copy an archive as it is; `destination` appears whole or not at all."""
    with new_file(destination, f"{archive} cannot be copied") as file, archive.open("rb") as source:
        shutil.copyfileobj(source, file, _CHUNK)


def _add_all(folder: Path, packer: ArchivePacker) -> str:
    digest = ContentDigest()
    for name, path in list_folder(folder):
        if path is None:
            packer.add_folder(name)
            digest.add(name, False, "")
        else:
            digest.add(name, *packer.add_file(name, path))
    return digest.hexdigest()


def list_folder(folder: Path) -> Iterator[tuple[str, Path | None]]:
    """Yield the name of each file that belongs into the bundle, sorted, and where its content is.

    Empty folders have no content. Links are followed as long as they stay inside.
    """
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder.")
    root = folder.resolve()
    yield from _walk(root, root, "", (), read_ignored(root))


def _walk(
    root: Path, folder: Path, prefix: str, above: tuple[Path, ...], ignored: IgnoredPaths
) -> Iterator[tuple[str, Path | None]]:
    if prefix.count("/") + 2 > DEEPEST:
        raise BundleError(f"{prefix[:200]}… has more than {DEEPEST} folders in folders.")
    try:
        names = sorted(item.name for item in folder.iterdir() if not ignored.leaves_out(prefix + item.name))
    except PermissionError:
        raise BundleError(f"{folder} cannot be read (permission denied).") from None
    if not names and prefix:
        yield prefix.rstrip("/"), None
    for name in names:
        path = folder / name
        target = _inside(root, path, prefix + name, ignored) if path.is_symlink() else path
        if target.is_dir():
            if target in (*above, folder):
                raise BundleError(f"{prefix}{name} links to a folder it stands in.")
            yield from _walk(root, target, f"{prefix}{name}/", (*above, folder), ignored)
        elif target.is_file():
            yield prefix + name, target
        else:
            raise BundleError(
                f"{prefix}{name} is neither file nor folder; remove it from the agent's folder."
            )


def _inside(root: Path, link: Path, name: str, ignored: IgnoredPaths) -> Path:
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        raise BundleError(f"{name} is a link to nothing; remove it or make its target.") from None
    if not target.is_relative_to(root):
        raise BundleError(f"{name} links to {target}, outside the agent's folder; copy the file in instead.")
    below = target.relative_to(root)
    if any(ignored.leaves_out(path.as_posix()) for path in (below, *below.parents[:-1])):
        raise BundleError(f"{name} links to {target.relative_to(root)}, which is never bundled.")
    return target


@dataclass(frozen=True, slots=True)
class IgnoredPaths:
    """What is left out: names anywhere in the folder, and paths below it."""

    names: tuple[str, ...] = NEVER_BUNDLED
    paths: tuple[str, ...] = ()

    def leaves_out(self, path: str) -> bool:
        """Return whether the file or folder at `path`, relative and with `/`, stays at home."""
        name = path.rpartition("/")[2]
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names) or any(
            fnmatch.fnmatchcase(path, pattern) for pattern in self.paths
        )


def read_ignored(folder: Path) -> IgnoredPaths:
    """Read what the folder's own file says, one pattern a line; what is never bundled is added."""
    file = folder / IGNORE_FILE
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise BundleError(f"{file} must be a plain file.")
    try:
        with file.open("rb") as opened:
            text = opened.read(_LARGEST_IGNORE + 1).decode("utf-8")
    except FileNotFoundError:
        return IgnoredPaths()
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{file} cannot be read: {error}.") from None
    if len(text) > _LARGEST_IGNORE:
        raise BundleError(f"{file} is larger than {_LARGEST_IGNORE >> 10} KiB.")
    names: list[str] = [*NEVER_BUNDLED]
    paths: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        if pattern.startswith("!"):
            raise BundleError(f"{file}, line {number}: a pattern cannot be taken back with `!`.")
        anchored = pattern.rstrip("/").lstrip("/")
        (paths if "/" in pattern.rstrip("/") else names).append(anchored)
    return IgnoredPaths(tuple(names), tuple(paths))


def unpack(archive: Path, destination: Path, *, expect: str | None = None) -> str:
    """Unpack the archive's one top folder as `destination`, which must not exist; returns its digest.

    Nothing is left behind unless everything went well and the digest is the one expected.
    """
    if destination.exists() or destination.is_symlink():
        raise BundleError(f"{destination} exists already; nothing is overwritten. Choose another folder.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=destination.parent, prefix=".unpack-"))
    try:
        root = part / "root"
        root.mkdir()
        with open_archive(archive) as opened:
            digest = _digest(opened, root)
        if expect is not None and digest != expect:
            raise BundleError(
                f"{archive} is not the agent that was frozen (digest {digest[:12]}, expected {expect[:12]})."
            )
        root.rename(destination)
    except OSError as error:
        raise disk_error(f"{archive} cannot be unpacked as {destination}", error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return digest


def digest_archive(archive: Path) -> str:
    """Return the content digest of an archive, read in full; its folder has the same."""
    with open_archive(archive) as opened:
        return _digest(opened, None)


def _digest(opened: OpenArchive, root: Path | None) -> str:
    digest = ContentDigest()
    opened.extract(root, digest.add)
    return digest.hexdigest()


def digest_unpacked(folder: Path, entries: Sequence[FolderEntry]) -> str | None:
    """Return the content digest of an unpacked folder; None for one with what no archive holds."""
    digest, paths = ContentDigest(), [entry.path for entry in entries]
    populated = {path.rsplit("/", up)[0] for path in paths for up in range(1, path.count("/") + 1)}
    for entry in entries:
        name = entry.path.removeprefix("./")
        if stat.S_ISDIR(entry.mode):
            if entry.path not in populated:
                digest.add(name, False, "")
        elif stat.S_ISREG(entry.mode):
            try:
                content = file_digest(folder / name).hex()
            except UnreadableContentError:
                return None
            digest.add(name, bool(entry.mode & 0o111), content)
        else:
            return None
    return digest.hexdigest()


def read_contract(archive: Path) -> tuple[str, str]:
    """Return name and text of the contract in the archive's top folder."""
    with open_archive(archive) as opened:
        found = [member for member in opened.members if member.name in CONTRACT_FILES]
        if len(found) != 1:
            both = "both contract.yaml and contract.yml" if found else "no contract.yaml"
            raise BundleError(f"{archive} has {both} in its top folder.")
        with opened.file.open(found[0].info) as file:
            content = file.read(_MAX_CONTRACT_BYTES + 1)
    try:
        return found[0].name, content.decode()
    except UnicodeDecodeError:
        raise BundleError(f"{archive}: {found[0].name} is not UTF-8 text.") from None
