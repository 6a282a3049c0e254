"""What comes after generation, on its own: grade the answers a run has, and score it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.opening import RunError, register_run_tasks
from benchmark_runner.running import How, Watch, Work
from benchmark_runner.sandbox.runner import SandboxRunner
from benchmark_runner.schemas import ScoreResult
from benchmark_runner.summary import Survey, survey
from benchmark_runner.telling import redactor

if TYPE_CHECKING:
    from benchmark_runner.checkpoint import RunConfig
    from benchmark_service.client import BenchmarkServiceClient


async def evaluate_run(
    *,
    run_id: str,
    results_dir: Path | str,
    client: BenchmarkServiceClient,
    dataset: str | None = None,
    task_ids: Sequence[str] | None = None,
    force: bool = False,
) -> Survey:
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
        how = How(config.model, parallelism=32, generate=False, again=force)
        work = Work(runner, artifacts, how, Watch(total=len(answered)), redactor())
        await work.run([task for task in answered if work.is_due(task)])
        return survey(artifacts, config.tasks)


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
        found = survey(artifacts, config.tasks)
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
