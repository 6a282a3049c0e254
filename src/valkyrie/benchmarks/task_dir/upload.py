"""Pack a folder of tasks as one archive for a tracker elsewhere, and unpack what others sent, with checks."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from posixpath import normpath

from benchmark_runner.archive import (
    ArchivePacker,
    OpenArchive,
    disk_error,
    file_sha256,
    new_archive,
    open_archive,
)
from sandboxes.folder_contents import LEFTOVERS
from valkyrie.benchmarks.task_dir.benchmark import (
    LOCK_FILE_NAME,
    MANIFEST_FILE_NAME,
    find_tasks,
    is_task,
    lock_file,
)
from valkyrie.benchmarks.task_dir.task import PARTS
from valkyrie.benchmarks.task_dir.task_toml import stray_problem
from valkyrie.errors import BundleError, UnknownError, paths_shown_as

_DIGEST = re.compile("[0-9a-f]{64}")


_UNPACKED = "benchmarks"


_READ_WHOLE = frozenset(
    {MANIFEST_FILE_NAME, LOCK_FILE_NAME, "task.toml", "instruction.md", "Dockerfile", "setup.sh"}
)


_MOST_READ = 16 * 1024 * 1024


def pack_upload(folder: Path, target: Path) -> str:
    """Write a benchmark's folder as a zip under one top folder of its name; returns the file's sha256.

    In it are `benchmark.toml`, `benchmark.lock` and every task's own parts, whatever they are called; what
    else lies in the folder stays behind. The same content gives the same bytes. `target` appears whole or
    not at all.
    """
    folder = folder.absolute()
    top = folder.name or folder.resolve().name
    if top == "..":
        top = folder.resolve().name
    with new_archive(folder, top, target) as packer:
        _pack(folder, packer)
    return file_sha256(target)


def _pack(folder: Path, packer: ArchivePacker) -> None:
    places = [folder / MANIFEST_FILE_NAME, folder / LOCK_FILE_NAME, *find_tasks(folder).values()]
    for path in places:
        if problem := stray_problem(path, folder):
            raise BundleError(f"{path} {problem.partition(',')[0]}.")
    if (folder / MANIFEST_FILE_NAME).is_file():
        packer.add_file(MANIFEST_FILE_NAME, folder / MANIFEST_FILE_NAME)
    if (lock := lock_file(folder)) is not None:
        # Also where the data folder keeps it, since the folder itself cannot be written.
        packer.add_file(LOCK_FILE_NAME, lock)
    for task_id, task in find_tasks(folder).items():
        # A folder that is itself a task has no id below itself.
        prefix = "" if task == folder and is_task(folder) else f"{task_id}/"
        for part in PARTS:
            if os.path.lexists(task / part):
                _add(packer, task / part, prefix + part)


def _add(packer: ArchivePacker, path: Path, name: str) -> None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        target = str(path.readlink())
        if problem := _link_problem(name, target):
            raise BundleError(f"{path} is a link to {target!r}, {problem}; put a copy in its place.")
        packer.add_link(name, target)
    elif stat.S_ISDIR(mode):
        below = sorted(entry.name for entry in path.iterdir() if entry.name not in LEFTOVERS)
        if not below:
            packer.add_folder(name)
        for entry in below:
            _add(packer, path / entry, f"{name}/{entry}")
    elif stat.S_ISREG(mode):
        packer.add_file(name, path)
    else:
        raise BundleError(f"{path} is neither file, folder nor link; remove it.")


def unpack_upload(archive: Path, cache: Path, digest: str) -> Path:
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
            if file_sha256(archive) != digest:
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
    """Refuse what is read into memory and does not fit there, also by way of a link."""
    for name in (member.name for member in opened.members):
        if PurePosixPath(name).name in _READ_WHOLE:
            with suppress(OSError):  # a link to nothing, or round in circles
                if (root / name).stat().st_size > _MOST_READ:
                    raise BundleError(
                        f"{opened.path}: {name} is too large, {_MOST_READ:,} bytes are allowed."
                    )


def _link_problem(name: str, target: str) -> str | None:
    """Return why a link at `name` may not lead to `target`: a server reads what it leads to as its own."""
    if target.startswith("/"):
        return "outside the benchmark's folder"
    if not target or "\\" in target or not target.isprintable():
        return "which is no usable path"
    ended = normpath(PurePosixPath(name).parent / target)
    return "outside the benchmark's folder" if ended == ".." or ended.startswith("../") else None
