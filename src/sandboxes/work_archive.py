"""Write and read tar archives of carried work, and put their entries below the root of a sandbox."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from sandboxes.errors import SandboxError
from sandboxes.protocol import is_below
from sandboxes.rooted_files import CREATE, FOLDER, remove_entry, unlink_if_there

TAR_FILE, TAR_LINK, TAR_FOLDER = b"0", b"2", b"5"
BLOCK = 512
_FLUSH_BYTES = 1 << 20
_NAME_BYTES = 100
_MOST_BY_OCTAL = 8**11
_PAX_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TarMember:
    """One entry of an archive. `name` has no leading and no trailing slash."""

    name: str
    kind: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    link: str = ""
    offset: int = 0
    """Where its content is; 0 before it is written."""


class ArchiveWriter:
    """Writes members to an open file, one after the other."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending = bytearray()

    def add(self, member: TarMember, content: int = -1) -> None:
        """Add one member; `content` is an open file with at least as many bytes as the member says."""
        self._pending += header(member)
        left = member.size
        if left > _FLUSH_BYTES:
            self.flush()
            while left and (sent := os.sendfile(self._fd, content, None, min(left, _CHUNK_BYTES))):
                left -= sent
        else:
            while left and (piece := os.read(content, left)):
                self._pending += piece
                left -= len(piece)
        # A file that got shorter is filled up: the header has been written.
        while left:
            gap = min(left, _CHUNK_BYTES)
            self._pending += bytes(gap)
            left -= gap
            self._flush_if_large()
        self._pending += bytes(-member.size % BLOCK)
        self._flush_if_large()

    def close(self) -> None:
        """Write the end of the archive. The file stays open."""
        self._pending += bytes(2 * BLOCK)
        self.flush()

    def flush(self) -> None:
        """Write what is pending."""
        data = memoryview(self._pending)
        while data:
            data = data[os.write(self._fd, data) :]
        data.release()
        self._pending = bytearray()

    def _flush_if_large(self) -> None:
        if len(self._pending) >= _FLUSH_BYTES:
            self.flush()


def header(member: TarMember) -> bytes:
    """Return the blocks before a member's content."""
    name, link = os.fsencode(member.name), os.fsencode(member.link)
    seconds, fraction = divmod(member.mtime_ns, 10**9)
    records = []
    if fraction or not 0 <= seconds < _MOST_BY_OCTAL:
        records.append(b"mtime=%d.%09d" % (seconds, fraction) if seconds >= 0 else b"mtime=%d" % seconds)
    if len(name) > _NAME_BYTES:
        records.append(b"path=" + name)
    if len(link) > _NAME_BYTES:
        records.append(b"linkpath=" + link)
    if member.size >= _MOST_BY_OCTAL:
        records.append(b"size=%d" % member.size)
    blocks = b""
    if records:
        if not _is_text(name + link):
            records.insert(0, b"hdrcharset=BINARY")
        body = b"".join(map(_record, records))
        blocks = _block(b"././@PaxHeader", b"x", 0o644, 0, 0, len(body), 0, b"")
        blocks += body + bytes(-len(body) % BLOCK)
    size = member.size if member.size < _MOST_BY_OCTAL else 0
    mtime = seconds if 0 <= seconds < _MOST_BY_OCTAL else 0
    own = _block(name, member.kind, member.mode, member.uid, member.gid, size, mtime, link)
    return blocks + own


