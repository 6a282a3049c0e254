"""Opens a run: which tasks it has, whether it is new, and whether it may go on like this."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmark_runner import __version__
from benchmark_runner.artifacts import RunArtifacts, folder_name
from benchmark_runner.base import BenchmarkRunner, UnknownTaskError, error_text
from benchmark_runner.checkpoint import RunConfig, TaskSource, differences, digests, needs_generation
from benchmark_runner.client import DESCOPE_KEYS
from benchmark_runner.llm import without_credentials
from benchmark_runner.schemas import Task
from benchmark_service.errors import BenchmarkServiceError


class RunError(Exception):
    """A run cannot be opened or scored; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """What a command asks for."""

    model: str
    task_ids: Sequence[str] = ()
    dataset_file: Path | None = None
    default_dataset_file: Path | None = None
    dataset_name: str | None = None
    problem: Path | None = None
    at_hand: Sequence[Task] | None = None
    """Tasks that need no loading: those of a sandbox run, which later ones may join."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    force_resume: bool = False


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run whose configuration is on disk."""

    config: RunConfig
    chosen: Sequence[Task]
    """The tasks to work on now: all of the run, or those that were named."""
    resumed: bool
    notices: Sequence[str] = ()


async def open_run(runner: BenchmarkRunner, artifacts: RunArtifacts, wanted: RequestedRun) -> OpenedRun:
    """Start a run, or go on with it; its tasks are registered with the runner. RunError when it may not."""
    before = artifacts.read_config()
    resumed = before is not None or artifacts.has_answers()
    if resumed and before is None and not wanted.force_resume:
        raise RunError(
            f"{artifacts.shown} holds answers, and no {artifacts.config_path.name} that says what made them. "
            "Restore it, choose another --run-id, or take them as they are with --force-resume."
        )
    source, file, name = _source(wanted, before)
    loaded = await _load(runner, source, file, name, wanted)
    if source is TaskSource.FILE:
        name = runner._dataset = runner._dataset or _named_in(file)
    named = await _named(runner, loaded, wanted.task_ids)
    if source is TaskSource.SANDBOX:
        members = _joined(loaded, before.tasks if before else ())
    elif before is None:
        members = named or list(loaded.values())
    else:
        members = await _members(runner, loaded, before)
    if not members:
        raise RunError(f"{file or name or 'The runner'} has no tasks.")
    _check_folders(artifacts, [*members, *named])
    config = RunConfig(
        run_id=artifacts.run_id,
        model=wanted.model,
        tasks=sorted(task.id for task in members),
        dataset_file=str(file) if file else None,
        dataset_name=name,
        task_source=source,
        settings=dict(wanted.settings),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        # Of a sandbox run only a part may be at hand.
        **({} if source is TaskSource.SANDBOX else digests(members)),
        **_about(runner),
    )
    notices: list[str] = []
    if before is not None:
        changed = differences(before, config) if _has_kept(artifacts, before) else []
        config, members, notices = _go_on(before, config, members, named, changed, force=wanted.force_resume)
    runner._register_tasks(members)
    if config != before:
        artifacts.write_config(config)
    chosen = named or members
    return OpenedRun(config, sorted(chosen, key=lambda task: task.id), resumed, notices)


async def register_run_tasks(
    runner: BenchmarkRunner, config: RunConfig, dataset_file: Path | None = None
) -> list[Task]:
    """Register exactly the tasks of a run, for what comes after generation.

    Our own scoring and evaluating need their ids alone, so a source that is gone does not stop them; an
    author's may look into the tasks, which are read from the file they came from while it is there.
    """
    runner._dataset = config.dataset_name or runner._dataset
    loaded: Mapping[str, Task] = {}
    if dataset_file is not None:
        loaded = _loaded(lambda: runner.load_tasks(dataset_file), str(dataset_file))
        missing = [task_id for task_id in config.tasks if task_id not in loaded]
        if missing:
            raise RunError(f"{dataset_file} lacks tasks of run {config.run_id}: {_some(missing)}")
    elif config.dataset_file is not None:
        with suppress(RunError):
            bundled = Path(config.dataset_file)
            loaded = _loaded(lambda: runner.load_tasks(bundled), config.dataset_file)
    tasks = [loaded.get(task_id) or Task(id=task_id, question="") for task_id in config.tasks]
    runner._register_tasks(tasks)
    return tasks


