"""Results that came about elsewhere as runs of this store: seen by `run list`, `compare` and `run results`.

Each (eval × model × variant) of a folder is one run. The same results are stored once, however often they are
ingested; nothing of such a run can go on here.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from valkyrie.digest import content_digest
from valkyrie.errors import UnknownError, UserError
from valkyrie.evals.ingested_trials import Times, ended_trial, keep_files, plain
from valkyrie.nouns import Grade, Json
from valkyrie.report.formats import plural

if TYPE_CHECKING:
    from valkyrie.evals.results import TrialResult
    from valkyrie.store.ingesting import EndedTrial
    from valkyrie.tracker.local import LocalTracker

DEEPEST = 4
"""So many folders below the named one results are looked for, such as <timestamp>/<variant>/results.jsonl."""
UNNAMED = "eval"
"""What records are read as that do not name their eval."""
MOST_TRIALS = 1_000_000
"""Of one stimulus; a record with a number beyond it is numbered anew."""
_SPACE = uuid.UUID("1e4be8c9-33f8-4f6c-9d15-1c5a3c1f8f0e")
"""Ids of ingested runs are made in it: the same results are the same run."""


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """One eval with one model and variant, as some results.jsonl has it."""

    file: Path
    eval_name: str
    model: str | None
    variant: str
    executor: str | None
    trials: Sequence[TrialResult]
    digest: str
    """Of everything its trials say, in whatever order."""
    notices: Sequence[str] = ()

    @property
    def run_id(self) -> str | None:
        """What whoever made it calls it."""
        found = {trial.run_id for trial in self.trials}
        return next(iter(found)) if len(found) == 1 else None

    def id_here(self, org_id: str) -> str:
        """The id it has, or would have, in this store."""
        named = f"{self.run_id or self.digest} {self.eval_name} {self.model} {self.variant}"
        return str(uuid.uuid5(_SPACE, f"{org_id} {named}"))

    @property
    def label(self) -> str:
        """`eval [model] variant`, for people."""
        model = f" [{self.model}]" if self.model else ""
        return f"{self.eval_name}{model}" + (f" {self.variant}" if self.variant != "main" else "")


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of one foreign run."""

    run_id: str
    name: str
    status: str
    """`stored`, `known` (it was here already), `would be stored` (--dry-run)."""
    trials: int
    errors: int
    file: str
    notices: Sequence[str] = ()


def find_results(folder: Path) -> list[Path]:
    """Every results.jsonl in or below a folder, or the file itself."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise UnknownError(f"No folder {folder}; name one with a results.jsonl in or below it.")
    patterns = ("/".join([*["*"] * depth, "results.jsonl"]) for depth in range(DEEPEST + 1))
    found = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    if not found:
        raise UserError(
            f"{folder} has no results.jsonl, nor has any folder below it: nothing to ingest.",
            cause="no_results",
        )
    return found


def read_runs(folders: Sequence[Path]) -> list[ForeignRun]:
    """All foreign runs of these folders, each once."""
    from valkyrie.evals.records import RecordError, read_lines

    runs: dict[tuple[Any, ...], ForeignRun] = {}
    for file in dict.fromkeys(path for folder in folders for path in find_results(folder)):
        try:
            trials = read_lines(file)
        except RecordError as error:
            raise UserError(f"{file}: {error}", cause=error.cause) from error
        for run in _grouped(file, trials):
            runs.setdefault((run.digest, run.eval_name, run.model, run.variant), run)
    if not any(run.trials for run in runs.values()):
        why = "; ".join(dict.fromkeys(notice for run in runs.values() for notice in run.notices))
        said = why or "there is no trial in these results"
        raise UserError(f"Nothing to ingest: {said}.", cause="no_results")
    return list(runs.values())


def _grouped(file: Path, trials: Sequence[TrialResult]) -> list[ForeignRun]:
    """By eval, model, variant and run. An error may name no model: then it is the only one of the others."""
    models: dict[tuple[str, str, str | None], set[str]] = {}
    for trial in trials:
        if trial.model:
            models.setdefault((_name(trial), _variant(trial), trial.run_id), set()).add(trial.model)
    groups: dict[tuple[str, str | None, str, str | None], list[TrialResult]] = {}
    for trial in trials:
        variant = _variant(trial)
        others = models.get((_name(trial), variant, trial.run_id), set())
        model = trial.model or (next(iter(others)) if len(others) == 1 else None)
        groups.setdefault((_name(trial), model, variant, trial.run_id), []).append(trial)
    return [
        ForeignRun(
            file=file,
            eval_name=name,
            model=model,
            variant=variant,
            executor=next((trial.executor for trial in members if trial.executor), None),
            **_checked(members),
        )
        for (name, model, variant, _run), members in groups.items()
    ]


def _name(trial: TrialResult) -> str:
    """The eval's; where a record names none, that of the folder its file is in."""
    if trial.eval_name == UNNAMED and trial.eval_file:
        return PurePath(trial.eval_file).parent.name or UNNAMED
    return trial.eval_name


def _variant(trial: TrialResult) -> str:
    return str((trial.experiment or {}).get("variant") or trial.variant)


