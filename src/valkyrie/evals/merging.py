"""Results of shards put together again: every trial once, and nothing mixed that is not the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from valkyrie.errors import UserError
from valkyrie.evals.gathering import invocation_of
from valkyrie.evals.ingested_trials import Times, beside, plain
from valkyrie.evals.ingesting import find_results
from valkyrie.evals.records import RecordError, read_lines
from valkyrie.evals.results import Invocation, TrialResult
from valkyrie.report.formats import plural

SHOWN = 5
Slot = tuple[str, str, str | None, str, int]
"""Variant, eval, model, stimulus, trial."""


@dataclass(frozen=True, slots=True)
class _Found:
    trial: TrialResult
    file: Path
    at: str
    """When it was graded, or its results were written; later is greater."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What several folders hold together."""

    invocation: Invocation
    files: int
    repeated: int
    """Trials that were there more than once and the same."""
    replaced: int
    """Trials of which only the newest counts."""


def merge(folders: Sequence[Path], *, prefer_newest: bool = False) -> Merged:
    """All trials of these folders' results. Raises UserError for what contradicts itself."""
    files = list(dict.fromkeys(path.resolve() for folder in folders for path in find_results(folder)))
    found = [one for file in files for one in _read(file)]
    if not found:
        raise UserError("There is no trial in these results: nothing to merge.", cause="no_results")
    _refuse_mixed(found)
    slots: dict[Slot, _Found] = {}
    conflicts: list[str] = []
    repeated = replaced = 0
    for one in found:
        slot = _slot(one.trial)
        known = slots.get(slot)
        if known is None:
            slots[slot] = one
        elif plain(known.trial) == plain(one.trial):
            repeated += 1
        elif prefer_newest:
            replaced += 1
            slots[slot] = max(known, one, key=lambda each: each.at)
        else:
            conflicts.append(f"{_called(slot)}: {known.file} and {one.file}")
    if conflicts:
        raise _refused(conflicts)
    trials = _of_one_run([one.trial for one in slots.values()])
    return Merged(invocation_of(trials), len(files), repeated, replaced)


def _read(file: Path) -> list[_Found]:
    try:
        trials = read_lines(file)
    except RecordError as error:
        raise UserError(f"{file}: {error}", cause=error.cause) from error
    written = f"{Times.of(file).at:020.3f}"
    return [_Found(_with_files(trial, file), file, trial.graded_at or written) for trial in trials]


def _with_files(trial: TrialResult, file: Path) -> TrialResult:
    """With whole paths of what lies beside its results."""
    return replace(
        trial,
        session_log=beside(trial.session_log, file),
        artifacts=beside(trial.artifacts, file),
        patch=beside(trial.patch, file),
    )


def _slot(trial: TrialResult) -> Slot:
    return trial.variant, trial.eval_name, trial.model, trial.stimulus, trial.index


def _called(slot: Slot) -> str:
    variant, name, model, stimulus, index = slot
    return f"{variant} / {name}{f' [{model}]' if model else ''} / {stimulus} / trial {index + 1}"


def _refuse_mixed(found: Sequence[_Found]) -> None:
    """One experiment, and of each eval under each variant one configuration."""
    names: dict[str, Path] = {}
    configurations: dict[tuple[str, str], tuple[str, Path]] = {}
    for one in found:
        about = one.trial.experiment or {}
        if isinstance(name := about.get("name"), str):
            names.setdefault(name, one.file)
        if isinstance(digest := about.get("configHash"), str):
            key = (one.trial.variant, one.trial.eval_name)
            known, file = configurations.setdefault(key, (digest, one.file))
            if known != digest:
                raise UserError(
                    f"{' / '.join(key)} ran with different configurations in {file} and {one.file}: they "
                    "cannot be merged. Leave one of them out.",
                    cause="changed",
                )
    if len(names) > 1:
        said = ", ".join(f"{name!r} ({file})" for name, file in names.items())
        raise UserError(f"These are results of different experiments: {said}.", cause="changed")


def _refused(conflicts: Sequence[str]) -> UserError:
    more = f"\n… and {len(conflicts) - SHOWN} more" if len(conflicts) > SHOWN else ""
    lines = "".join(f"\n  {one}" for one in conflicts[:SHOWN])
    have = "trial has" if len(conflicts) == 1 else "trials have"
    return UserError(
        f"{len(conflicts)} {have} different results in two places; `--prefer newest` takes the later ones:"
        f"{lines}{more}",
        cause="conflict",
    )


def _of_one_run(trials: Sequence[TrialResult]) -> list[TrialResult]:
    """Shards ran as runs, and in folders, of their own; together they are one eval."""
    groups: dict[tuple[str, str, str | None], list[TrialResult]] = {}
    for trial in trials:
        groups.setdefault((trial.variant, trial.eval_name, trial.model), []).append(trial)
    merged: list[TrialResult] = []
    for members in groups.values():
        runs = {trial.run_id for trial in members}
        run_id = next(iter(runs)) if len(runs) == 1 else None
        order = {name: at for at, name in enumerate(dict.fromkeys(one.stimulus for one in members))}
        members.sort(key=lambda one: (order[one.stimulus], one.index))
        merged += [replace(one, run_id=run_id, eval_file=members[0].eval_file) for one in members]
    return merged


def told(merged: Merged) -> str:
    """What was merged, in one line."""
    trials = sum(len(one.trials) for one in merged.invocation.evals)
    also = f", {merged.repeated} of them twice" if merged.repeated else ""
    newest = f", {merged.replaced} by a newer result" if merged.replaced else ""
    return f"{plural(trials, 'trial')} from {plural(merged.files, 'file')}{also}{newest}"
