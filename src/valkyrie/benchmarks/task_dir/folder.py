"""A folder of tasks on disk: find and digest tasks, read its manifest and lock, put files into a sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandboxes import folder_contents
from sandboxes.folder_contents import LEFTOVERS, FolderDigests, FolderEntry, UnreadableContentError
from sandboxes.protocol import Sandbox
from valkyrie.benchmarks.task_dir.task_toml import MOST_BYTES, parse_toml
from valkyrie.config.values import data_folder
from valkyrie.domain import VerifyMode
from valkyrie.errors import BenchmarkError, UsageError
from valkyrie.text import did_you_mean, read_regular

PARTS = ("task.toml", "instruction.md", "environment", "tests", "solution", "steps")
"""What makes a task what it is; a README beside them does not."""


class ContentDigests(FolderDigests):
    """Digests of task folders; a folder that did not change since is not read again."""

    __slots__ = ()

    def of(self, task: Path) -> str:
        """Digest over relative paths, executable bits and contents of one task's parts."""
        return self.known_or_read(task, tuple(_walk(task)))

    def known_or_read(self, folder: Path, entries: Sequence[FolderEntry]) -> str:
        try:
            return super().known_or_read(folder, entries)
        except UnreadableContentError as error:
            raise BenchmarkError(str(error)) from error


def folder_digest(folder: Path) -> str:
    """Digest over everything in one folder, wherever it is."""
    try:
        return folder_contents.folder_digest(folder)
    except UnreadableContentError as error:
        raise BenchmarkError(str(error)) from error


def has_leftovers(folder: Path) -> bool:
    """Return whether something below `folder` is not part of the task."""
    return any(name in LEFTOVERS for _, folders, files in os.walk(folder) for name in (*folders, *files))


def _walk(task: Path) -> Iterator[FolderEntry]:
    for part in PARTS:
        path = task / part
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue
        yield folder_contents.entry_of(part, info)
        if stat.S_ISDIR(info.st_mode):
            yield from folder_contents.walk_folder(os.fspath(path), part)


# Find task directories below a folder.

MAX_DEPTH = 6
_MARKS = ("task.toml", "instruction.md", "tests/test.sh")


def is_task(folder: Path) -> bool:
    """Return whether someone meant this folder to be a task; it may still be a broken one."""
    return any((folder / mark).is_file() for mark in _MARKS)


def find_tasks(folder: Path) -> dict[str, Path]:
    """Task id → task directory, ordered by id; an id is the path below `folder`.

    A folder that is itself a task has one, under its own name. Hidden folders are skipped; a link to a
    task counts, a link to anything else is not followed.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name a task directory or a folder of them")
    if is_task(folder):
        return {folder.name: folder}
    found = dict(sorted(_below(folder, "", 1)))
    if not found:
        raise UsageError(
            f"{folder} holds no task: no folder in it has a task.toml. "
            "`valk benchmark init NAME` writes one to start from"
        )
    return found


def _below(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    try:
        with os.scandir(folder) as entries:
            folders = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError as error:
        raise UsageError(f"cannot look for tasks in {folder}: {error.strerror}") from error
    for entry in folders:
        path = folder / entry.name
        if is_task(path):
            yield prefix + entry.name, path
        elif depth < MAX_DEPTH and not entry.is_symlink():
            yield from _below(path, f"{prefix}{entry.name}/", depth + 1)


# `benchmark.toml`: a name, a description and named datasets for a folder of tasks. Ours, so strict.

MANIFEST_FILE_NAME = "benchmark.toml"


class BenchmarkManifest(BaseModel):
    """What a folder of tasks says about itself; every field may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str | None = Field(default=None, min_length=1)
    description: str = ""
    datasets: dict[str, list[str]] = Field(default_factory=dict)
    """Dataset name → task ids or globs, in the order they are to run. `default` is all tasks if unsaid."""

    @property
    def dataset_names(self) -> list[str]:
        """`default` first."""
        return ["default", *(name for name in self.datasets if name != "default")]

    def choose(self, dataset: str, task_ids: Sequence[str], where: str, name: str = "") -> list[str]:
        """Return ids of the tasks in `dataset`; a pattern that fits no task is an error."""
        if dataset not in self.dataset_names:
            known = ", ".join(self.dataset_names)
            raise UsageError(
                f"unknown dataset {dataset!r} of {name or where}; it has: {known}."
                f"{did_you_mean(dataset, self.dataset_names)}"
            )
        if dataset not in self.datasets:
            return list(task_ids)
        chosen: dict[str, None] = {}
        for pattern in self.datasets[dataset]:
            fitting = [task_id for task_id in task_ids if fnmatchcase(task_id, pattern)]
            if not fitting:
                raise BenchmarkError(
                    f"{where}/{MANIFEST_FILE_NAME}: dataset {dataset!r} names {pattern!r}, "
                    "which fits no task."
                    f"{did_you_mean(pattern, task_ids)}"
                )
            chosen.update(dict.fromkeys(fitting))
        if not chosen:
            raise UsageError(f"{where}/{MANIFEST_FILE_NAME}: dataset {dataset!r} is empty")
        return list(chosen)


