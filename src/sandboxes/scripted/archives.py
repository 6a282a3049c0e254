"""Archives on the host's side: packed from our folders, unpacked from a sandbox that cannot be trusted."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import BinaryIO

from sandboxes.dockerignore import Dockerignore
from sandboxes.errors import SandboxError
from sandboxes.openat import is_utf8, printable
from sandboxes.trees import CHUNK_BYTES, MAX_DEPTH, MAX_PATH_BYTES
from sandboxes.types import CopyLimits, CopyReport
from sandboxes.values import A_LINK

NOTHING_IGNORED = Dockerignore("")


def pack(source: Path, archive: BinaryIO) -> None:
    """The folder as an archive; links are kept, made relative, and must stay inside."""
    _pack(source, archive, frozenset(), digested=False)


def pack_context(source: Path, archive: BinaryIO, left_out: frozenset[str], ignore: Dockerignore) -> None:
    """Pack the same for a build, without the names in `left_out` and what its `.dockerignore` leaves out.

    Modes are those that git keeps and a folder's digest covers: executable or not.
    """
    _pack(source, archive, left_out, ignore, digested=True)


def _pack(
    source: Path,
    archive: BinaryIO,
    left_out: frozenset[str],
    ignore: Dockerignore = NOTHING_IGNORED,
    *,
    digested: bool,
) -> None:
    top = os.path.realpath(source)
    if not os.path.isdir(top):  # noqa: PTH112 - the same string is walked
        raise SandboxError(f"cannot upload {source}: it is not a folder")
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder, folders, names in os.walk(top):
            below = "" if folder == top else f"{os.path.relpath(folder, top)}/"
            folders[:] = [
                name
                for name in folders
                if name not in left_out and not ignore.leaves_out_all_of(f"{below}{name}")
            ]
            for name in sorted(name for name in folders + names if name not in left_out):
                if ignore.leaves_out(f"{below}{name}"):
                    continue
                host_path = f"{folder}/{name}"
                member = tar.gettarinfo(host_path, arcname=f"{below}{name}")
                member.mode &= 0o1777
                if digested:
                    member.mode = 0o755 if member.isdir() or member.mode & 0o111 else 0o644
                # The sandbox's root owns what it is given, whoever owns it here.
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                if member.issym():
                    member.linkname = _link_inside(host_path, top)
                    tar.addfile(member)
                elif member.isdir():
                    tar.addfile(member)
                else:
                    _add_file(tar, member, host_path)


def _link_inside(host_path: str, top: str) -> str:
    target = os.path.realpath(host_path)
    if target != top and not target.startswith(f"{top}/"):
        raise SandboxError(
            f"cannot upload {printable(host_path)}: the link leaves the folder (to {printable(target)})"
        )
    return os.path.relpath(target, Path(host_path).parent)


def _add_file(tar: tarfile.TarFile, member: tarfile.TarInfo, host_path: str) -> None:
    fd = os.open(host_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as content:
        # A second name of the same file is sent as a file again: the first may not be there to link to.
        member.type = tarfile.REGTYPE
        member.size = os.fstat(fd).st_size
        if not Path(host_path).is_file():
            raise SandboxError(
                f"cannot upload {printable(host_path)}: it is neither a regular file nor a folder"
            )
        tar.addfile(member, content)


class Unpacking:
    """Takes regular files and folders out of an archive, as far as the limits go, and reports the rest."""

    def __init__(self, destination: Path, limits: CopyLimits, report: CopyReport, *, cut: bool) -> None:
        self._destination = destination
        self._limits = limits
        self._report = report
        self._cut = cut

    def run(self, archive: BinaryIO, *, empty: bool = False) -> None:
        """Unpack below the destination, which is made if missing. Some tars make nothing of nothing."""
        self._destination.mkdir(parents=True, exist_ok=True)
        if empty:
            return
        seen = self._report.skipped_count
        try:
            with tarfile.open(fileobj=archive, mode="r|") as tar:
                for member in tar:
                    if seen >= self._limits.max_entries:
                        reason = f"more than {self._limits.max_entries} entries; the rest was not looked at"
                        self._report.skip(".", reason)
                        return
                    seen += 1
                    self._take(tar, member)
        except (tarfile.TarError, EOFError) as error:
            if not self._cut:
                raise SandboxError(f"cannot read what the sandbox packed: {error}") from error
            self._report.skip(".", "more than may be copied; the rest was not looked at")

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        shown = printable("/".join(parts))
        refusal = self._refusal(member, parts)
        if refusal == A_LINK and member.issym():
            self._report.link(shown, member.linkname if is_utf8(member.linkname) else "")
            return
        if refusal is not None:
            self._report.skip(shown, refusal)
            return
        target = self._destination.joinpath(*parts)
        try:
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            self._write(tar, member, target)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            self._report.skip(shown, "its name is taken twice")

    def _refusal(self, member: tarfile.TarInfo, parts: list[str]) -> str | None:
        left = self._limits.max_bytes - self._report.bytes
        if not is_utf8(member.name):
            return "its name is not UTF-8"
        if ".." in parts or "\0" in member.name or (not parts and not member.isdir()):
            return "its name leads elsewhere"
        if member.issym() or member.islnk():
            return A_LINK
        if len(member.name.encode()) > MAX_PATH_BYTES:
            return f"its path has more than {MAX_PATH_BYTES} bytes"
        if member.isdir():
            return f"nested deeper than {MAX_DEPTH} folders" if len(parts) > MAX_DEPTH else None
        if not member.isreg():
            return "not a regular file"
        if len(parts) > MAX_DEPTH + 1:
            return f"nested deeper than {MAX_DEPTH} folders"
        if member.size > self._limits.max_file_bytes:
            return f"{member.size} bytes, over the limit of {self._limits.max_file_bytes} for a file"
        if member.size > left:
            return f"{member.size} bytes, over what is left of {self._limits.max_bytes} for the folder"
        return None

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
        content = tar.extractfile(member)
        if content is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(target, flags, 0o755 if member.mode & 0o100 else 0o644)
        with os.fdopen(fd, "wb") as out:
            while chunk := content.read(CHUNK_BYTES):
                out.write(chunk)
        self._report.files += 1
        self._report.bytes += member.size
