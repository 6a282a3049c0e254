"""A folder of tasks as one zip: what its tasks consist of and nothing else, and back without trusting it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from posixpath import normpath

from benchmark_runner.archive import (
    DEEPEST,
    ArchiveLimits,
    OpenArchive,
    disk_error,
    file_entry,
    folder_entry,
    link_entry,
    new_file,
    open_archive,
)
from sandboxes.contents import LEFTOVERS
from valkyrie.benchmarks.content import PARTS
from valkyrie.benchmarks.discovery import find_tasks, is_task
from valkyrie.benchmarks.lock import FILE_NAME as LOCK
from valkyrie.benchmarks.lock import lock_file
from valkyrie.benchmarks.manifest import FILE_NAME
from valkyrie.benchmarks.task_checks import stray_problem
from valkyrie.errors import BundleError, UnknownError, paths_shown_as

_CHUNK = 1024 * 1024
_DIGEST = re.compile("[0-9a-f]{64}")
_UNPACKED = "benchmarks"
_READ_WHOLE = frozenset({FILE_NAME, LOCK, "task.toml", "instruction.md", "Dockerfile", "setup.sh"})
_MOST_READ = 16 * 1024 * 1024


def pack_benchmark(folder: Path, target: Path) -> str:
    """Write a benchmark's folder as a zip under one top folder of its name; returns the file's sha256.

    In it are `benchmark.toml`, `benchmark.lock` and every task's own parts, whatever they are called; what
    else lies in the folder stays behind. The same content gives the same bytes. `target` appears whole or
    not at all.
    """
    folder = folder.absolute()
    top = folder.name or folder.resolve().name
    if top == "..":
        top = folder.resolve().name
    limits = ArchiveLimits.from_environment()
    with new_file(target, f"{folder} cannot be packed") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            _Packer(archive, top, folder, limits).pack()
        if (size := file.tell()) > limits.upload_bytes:
            raise BundleError(f"{folder}: {size:,} bytes packed; {limits.upload_hint}")
    return _sha256(target)


class _Packer:
    """Writes one archive, counting."""

    def __init__(self, archive: zipfile.ZipFile, top: str, folder: Path, limits: ArchiveLimits) -> None:
        self._archive = archive
        self._top = top
        self._folder = folder
        self._limits = limits
        self._entries = 0
        self._bytes = 0

    def pack(self) -> None:
        places = [self._folder / FILE_NAME, self._folder / LOCK, *find_tasks(self._folder).values()]
        for path in places:
            if problem := stray_problem(path, self._folder):
                raise BundleError(f"{path} {problem.partition(',')[0]}.")
        if (self._folder / FILE_NAME).is_file():
            self._add_file(self._folder / FILE_NAME, FILE_NAME)
        if (lock := lock_file(self._folder)) is not None:
            # Also where the data folder keeps it, since the folder itself cannot be written.
            self._add_file(lock, LOCK)
        for task_id, task in find_tasks(self._folder).items():
            # A folder that is itself a task has no id below itself.
            prefix = "" if task == self._folder and is_task(self._folder) else f"{task_id}/"
            for part in PARTS:
                if os.path.lexists(task / part):
                    self._add(task / part, prefix + part)

    def _add(self, path: Path, name: str) -> None:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            self._add_link(path, name)
        elif stat.S_ISDIR(mode):
            self._add_folder(path, name)
        elif stat.S_ISREG(mode):
            self._add_file(path, name)
        else:
            raise BundleError(f"{path} is neither file, folder nor link; remove it.")

    def _add_folder(self, path: Path, name: str) -> None:
        below = sorted(entry.name for entry in path.iterdir() if entry.name not in LEFTOVERS)
        if not below:
            self._archive.writestr(folder_entry(self._checked(name)), b"")
        for entry in below:
            self._add(path / entry, f"{name}/{entry}")

    def _add_link(self, path: Path, name: str) -> None:
        target = str(path.readlink())
        if problem := _link_problem(name, target):
            raise BundleError(f"{path} is a link to {target!r}, {problem}; put a copy in its place.")
        self._archive.writestr(link_entry(self._checked(name)), target.encode())

    def _add_file(self, path: Path, name: str) -> None:
        status = path.stat()
        info = file_entry(self._checked(name), executable=bool(status.st_mode & 0o111))
        try:
            source = path.open("rb")
        except PermissionError:
            raise BundleError(f"{path} cannot be read (permission denied).") from None
        with source, self._archive.open(info, "w", force_zip64=status.st_size > 2**31) as sink:
            while chunk := source.read(_CHUNK):
                self._bytes += len(chunk)
                if self._bytes > self._limits.expanded_bytes:
                    raise BundleError(f"{self._folder} is too large; {self._limits.expanded_hint}")
                sink.write(chunk)

    def _checked(self, name: str) -> str:
        """The entry's name below the top folder, as unpacking will take it."""
        self._entries += 1
        if self._entries > self._limits.entries:
            raise BundleError(
                f"{self._folder} holds more than {self._limits.entries:,} files; {self._limits.entries_hint}"
            )
        full = f"{self._top}/{name}"
        if "\\" in full or not full.isprintable():
            raise BundleError(f"{full!r}: rename it; names may not hold backslashes or control characters.")
        if full.count("/") >= DEEPEST:
            raise BundleError(f"{full[:200]}… has more than {DEEPEST} folders in folders.")
        return full


