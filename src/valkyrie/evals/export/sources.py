"""Results to export: of a folder with a results.jsonl, or of runs and jobs a tracker knows."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from valkyrie.compare.summary import sentence, summarise
from valkyrie.domain import Json, TrialState, worst_score
from valkyrie.errors import UnknownError
from valkyrie.evals.records import grader_of, read_results_file
from valkyrie.evals.results import (
    Invocation,
    ScoreVerification,
    SpecResult,
    StimulusResult,
    TrialFault,
    TrialResult,
    fault_kind,
    invocation_of,
)
from valkyrie.grade.protocol import ConstraintResult, GraderResult
from valkyrie.ingest.sources import find_results
from valkyrie.ingest.trials import Times
from valkyrie.store.layout import encode_task_id
from valkyrie.tracker.protocol import NamedRuns, each_trial, named_runs
from valkyrie.tracker.results import LOG
from valkyrie.trajectory.records import FILES, read_record
from valkyrie.views import OutputsWanted

if TYPE_CHECKING:
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.views import RunView, TrialView
    from valkyrie.views.jobs import JobView


def from_folders(folders: Sequence[Path]) -> Invocation:
    """Everything the results.jsonl files in or below these folders say."""
    trials: list[TrialResult] = []
    files = list(dict.fromkeys(path for folder in folders for path in find_results(folder)))
    for file in files:
        trials += read_results_file(file)
    found = invocation_of(trials, name=", ".join(folder.name for folder in folders))
    return replace(found, started_at=iso(min(Times.of(file).at for file in files)))


def iso(at: float) -> str:
    """A point in time, as reports have it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def from_tracker(opened: Tracker, refs: Sequence[str], kept: KeptFiles | None = None) -> Invocation:
    """The runs these words name; a job stands for all of its runs.

    `kept` says where trajectories and logs are put, for forms that hold them.
    """
    named = [_named(opened, ref) for ref in refs]
    runs = [run for one in named for run in one.runs]
    started = [run.started_at for run in runs if run.started_at is not None]
    return Invocation(
        [_eval(opened, run, one.job, kept) for one in named for run in one.runs],
        name=", ".join(refs),
        started_at=iso(min(started)) if started else "",
        again=[words for one in named for words in again_words(one)],
        sentences=partial(_sentences, opened, runs) if len(runs) > 1 else None,
    )


def _sentences(opened: Tracker, runs: Sequence[RunView]) -> Sequence[str]:
    """Compare all runs on the same benchmark and dataset."""
    summary = summarise([(run, each_trial(opened, run.id, detail="scores")) for run in runs])
    return [sentence(one) for one in summary.comparisons]


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """Where what was kept of trials is put while they are exported."""

    folder: Path
    logs: bool = False
    """Logs too, and what is written names them, relative to the folder above."""

    def fetch(self, opened: Tracker, run_id: str) -> Path:
        """Put there what was kept of a run, and return its folder."""
        place = self.folder / run_id
        opened.outputs(run_id, place, OutputsWanted(files=[*FILES, *([LOG] if self.logs else [])]))
        return place


def again_words(named: NamedRuns) -> Iterator[list[str]]:
    """Yield the commands that run these runs again; of what was sent to a tracker there is none to give."""
    runs = [run for run in named.runs if not run.ingested and "variant" not in run.arguments]
    flags = [_flags(run) for run in runs]
    asked = [str(run.arguments.get(key, "")) for run in runs for key in ("agent", "benchmark")]
    if any(one.startswith("upload:") for one in asked):
        return
    if named.job and len(runs) > 1 and all(one == flags[0] for one in flags):
        yield ["valk", "job", "run", *(word for run in runs for word in ("--agent", _who(run))), *flags[0]]
        return
    for run, words in zip(runs, flags, strict=True):
        yield ["valk", "run", "start", "--agent", _who(run), *words]


def _who(run: RunView) -> str:
    agent, model = str(run.arguments.get("agent") or run.agent), run.arguments.get("model")
    return f"{agent}:{model}" if model else agent


def _flags(run: RunView) -> list[str]:
    """Return what a run was asked with besides its agent, as far as it is not what it would be anyway."""
    said, settings = run.arguments, run.arguments.get("settings", {})
    words = ["--benchmark", str(said.get("benchmark") or run.benchmark)]
    given = {
        "--dataset": None if run.dataset == "default" else run.dataset,
        "--trials": None if said.get("trials", 1) == 1 else said["trials"],
        "--task-ids": ",".join(said["task_ids"]) if said.get("task_ids") else None,
        "--slice": said.get("slice"),
        "--provider": None if run.provider == "local" else run.provider,
        "--model-url": settings.get("model_url"),
        "--verify": settings.get("verify"),
    }
    return words + [word for flag, value in given.items() if value for word in (flag, str(value))]


def _named(opened: Tracker, ref: str) -> NamedRuns:
    try:
        return named_runs(opened, ref)
    except UnknownError as error:
        raise UnknownError(f"{error} It is no folder either.") from None


def _eval(opened: Tracker, run: RunView, job: JobView | None, kept: KeptFiles | None) -> SpecResult:
    about = {"id": job.id, "name": job.name, "position": _place_in(job, run)} if job else None
    trials = _StoredTrials(opened, run, about, kept)
    return SpecResult(
        name=run.benchmark,
        file=str(run.arguments.get("benchmark") or ""),
        model=run.model,
        executor=run.agent,
        stimuli=_StoredStimuli(trials),
        variant=_variant(run),
        run_id=run.id,
        score=run.score,
        read_trials=trials.read,
    )


def _place_in(job: JobView, run: RunView) -> int:
    return next((at for at, one in enumerate(job.runs) if one.id == run.id), 0)


