"""A folder of Harbor task directories as a benchmark: its tasks, its manifest and its lock."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandboxes import folder_contents
from sandboxes.folder_contents import FolderDigests, FolderEntry, UnreadableContentError
from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.benchmarks.protocol import BenchmarkCapabilities, Grading
from valkyrie.benchmarks.task_dir.execution import (
    graded,
    prepare,
    prepare_step,
    step_preparation,
    sweep,
    verify,
)
from valkyrie.benchmarks.task_dir.task import PARTS, LockedTask, TaskDirectory, TaskProblem
from valkyrie.benchmarks.task_dir.task_toml import MOST_BYTES, parse_toml, stray_problem
from valkyrie.config.values import data_folder
from valkyrie.domain import FinalScore, Grade, Json, TaskSpec
from valkyrie.errors import BenchmarkError, UsageError, UserError
from valkyrie.text import did_you_mean, read_regular


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


# The folder as a benchmark.

TASKS_KEPT = 512
"""How many parsed tasks stay in memory; reading one again takes half a millisecond."""


class TaskDirBenchmark:
    """Tasks are folders with `task.toml`, `instruction.md` and `tests/test.sh`; ids are their paths."""

    capabilities = BenchmarkCapabilities()
    fraction = True

    def __init__(
        self,
        folder: Path,
        name: str | None = None,
        *,
        host_image: bool = False,
        host_env: Mapping[str, str] | None = None,
        allow_paths: Sequence[str] = (),
    ) -> None:
        """`host_env` holds the variables of the user that tasks may be given, and none where it is None;
        `allow_paths` what they may read outside the folder."""
        self._folder = folder.absolute()
        self._given_name = name
        self._host_image = host_image
        self._host_env: Mapping[str, str] = host_env or {}
        self._allow_paths = tuple(map(Path, allow_paths))
        self._manifest: BenchmarkManifest | None = None
        self._folders: dict[str, Path] | None = None
        self._lock: Lock | None = None
        self._read_task = lru_cache(maxsize=TASKS_KEPT)(self._open_task)
        self._digests = ContentDigests()

    @property
    def name(self) -> str:
        """As given, else as `benchmark.toml` says, else the folder's name."""
        return self._given_name or self._read_manifest().name or self._folder.name

    @property
    def description(self) -> str:
        """One line from `benchmark.toml`."""
        return self._read_manifest().description

    @property
    def source(self) -> Json:
        return {
            "kind": "task_dir",
            "path": str(self._folder),
            "name": self.name,
            "host_image": self._host_image,
            **({"allow_paths": [str(path) for path in self._allow_paths]} if self._allow_paths else {}),
        }

    async def datasets(self) -> list[str]:
        return self._read_manifest().dataset_names

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        folders = await asyncio.to_thread(self._find)
        return self._read_manifest().choose(dataset or "default", list(folders), str(self._folder), self.name)

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        _ = dataset
        return await asyncio.to_thread(self._describe, task_id)

    async def check(
        self, dataset: str = "default", task_ids: Sequence[str] | None = None
    ) -> list[TaskProblem]:
        """Return every problem of every task asked for, in one list: for before the start."""
        chosen = await self.list_tasks(dataset) if task_ids is None else task_ids
        return await asyncio.to_thread(
            lambda: [problem for task_id in chosen for problem in self._check(task_id)]
        )

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        _ = start
        current = await asyncio.to_thread(self._unchanged, task)
        if task.step is None:
            await prepare(task, current.preparation(), sandbox, log)
            return
        if task.step == current.config.steps[0].name:
            await prepare(task, current.preparation(), sandbox, log)
        else:
            await sweep(sandbox)
        await prepare_step(task, step_preparation(current.folder, current.step(task.step)), sandbox, log)

    def solution(self, task: TaskSpec) -> Path | None:
        return self._task(task.id)[1].solution(task.step)

    async def evaluate(self, grading: Grading) -> Grade:
        current = await asyncio.to_thread(self._unchanged, grading.task)
        verification = current.verification(grading.task, self._host_env)
        grade = await verify(verification, grading.sandbox, grading.log, grading.evidence)
        if grading.task.step is None:
            return grade
        if grading.exit_reason:
            grade = replace(grade, result={**grade.result, "agent_caused_exit_reason": grading.exit_reason})
        return graded(current.config, current.step(grading.task.step), grade, grading.earlier)

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        """Mean over tasks of the mean over their trials; what was not graded counts 0."""
        _ = dataset
        means = {task_id: _mean(trials) for task_id, trials in grades.items()}
        graded = {
            task_id
            for task_id, trials in grades.items()
            if any(_score(trial) is not None for trial in trials)
        }
        resolved = sum(1 for task_id in graded if means[task_id] >= 1.0)
        return FinalScore(
            score=sum(means.values()) / len(means) if means else None,
            properties={
                "tasks": len(means),
                "resolved": resolved,
                "unresolved": len(graded) - resolved,
                "ungraded": len(means) - len(graded),
            },
        )

    async def close(self) -> None:
        return

    def _read_manifest(self) -> BenchmarkManifest:
        if self._manifest is None:
            self._refuse_stray(MANIFEST_FILE_NAME)
            self._manifest = read_manifest(self._folder)
        return self._manifest

    def _read_lock(self) -> Lock:
        if self._lock is None:
            self._refuse_stray(LOCK_FILE_NAME)
            self._lock = read_lock(self._folder)
        return self._lock

    def _refuse_stray(self, name: str) -> None:
        if problem := stray_problem(self._folder / name, self._folder, self._allow_paths):
            raise BenchmarkError(f"{name} {problem}")

    def _find(self) -> dict[str, Path]:
        if self._folders is None:
            self._folders = find_tasks(self._folder)
        return self._folders

    def _task(self, task_id: str) -> tuple[str, TaskDirectory]:
        """Digest and task as they are on disk now; read again only when something changed."""
        folder = self._find().get(task_id)
        if folder is None:
            raise UsageError(
                f"benchmark {self.name} has no task {task_id!r}.{did_you_mean(task_id, self._find())}"
            )
        digest = self._digests.of(folder)
        return digest, self._read_task(task_id, digest)

    def _open_task(self, task_id: str, digest: str) -> TaskDirectory:
        _ = digest
        folder = self._find()[task_id]
        return TaskDirectory(
            task_id, folder, self._host_image, root=self._folder, allow_paths=self._allow_paths
        )

    def _describe(self, task_id: str) -> TaskSpec:
        digest, task = self._task(task_id)
        digest = _digest_where_it_runs(digest, task)
        return task.spec(digest, self._host_env, self._read_lock().entry(task_id, digest))

    def _check(self, task_id: str) -> list[TaskProblem]:
        try:
            return self._task(task_id)[1].problems()
        except BenchmarkError as error:
            return [TaskProblem(task_id, self._find()[task_id], str(error))]

    def _unchanged(self, spec: TaskSpec) -> TaskDirectory:
        """The task that was planned. Raises when its files are gone or others now."""
        if not self._folder.is_dir():
            raise UserError(
                f"the folder of benchmark {self.name} is gone: {self._folder}", cause="task_changed"
            )
        digest, task = self._task(spec.id)
        if _digest_where_it_runs(digest, task) != spec.digest:
            raise UserError(
                f"task {spec.id} changed since the run was planned ({task.folder}); "
                "restore its files, or start a new run",
                cause="task_changed",
            )
        return task


def _digest_where_it_runs(digest: str, task: TaskDirectory) -> str:
    """Same files in another world are another task: a stand-in must not be taken for the image."""
    if task.host_image and (task.folder / "task.toml").is_file() and task.named_image is not None:
        return hashlib.sha256(f"host-image {digest}".encode()).hexdigest()
    return digest


def _score(grade: Grade | None) -> float | None:
    return None if grade is None else grade.score


def _mean(trials: Sequence[Grade | None]) -> float:
    return sum(_score(trial) or 0.0 for trial in trials) / len(trials) if trials else 0.0
