"""What the commands do, from checked options to an exit code."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from benchmark_runner.artifacts import RunArtifacts
from benchmark_runner.base import BenchmarkRunner, error_text
from benchmark_runner.chat import kept_connections
from benchmark_runner.cli import CommonOptions, recorded_options
from benchmark_runner.console import (
    CommandOutput,
    LeftEarly,
    ProgressLine,
    Stopped,
    Terminated,
    finishing_on_signals,
    in_words,
    redactor,
)
from benchmark_runner.llm import LLMConfig, build_llm_config, without_credentials
from benchmark_runner.runs import OpenedRun, RequestedRun, RunError, meant, open_run, register_run_tasks
from benchmark_runner.schemas import ScoreResult, Task
from benchmark_runner.task_loop import (
    LoopSettings,
    RunCounts,
    RunSurvey,
    TaskLoop,
    as_json,
    grouped,
    said_score,
    survey_run,
)
from benchmark_runner.tracker_report import ReportError, report_run

if TYPE_CHECKING:
    from benchmark_runner.checkpoint import RunConfig

SOURCES = ("task_ids", "problem", "dataset_file", "dataset_name")
"""Options of `run` that are `Sources`, in their order."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the tasks of a `run` come from."""

    bundled: Path | None
    task_ids: Sequence[str] = ()
    problem: Path | None = None
    dataset_file: Path | None = None
    dataset_name: str | None = None

    def check(self) -> None:
        """UsageError where one contradicts another."""
        named = {
            "--dataset-name": self.dataset_name,
            "--dataset-file": self.dataset_file,
            "--problem": self.problem,
        }
        given = [name for name, value in named.items() if value is not None]
        if len(given) > 1:
            raise click.UsageError(f"{' and '.join(given)} are mutually exclusive.")
        if self.problem is not None and len(self.task_ids) != 1:
            raise click.UsageError("--problem needs exactly one TASK_ID, the task whose question it is.")


def run(
    runner_cls: type[BenchmarkRunner],
    common: CommonOptions,
    sources: Sources,
    own_options: Mapping[str, Any],
    *,
    model: str,
    skip_eval: bool,
    parallelism: int,
    eval_concurrency: int | None,
    timeout: float,
    force_resume: bool,
    **llm: Any,
) -> int:
    """`run`."""
    sources.check()
    config = _llm_config(llm)
    if common.service_url is None and (not skip_eval or sources.dataset_name):
        raise click.UsageError(
            "Who grades is not known: give --service-url (or SERVICE_URL), or only generate with --skip-eval."
            if not skip_eval
            else "--dataset-name takes tasks from a service: give --service-url (or SERVICE_URL)."
        )
    wanted = RequestedRun(
        model=model,
        task_ids=sources.task_ids,
        dataset_file=sources.dataset_file,
        default_dataset_file=sources.bundled,
        dataset_name=sources.dataset_name,
        problem=sources.problem,
        settings={**config.recorded(), "timeout": timeout, "options": recorded_options(own_options)},
        force_resume=force_resume,
    )
    how = LoopSettings(model, config, parallelism, timeout, evaluate=not skip_eval)
    artifacts = RunArtifacts(common.results_dir, common.run_id)
    telling = CommandOutput(common.as_json)

    async def work(runner: BenchmarkRunner) -> int:
        runner.options = dict(own_options)
        opened = await open_run(runner, artifacts, wanted)
        verb = "Resuming" if opened.resumed else "Starting"
        telling.line(f"{verb} {common.run_id}: {len(opened.config.tasks)} tasks")
        telling.lines(opened.notices)
        return await worked(runner, artifacts, opened, how, telling, common.report_to)

    with in_words(config), telling.alone():
        url, name = common.service_url, sources.dataset_name
        return in_run(runner_cls, artifacts, url, name, eval_concurrency, work)


def evaluate(
    runner_cls: type[BenchmarkRunner],
    common: CommonOptions,
    *,
    task_ids: Sequence[str],
    dataset_file: Path | None,
    eval_concurrency: int | None,
    force: bool,
) -> int:
    """`evaluate`."""
    artifacts, config = _existing(common)
    unknown = [task_id for task_id in task_ids if task_id not in config.tasks]
    if unknown:
        raise click.ClickException(f"Unknown task IDs: {unknown}{meant(unknown[0], config.tasks)}")
    telling = CommandOutput(common.as_json)
    how = LoopSettings(config.model, parallelism=32, generate=False, again=force)

    async def work(runner: BenchmarkRunner) -> int:
        tasks = await register_run_tasks(runner, config, dataset_file)
        chosen = [task for task in tasks if not task_ids or task.id in task_ids]
        telling.line(f"Evaluating {config.run_id}: {len(chosen)} tasks")
        opened = OpenedRun(config, chosen, resumed=True)
        return await worked(runner, artifacts, opened, how, telling, common.report_to)

    url = _needed_url(common.service_url or config.service_url)
    with in_words(), telling.alone():
        return in_run(runner_cls, artifacts, url, config.dataset_name, eval_concurrency, work)