class _StoredTrials:
    """Trials of a run that a tracker has, read page by page."""

    def __init__(self, opened: Tracker, run: RunView, job: Json | None, kept: KeptFiles | None) -> None:
        self._opened = opened
        self._run = run
        self._job = job
        self._kept = kept

    @cached_property
    def planned(self) -> Counter[str]:
        """How many trials each task was to have, in the order of the plan."""
        return self._looked[0]

    @cached_property
    def _looked(self) -> tuple[Counter[str], float]:
        """Look at all of them once: what one counts depends on the others."""
        planned: Counter[str] = Counter()
        worst = 0.0
        for view in each_trial(self._opened, self._run.id, detail="scores"):
            if view.state != TrialState.SKIPPED:
                planned[view.task_id] += 1
                worst = min(worst, worst_score([view.score if view.state == TrialState.FINISHED else None]))
        return planned, worst

    def read(self) -> Iterator[TrialResult]:
        """Yield those that ended, in the order of the plan."""
        # Where each task has one trial, and no score is below 0, nothing depends on the others.
        alone = self._run.arguments.get("trials") == 1 and self._run.score.fraction and not self._run.ingested
        planned, worst = (None, 0.0) if alone else self._looked
        ended = (TrialState.FINISHED, TrialState.ERROR)
        place = self._kept.fetch(self._opened, self._run.id) if self._kept else None
        for view in each_trial(self._opened, self._run.id, states=ended, detail="result"):
            result = view.result if view.state == TrialState.FINISHED else None
            kept = self._left(place, view) if place else {}
            count = planned[view.task_id] if planned else 1
            yield _trial(self._run, view, result or {}, worst, count, job=self._job, **kept)

    def _left(self, place: Path, view: TrialView) -> Json:
        """Return the trial's trajectory and log, as far as they were kept."""
        assert self._kept is not None
        own = place / encode_task_id(view.task_id) / (str(view.k) if view.k else "")
        log = own / LOG
        return {
            "transcript": read_record(own, id=f"{view.task_id}#{view.k}", stimulus=view.task_id),
            "log": log.relative_to(self._kept.folder.parent) if self._kept.logs and log.is_file() else None,
        }


class _StoredStimuli(Sequence[StimulusResult]):
    """Stimuli of a run that a tracker has, read when one is asked for: not every form needs them."""

    def __init__(self, trials: _StoredTrials) -> None:
        self._trials = trials

    @cached_property
    def _all(self) -> Sequence[StimulusResult]:
        planned = self._trials.planned
        by_task: dict[str, list[TrialResult]] = {task: [] for task in planned}
        for trial in self._trials.read():
            by_task.setdefault(trial.stimulus, []).append(trial)
        return [StimulusResult(name, "", trials, planned[name]) for name, trials in by_task.items()]

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> StimulusResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[StimulusResult]: ...
    def __getitem__(self, index: int | slice) -> StimulusResult | Sequence[StimulusResult]:
        return self._all[index]


def _trial(
    run: RunView, view: TrialView, result: Json, worst: float, planned: int, **kept: Any
) -> TrialResult:
    """Make one record; `kept` has its job, trajectory and log (a copy with them would cost a fifth more)."""
    zero = view.counts_as_zero
    failed = view.state == TrialState.ERROR and not zero
    threshold = result.get("threshold")
    passed = view.passed if view.passed is not None else None if view.score is None else view.score >= 1.0
    return TrialResult(
        eval_name=run.benchmark,
        stimulus=view.task_id,
        index=view.k,
        model=run.model,
        executor=run.agent,
        variant=_variant(run),
        duration_ms=round(1000 * float(view.timing.get("agent") or 0.0), 1),
        score=None if failed else worst if zero else view.score,
        passed=None if failed else False if zero else passed,
        graders=_graders(result),
        constraints=ConstraintResult.read_all(result.get("constraints")),
        fault=_fault(view) if failed else None,
        attempts=view.attempts,
        run_id=run.id,
        threshold=threshold if isinstance(threshold, int | float) else None,
        verification=_verification(view, zero=zero),
        planned=planned,
        fraction=run.score.fraction,
        family=view.family,
        ingested=run.ingested,
        reason=view.reason,
        exit_code=view.exit_code,
        exit_reason=view.exit_reason,
        usage=_usage(view),
        **kept,
    )


def _usage(view: TrialView) -> Json | None:
    """Return what it used, in the words of records; its cost is that of all its attempts."""
    if view.usage is None and view.cost is None:
        return None
    tokens = (
        {
            "inputTokens": view.usage.input_tokens,
            "cacheReadTokens": view.usage.cached_tokens,
            "outputTokens": view.usage.output_tokens,
        }
        if view.usage
        else {}
    )
    return tokens | ({} if view.cost is None else {"cost": view.cost})


def _verification(view: TrialView, *, zero: bool) -> ScoreVerification | None:
    found = ScoreVerification(view.confirmed, view.score_confirmed, view.evidence)
    if zero:
        found = replace(found, category=view.category, cause=view.cause or "agent", message=view.message)
    return found if found != ScoreVerification() else None


def _graders(result: Json) -> list[GraderResult]:
    """Return what graders found; a service may call something else so, which says nothing here."""
    listed = result.get("graders")
    found: list[GraderResult] = []
    for one in listed if isinstance(listed, list) else ():
        with contextlib.suppress(ValueError, OverflowError):
            found += [grader_of(one)] if isinstance(one, dict) else []
    return found


def _fault(view: TrialView) -> TrialFault:
    cause = view.cause or "internal"
    return TrialFault(fault_kind(cause), view.message or cause, view.category or "internal", cause)


def _variant(run: RunView) -> str:
    return str(run.arguments.get("variant") or "main")
