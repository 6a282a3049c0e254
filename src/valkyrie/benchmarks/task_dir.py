"""A folder of Harbor task directories as a benchmark."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.benchmarks.content import ContentDigests
from valkyrie.benchmarks.discovery import find_tasks
from valkyrie.benchmarks.lock import FILE_NAME as LOCK
from valkyrie.benchmarks.lock import Lock, read_lock
from valkyrie.benchmarks.manifest import FILE_NAME as MANIFEST
from valkyrie.benchmarks.manifest import BenchmarkManifest, read_manifest
from valkyrie.benchmarks.protocol import Grading
from valkyrie.benchmarks.steps import graded, step_preparation
from valkyrie.benchmarks.task import Problem, Task
from valkyrie.benchmarks.task_checks import stray_problem
from valkyrie.benchmarks.task_setup import prepare, prepare_step
from valkyrie.benchmarks.verifier import sweep, verify
from valkyrie.errors import BenchmarkError, UsageError, UserError
from valkyrie.nouns import FinalScore, Grade, Json, TaskSpec
from valkyrie.suggest import did_you_mean

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

    async def check(self, dataset: str = "default", task_ids: Sequence[str] | None = None) -> list[Problem]:
        """Every problem of every task asked for, in one list: for before the start."""
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

    def _task(self, task_id: str) -> tuple[str, Task]:
        """Digest and task as they are on disk now; read again only when something changed."""
        folder = self._find().get(task_id)
        if folder is None:
            raise UsageError(
                f"benchmark {self.name} has no task {task_id!r}.{did_you_mean(task_id, self._find())}"
            )
        digest = self._digests.of(folder)
        return digest, self._read_task(task_id, digest)

    def _open_task(self, task_id: str, digest: str) -> Task:
        _ = digest
        folder = self._find()[task_id]
        return Task(task_id, folder, self._host_image, root=self._folder, allow_paths=self._allow_paths)

    def _describe(self, task_id: str) -> TaskSpec:
        digest, task = self._task(task_id)
        digest = _digest_where_it_runs(digest, task)
        return task.spec(digest, self._host_env, self._read_lock().entry(task_id, digest))

    def _check(self, task_id: str) -> list[Problem]:
        try:
            return self._task(task_id)[1].problems()
        except BenchmarkError as error:
            return [Problem(task_id, self._find()[task_id], str(error))]

    def _unchanged(self, spec: TaskSpec) -> Task:
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


def _digest_where_it_runs(digest: str, task: Task) -> str:
    """Same files in another world are another task: a stand-in must not be taken for the image."""
    if task.host_image and (task.folder / "task.toml").is_file() and task.named_image is not None:
        return hashlib.sha256(f"host-image {digest}".encode()).hexdigest()
    return digest


def _score(grade: Grade | None) -> float | None:
    return None if grade is None else grade.score


def _mean(trials: Sequence[Grade | None]) -> float:
    return sum(_score(trial) or 0.0 for trial in trials) / len(trials) if trials else 0.0