def read_manifest(folder: Path) -> BenchmarkManifest:
    """The manifest of `folder`; an empty one when there is no file."""
    path = folder / MANIFEST_FILE_NAME
    try:
        data = parse_toml(read_regular(path, MOST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return BenchmarkManifest()
    except OSError as error:
        raise BenchmarkError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise BenchmarkError(f"{path} is not valid TOML: {error}") from error
    try:
        return BenchmarkManifest.model_validate(data)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False):
            key = ".".join(map(str, item["loc"]))
            if item["type"] == "extra_forbidden":
                lines.append(f"{path}: unknown key {key}.{did_you_mean(key, BenchmarkManifest.model_fields)}")
            else:
                lines.append(f"{path}: {key}: {item['msg']}")
        raise BenchmarkError("\n".join(lines)) from error


# `benchmark.lock`: what `benchmark check` found of each task, by the digest of the task's content.
#
# A task that says nothing of its verification is graded as its entry says. An entry counts only while its
# digest is the task's. The file is no part of any task, so that writing it changes no digest.

LOCK_FILE_NAME = "benchmark.lock"
FOLDER = "locks"
VERSION = 1
MOST_LOCK_BYTES = 64 << 20


class LockedTask(BaseModel):
    """What was found of one task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str
    """Of the task's content, as it was checked."""
    mode: VerifyMode
    keep_processes: bool = False
    oracle: list[float | None] = Field(default_factory=list)
    """The score of each run of its own solution; null is a run without a verdict."""
    nop: float | None = None
    """The score of doing nothing."""
    open_to: list[str] = Field(default_factory=list)
    """The classes of cheating it is open to."""
    program: str = ""
    """The version of this program that looked."""


class Lock(BaseModel):
    """All of one file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    tasks: dict[str, LockedTask] = Field(default_factory=dict)

    def entry(self, task_id: str, digest: str) -> LockedTask | None:
        """Return what was found of the task, if it was found of this content."""
        found = self.tasks.get(task_id)
        return found if found is not None and found.digest == digest else None

    def to_text(self) -> str:
        """The file's content: the same entries give the same bytes."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def own_lock(folder: Path) -> Path:
    """The lock file in a benchmark's own folder."""
    return folder / LOCK_FILE_NAME


def kept_lock(folder: Path) -> Path:
    """The lock file of a benchmark whose folder is not to be written, in the data folder."""
    place = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:12]
    return data_folder() / FOLDER / f"{folder.name}-{place}.lock"


def lock_file(folder: Path) -> Path | None:
    """The lock file that holds for the benchmark in `folder`: its own before the one in the data folder."""
    return next((path for path in (own_lock(folder), kept_lock(folder)) if path.is_file()), None)


def read_lock(folder: Path) -> Lock:
    """The lock of the benchmark in `folder`; an empty one where there is no file."""
    path = lock_file(folder)
    return Lock() if path is None else parse_lock(path)


def parse_lock(path: Path) -> Lock:
    """The lock in the file `path`. Raises BenchmarkError when it is none."""
    again = "; remove it, and run `valk benchmark check` again"
    try:
        with path.open("rb") as file:
            content = file.read(MOST_LOCK_BYTES + 1)
    except FileNotFoundError:
        return Lock()
    except OSError as error:
        raise BenchmarkError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > MOST_LOCK_BYTES:
        raise BenchmarkError(f"{path} is larger than {MOST_LOCK_BYTES >> 20} MiB{again}")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(f"{path} is not valid JSON ({error}){again}") from error
    if isinstance(data, dict) and data.get("version") != VERSION:
        raise BenchmarkError(
            f"{path} is of version {data.get('version')!r}; this program knows {VERSION}{again}"
        )
    try:
        return Lock.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise BenchmarkError(f"{path}: {key}: {first['msg']}{again}") from error


def write_lock(path: Path, entries: Mapping[str, LockedTask]) -> Lock:
    """Add or replace entries in the lock file at `path`; those of other tasks stay."""
    lock = Lock(tasks={**parse_lock(path).tasks, **entries})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".lock-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(lock.to_text())
            Path(draft).chmod(0o644)
            Path(draft).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(draft).unlink()
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return lock


# Bring a task's files into a sandbox, as its author wrote them.


async def make_folder(sandbox: Sandbox, path: str) -> None:
    """A folder at `path`, with its parents; what is in it stays."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as empty:
        Path(empty).chmod(0o755)
        await sandbox.upload_folder(Path(empty), path)


async def put_folder(sandbox: Sandbox, source: Path, path: str) -> None:
    """The contents of `source` at `path`, without what tools left lying in it."""
    if not await asyncio.to_thread(has_leftovers, source):
        await sandbox.upload_folder(source, path)
        return
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        clean = Path(scratch) / source.name
        ignore = shutil.ignore_patterns(*LEFTOVERS)
        await asyncio.to_thread(shutil.copytree, source, clean, symlinks=True, ignore=ignore)
        await sandbox.upload_folder(clean, path)


async def put_file(sandbox: Sandbox, source: Path, path: str) -> None:
    """One file, its executable bits kept."""
    content = await asyncio.to_thread(source.read_bytes)
    await sandbox.upload_stream(path, _once(content), mode=source.stat().st_mode & 0o777)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
