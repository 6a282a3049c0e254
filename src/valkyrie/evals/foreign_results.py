"""Each (eval × model × variant) of a results.jsonl as a foreign run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from valkyrie.digest import content_digest
from valkyrie.errors import UserError
from valkyrie.evals.foreign import ForeignRun, ForeignTrial, source_text
from valkyrie.evals.ingested_trials import Times, ended_trial, keep_files, plain
from valkyrie.evals.run_views import is_fraction
from valkyrie.nouns import Json
from valkyrie.report.formats import plural

if TYPE_CHECKING:
    from valkyrie.evals.results import TrialResult

UNNAMED = "eval"
"""What records are read as that do not name their eval."""
MOST_INDEX = 1_000_000
"""Of one stimulus; a record with a number beyond it is numbered anew."""
_Group = tuple[str, str | None, str, str | None]
"""Eval, model, variant, run."""


def read_results(file: Path) -> list[ForeignRun]:
    """The runs of one results.jsonl."""
    from valkyrie.evals.records import RecordError, read_lines

    try:
        trials = read_lines(file)
    except RecordError as error:
        raise UserError(f"{file}: {error}", cause=error.cause) from error
    times = Times.of(file)
    return [_run(file, group, members, times) for group, members in _grouped(trials).items()]


def _grouped(trials: Sequence[TrialResult]) -> dict[_Group, list[TrialResult]]:
    """By eval, model, variant and run. An error may name no model: then it is the only one of the others."""
    models: dict[tuple[str, str, str | None], set[str]] = {}
    for trial in trials:
        if trial.model:
            models.setdefault((_name(trial), _variant(trial), trial.run_id), set()).add(trial.model)
    groups: dict[_Group, list[TrialResult]] = {}
    for trial in trials:
        variant = _variant(trial)
        others = models.get((_name(trial), variant, trial.run_id), set())
        model = trial.model or (next(iter(others)) if len(others) == 1 else None)
        groups.setdefault((_name(trial), model, variant, trial.run_id), []).append(trial)
    return groups


def _run(file: Path, group: _Group, members: Sequence[TrialResult], times: Times) -> ForeignRun:
    name, model, variant, run_id = group
    trials, notices = _checked(members)
    digest = content_digest(sorted(content_digest(plain(trial)) for trial in trials))
    shown = f" [{model}]" if model else ""
    return ForeignRun(
        file=file,
        identity=f"{run_id or digest} {name} {model} {variant}",
        digest=digest,
        label=f"{name}{shown}" + (f" {variant}" if variant != "main" else ""),
        benchmark=name,
        agent=next((trial.executor for trial in members if trial.executor), None) or "unknown",
        model=model,
        variant=variant,
        run_id=run_id,
        fraction=is_fraction(trials),
        job=next((trial.job for trial in trials if trial.job), None),
        about={"experiment": next((_experiment(trial) for trial in trials if trial.experiment), None)},
        trials=[
            ForeignTrial(ended_trial(trial, times), partial(keep_files, trial, source=file))
            for trial in trials
        ],
        notices=notices,
    )


def _experiment(trial: TrialResult) -> Json:
    """What is remembered of the experiment a trial belongs to: texts of a bounded size."""
    told = trial.experiment or {}
    return {
        source_text(str(key), 100): source_text(value, 1000)
        for key, value in list(told.items())[:20]
        if isinstance(value, str)
    }


def _name(trial: TrialResult) -> str:
    """The eval's; where a record names none, that of the folder its file is in."""
    if trial.eval_name == UNNAMED and trial.eval_file:
        return PurePath(trial.eval_file).parent.name or UNNAMED
    return trial.eval_name


def _variant(trial: TrialResult) -> str:
    return str((trial.experiment or {}).get("variant") or trial.variant)


def _checked(trials: Sequence[TrialResult]) -> tuple[list[TrialResult], list[str]]:
    """Trials that can be stored, each with an index of its own, and what is to be said of the others."""
    kept: dict[tuple[str, int], TrialResult] = {}
    ungraded = again = 0
    for trial in trials:
        if trial.passed is None and trial.fault is None:
            ungraded += 1
            continue
        index = trial.index if 0 <= trial.index < MOST_INDEX else 0
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
    return list(kept.values()), notices
