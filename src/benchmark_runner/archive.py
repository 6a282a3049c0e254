"""Zip archives of one top folder: written the same way every time, and read without trusting them."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmark_runner.errors import ArchiveLimitError, BundleError, DiskFullError, ValkyrieError

UPLOAD = "AGENT_UPLOAD_MAX_BYTES"
EXPANDED = "AGENT_ARCHIVE_MAX_EXPANDED_BYTES"
ENTRIES = "AGENT_ARCHIVE_MAX_ENTRIES"
DEEPEST = 100
"""Folders in folders; more than anyone means, fewer than what walks them can stand."""
LONGEST_LINK = 1024
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1024 * 1024
_DIRECTORY_ENTRY = b"PK\x01\x02"
# Everything `zipfile` is known to raise on hostile bytes.
_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    IndexError,
)


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits of one archive, packed and unpacked."""

    upload_bytes: int = 1024**3
    expanded_bytes: int = 5 * 1024**3
    entries: int = 100_000

    @classmethod
    def from_environment(cls) -> ArchiveLimits:
        """The limits, each overridable by its environment variable."""
        base = cls()
        return cls(
            _number(UPLOAD, base.upload_bytes),
            _number(EXPANDED, base.expanded_bytes),
            _number(ENTRIES, base.entries),
        )

    @property
    def upload_hint(self) -> str:
        """The limit and how to raise it."""
        return f"{self.upload_bytes:,} are allowed (raise it with {UPLOAD})."

    @property
    def expanded_hint(self) -> str:
        """The limit and how to raise it."""
        return f"{self.expanded_bytes:,} bytes unpacked are allowed (raise it with {EXPANDED})."

    @property
    def entries_hint(self) -> str:
        """How to raise the limit."""
        return f"leave out what is not needed, or raise it with {ENTRIES}."


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArchiveLimitError(f"{variable}={text!r} must be a whole number above 0.")
    return int(text)


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One checked entry."""

    name: str
    """Path below the top folder."""
    info: zipfile.ZipInfo

    @property
    def is_folder(self) -> bool:
        return self.info.is_dir()

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.info.external_attr >> 16)

    @property
    def executable(self) -> bool:
        return bool((self.info.external_attr >> 16) & 0o111)


@dataclass(frozen=True, slots=True)
class OpenArchive:
    """An archive whose members' names and kinds were checked; their contents were not read yet."""

    path: Path
    file: zipfile.ZipFile
    top: str
    """Name of its one top folder."""
    members: list[ArchiveMember]
    limits: ArchiveLimits

    def link_target(self, member: ArchiveMember) -> str:
        """Return where a link leads, as text."""
        with self.file.open(member.info) as source:
            target = source.read(LONGEST_LINK + 1)
        try:
            text = target.decode()
        except UnicodeDecodeError:
            text = ""
        if not text or len(target) > LONGEST_LINK or "\\" in text or not text.isprintable():
            raise BundleError(f"{self.path}: {member.name} is no usable link.")
        return text

    def extract(self, root: Path | None, seen: Callable[[str, bool, str], None]) -> None:
        """Inflate every file and folder, below `root` if there is one; links are left to the caller.

        `seen` is told each file (name, whether executable, sha256) and each empty folder (with no sha256).
        Bytes are counted as they come, whatever the entries say of themselves.
        """
        total = 0
        names = [member.name for member in self.members]
        populated = {name.rsplit("/", up)[0] for name in names for up in range(1, name.count("/") + 1)}
        for member in self.members:
            if member.is_folder:
                if root is not None:
                    (root / member.name).mkdir(parents=True, exist_ok=True)
                if member.name not in populated:
                    seen(member.name, False, "")
            elif not member.is_link:
                content = hashlib.sha256()
                with self.file.open(member.info) as source, _sink(root, member) as sink:
                    while chunk := source.read(_CHUNK):
                        total += len(chunk)
                        if total > self.limits.expanded_bytes:
                            raise BundleError(f"{self.path} unpacks to too much; {self.limits.expanded_hint}")
                        content.update(chunk)
                        sink.write(chunk)
                seen(member.name, member.executable, content.hexdigest())
        if root is not None:
            # Whatever the umask is, the task's user must be able to read what is uploaded from here.
            for name in populated | {member.name for member in self.members if member.is_folder}:
                (root / name).mkdir(parents=True, exist_ok=True)
                (root / name).chmod(0o755)
            root.chmod(0o755)


