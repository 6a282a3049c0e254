"""An agent's folder as one zip: packed the same way every time, and unpacked without trusting it.

What is left out when packing is in `valkyrie.agents.ignoring`. Names are compared whole, part by part of the
path; upstream looks for substrings and so also loses `.gitignore` or `my_venv_tool.py`. Native libraries
(`.so`, `.dll`, `.dylib`) are kept, unlike upstream: an agent that ships one needs it.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from valkyrie.agents.ignoring import Ignored, read_ignored
from valkyrie.archives.limits import ArchiveLimits
from valkyrie.archives.reading import DEEPEST
from valkyrie.archives.writing import file_entry, folder_entry, new_file
from valkyrie.errors import BundleError

_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One file (or empty folder) of an agent's folder."""

    name: str
    """Path below the agent's folder, with `/`."""
    file: Path | None
    """Where its content is read from; None is an empty folder."""
    executable: bool = False


class ContentDigest:
    """Digest of names, contents and executable bits; not of time stamps, order or compression."""

    def __init__(self) -> None:
        self._entries: list[str] = []

    def add(self, name: str, executable: bool, content_sha256: str) -> None:
        """One file; an empty folder has an empty content digest."""
        self._entries.append(f"{content_sha256}\0{int(executable)}\0{name}")

    def hexdigest(self) -> str:
        """sha256 over all entries."""
        return hashlib.sha256("\n".join(sorted(self._entries)).encode()).hexdigest()


def digest_folder(folder: Path) -> str:
    """The digest `pack` would give, without packing."""
    return _read_all(folder, ArchiveLimits.from_environment(), lambda _entry: None)


def pack(folder: Path, name: str, destination: Path) -> str:
    """Write the agent's folder as a zip under the top folder `name`; returns its content digest.

    The same content gives the same bytes. `destination` appears whole or not at all.
    """
    limits = ArchiveLimits.from_environment()
    with new_file(destination, f"{folder} cannot be packed") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            digest = _read_all(folder, limits, lambda entry: _writer(archive, name, entry))
            archive.comment = digest.encode()
        if (size := file.tell()) > limits.upload_bytes:
            raise BundleError(f"{folder}: {size:,} bytes packed; {limits.upload_hint}")
    return digest


def copy_archive(archive: Path, destination: Path) -> None:
    """Copy an archive as it is; `destination` appears whole or not at all."""
    with new_file(destination, f"{archive} cannot be copied") as file, archive.open("rb") as source:
        shutil.copyfileobj(source, file, _CHUNK)


def _writer(archive: zipfile.ZipFile, top: str, entry: Entry) -> IO[bytes] | None:
    if entry.file is None:
        archive.writestr(folder_entry(f"{top}/{entry.name}"), b"")
        return None
    info = file_entry(f"{top}/{entry.name}", executable=entry.executable)
    return archive.open(info, "w", force_zip64=entry.file.stat().st_size > 2**31)


def _read_all(folder: Path, limits: ArchiveLimits, writer: Callable[[Entry], IO[bytes] | None]) -> str:
    """Read every file once, into its digest and whatever `writer` opens for it."""
    digest, total = ContentDigest(), 0
    for count, entry in enumerate(list_folder(folder), 1):
        if count > limits.entries:
            raise BundleError(f"{folder} holds more than {limits.entries:,} files; {limits.entries_hint}")
        content = hashlib.sha256()
        sink = writer(entry)
        try:
            if entry.file is not None:
                with entry.file.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        total += len(chunk)
                        if total > limits.expanded_bytes:
                            raise BundleError(f"{folder} is too large; {limits.expanded_hint}")
                        content.update(chunk)
                        if sink is not None:
                            sink.write(chunk)
        except PermissionError:
            raise BundleError(f"{entry.file} cannot be read (permission denied).") from None
        finally:
            if sink is not None:
                sink.close()
        digest.add(entry.name, entry.executable, content.hexdigest() if entry.file else "")
    return digest.hexdigest()


def list_folder(folder: Path) -> Iterator[Entry]:
    """Everything that belongs into the bundle, sorted. Links are followed as long as they stay inside."""
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder.")
    root = folder.resolve()
    yield from _walk(root, root, "", (), read_ignored(root))


def _walk(
    root: Path, folder: Path, prefix: str, above: tuple[Path, ...], ignored: Ignored
) -> Iterator[Entry]:
    if prefix.count("/") + 2 > DEEPEST:
        raise BundleError(f"{prefix[:200]}… has more than {DEEPEST} folders in folders.")
    try:
        names = sorted(item.name for item in folder.iterdir() if not ignored.leaves_out(prefix + item.name))
    except PermissionError:
        raise BundleError(f"{folder} cannot be read (permission denied).") from None
    if not names and prefix:
        yield Entry(prefix.rstrip("/"), None)
    for name in names:
        path = folder / name
        if "\\" in name or not name.isprintable():
            raise BundleError(
                f"{prefix}{name!r}: rename it; names may not hold backslashes or control characters."
            )
        target = _inside(root, path, prefix + name, ignored) if path.is_symlink() else path
        if target.is_dir():
            if target in (*above, folder):
                raise BundleError(f"{prefix}{name} links to a folder it stands in.")
            yield from _walk(root, target, f"{prefix}{name}/", (*above, folder), ignored)
        elif target.is_file():
            yield Entry(prefix + name, target, bool(target.stat().st_mode & 0o111))
        else:
            raise BundleError(
                f"{prefix}{name} is neither file nor folder; remove it from the agent's folder."
            )


def _inside(root: Path, link: Path, name: str, ignored: Ignored) -> Path:
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
