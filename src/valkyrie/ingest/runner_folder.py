"""The folder a benchmark runner leaves (`results/<run_id>`) as a foreign run.

Whoever wrote it is not trusted: files are read within bounds, links are refused, and nothing is changed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from benchmark_runner.artifacts import folder_name
from benchmark_runner.checkpoint import RunConfig
from benchmark_runner.schemas import EvalResult, EvalStatus, GenerationResult, ScoreResult
from valkyrie.benchmarks.service.results import check_data, grade_of
from valkyrie.domain import Category, Grade, Json, TrialState, content_digest
from valkyrie.errors import BenchmarkError, UserError
from valkyrie.ingest.trials import (
    ForeignRun,
    ForeignScore,
    ForeignTrial,
    keep_task,
    moment,
    read_plain,
    source_text,
)
from valkyrie.report.formats import plural
from valkyrie.store.ingested_runs import EndedTrial

if TYPE_CHECKING:
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")

CONFIG = "run_config.json"
SCORE = "final_score.json"
LONGEST_MESSAGE = 4000


@dataclass(frozen=True, slots=True)
class _Task:
    """What the runner kept of one task that was evaluated."""

    folder: Path
    evaluation: EvalResult
    generation: GenerationResult | None
    digests: Sequence[str]
    finished_at: float
    generated_at: float


def read_runner(file: Path) -> ForeignRun:
    config = _parsed(RunConfig, file, read_plain(file))
    task_ids = _checked_ids(file, config)
    tasks = {task_id: _task(file.parent, task_id) for task_id in task_ids}
    done = {task_id: task for task_id, task in tasks.items() if task is not None}
    benchmark = _benchmark(config)
    trials = [
        ForeignTrial(_ended(config, task_id, task), partial(keep_task, folder=task.folder, task_id=task_id))
        for task_id, task in done.items()
    ]
    score, score_digest, notices = _score(file.parent, trials, missing=len(tasks) - len(done))
    run = ForeignRun(
        file=file,
        identity=_identity(benchmark, config),
        digest=_digest(config, done, score_digest),
        label=f"{benchmark} [{config.model}] {config.run_id}",
        benchmark=benchmark,
        agent=f"{benchmark}-runner",
        model=config.model,
        dataset=config.dataset_name or "default",
        run_id=config.run_id,
        about=_about(config, len(tasks)),
        trials=trials,
        started_at=moment(config.started_at) if config.started_at else None,
        fraction=False,
        score=score,
    )
    if len(done) < len(tasks):
        left = f"{plural(len(tasks) - len(done), 'task')} of {len(tasks)} not evaluated yet and left out; "
        notices.insert(0, f"{left}the runner's `run --run-id {config.run_id}` goes on with them")
    return replace(run, notices=notices)


def _checked_ids(file: Path, config: RunConfig) -> list[str]:
    names = (config.run_id, config.model, config.dataset_name or "-", config.benchmark or "-")
    for name in (*names, *config.tasks):
        if not name.strip() or not name.isprintable():
            raise UserError(f"{file}: {name[:60]!r} is no name; one is printable text.", cause="records")
    return list(dict.fromkeys(config.tasks))


def _benchmark(config: RunConfig) -> str:
    """Its name, which older runners tell as part of the schema `NAME.text.v1` only."""
    if config.benchmark:
        return config.benchmark
    name = (config.payload_schema or "").rsplit(".", 2)[0]
    return name if name.strip() and name.isprintable() else "unknown"


def _identity(benchmark: str, config: RunConfig) -> str:
    """Return what stays the same while the run goes on. Another run may have been given the same id
    elsewhere, or in another folder; it did not begin at the same time."""
    words = (benchmark, config.dataset_name, config.run_id, config.model, config.started_at)
    return content_digest(["runner", *words])


def _task(root: Path, task_id: str) -> _Task | None:
    """None for a task that was not evaluated."""
    folder = root / folder_name(task_id)
    if folder.is_symlink():
        raise UserError(f"{folder} is a link; a runner's folder holds none.", cause="records")
    verdict, answer = folder / "eval.json", folder / "generation.json"
    if not verdict.is_symlink() and not verdict.exists():
        return None
    told, given = read_plain(verdict), read_plain(answer) if _there(answer) else b""
    evaluation = _parsed(EvalResult, verdict, told)
    generation = _parsed(GenerationResult, answer, given) if given else None
    for file, found in ((verdict, evaluation), (answer, generation)):
        if found is not None and found.task_id != task_id:
            raise UserError(f"{file} is of task {found.task_id[:60]!r}, not {task_id!r}.", cause="records")
    finished = verdict.stat().st_mtime
    return _Task(
        folder,
        evaluation,
        generation,
        [hashlib.sha256(content).hexdigest() for content in (told, given)],
        finished,
        min(answer.stat().st_mtime, finished) if given else finished,
    )


def _there(file: Path) -> bool:
    return file.is_symlink() or file.exists()


def _parsed(model: type[Model], file: Path, content: bytes) -> Model:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{place}: {first['msg']}" if place else first["msg"]
        raise UserError(f"{file} is not what a runner writes: {what}.", cause="records") from None


def _ended(config: RunConfig, task_id: str, task: _Task) -> EndedTrial:
    grade, fault = _verdict(task)
    question = task.generation.question if task.generation else None
    return EndedTrial(
        task_id=task_id,
        k=0,
        digest=content_digest(
            {
                "benchmark": _benchmark(config),
                "dataset": config.dataset_name,
                "task": task_id,
                "question": source_text(question, 1 << 20) if question else None,
            }
        ),
        started_at=task.generated_at,
        finished_at=task.finished_at,
        score=grade.score if grade else None,
        passed=grade.passed if grade else None,
        result=grade.result if grade else None,
        **fault,
    )


def _verdict(task: _Task) -> tuple[Grade | None, Json]:
    """The grade, or what stands in its place: who must act, why, and how far it came."""
    evaluation, generation = task.evaluation, task.generation
    if evaluation.status is EvalStatus.EVALUATED:
        try:
            return grade_of(evaluation.model_dump()["result"]), {}
        except BenchmarkError as error:
            raise UserError(f"{task.folder / 'eval.json'}: {error}", cause="records") from None
    said = evaluation.error or (generation.error if generation else None)
    how = generation.status.value if generation else "no generation.json"
    category, cause, phase, default = {
        EvalStatus.DID_NOT_COMPLETE: (
            Category.AGENT,
            "agent_timeout",
            TrialState.IN_PROGRESS,
            f"The runner did not complete the task ({how}).",
        ),
        EvalStatus.GENERATION_ERROR: (
            Category.AGENT,
            "agent_failed",
            TrialState.IN_PROGRESS,
            "The runner's generation failed.",
        ),
        EvalStatus.ERROR: (
            Category.BENCHMARK,
            "service_failed",
            TrialState.EVALUATING,
            "The service did not evaluate the answer.",
        ),
    }[evaluation.status]
    message = source_text(said or default, LONGEST_MESSAGE)
    return None, {"category": category, "cause": cause, "phase": phase, "message": message}


def _score(
    root: Path, trials: Sequence[ForeignTrial], *, missing: int
) -> tuple[ForeignScore | None, str | None, list[str]]:
    """The runner's own score where it is of the whole run, its digest, and what is to be said of it."""
    file = root / SCORE
    found: ScoreResult | None = None
    digest = None
    if _there(file):
        content = read_plain(file)
        digest = hashlib.sha256(content).hexdigest()
        found = _parsed(ScoreResult, file, content)
        _check_score(file, found)
    if found is not None and found.complete and not missing:
        return _whole(found, trials), digest, []
    graded = [trial.ended for trial in trials if trial.ended.category is None]
    if any(one.score is None for one in graded):
        nothing = ForeignScore({"final_score": None, "properties": {}}, None)
        return nothing, digest, [f"no {SCORE} of the whole run, and its results name no score"]
    return None, digest, [f"no {SCORE} of the whole run: its score is the mean over these tasks"]