def _checked(trials: Sequence[TrialResult]) -> Json:
    """Trials that can be stored, each with an index of its own, and what is to be said of the others."""
    kept: dict[tuple[str, int], TrialResult] = {}
    ungraded = again = 0
    for trial in trials:
        if trial.passed is None and trial.fault is None:
            ungraded += 1
            continue
        index = trial.index if 0 <= trial.index < MOST_TRIALS else 0
        while (known := kept.get((trial.stimulus, index))) and plain(known) != plain(trial):
            index += 1
        again += index != trial.index
        kept[trial.stimulus, index] = replace(trial, index=index)
    notices = []
    if ungraded:
        notices.append(
            f"{plural(ungraded, 'trial')} without a verdict left out; `valkyrie grade` grades them"
        )
    if again:
        notices.append(
            f"{plural(again, 'trial')} had the number of another of the stimulus, and got a new one"
        )
    digest = content_digest(sorted(content_digest(plain(trial)) for trial in kept.values()))
    return {"trials": list(kept.values()), "digest": digest, "notices": notices}


def ingest(
    opened: LocalTracker, runs: Sequence[ForeignRun], *, label: str | None = None, dry_run: bool = False
) -> list[Ingested]:
    """Store what is not stored yet, all in one transaction; what a failure leaves is nothing."""
    known = _known(opened, runs)
    fresh = [run for run in runs if run.trials and run.id_here(opened.identity.org_id) not in known]
    if not dry_run and fresh:
        _store(opened, fresh, label)
    return [_said(opened, run, known, dry_run=dry_run) for run in runs if run.trials]


def _known(opened: LocalTracker, runs: Sequence[ForeignRun]) -> dict[str, str]:
    """Ids here → ids of the runs they are already: ingested before, or our own."""
    from valkyrie.store import ingesting

    org_id = opened.identity.org_id
    ids = {run.id_here(org_id): run for run in runs}
    own = [run.run_id for run in runs if run.run_id]
    with opened.store.reading() as connection:
        found = ingesting.known(connection, [*ids, *own], org_id)
    known: dict[str, str] = {}
    for run_id, run in ids.items():
        if run.run_id in found:
            known[run_id] = run.run_id
        elif run_id in found:
            before = (found[run_id].get("ingested") or {}).get("digest")
            if before != run.digest:
                raise UserError(
                    f"{run.file}: {run.label} (run {run.run_id}) was ingested before with other results, as "
                    f"run {run_id[:8]}. `valk run delete {run_id[:8]}` first, to take these instead.",
                    cause="changed",
                )
            known[run_id] = run_id
    return known


def _store(opened: LocalTracker, runs: Sequence[ForeignRun], label: str | None) -> None:
    from valkyrie.store import ingesting

    made: list[Path] = []
    try:
        rows: list[tuple[Json, list[EndedTrial]]] = []
        for run in runs:
            folder = opened.data.run(run.id_here(opened.identity.org_id))
            if not folder.root.exists():
                made.append(folder.root)
            times = Times.of(run.file)
            for trial in run.trials:
                keep_files(trial, folder.attempt(trial.stimulus, trial.index, 1), run.file)
            trials = [ended_trial(trial, times) for trial in run.trials]
            rows.append((_values(opened, run, trials, label), trials))
        with opened.store.writing() as connection:
            for values, trials in rows:
                ingesting.store_ended(connection, values, trials)
    except BaseException:
        for root in made:
            shutil.rmtree(root, ignore_errors=True)
        raise


def _values(opened: LocalTracker, run: ForeignRun, trials: Sequence[EndedTrial], label: str | None) -> Json:
    """The columns of its row."""
    from valkyrie.benchmarks.ingested import IngestedBenchmark

    benchmark = IngestedBenchmark(run.eval_name)
    final, graded = asyncio.run(_scored(benchmark, trials))
    agent = run.executor or "unknown"
    started = min(trial.started_at for trial in trials)
    return {
        "id": run.id_here(opened.identity.org_id),
        "org_id": opened.identity.org_id,
        "agent": agent,
        "model": run.model,
        "benchmark": run.eval_name,
        "dataset": "default",
        "label": label or (run.variant if run.variant != "main" else None),
        "provider": "ingested",
        "started_by": opened.identity.person,
        "concurrency": 1,
        "fraction": True,
        "created_at": started,
        "started_at": started,
        "finished_at": max(trial.finished_at for trial in trials),
        "arguments": {
            "agent": agent,
            "benchmark": run.eval_name,
            "model": run.model,
            "dataset": "default",
            "trials": max(trial.k for trial in trials) + 1,
            "variant": run.variant,
            "ingested": {
                "digest": run.digest,
                "run_id": run.run_id,
                "file": str(run.file.absolute()),
                "experiment": next((trial.experiment for trial in run.trials if trial.experiment), None),
            },
        },
        "agent_frozen": {},
        "benchmark_source": benchmark.source,
        "enforcement": {},
        "final_evaluation": final,
        "final_score": final["final_score"],
        "score_graded": graded,
    }


async def _scored(benchmark: Any, trials: Sequence[EndedTrial]) -> tuple[Json, float | None]:
    from valkyrie.benchmarks.scoring import computed

    grades: dict[str, list[Grade | None]] = {}
    for trial in trials:
        graded = trial.category is None
        grades.setdefault(trial.task_id, []).append(
            Grade(trial.score, trial.passed, trial.result or {}) if graded else None
        )
    return await computed(benchmark, grades, "default")


def _said(opened: LocalTracker, run: ForeignRun, known: dict[str, str], *, dry_run: bool) -> Ingested:
    run_id = run.id_here(opened.identity.org_id)
    status = "known" if run_id in known else "would be stored" if dry_run else "stored"
    return Ingested(
        run_id=known.get(run_id, run_id),
        name=run.label,
        status=status,
        trials=len(run.trials),
        errors=sum(1 for trial in run.trials if trial.fault is not None),
        file=str(run.file),
        notices=run.notices,
    )
