"""A folder of Harbor task directories as a benchmark, and packed as one zip for a tracker elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
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
from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.benchmarks.protocol import Grading
from valkyrie.benchmarks.task_dir.folder import LOCK_FILE_NAME as LOCK
from valkyrie.benchmarks.task_dir.folder import (
    MANIFEST_FILE_NAME,
    PARTS,
    BenchmarkManifest,
    ContentDigests,
    Lock,
    find_tasks,
    is_task,
    lock_file,
    read_lock,
    read_manifest,
)
from valkyrie.benchmarks.task_dir.folder import MANIFEST_FILE_NAME as MANIFEST
from valkyrie.benchmarks.task_dir.setup import graded, prepare, prepare_step, step_preparation
from valkyrie.benchmarks.task_dir.task import TaskDirectory, TaskProblem
from valkyrie.benchmarks.task_dir.task_toml import stray_problem
from valkyrie.benchmarks.task_dir.verifier import sweep, verify
from valkyrie.domain import FinalScore, Grade, Json, TaskSpec
from valkyrie.errors import BenchmarkError, BundleError, UnknownError, UsageError, UserError, paths_shown_as
from valkyrie.text import did_you_mean

_DIGEST = re.compile("[0-9a-f]{64}")
_UNPACKED = "benchmarks"
_READ_WHOLE = frozenset({MANIFEST_FILE_NAME, LOCK, "task.toml", "instruction.md", "Dockerfile", "setup.sh"})
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
    with new_archive(folder, top, target) as packer:
        _pack(folder, packer)
    return file_sha256(target)


def _pack(folder: Path, packer: ArchivePacker) -> None:
    places = [folder / MANIFEST_FILE_NAME, folder / LOCK, *find_tasks(folder).values()]
    for path in places:
        if problem := stray_problem(path, folder):
            raise BundleError(f"{path} {problem.partition(',')[0]}.")
    if (folder / MANIFEST_FILE_NAME).is_file():
        packer.add_file(MANIFEST_FILE_NAME, folder / MANIFEST_FILE_NAME)
    if (lock := lock_file(folder)) is not None:
        # Also where the data folder keeps it, since the folder itself cannot be written.
        packer.add_file(LOCK, lock)
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


# A folder of Harbor task directories as a benchmark.

TASKS_KEPT = 512
"""How many parsed tasks stay in memory; reading one again takes half a millisecond."""


class TaskDirBenchmark:
    """Tasks are folders with `task.toml`, `instruction.md` and `tests/test.sh`; ids are their paths."""

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

    @property
    def fraction(self) -> bool:
        return True

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
            self._refuse_stray(MANIFEST)
            self._manifest = read_manifest(self._folder)
        return self._manifest

    def _read_lock(self) -> Lock:
        if self._lock is None:
            self._refuse_stray(LOCK)
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