def _source(wanted: RequestedRun, before: RunConfig | None) -> tuple[TaskSource, Path | None, str | None]:
    """Return where tasks come from: as the command says, else as the run did, else the bundled file."""
    if wanted.at_hand is not None:
        return TaskSource.SANDBOX, None, wanted.dataset_name
    if wanted.problem is not None:
        return TaskSource.PROBLEM, None, None
    if wanted.dataset_name is not None:
        return TaskSource.SERVICE, None, wanted.dataset_name
    if wanted.dataset_file is not None:
        return TaskSource.FILE, wanted.dataset_file, None
    if before is not None and before.task_source is TaskSource.SERVICE:
        return TaskSource.SERVICE, None, before.dataset_name
    if before is not None and before.task_source is TaskSource.PROBLEM:
        raise RunError(f"Run {before.run_id} was started with --problem; give the same file again.")
    if before is not None and before.dataset_file:
        return TaskSource.FILE, Path(before.dataset_file), None
    return TaskSource.FILE, wanted.default_dataset_file, None


async def _load(
    runner: BenchmarkRunner, source: TaskSource, file: Path | None, name: str | None, wanted: RequestedRun
) -> dict[str, Task]:
    if source is TaskSource.SANDBOX:
        return _by_id(wanted.at_hand or (), "the benchmark")
    if source is TaskSource.PROBLEM:
        problem = wanted.problem
        assert problem is not None
        return _loaded(lambda: [runner.load_problem(wanted.task_ids[0], problem)], str(problem))
    if source is TaskSource.SERVICE:
        assert name is not None
        return _by_id(await _listed(runner, name), f"dataset {name}")
    if file is None:
        return _brought_along(runner)
    if not file.exists():
        raise RunError(f"There is no dataset file {file}; name one with --dataset-file.")
    return _loaded(lambda: runner.load_tasks(file), str(file))


def _brought_along(runner: BenchmarkRunner) -> dict[str, Task]:
    """Return the tasks a runner has without a file; RunError where it has none."""
    try:
        return _loaded(lambda: runner.load_tasks(None), "load_tasks(None)")
    except RunError as error:
        raise RunError(
            "There are no tasks: name a dataset with --dataset-file or --dataset-name. "
            f"The runner brings none along: {error}"
        ) from error


def _named_in(file: Path | None) -> str | None:
    """Return the `dataset_name` of a dataset file, which its tasks are graded on."""
    if file is None or file.suffix != ".json":
        return None
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    name = found.get("dataset_name") if isinstance(found, dict) else None
    return name if isinstance(name, str) and name.strip() else None


def _loaded(load: Callable[[], Sequence[Task]], origin: str) -> dict[str, Task]:
    """Return what an author's code makes of a file."""
    try:
        tasks = list(load())
    except Exception as error:
        raise RunError(f"{origin} cannot be loaded: {error_text(error)}") from error
    return _by_id(tasks, origin)


async def _listed(runner: BenchmarkRunner, name: str) -> list[Task]:
    where = without_credentials(runner.service_url or "")
    try:
        return await runner.load_tasks_from_service(name)
    except BenchmarkServiceError as error:
        if error.status_code == 501:
            said = (
                "the service does not list its tasks (it has no list_tasks); "
                "use --dataset-file, or a deployment that does"
            )
        elif error.status_code in (401, 403):
            said = f"{error} The dataset list takes a Descope key alone: {_key_at_hand()}."
        else:
            said = str(error)
    except ValueError as error:
        said = str(error)
    raise RunError(f"Dataset {name!r} cannot be loaded from {where}: {said}")


async def _named(runner: BenchmarkRunner, loaded: dict[str, Task], task_ids: Sequence[str]) -> list[Task]:
    """The tasks that were named, each once."""
    found, unknown = [], []
    for task_id in dict.fromkeys(task_ids):
        try:
            found.append(loaded.get(task_id) or await runner._fetch_task(task_id))
        except UnknownTaskError:
            unknown.append(task_id)
    if unknown:
        raise RunError(f"Unknown task IDs: {unknown}{meant(unknown[0], loaded)}")
    return found


async def _members(runner: BenchmarkRunner, loaded: dict[str, Task], before: RunConfig) -> list[Task]:
    """The tasks the run has had so far."""
    found, missing = [], []
    for task_id in before.tasks:
        try:
            found.append(loaded.get(task_id) or await runner._fetch_task(task_id))
        except UnknownTaskError:
            missing.append(task_id)
    if missing:
        raise RunError(
            f"Run {before.run_id} has tasks that its dataset does not have any more: {_some(missing)}. "
            "Restore the dataset, or start anew with another --run-id."
        )
    return found