def _block(
    name: bytes, kind: bytes, mode: int, uid: int, gid: int, size: int, mtime: int, link: bytes
) -> bytes:
    head = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0        %b%b" % (
        _cut(name),
        mode,
        uid,
        gid,
        size,
        mtime,
        kind,
        _cut(link),
    )
    block = bytearray(head + b"ustar\x0000" + bytes(BLOCK - len(head) - 8))
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _cut(name: bytes) -> bytes:
    return name[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")


def _record(text: bytes) -> bytes:
    size = len(text) + 3
    while size != (found := len(text) + 2 + len(str(size))):
        size = found
    return b"%d %b\n" % (size, text)


def _is_text(name: bytes) -> bool:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def read_members(file: BinaryIO) -> Iterator[TarMember]:
    """Yield the members of an archive; their content is at `offset` of the same file."""
    extra: dict[bytes, bytes] = {}
    while True:
        block = file.read(BLOCK)
        if len(block) < BLOCK or not block.strip(b"\0"):
            return
        kind = block[156:157]
        size = _number(block[124:136])
        if kind in (b"x", b"g", b"L", b"K"):
            if size > _PAX_BYTES:
                raise SandboxError("the archive of carried work is damaged: a header is too large")
            body = file.read(size + -size % BLOCK)[:size]
            if kind == b"x":
                extra.update(_records(body))
            elif kind != b"g":
                extra[b"path" if kind == b"L" else b"linkpath"] = body.rstrip(b"\0")
            continue
        member = _member(block, kind, size, extra, file.tell())
        extra = {}
        yield member
        file.seek(member.offset + member.size + -member.size % BLOCK)


def _member(block: bytes, kind: bytes, size: int, extra: dict[bytes, bytes], offset: int) -> TarMember:
    name = extra.get(b"path") or _with_prefix(block)
    kind = TAR_FILE if kind == b"\0" else kind
    if kind not in (TAR_FILE, TAR_LINK, TAR_FOLDER):
        raise SandboxError(f"the archive of carried work has {os.fsdecode(name)!r}, which is no file or link")
    mtime = extra.get(b"mtime")
    return TarMember(
        name=os.fsdecode(name.rstrip(b"/").removeprefix(b"./")),
        kind=kind,
        mode=_number(block[100:108]),
        uid=_number(extra[b"uid"], 10) if b"uid" in extra else _number(block[108:116]),
        gid=_number(extra[b"gid"], 10) if b"gid" in extra else _number(block[116:124]),
        mtime_ns=_number(block[136:148]) * 10**9 if mtime is None else _nanoseconds(mtime),
        size=0 if kind != TAR_FILE else _number(extra[b"size"], 10) if b"size" in extra else size,
        link=os.fsdecode(extra.get(b"linkpath") or _text(block[157:257])),
        offset=offset,
    )


def _with_prefix(block: bytes) -> bytes:
    name, prefix = _text(block[:100]), _text(block[345:500])
    return prefix + b"/" + name if prefix and block[257:263] == b"ustar\0" else name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, base: int = 8) -> int:
    try:
        if field[0] & 0x80:
            return int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:], "big")
        return int(field.strip(b" \0") or b"0", base)
    except (ValueError, IndexError):
        raise SandboxError("the archive of carried work is damaged: a number cannot be read") from None


def _nanoseconds(text: bytes) -> int:
    whole, _, fraction = text.partition(b".")
    nanoseconds = _number(fraction[:9].ljust(9, b"0"), 10)
    return _number(whole, 10) * 10**9 + (-nanoseconds if whole.startswith(b"-") else nanoseconds)