def score(
    runner_cls: type[BenchmarkRunner], common: CommonOptions, *, dataset_file: Path | None, force: bool
) -> int:
    """`score`."""
    artifacts, config = _existing(common)
    telling = CommandOutput(common.as_json)
    run_id = common.run_id

    async def work(runner: BenchmarkRunner) -> int:
        found = survey_run(artifacts, config.tasks)
        kept = artifacts.read_score()
        _say_set_aside(artifacts, telling)
        graded = found.evaluated + found.did_not_complete
        telling.line(f"Scoring: {run_id} ({graded}/{len(config.tasks)} tasks evaluated)")
        if kept is not None and kept.complete and found.complete and not force:
            scored: ScoreResult = kept
            telling.lines(said_score(kept, cached=True))
        elif not found.complete and not force:
            telling.lines(_incomplete(run_id, found))
            telling.document(run_id=run_id, exit_code=1, **_told(artifacts, config, found, None))
            return 1
        else:
            await register_run_tasks(runner, config, dataset_file)
            scored = await _scored(runner, artifacts, found)
            telling.lines(said_score(scored))
        code = await _reported(artifacts, common.report_to, telling)
        telling.document(run_id=run_id, exit_code=code, **_told(artifacts, config, found, scored))
        return code

    url = _needed_url(common.service_url or config.service_url)
    with in_words(), telling.alone():
        return in_run(runner_cls, artifacts, url, config.dataset_name, None, work)


def in_run(
    runner_cls: Callable[..., BenchmarkRunner],
    artifacts: RunArtifacts,
    service_url: str | None,
    dataset_name: str | None,
    eval_concurrency: int | None,
    work: Callable[[BenchmarkRunner], Coroutine[Any, Any, int]],
) -> int:
    """Do something with a run that nobody else works on."""

    async def opened() -> int:
        bounds = {} if eval_concurrency is None else {"eval_concurrency": eval_concurrency}
        try:
            runner = runner_cls(service_url, dataset_name=dataset_name, **bounds)
        except ValueError as error:
            raise RunError(f"{error}.") from error
        try:
            return await work(runner)
        finally:
            await runner.close()

    with artifacts.in_use():
        try:
            return asyncio.run(opened())
        except KeyboardInterrupt as error:
            # Before or after tasks are worked on, or while one of them keeps the loop from hearing.
            raise LeftEarly(143 if isinstance(error, Terminated) else 130) from None


async def worked(
    runner: BenchmarkRunner,
    artifacts: RunArtifacts,
    opened: OpenedRun,
    how: LoopSettings,
    telling: CommandOutput,
    report_to: str | None,
) -> int:
    """Work on the chosen tasks, then say what came of them."""
    chosen: Sequence[Task] = opened.chosen
    watch = RunCounts(total=len(chosen))
    how = replace(how, fresh=not opened.resumed)
    pass_over = TaskLoop(runner, artifacts, how, watch, redactor(how.llm_config))
    due = [task for task in chosen if pass_over.is_due(task)] if opened.resumed else chosen
    if due and how.evaluate:
        await _check_service(runner, generates=how.generate)
    watch.done = len(chosen) - len(due)
    telling.line(f"Processing {len(due)}/{len(opened.config.tasks)} tasks")
    stopped: Stopped | None = None
    with ProgressLine(watch, quiet=telling.as_json) as progress:
        try:
            async with kept_connections(), finishing_on_signals(watch, progress.clear):
                await pass_over.run(due)
        except Stopped as error:
            stopped = error
    whole = survey_run(artifacts, opened.config.tasks, pass_over.ended)
    _say_set_aside(artifacts, telling)
    found = whole.only(task.id for task in chosen)
    if stopped is None and watch.stopping and watch.done < watch.total:
        stopped = Stopped(130)
    failed = _say_what_came(found, how, telling)
    scored: ScoreResult | None = None
    if stopped is None and not failed and how.evaluate and whole.complete:
        scored = await _scored(runner, artifacts, whole)
        telling.lines(said_score(scored))
    elif stopped is not None:
        telling.line(f"Stopped: {watch.done}/{watch.total} tasks done. Give the same command to go on.")
    elif failed:
        telling.line("Give the same command again to try once more what failed.")
    elif how.evaluate:
        telling.lines(["Not scored yet.", *_incomplete(opened.config.run_id, whole)])
    telling.line(f"Results: {artifacts.shown}")
    code = stopped.code if stopped is not None else int(failed)
    reported = await _reported(artifacts, report_to, telling) if scored is not None else 0
    if report_to is not None and scored is None:
        telling.line(f"Not reported to {without_credentials(report_to)}: the run is not scored.")
    telling.document(
        run_id=opened.config.run_id,
        exit_code=code or reported,
        **_told(artifacts, opened.config, whole, scored),
    )
    return code or reported