def _joined(loaded: Mapping[str, Task], before: Sequence[str]) -> list[Task]:
    """Of a sandbox run: the tasks at hand now, and those of earlier slices by their ids."""
    earlier = [Task(id=task_id, question="") for task_id in before if task_id not in loaded]
    return [*loaded.values(), *earlier]


def _about(runner: BenchmarkRunner) -> dict[str, Any]:
    """Return what a configuration says of who generates, and who grades."""
    return {
        "benchmark": runner.NAME,
        "payload_schema": runner.payload_schema,
        "payload_type": runner.PAYLOAD_TYPE,
        "runner_version": _runner_version(runner),
        "generation_version": runner.generation_version,
        "framework_version": __version__,
        "service_url": without_credentials(runner.service_url) if runner.service_url else None,
    }


def _go_on(
    before: RunConfig,
    now: RunConfig,
    members: list[Task],
    named: Sequence[Task],
    changed: Sequence[str],
    *,
    force: bool,
) -> tuple[RunConfig, list[Task], list[str]]:
    """The configuration a resumed run has; RunError where answers of two kinds would be mixed."""
    changed = list(changed)
    known = {*before.tasks, *now.tasks}
    joining = [task for task in named if task.id not in known]
    if joining:
        changed.append(f"tasks that are not in the run: {_some([task.id for task in joining])}")
    if changed and not force:
        lines = "".join(f"\n  {line}" for line in changed)
        raise RunError(
            f"Run {before.run_id} was started otherwise:{lines}\n"
            "Going on would mix answers that do not compare. Start anew with another --run-id, or go on "
            "all the same with --force-resume."
        )
    notices = [f"Mixed on purpose (--force-resume): {line}" for line in changed]
    if before.runner_version != now.runner_version:
        notices.append(
            f"The run was started by version {before.runner_version}, this is {now.runner_version}."
        )
    members = [*members, *joining]
    kept = {
        "tasks": sorted(task.id for task in members),
        "started_at": before.started_at,
        "mixed": [*before.mixed, *changed],
        **(digests(members) if now.tasks_digest else {}),
        **(before.model_extra or {}),
    }
    return now.model_copy(update=kept), members, notices


def _check_folders(artifacts: RunArtifacts, tasks: Sequence[Task]) -> None:
    """RunError where the file system would keep two tasks in one folder."""
    seen: dict[str, str] = {}
    for task in tasks:
        other = seen.setdefault(folder_name(task.id).lower(), task.id)
        if other != task.id and artifacts.ignores_case():
            raise RunError(
                f"Tasks {other!r} and {task.id!r} differ in case only, which the file system of "
                f"{artifacts.shown.parent} does not tell apart. Name another with --results-dir."
            )


def _has_kept(artifacts: RunArtifacts, before: RunConfig) -> bool:
    """Return whether the run has an answer that stays, and that others could be mixed with."""
    return any(not needs_generation(artifacts.read_generation(task_id)) for task_id in before.tasks)


def _key_at_hand() -> str:
    for name in DESCOPE_KEYS:
        if os.environ.get(name, "").strip():
            return f"the one in {name} may not, or the service is deployed without Descope"
    return "set VALS_AUTH_KEY"


def _by_id(tasks: Sequence[Task], origin: str) -> dict[str, Task]:
    found: dict[str, Task] = {}
    for task in tasks:
        if not isinstance(task, Task):
            raise RunError(
                f"load_tasks must return Task objects; from {origin} came a {type(task).__name__}."
            )
        if task.id in found:
            raise RunError(f"{origin} has two tasks with the id {task.id!r}.")
        try:
            folder_name(task.id)
        except ValueError as error:
            raise RunError(f"{origin}: {error}.") from None
        found[task.id] = task
    return found


def _runner_version(runner: BenchmarkRunner) -> str:
    try:
        return metadata.version(f"{runner.NAME}-runner")
    except (metadata.PackageNotFoundError, ValueError):
        return "dev"


def _some(names: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def meant(name: str, known: Iterable[str]) -> str:
    """A hint at the name somebody may have meant; nothing where none is close."""
    close = difflib.get_close_matches(name, known, n=1)
    return f". Did you mean {close[0]!r}?" if close else ""
