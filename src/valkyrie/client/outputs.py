"""Write the outputs of trials to a folder: check names, and unpack archives of agents safely."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from valkyrie.errors import InfrastructureError, UserError

MOST_BYTES = 5 * 1024**3
MOST_ENTRIES = 100_000
_MEMBER_CHUNK = 1 << 20
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
        shutil.copyfileobj(source, sink, _MEMBER_CHUNK)
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


# What trials left, written to a folder: names are checked, and the agent's own archive comes unpacked.
#
# Agents are hostile, and the names and archives here are theirs: nothing is written outside the folder,
# through a link, or without end.

ARCHIVE = "agent_output.tar.gz"
UNPACKED = "agent_output"
WHY_NOT = "agent_output.not-unpacked.txt"
_CHUNK = 1 << 18


class OutputsWriter:
    """Takes the files of trials one after another; each trial has a folder below `destination`."""

    def __init__(self, destination: Path) -> None:
        self._destination = destination
        self._folders: dict[Path, None] = {}

    def write(self, folder: Path, name: str, pieces: Iterable[bytes]) -> None:
        """One file of the trial whose folder (relative) this is; its name may have folders in it."""
        target = self._place(folder, name)
        self._folders[self._destination / folder] = None
        if name != ARCHIVE:
            _write(target, pieces)
            return
        packed = target.with_name(f".{ARCHIVE}.part")
        try:
            _write(packed, pieces)
            self._unpack(packed, target)
        finally:
            packed.unlink(missing_ok=True)

    def close(self) -> Sequence[Path]:
        """Return the folders that were written, in the order of the trials."""
        return list(self._folders)

    def _unpack(self, packed: Path, target: Path) -> None:
        """One bad archive keeps no other trial's outputs back: it is left packed, with the reason."""
        reason = target.with_name(WHY_NOT)
        reason.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
        folder = target.with_name(UNPACKED)
        _make_room(folder)
        fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{UNPACKED}-"))
        try:
            unpack_tar(packed, fresh)
        except NotUnpackedError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            packed.rename(target)
            reason.write_text(f"{ARCHIVE} was left as it is: {error}\n", encoding="utf-8")
            return
        fresh.chmod(0o755)
        fresh.rename(folder)

    def _place(self, folder: Path, name: str) -> Path:
        """Return where a file goes; the folders above it are made, and are folders, not links to some."""
        parts = [*folder.parts, *PurePosixPath(name).parts]
        plain = all(part not in ("..", ".", "/") and "\0" not in part for part in parts)
        if not plain or folder.is_absolute() or not folder.parts or len(parts) == len(folder.parts):
            raise UserError(f"{name!r} is no name a trial's file may have; nothing was written for it.")
        above = self._destination
        above.mkdir(parents=True, exist_ok=True)
        for part in parts[:-1]:
            above /= part
            if above.is_symlink():
                raise UserError(f"{above} is a link; outputs are not written through links. Remove it.")
            above.mkdir(exist_ok=True)
        return above / parts[-1]


def write_outputs(archive: Path, destination: Path) -> Sequence[Path]:
    """Write a tracker's tar of trials' files, `<task>/[<k>/]…`, below a folder; each trial's folder."""
    writer = OutputsWriter(destination)
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isreg() else None
                if source is not None:
                    writer.write(*_split(member.name), _pieces(source))
    except tarfile.TarError as error:
        raise InfrastructureError(f"What the tracker sent is damaged ({error}); ask again.") from error
    return writer.close()


def _split(name: str) -> tuple[Path, str]:
    """A trial's folder, and the rest: repetitions of a task have a folder with their number."""
    first, _, rest = name.partition("/")
    number, _, inner = rest.partition("/")
    return (Path(first, number), inner) if inner and number.isdigit() else (Path(first), rest)


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    while piece := source.read(_CHUNK):
        yield piece


def _make_room(folder: Path) -> None:
    """An earlier copy gives way."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _write(target: Path, pieces: Iterable[bytes]) -> None:
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with open(handle, "wb") as file:
            for piece in pieces:
                file.write(piece)
    except OSError as error:
        raise InfrastructureError(f"{target} cannot be written: {error.strerror or error}.") from error
