"""Task directories, benchmarks and agents: their own readers say what is wrong, here it becomes findings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.errors import ValkyrieError
from valkyrie.lint.codes import finding
from valkyrie.specs.model import Finding, Place

if TYPE_CHECKING:
    from valkyrie.benchmarks.task import Task

_PLACED = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?: (?P<message>.*)")


def lint_task(folder: Path, task_id: str | None = None, root: Path | None = None) -> list[Finding]:
    """What keeps the task from running; `root` is the folder of its benchmark."""
    from valkyrie.benchmarks.task import Task

    task = Task(task_id or folder.resolve().name, folder, root=root)
    found: list[Finding] = []
    for problem in task.problems():
        at = problem.path if problem.path.exists() else folder
        message = problem.message.removeprefix(f"{problem.path}: ")
        found.append(finding("task", f"task {problem.task_id}: {message}", Place(at)))
    return found or _unknown_keys(task)


def _unknown_keys(task: Task) -> list[Finding]:
    """What a run would note of a task that can run."""
    place = Place(task.folder / "task.toml")
    return [finding("unknown-key", f"task {task.id}: {text}", place) for text in task.parsed.warnings]


def lint_benchmark(folder: Path) -> list[Finding]:
    """Its manifest and all of its tasks."""
    from valkyrie.benchmarks.discovery import find_tasks
    from valkyrie.benchmarks.manifest import read_manifest
    from valkyrie.benchmarks.task_checks import stray_problem

    manifest = folder / "benchmark.toml"
    try:
        tasks = find_tasks(folder)
    except ValkyrieError as error:
        return [finding("benchmark", str(error), Place(manifest if manifest.is_file() else folder))]
    found: list[Finding] = []
    try:
        if stray := stray_problem(manifest, folder):
            return [finding("benchmark", f"benchmark.toml {stray}", Place(folder))]
        read = read_manifest(folder)
        for dataset in read.dataset_names:
            read.choose(dataset, list(tasks), str(folder), read.name or folder.name)
    except ValkyrieError as error:
        message = str(error).removeprefix(f"{manifest}: ")
        found.append(finding("benchmark", message, Place(manifest)))
    return found + [one for task_id, path in tasks.items() for one in lint_task(path, task_id, folder)]


def lint_agent(folder: Path) -> list[Finding]:
    """Its contract."""
    from benchmark_runner.agent_bundle import CONTRACT_FILES
    from benchmark_runner.agent_bundle.contract import load_contract
    from benchmark_runner.agent_bundle.resolution import misspelt

    file = next(
        (folder / name for name in CONTRACT_FILES if (folder / name).is_file()), folder / CONTRACT_FILES[0]
    )
    try:
        contract = load_contract(folder)
    except ValkyrieError as error:
        return [_placed(line, file) for line in str(error).splitlines() if line.strip()]
    return [finding("agent-notice", notice, Place(file)) for notice in misspelt(contract)]


def _placed(line: str, file: Path) -> Finding:
    match = _PLACED.fullmatch(line)
    if match is None or not match["file"].endswith(file.name):
        return finding("agent-contract", line, Place(file))
    place = Place(file, int(match["line"]), int(match["column"] or 1))
    return finding("agent-contract", match["message"], place)