async def _check_service(runner: BenchmarkRunner, *, generates: bool) -> None:
    """Raise RunError where nobody would grade: before a model is paid for answers."""
    try:
        await runner.check_service()
    except Exception as error:
        where = without_credentials(runner.service_url or "")
        way_out = " Nothing was generated; --skip-eval generates without it." if generates else ""
        raise RunError(f"The service at {where} cannot grade: {error_text(error)}.{way_out}") from error


def _say_set_aside(artifacts: RunArtifacts, telling: CommandOutput) -> None:
    for path in artifacts.set_aside:
        telling.line(f"Not readable, so put aside as {path}; it counts as never written.")


def _say_what_came(found: RunSurvey, how: LoopSettings, telling: CommandOutput) -> bool:
    """Tell how tasks ended; whether any of them failed."""
    if how.evaluate:
        errors = len(found.eval_errors)
        done = f"Done: {found.evaluated}/{len(found.task_ids)} evaluated, {errors} eval errors."
        stopped = found.did_not_complete
        telling.line(done + (f" {stopped} ran out of time or turns." if stopped else ""))
    else:
        telling.line("Eval skipped (--skip-eval)")
    telling.lines(grouped("Evaluation failed for", found.eval_errors))
    telling.lines(grouped("Generation failed for", found.generation_errors))
    if not how.generate and found.ungenerated:
        telling.lines(grouped("Not generated yet", dict.fromkeys(found.ungenerated, "use `run`")))
    if how.evaluate:
        return not found.complete
    return bool(found.generation_errors or found.ungenerated)


async def _scored(runner: BenchmarkRunner, artifacts: RunArtifacts, found: RunSurvey) -> ScoreResult:
    try:
        answer = await runner.score(list(found.evaluations.values()))
        if not isinstance(answer, ScoreResult):
            raise TypeError(f"score returned {type(answer).__name__}, not a ScoreResult")
        if not math.isfinite(answer.final_score):
            raise ValueError(f"{answer.final_score} is no score")
    except Exception as error:
        raise RunError(
            f"The run cannot be scored: {error_text(error)}\nAll evaluations are kept; `score` tries again."
        ) from error
    scored = answer.model_copy(update={"complete": found.complete})
    artifacts.write_score(scored)
    return scored


async def _reported(artifacts: RunArtifacts, report_to: str | None, telling: CommandOutput) -> int:
    if report_to is None:
        return 0
    try:
        run_id = await report_run(report_to, artifacts)
    except ReportError as error:
        telling.line(f"Not reported: {error}\nThe run is kept: `valk ingest {artifacts.shown}` brings it in.")
        return 1
    telling.line(f"Reported to {without_credentials(report_to)} as run {run_id}.")
    return 0


def _told(
    artifacts: RunArtifacts, config: RunConfig, found: RunSurvey, scored: ScoreResult | None
) -> dict[str, Any]:
    about = {"benchmark": config.benchmark, "model": config.model, "results": str(artifacts.shown)}
    return {**about, **as_json(found, scored)}


def _incomplete(run_id: str, found: RunSurvey) -> list[str]:
    counts = {
        "not generated": len(found.ungenerated),
        "not evaluated": len(found.unevaluated),
        "generation errors": len(found.generation_errors),
        "eval errors": len(found.eval_errors),
    }
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return [
        f"Run is incomplete: {said} of {len(found.task_ids)} tasks.",
        f"Complete it with `run --run-id {run_id} ...`, or score it as it is with --force.",
    ]


def _existing(common: CommonOptions) -> tuple[RunArtifacts, RunConfig]:
    artifacts = RunArtifacts(common.results_dir, common.run_id)
    with in_words():
        config = artifacts.read_config()
    if config is None:
        others = [path.parent.name for path in common.results_dir.glob(f"*/{artifacts.config_path.name}")]
        hint = meant(common.run_id, others) or ". Start it with `run`."
        missing = artifacts.shown / artifacts.config_path.name
        raise click.ClickException(f"There is no run {common.run_id}: {missing} does not exist{hint}")
    return artifacts, config


def _needed_url(url: str | None) -> str:
    if url is None:
        raise click.UsageError("Who grades is not known: give --service-url (or SERVICE_URL).")
    return url


def _llm_config(given: Mapping[str, Any]) -> LLMConfig:
    try:
        return build_llm_config(**given)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise click.UsageError(f"{option}: {first['msg'].lower()}.") from None
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
