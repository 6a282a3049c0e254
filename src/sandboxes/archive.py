"""Tar files of carried work: written and read by hand, for `tarfile` takes ten times as long.

The format is POSIX (pax) with the members `PackedWork` has: regular files, folders, links. Names are bytes;
those that are not UTF-8 say so (`hdrcharset=BINARY`), as `tarfile` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from sandboxes.errors import SandboxError

FILE, LINK, FOLDER = b"0", b"2", b"5"
BLOCK = 512
_FLUSH_BYTES = 1 << 20
_NAME_BYTES = 100
_MOST_BY_OCTAL = 8**11
_PAX_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
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

    def add(self, member: Member, content: int = -1) -> None:
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


def header(member: Member) -> bytes:
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


def read_members(file: BinaryIO) -> Iterator[Member]:
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


def _member(block: bytes, kind: bytes, size: int, extra: dict[bytes, bytes], offset: int) -> Member:
    name = extra.get(b"path") or _with_prefix(block)
    kind = FILE if kind == b"\0" else kind
    if kind not in (FILE, LINK, FOLDER):
        raise SandboxError(f"the archive of carried work has {os.fsdecode(name)!r}, which is no file or link")
    mtime = extra.get(b"mtime")
    return Member(
        name=os.fsdecode(name.rstrip(b"/").removeprefix(b"./")),
        kind=kind,
        mode=_number(block[100:108]),
        uid=_number(extra[b"uid"], 10) if b"uid" in extra else _number(block[108:116]),
        gid=_number(extra[b"gid"], 10) if b"gid" in extra else _number(block[116:124]),
        mtime_ns=_number(block[136:148]) * 10**9 if mtime is None else _nanoseconds(mtime),
        size=0 if kind != FILE else _number(extra[b"size"], 10) if b"size" in extra else size,
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
