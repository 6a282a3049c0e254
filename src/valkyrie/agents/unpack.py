"""Unpack an agent's archive without trusting a word of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from valkyrie.agents.bundle import ContentDigest, disk_error
from valkyrie.agents.limits import ArchiveLimits
from valkyrie.errors import BundleError

_CHUNK = 1024 * 1024
_DIRECTORY_ENTRY = b"PK\x01\x02"
_CONTRACTS = ("contract.yaml", "contract.yml")
_MAX_CONTRACT_BYTES = 1024 * 1024
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
        with _open(archive) as (opened, members):
            digest = _extract(opened, members, archive, root)
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
    """Content digest of an archive, read in full; the same `digest_folder` gives for its folder."""
    with _open(archive) as (opened, members):
        return _extract(opened, members, archive, None)


def read_contract(archive: Path) -> tuple[str, str]:
    """(name inside the archive, text) of the contract in the top folder."""
    with _open(archive) as (opened, members):
        found = [(name, info) for name, info in members if name in _CONTRACTS]
        if len(found) != 1:
            both = "both contract.yaml and contract.yml" if found else "no contract.yaml"
            raise BundleError(f"{archive} has {both} in its top folder.")
        name, info = found[0]
        with opened.open(info) as file:
            content = file.read(_MAX_CONTRACT_BYTES + 1)
    try:
        return name, content.decode()
    except UnicodeDecodeError:
        raise BundleError(f"{archive}: {name} is not UTF-8 text.") from None


Members = list[tuple[str, zipfile.ZipInfo]]


@contextmanager
def _open(archive: Path) -> Iterator[tuple[zipfile.ZipFile, Members]]:
    """The archive and its checked members: (path below the top folder, entry)."""
    limits = ArchiveLimits.from_environment()
    if not archive.is_file():
        raise BundleError(f"{archive} does not exist or is no file.")
    try:
        _check_size(archive, limits)
        with zipfile.ZipFile(archive) as opened:
            yield opened, _members(opened, archive, limits)
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


def _members(opened: zipfile.ZipFile, archive: Path, limits: ArchiveLimits) -> Members:
    infos = opened.infolist()
    if len(infos) > limits.entries:
        raise BundleError(f"{archive} holds more than {limits.entries:,} files; {limits.entries_hint}")
    tops: set[str] = set()
    files: set[str] = set()
    folders: set[str] = set()
    members: Members = []
    for info in infos:
        top, name = _checked_name(info, archive)
        tops.add(top)
        if not name:
            continue
        known = folders if info.is_dir() else files
        if name in known:
            raise BundleError(f"{archive}: {info.filename!r} is in it twice.")
        known.add(name)
        members.append((name, info))
    if len(tops) != 1 or not members:
        raise BundleError(f"{archive} must hold one top folder with the agent in it, has {len(tops)}.")
    for name in (*files, *folders):
        parents = (name.rsplit("/", count)[0] for count in range(1, name.count("/") + 1))
        clash = next(
            (parent for parent in parents if parent in files), name if name in files & folders else None
        )
        if clash:
            raise BundleError(f"{archive}: {clash!r} is both a file and a folder.")
    return members


def _checked_name(info: zipfile.ZipInfo, archive: Path) -> tuple[str, str]:
    """(top folder, path below it); '' for the top folder itself."""
    shown = f"{archive}: {info.orig_filename!r}"
    name = info.orig_filename.removesuffix("/") if info.is_dir() else info.orig_filename
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or not name.isprintable():
        raise BundleError(f"{shown} is no plain relative path.")
    if any(len(part.encode()) > 255 for part in parts) or len(name.encode()) > 4000:
        raise BundleError(f"{shown[:200]}… is too long a path.")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR and not info.is_dir()):
        raise BundleError(f"{shown} is a link or special file; only files and folders are taken.")
    if info.flag_bits & 0x1:
        raise BundleError(f"{shown} is encrypted; make the archive without a password.")
    if len(parts) == 1 and not info.is_dir():
        raise BundleError(f"{shown} stands outside the one top folder an agent's archive must have.")
    return parts[0], "/".join(parts[1:])


def _extract(opened: zipfile.ZipFile, members: Members, archive: Path, root: Path | None) -> str:
    """Inflate every member, below `root` if there is one, and digest it. Bytes are counted as they come."""
    limits = ArchiveLimits.from_environment()
    digest, total = ContentDigest(), 0
    populated = {name.rsplit("/", count)[0] for name, _ in members for count in range(1, name.count("/") + 1)}
    for name, info in members:
        if info.is_dir():
            if root is not None:
                (root / name).mkdir(parents=True, exist_ok=True)
            if name not in populated:
                digest.add(name, False, "")
            continue
        executable = bool((info.external_attr >> 16) & 0o111)
        content = hashlib.sha256()
        with opened.open(info) as source, _sink(root, name, executable) as sink:
            while chunk := source.read(_CHUNK):
                total += len(chunk)
                if total > limits.expanded_bytes:
                    raise BundleError(f"{archive} unpacks to too much; {limits.expanded_hint}")
                content.update(chunk)
                sink.write(chunk)
        digest.add(name, executable, content.hexdigest())
    if root is not None:
        # Whatever the umask is, the task's user must be able to read what is uploaded from here.
        folders = populated | {name for name, info in members if info.is_dir()}
        for folder in (root, *(root / name for name in folders)):
            folder.chmod(0o755)
    return digest.hexdigest()


@contextmanager
def _sink(root: Path | None, name: str, executable: bool) -> Iterator[IO[bytes]]:
    if root is None:
        with open(os.devnull, "wb") as nowhere:
            yield nowhere
        return
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # Only the executable bit is taken over: no set-user-id, nothing the task's user could not read.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(handle, "wb") as file:
        yield file
    path.chmod(0o755 if executable else 0o644)