def _records(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(body):
        length = _number(body[at:].partition(b" ")[0], 10)
        if length <= 0:
            raise SandboxError("the archive of carried work is damaged: a header has no length")
        key, _, value = body[at : at + length].partition(b" ")[2].rstrip(b"\n").partition(b"=")
        yield key, value
        at += length


# The sandbox that work is put into, written to one entry at a time below its root.
#
# No link is followed on the way to an entry: a member whose folder is a link in this sandbox is left out.

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOBODY = 65_534
_ID_COUNT = 65_536
_KEPT_MODE = 0o1777
_SMALL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Ids:
    """User and group ids on both sides of a sandbox.

    `first`: the host's id of the sandbox's root. `alone`: it is the only one the sandbox has.
    """

    first: int
    alone: bool = False

    def inside(self, number: int) -> int:
        """Return the id inside for one of the host's."""
        inside = number - self.first
        if self.alone:
            return 0 if inside == 0 else _NOBODY
        return inside if 0 <= inside < _ID_COUNT else _NOBODY

    def outside(self, number: int) -> int:
        """Return the host's id for one inside."""
        if self.alone:
            return self.first
        return self.first + (number if 0 <= number < _ID_COUNT else _NOBODY)


@dataclass(frozen=True, slots=True)
class Attributes:
    """Mode and owner of a folder, as the host sees them."""

    mode: int
    uid: int
    gid: int

    @classmethod
    def of(cls, info: os.stat_result) -> Attributes:
        """Return those of what was looked at."""
        return cls(stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)


@dataclass(slots=True)
class _Level:
    """An open folder on the way to the entry of the moment; its member's attributes are given at its end."""

    path: str
    fd: int
    member: TarMember | None = None


class WorkTarget:
    """Entries below the open folder `root`, which stays the caller's to close."""

    def __init__(self, root: int, ids: Ids) -> None:
        self.root = root
        self._ids = ids
        self._stack = [_Level("", os.dup(root))]

    def write(self, path: str, member: TarMember, archive: int) -> None:
        """Make the member's entry, in place of whatever has its name."""
        above, _, name = path.rpartition("/")
        folder = self.folder(above, make=True)
        if folder is None:
            return
        if member.kind == TAR_FOLDER:
            self._make_folder(path, name, folder, member)
        elif member.kind == TAR_LINK:
            self._make_link(name, folder, member)
        else:
            self._make_file(name, folder, member, archive)

    def remove(self, path: str) -> None:
        """Delete what is at `path`, with all below it; nothing there is fine."""
        above, _, name = path.rpartition("/")
        folder = self.folder(above)
        if folder is None:
            return
        try:
            remove_entry(name, folder)
        except PermissionError:
            self._unlock(folder)
            remove_entry(name, folder)

    def set_attributes(self, path: str, attributes: Attributes) -> None:
        """Give the folder at `path` its mode and owner, as the host sees them."""
        above, _, name = path.rpartition("/")
        folder = self.folder(above)
        if folder is None:
            return
        try:
            fd = os.open(name, FOLDER, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            self._own(fd, attributes.uid, attributes.gid)
            os.fchmod(fd, attributes.mode)
        finally:
            os.close(fd)

    def folder(self, path: str, *, make: bool = False) -> int | None:
        """Return the open folder at `path`, until the next call; None where a link or a file is in the way,
        or where one is missing and is not to be made."""
        while not (path == self._stack[-1].path or is_below(path, self._stack[-1].path or "/")):
            self._finish(self._stack.pop())
        while (level := self._stack[-1]).path != path:
            name = path[len(level.path) + 1 :].partition("/")[0]
            fd = self._open(name, level.fd, make=make)
            if fd is None:
                return None
            self._stack.append(_Level(f"{level.path}/{name}", fd))
        return self._stack[-1].fd

    def finish(self) -> None:
        """Give all folders their attributes."""
        while len(self._stack) > 1:
            self._finish(self._stack.pop())

    def close(self) -> None:
        """Close what is open."""
        for level in self._stack:
            os.close(level.fd)
        self._stack.clear()

    def _open(self, name: str, folder: int, *, make: bool) -> int | None:
        try:
            return os.open(name, _PLACE, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                return None
        except PermissionError:
            self._unlock(folder)
            return os.open(name, _PLACE, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            return None
        os.mkdir(name, 0o755, dir_fd=folder)
        fd = os.open(name, FOLDER, dir_fd=folder)
        try:
            self._own(fd, self._ids.first, self._ids.first)
            os.fchmod(fd, 0o755)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _unlock(self, folder: int) -> None:
        """Give the owner all rights to a folder: inside, an ordinary user's root has them anyway.

        Such a folder was made by a set-up, so that it is in the archive, too, and gets its mode from there.
        """
        if not self._ids.alone:
            raise PermissionError(errno.EPERM, "the host may not change a folder of the sandbox")
        os.chmod(f"/proc/self/fd/{folder}", 0o700)  # noqa: PTH101 - a descriptor, no path

    def _make_folder(self, path: str, name: str, folder: int, member: TarMember) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if unlink_if_there(name, folder):
                os.mkdir(name, 0o700, dir_fd=folder)
            elif self._ids.alone:
                os.chmod(name, 0o700, dir_fd=folder)
        self._stack.append(_Level(path, os.open(name, FOLDER, dir_fd=folder), member))

    def _make_link(self, name: str, folder: int, member: TarMember) -> None:
        try:
            os.symlink(member.link, name, dir_fd=folder)
        except FileExistsError:
            remove_entry(name, folder)
            os.symlink(member.link, name, dir_fd=folder)
        if not self._ids.alone:
            uid, gid = self._ids.outside(member.uid), self._ids.outside(member.gid)
            os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
        times = (member.mtime_ns, member.mtime_ns)
        os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)

    def _make_file(self, name: str, folder: int, member: TarMember, archive: int) -> None:
        try:
            fd = os.open(name, CREATE, 0o600, dir_fd=folder)
        except FileExistsError:
            remove_entry(name, folder)
            fd = os.open(name, CREATE, 0o600, dir_fd=folder)
        try:
            _fill(fd, archive, member.offset, member.size)
            self._apply(fd, member)
        finally:
            os.close(fd)

    def _finish(self, level: _Level) -> None:
        try:
            if level.member is not None:
                self._apply(level.fd, level.member)
        finally:
            os.close(level.fd)

    def _apply(self, fd: int, member: TarMember) -> None:
        self._own(fd, self._ids.outside(member.uid), self._ids.outside(member.gid))
        os.fchmod(fd, member.mode & _KEPT_MODE)
        os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))

    def _own(self, fd: int, uid: int, gid: int) -> None:
        if not self._ids.alone:
            os.fchown(fd, uid, gid)


def _fill(fd: int, archive: int, offset: int, size: int) -> None:
    if size <= _SMALL_BYTES:
        data = memoryview(os.pread(archive, size, offset))
        while data:
            data = data[os.write(fd, data) :]
        return
    while size and (sent := os.sendfile(fd, archive, offset, min(size, _CHUNK_BYTES))):
        offset += sent
        size -= sent


def mode_in(folder: int, name: str) -> int | None:
    """Return the mode of what has the name, links not followed; None when nothing has it."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def is_folder_in(folder: int, name: str) -> bool:
    """Return whether a real folder has the name."""
    mode = mode_in(folder, name)
    return mode is not None and stat.S_ISDIR(mode)
