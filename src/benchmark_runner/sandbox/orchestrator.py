"""Run an agent on a benchmark's tasks: generation in sandboxes, then evaluation and the score, together or
one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.console import redactor
from benchmark_runner.runs import OpenedRun, RequestedRun, RunError, open_run, register_run_tasks
from benchmark_runner.sandbox.backend import SandboxTaskSpec
from benchmark_runner.sandbox.contract import AgentContract
from benchmark_runner.sandbox.runner import SandboxRunner
from benchmark_runner.sandbox.setup import Setup, checked_agent, load_agent
from benchmark_runner.schemas import ScoreResult, Task
from benchmark_runner.task_loop import LoopSettings, RunCounts, RunSurvey, TaskLoop, survey_run

if TYPE_CHECKING:
    from benchmark_runner.checkpoint import RunConfig
    from benchmark_service.client import BenchmarkServiceClient
    from sandboxes.protocol import SandboxProvider
    from sandboxes.types import SandboxSource


async def tasks_of(
    client: BenchmarkServiceClient, dataset: str | None, task_ids: Sequence[str]
) -> list[Task]:
    """Tasks a service has, all or those named. What they ask, the service puts into the sandbox itself."""
    found = await client.verify_task_ids(list(task_ids) or None, dataset=dataset)
    return [Task(id=task_id, question="") for task_id in found.task_ids]


async def open_sandbox_run(
    runner: SandboxRunner,
    setup: Setup,
    artifacts: RunArtifacts,
    model: str,
    tasks: Sequence[Task],
    task_ids: Sequence[str],
    *,
    force_resume: bool = False,
) -> OpenedRun:
    """Start or go on with a run of `tasks`, working on `task_ids` now. Tasks of earlier slices stay in it."""
    await runner.start(setup, artifacts, model)
    wanted = RequestedRun(
        model=model,
        task_ids=task_ids,
        dataset_name=runner._dataset,
        at_hand=tasks,
        settings=setup.settings(),
        force_resume=force_resume,
    )
    return await open_run(runner, artifacts, wanted)


async def run_benchmark(
    *,
    run_id: str,
    model: str,
    task_ids: Sequence[str],
    dataset: str | None,
    results_dir: Path | str,
    client: BenchmarkServiceClient,
    contract: AgentContract | None = None,
    contract_path: Path | None = None,
    provider: SandboxProvider | str | None = None,
    parallelism: int = 10,
    source_override: SandboxSource | None = None,
    task_specs: Mapping[str, SandboxTaskSpec] | None = None,
    skip_eval: bool = False,
    **options: Any,
) -> ScoreResult | None:
    """Generate, evaluate and score; the score, once every task of the run has a result.

    Give `contract`, or `contract_path`: a file, or an agent's folder, which is then its bundle. `options` are
    fields of `Setup`. What is missing or wrong raises ValueError before anything starts.
    """
    if (contract is None) == (contract_path is None):
        raise ValueError("give exactly one of contract and contract_path")
    if contract_path is not None:
        contract, bundle = load_agent(contract_path)
        options.setdefault("bundle", bundle)
    assert contract is not None
    setup = Setup(
        contract,
        provider=provider or "local",
        source_override=source_override,
        specs=task_specs or {},
        **options,
    )
    checked_agent(setup, model)
    artifacts = RunArtifacts(results_dir, run_id)
    runner = SandboxRunner(dataset_name=dataset, client=client)
    try:
        with artifacts.in_use():
            tasks = await _tasks(client, dataset, task_ids, task_specs)
            ids = [task.id for task in tasks]
            opened = await open_sandbox_run(runner, setup, artifacts, model, tasks, ids)
            how = LoopSettings(model, parallelism=parallelism, timeout=0, evaluate=not skip_eval)
            work = TaskLoop(runner, artifacts, how, RunCounts(total=len(ids)), runner._redact)
            await work.run([task for task in opened.chosen if work.is_due(task)])
            found = survey_run(artifacts, opened.config.tasks)
            if skip_eval or not found.complete:
                return None
            score = (await runner.score(list(found.evaluations.values()))).model_copy(
                update={"complete": True}
            )
            artifacts.write_score(score)
            return score
    finally:
        await runner.close()


async def _tasks(
    client: BenchmarkServiceClient,
    dataset: str | None,
    task_ids: Sequence[str],
    specs: Mapping[str, SandboxTaskSpec] | None,
) -> list[Task]:
    if not specs:
        return await tasks_of(client, dataset, task_ids)
    if unknown := [task_id for task_id in task_ids if task_id not in specs]:
        raise ValueError(f"Unknown task IDs: {unknown}")
    return [Task(id=name, question=specs[name].question or "") for name in task_ids or specs]


# What comes after generation, on its own: grade the answers a run has, and score it.


async def evaluate_run(
    *,
    run_id: str,
    results_dir: Path | str,
    client: BenchmarkServiceClient,
    dataset: str | None = None,
    task_ids: Sequence[str] | None = None,
    force: bool = False,
) -> RunSurvey:
    """Grade answers that are not graded yet, all or those named; where the run stands then."""
    artifacts, config, runner = _opened(run_id, results_dir, client, dataset)
    with artifacts.in_use():
        tasks = await register_run_tasks(runner, config)
        if unknown := [task_id for task_id in task_ids or () if task_id not in config.tasks]:
            raise RunError(f"Unknown task IDs: {unknown}")
        chosen = [task for task in tasks if task_ids is None or task.id in task_ids]
        answered = [task for task in chosen if artifacts.read_generation(task.id) is not None]
        if not answered:
            raise RunError(f"Run {run_id} has nothing to evaluate: none of its tasks has an answer yet.")
        how = LoopSettings(config.model, parallelism=32, generate=False, again=force)
        work = TaskLoop(runner, artifacts, how, RunCounts(total=len(answered)), redactor())
        await work.run([task for task in answered if work.is_due(task)])
        return survey_run(artifacts, config.tasks)


async def score_run(
    *,
    run_id: str,
    results_dir: Path | str,
    client: BenchmarkServiceClient,
    dataset: str | None = None,
    force: bool = False,
) -> ScoreResult:
    """Score all tasks of a run. RunError for one that is not complete, unless forced."""
    artifacts, config, runner = _opened(run_id, results_dir, client, dataset)
    with artifacts.in_use():
        await register_run_tasks(runner, config)
        found = survey_run(artifacts, config.tasks)
        if not found.complete and not force:
            done = found.evaluated + found.did_not_complete
            raise RunError(f"Run {run_id} is incomplete: {done} of {len(config.tasks)} tasks have a result.")
        score = (await runner.score(list(found.evaluations.values()))).model_copy(
            update={"complete": found.complete}
        )
        artifacts.write_score(score)
        return score


def _opened(
    run_id: str, results_dir: Path | str, client: BenchmarkServiceClient, dataset: str | None
) -> tuple[RunArtifacts, RunConfig, SandboxRunner]:
    artifacts = RunArtifacts(results_dir, run_id)
    config = artifacts.read_config()
    if config is None:
        raise RunError(f"There is no run {run_id}: {artifacts.config_path} does not exist.")
    return artifacts, config, SandboxRunner(dataset_name=dataset or config.dataset_name, client=client)