def unpack_benchmark(archive: Path, cache: Path, digest: str) -> Path:
    """The folder of a packed benchmark below `cache`: unpacked and checked the first time it is asked for.

    `digest` is the archive's sha256. Threads and processes may ask at the same time.
    """
    if not _DIGEST.fullmatch(digest):
        raise UnknownError(f"{digest[:80]!r} is no sha256 digest.")
    place = cache / _UNPACKED / digest
    if not place.is_dir():
        with paths_shown_as({archive: "the uploaded benchmark"}):
            _unpack(archive, place, digest)
    return next(place.iterdir())


def _unpack(archive: Path, place: Path, digest: str) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=place.parent, prefix=".unpack-"))
        try:
            if _sha256(archive) != digest:
                raise BundleError("the benchmark is not what its digest says; upload it again.")
            with open_archive(archive, links=True) as opened:
                root = part / opened.top
                root.mkdir()
                opened.extract(root, lambda _name, _executable, _sha256: None)
                _make_links(opened, root)
                _check_read_whole(opened, root)
            part.chmod(0o755)
            try:
                part.rename(place)
            except OSError:
                # Another thread or process was faster; what it unpacked has the same digest.
                if not place.is_dir():
                    raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise disk_error("the uploaded benchmark cannot be unpacked", error) from None


def _make_links(opened: OpenArchive, root: Path) -> None:
    """Links come last, so that nothing is written through one; none may lead out, even by way of others."""
    links = [(member.name, opened.link_target(member)) for member in opened.members if member.is_link]
    for name, target in links:
        if problem := _link_problem(name, target):
            raise BundleError(f"{opened.path}: {name} is a link to {target!r}, {problem}.")
        (root / name).symlink_to(target)
    real = os.path.realpath(root)
    for name, target in links:
        if not Path(os.path.realpath(root / name)).is_relative_to(real):
            raise BundleError(
                f"{opened.path}: {name} is a link to {target!r}, outside the benchmark's folder."
            )


def _check_read_whole(opened: OpenArchive, root: Path) -> None:
    """What is read into memory must fit there, also by way of a link."""
    for name in (member.name for member in opened.members):
        if PurePosixPath(name).name in _READ_WHOLE:
            with suppress(OSError):  # a link to nothing, or round in circles
                if (root / name).stat().st_size > _MOST_READ:
                    raise BundleError(
                        f"{opened.path}: {name} is too large, {_MOST_READ:,} bytes are allowed."
                    )


def _link_problem(name: str, target: str) -> str | None:
    """Why a link at `name` may not lead to `target`: a server reads what it leads to as its own."""
    if target.startswith("/"):
        return "outside the benchmark's folder"
    if not target or "\\" in target or not target.isprintable():
        return "which is no usable path"
    ended = normpath(PurePosixPath(name).parent / target)
    return "outside the benchmark's folder" if ended == ".." or ended.startswith("../") else None


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