def _check_score(file: Path, found: ScoreResult) -> None:
    if not math.isfinite(found.final_score):
        raise UserError(f"{file}: final_score is {found.final_score}, not a finite number.", cause="records")
    try:
        check_data("score's metadata", found.metadata)
    except BenchmarkError as error:
        raise UserError(f"{file}: {error}", cause="records") from None


def _whole(found: ScoreResult, trials: Sequence[ForeignTrial]) -> ForeignScore:
    """Return what was graded has a score of its own where the whole is plainly the mean over all tasks."""
    final = {"final_score": found.final_score, "properties": found.metadata}
    graded = [trial.ended.score for trial in trials if trial.ended.category is None]
    if len(graded) == len(trials):
        return ForeignScore(final, found.final_score)
    scores: list[float] = [score for score in graded if score is not None]
    total: Any = math.fsum(scores)
    plain = len(scores) == len(graded) and math.isclose(total / len(trials), found.final_score, abs_tol=1e-9)
    return ForeignScore(final, total / len(scores) if plain and scores else None)


def _digest(config: RunConfig, done: dict[str, _Task], score: str | None) -> str:
    """Of the run, not of the machine or the way it was started."""
    said = config.model_dump(
        mode="json", include={"run_id", "model", "tasks", "dataset_name", "payload_schema", "benchmark"}
    )
    return content_digest([said, {task_id: list(task.digests) for task_id, task in done.items()}, score])


def _about(config: RunConfig, tasks: int) -> Json:
    """Return where it comes from; never what may hold a credential."""
    names = ("task_source", "payload_schema", "runner_version", "generation_version", "framework_version")
    found = config.model_dump(mode="json", include={*names, "started_at"}, exclude_none=True)
    kept = {name: source_text(str(value), 200) for name, value in found.items()}
    return {**kept, "kind": "runner", "tasks": tasks, "service": _bare(config.service_url)}


def _bare(url: str | None) -> str | None:
    """An address without what logs people in."""
    try:
        parts = urlsplit(url or "")
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return None
    return source_text(f"{parts.scheme}://{parts.hostname}{port}", 200) if parts.hostname else None