@contextmanager
def open_archive(archive: Path, *, links: bool = False) -> Iterator[OpenArchive]:
    """Open an archive; check its size and its members' names and kinds. `links` may be among them."""
    limits = ArchiveLimits.from_environment()
    if not archive.is_file():
        raise BundleError(f"{archive} does not exist or is no file.")
    try:
        _check_size(archive, limits)
        with zipfile.ZipFile(archive) as opened:
            top, members = _members(opened, archive, limits, links)
            yield OpenArchive(archive, opened, top, members, limits)
    except ValkyrieError:
        raise
    except _FAULTS as error:
        raise BundleError(f"{archive} is no usable zip archive: {error or type(error).__name__}.") from None


def _check_size(archive: Path, limits: ArchiveLimits) -> None:
    """Before `zipfile` makes an object of every entry it is told about."""
    size = archive.stat().st_size
    if size > limits.upload_bytes:
        raise BundleError(f"{archive}: {size:,} bytes; {limits.upload_hint}")
    seen, tail = 0, b""
    with archive.open("rb") as file:
        while chunk := file.read(_CHUNK):
            seen += (tail + chunk).count(_DIRECTORY_ENTRY)
            tail = chunk[-3:]
    # Archives inside the archive have such entries too; the exact count is checked afterwards.
    if seen > 4 * limits.entries:
        raise BundleError(f"{archive} holds more than {limits.entries:,} files; {limits.entries_hint}")


def _members(
    opened: zipfile.ZipFile, archive: Path, limits: ArchiveLimits, links: bool
) -> tuple[str, list[ArchiveMember]]:
    infos = opened.infolist()
    if len(infos) > limits.entries:
        raise BundleError(f"{archive} holds more than {limits.entries:,} files; {limits.entries_hint}")
    tops: set[str] = set()
    files: set[str] = set()
    folders: set[str] = set()
    members: list[ArchiveMember] = []
    for info in infos:
        top, name = _checked_name(info, archive, links)
        tops.add(top)
        if not name:
            continue
        known = folders if info.is_dir() else files
        if name in known and len(tops) == 1:
            raise BundleError(f"{archive}: {info.filename!r} is in it twice.")
        known.add(name)
        members.append(ArchiveMember(name, info))
    if len(tops) != 1 or not members:
        raise BundleError(f"{archive} must hold one top folder with everything in it, has {len(tops)}.")
    _check_clashes(files, folders, archive)
    return tops.pop(), members


def _check_clashes(files: set[str], folders: set[str], archive: Path) -> None:
    """A link counts as a file: nothing may be written below it."""
    for name in (*files, *folders):
        parents = (name.rsplit("/", up)[0] for up in range(1, name.count("/") + 1))
        clash = next(
            (parent for parent in parents if parent in files), name if name in files & folders else None
        )
        if clash:
            raise BundleError(f"{archive}: {clash!r} is both a file and a folder.")


def _checked_name(info: zipfile.ZipInfo, archive: Path, links: bool) -> tuple[str, str]:
    """(top folder, path below it); '' for the top folder itself."""
    shown = f"{archive}: {info.orig_filename!r}"
    name = info.orig_filename.removesuffix("/") if info.is_dir() else info.orig_filename
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or not name.isprintable():
        raise BundleError(f"{shown} is no plain relative path.")
    if any(len(part.encode()) > 255 for part in parts) or len(name.encode()) > 4000 or len(parts) > DEEPEST:
        raise BundleError(f"{shown[:200]}… is too long a path.")
    kind = stat.S_IFMT(info.external_attr >> 16)
    taken = (0, stat.S_IFREG, stat.S_IFDIR, *((stat.S_IFLNK,) if links else ()))
    if kind not in taken or (kind == stat.S_IFDIR and not info.is_dir()):
        raise BundleError(f"{shown} is a link or special file; only files and folders are taken.")
    if kind == stat.S_IFLNK and info.is_dir():
        raise BundleError(f"{shown} is both a link and a folder.")
    if info.flag_bits & 0x1:
        raise BundleError(f"{shown} is encrypted; make the archive without a password.")
    if len(parts) == 1 and not info.is_dir():
        raise BundleError(f"{shown} stands outside the one top folder the archive must have.")
    return parts[0], "/".join(parts[1:])


@contextmanager
def _sink(root: Path | None, member: ArchiveMember) -> Iterator[IO[bytes]]:
    if root is None:
        with open(os.devnull, "wb") as nowhere:
            yield nowhere
        return
    path = root / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    # Only the executable bit is taken over: no set-user-id, nothing the task's user could not read.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(handle, "wb") as file:
        yield file
    path.chmod(0o755 if member.executable else 0o644)


