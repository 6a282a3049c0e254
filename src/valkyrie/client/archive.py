"""Unpack the archive of what an agent left, without trusting a word of it."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from valkyrie.errors import InfrastructureError

MOST_BYTES = 5 * 1024**3
MOST_ENTRIES = 100_000
_CHUNK = 1 << 20
# Everything `tarfile` is known to raise on hostile bytes.
_FAULTS = (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, UnicodeError)


class NotUnpackedError(Exception):
    """The archive is damaged, too large, or reaches outside its folder."""


def unpack_tar(archive: Path, root: Path) -> None:
    """Unpack into `root`, an empty folder of ours.

    Links are made after everything else, so that no file is ever written through one. Those that lead out of
    the folder are left out: they meant something in the sandbox only.
    """
    try:
        with tarfile.open(archive, "r:*") as tar:
            links = [member for member in _members(tar) if not _extract(tar, member, root)]
            for member in sorted(links, key=lambda member: member.issym()):
                _link(member, root)
    except _FAULTS as error:
        raise NotUnpackedError(f"it is damaged ({type(error).__name__}).") from error
    except NotUnpackedError:
        raise
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError):
            raise NotUnpackedError("two entries of it have the same name.") from error
        raise InfrastructureError(f"{archive} cannot be unpacked: {error.strerror or error}.") from error


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Entries one by one, while there are not too many, nor too many bytes in them."""
    total = 0
    for count, member in enumerate(tar, 1):
        total += member.size
        if count > MOST_ENTRIES:
            raise NotUnpackedError(f"it holds more than {MOST_ENTRIES:,} entries.")
        if total > MOST_BYTES:
            raise NotUnpackedError(f"it unpacks to more than {MOST_BYTES:,} bytes.")
        yield member


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> bool:
    """Write a file or folder; False for a link, which has to wait."""
    if member.issym() or member.islnk():
        return False
    path = _place(member.name, root)
    if member.isdir():
        path.mkdir(exist_ok=True)
        return True
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        raise NotUnpackedError(f"{member.name!r} in it is a device or another special file.")
    mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(handle, "wb") as sink:
        shutil.copyfileobj(source, sink, _CHUNK)
    os.utime(path, (member.mtime, member.mtime))
    return True


def _link(member: tarfile.TarInfo, root: Path) -> None:
    path = _place(member.name, root)
    if member.issym():
        if _leads_inside(member):
            path.symlink_to(member.linkname)
        return
    target = _place(member.linkname, root)
    if not target.is_file() or target.is_symlink():
        raise NotUnpackedError(f"{member.name!r} in it is a link to nothing.")
    os.link(target, path)


def _leads_inside(member: tarfile.TarInfo) -> bool:
    """Up only at its beginning, and not above the top: later `..` could follow another link out."""
    parts = [part for part in member.linkname.split("/") if part != "."]
    up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    deep = len(Path(os.path.normpath(member.name)).parts) - 1
    plain = bool(member.linkname) and not member.linkname.startswith("/") and "\0" not in member.linkname
    return plain and up <= deep and ".." not in parts[up:]


def _place(name: str, root: Path) -> Path:
    """Return where an entry goes; the folders above it are made, and are no links."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or len(name) > 4000:
        raise NotUnpackedError(f"{name[:200]!r} in it is no plain relative path.")
    above = root
    for part in parts[:-1]:
        above /= part
        if above.is_symlink():
            raise NotUnpackedError(f"{name[:200]!r} in it leads through a link.")
        above.mkdir(exist_ok=True)
    return above / parts[-1] if parts else root