def file_entry(name: str, *, executable: bool) -> zipfile.ZipInfo:
    """A file's entry, with one of two modes as in git: a umask changes neither it nor who can read it."""
    return _entry(name, stat.S_IFREG | (0o755 if executable else 0o644))


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _TIMESTAMP)
    info.create_system = 3
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = mode << 16
    return info


class ArchivePacker:
    """Adds entries below one top folder, within the limits; errors name the `source` that is packed.

    Without an `archive` everything is read and checked, and nothing written.
    """

    def __init__(self, archive: zipfile.ZipFile | None, top: str, source: Path) -> None:
        self._archive = archive
        self._top = top
        self._source = source
        self._limits = ArchiveLimits.from_environment()
        self._entries = 0
        self._bytes = 0

    def add_folder(self, name: str) -> None:
        """Add an empty folder."""
        info = _entry(f"{self._checked(name)}/", stat.S_IFDIR | 0o755)
        info.external_attr |= 0x10
        self._write(info, b"")

    def add_link(self, name: str, target: str) -> None:
        """Add a link; its content is the target."""
        self._write(_entry(self._checked(name), stat.S_IFLNK | 0o777), target.encode())

    def add_file(self, name: str, path: Path) -> tuple[bool, str]:
        """Add a file; returns whether it is executable, and its sha256."""
        status = path.stat()
        executable = bool(status.st_mode & 0o111)
        info = file_entry(self._checked(name), executable=executable)
        content = hashlib.sha256()
        try:
            source = path.open("rb")
        except PermissionError:
            raise BundleError(f"{path} cannot be read (permission denied).") from None
        with source, self._open(info, large=status.st_size > 2**31) as sink:
            while chunk := source.read(_CHUNK):
                self._bytes += len(chunk)
                if self._bytes > self._limits.expanded_bytes:
                    raise BundleError(f"{self._source} is too large; {self._limits.expanded_hint}")
                content.update(chunk)
                if sink is not None:
                    sink.write(chunk)
        return executable, content.hexdigest()

    def set_comment(self, text: str) -> None:
        """Write a comment into the archive."""
        if self._archive is not None:
            self._archive.comment = text.encode()

    def _open(self, info: zipfile.ZipInfo, *, large: bool) -> AbstractContextManager[IO[bytes] | None]:
        if self._archive is None:
            return nullcontext()
        info.compress_type = self._archive.compression
        return self._archive.open(info, "w", force_zip64=large)

    def _write(self, info: zipfile.ZipInfo, content: bytes) -> None:
        if self._archive is not None:
            info.compress_type = self._archive.compression
            self._archive.writestr(info, content)

    def _checked(self, name: str) -> str:
        """Return the entry's name with its top folder, as unpacking will take it."""
        self._entries += 1
        if self._entries > self._limits.entries:
            raise BundleError(
                f"{self._source} holds more than {self._limits.entries:,} files; {self._limits.entries_hint}"
            )
        full = f"{self._top}/{name}"
        if "\\" in full or not full.isprintable():
            raise BundleError(f"{name!r}: rename it; names may not hold backslashes or control characters.")
        if full.count("/") >= DEEPEST:
            raise BundleError(f"{full[:200]}… has more than {DEEPEST} folders in folders.")
        return full


@contextmanager
def new_archive(
    source: Path, top: str, destination: Path, *, compressed: bool = True
) -> Iterator[ArchivePacker]:
    """Open an archive of `source` that appears as `destination` whole or not at all.

    The same content gives the same bytes; without compression it does so with every version of zlib.
    """
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    limits = ArchiveLimits.from_environment()
    with new_file(destination, f"{source} cannot be packed") as file:
        with zipfile.ZipFile(file, "w", method, compresslevel=6) as archive:
            yield ArchivePacker(archive, top, source)
        if (size := file.tell()) > limits.upload_bytes:
            raise BundleError(f"{source}: {size:,} bytes packed; {limits.upload_hint}")


def file_sha256(file: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextmanager
def new_file(destination: Path, what: str) -> Iterator[IO[bytes]]:
    """Open a file that takes its name, durably, once it was written without error."""
    part: Path | None = None
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=destination.parent, prefix=".part-", delete=False) as file:
            part = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)
        part.replace(destination)
        _sync_folder(destination.parent)
    except OSError as error:
        raise disk_error(what, error) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def disk_error(what: str, error: OSError) -> BundleError | DiskFullError:
    """Return the error for a file that could not be written; a full disk has one of its own."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{what}: the disk is full. Free some space and try again.")
    return BundleError(f"{what}: {error.strerror or error}.")


def _sync_folder(folder: Path) -> None:
    """A rename is durable only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
