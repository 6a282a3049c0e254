"""Read results from a folder, a results.jsonl or an archive that was sent, and store them as runs."""

from __future__ import annotations

import calendar
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from dataclasses import replace as changed
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, cast

from benchmark_runner.archive import OpenArchive, open_archive
from valkyrie.client.files import RESULTS, ResultSource, find_sources
from valkyrie.domain import Json, content_digest
from valkyrie.errors import UserError, ValkyrieError
from valkyrie.evals.figures import is_fraction
from valkyrie.evals.records import read_results_file
from valkyrie.ingest.runner_folder import read_runner
from valkyrie.ingest.storage import Replacing, known_runs, store
from valkyrie.ingest.trials import (
    ForeignRun,
    ForeignTrial,
    Times,
    ended_trial,
    keep_files,
    plain,
    source_text,
)
from valkyrie.report.formats import plural
from valkyrie.tracker.checks import check_text
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import IngestedRun

if TYPE_CHECKING:
    from valkyrie.evals.results import TrialResult
    from valkyrie.tracker.protocol import Tracker
    from valkyrie.tracker.remote import RemoteTracker


UNNAMED = "eval"
"""What records are read as that do not name their eval."""
MOST_INDEX = 1_000_000
"""Of one stimulus; a record with a number beyond it is numbered anew."""
_Group = tuple[str, str | None, str, str | None]
"""Eval, model, variant, run."""


def read_results(file: Path) -> list[ForeignRun]:
    trials = read_results_file(file)
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
    """Return what is remembered of the experiment a trial belongs to: texts of a bounded size."""
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


# Results that came about elsewhere as runs of this store: seen by `run list`, `compare` and `run results`.
#
# A folder of eval results is one run per (eval × model × variant), that of a benchmark runner is one run.
# The same results are stored once, however often they are ingested; nothing of such a run can go on here.


def find_results(folder: Path) -> list[Path]:
    """Return every results.jsonl in or below a folder, or the file itself."""
    found = [source.file for source in find_sources(folder) if source.kind == "eval"]
    if not found:
        raise UserError(
            f"{folder} has no {RESULTS}, nor has any folder below it. The run of a benchmark runner is "
            "ingested first (`valk ingest`).",
            cause="no_results",
        )
    return found


def read_runs(folders: Sequence[Path]) -> list[ForeignRun]:
    """Return all foreign runs of these folders, each once, every one with a trial."""
    runs: dict[tuple[str, str], ForeignRun] = {}
    sources = dict.fromkeys(source for folder in folders for source in find_sources(folder))
    for source in sources:
        for run in _read(source):
            run.check()
            runs.setdefault((run.digest, run.identity), run)
    if not any(run.trials for run in runs.values()):
        why = "; ".join(dict.fromkeys(notice for run in runs.values() for notice in run.notices))
        said = why or "there is no trial in these results"
        raise UserError(f"Nothing to ingest: {said}.", cause="no_results")
    return [run for run in runs.values() if run.trials]


def _read(source: ResultSource) -> list[ForeignRun]:
    if source.kind == "runner":
        return [read_runner(source.file)]

    return read_results(source.file)


def ingest(
    opened: Tracker,
    folders: Sequence[Path],
    *,
    label: str | None = None,
    dry_run: bool = False,
    replace: bool = False,
) -> Sequence[IngestedRun]:
    """Store what is not stored yet, here or at the tracker elsewhere; what a failure leaves is nothing.

    `replace`: a run that was ingested before and says something else now is replaced.
    """
    check_text("label", label)
    runs = read_runs(folders)
    if isinstance(opened, LocalTracker):
        return ingest_runs(opened, runs, label=label, dry_run=dry_run, replace=replace)
    return cast("RemoteTracker", opened).ingest(folders, label=label, dry_run=dry_run, replace=replace)


def ingest_runs(
    opened: LocalTracker,
    runs: Sequence[ForeignRun],
    *,
    label: str | None = None,
    dry_run: bool = False,
    replace: bool = False,
) -> list[IngestedRun]:
    """Store those of these runs that are not stored yet, all in one transaction."""
    _check_one_each(runs)
    before = known_runs(opened, runs, replace=replace)
    if not dry_run:
        before = store(opened, runs, before, Replacing(label, allowed=replace))
    return [_said(run, before[index], dry_run=dry_run) for index, run in enumerate(runs)]


def _check_one_each(runs: Sequence[ForeignRun]) -> None:
    """Two folders may hold the same run at two times of its life: which one is meant must be said."""
    seen: dict[str, ForeignRun] = {}
    for run in runs:
        other = seen.setdefault(run.identity, run)
        if other is not run:
            raise UserError(
                f"{other.source} and {run.source} are both {run.label} and say different things; ingest one.",
                cause="changed",
            )


def _said(run: ForeignRun, stored: tuple[str, str], *, dry_run: bool) -> IngestedRun:
    run_id, status = stored
    would = {"stored": "would be stored", "replaced": "would be replaced"}
    return IngestedRun(
        run_id=run_id,
        name=run.label,
        status=would.get(status, status) if dry_run else status,
        trials=len(run.trials),
        errors=run.errors,
        file=run.source,
        notices=list(run.notices),
    )


# Results that were sent: unpacked, read and stored, whoever packed them.

PREFIX = "results-"
"""Folders below the one archives come in at."""
STALE_S = 24 * 3600.0
MOST_RECORDS = 256 * 1024 * 1024
"""Bytes of all files that are held in memory while they are stored; artifacts and logs are not."""
_HELD = ("results.jsonl", "run_config.json", "final_score.json", "eval.json")


def ingest_archive(
    opened: LocalTracker,
    archive: Path,
    *,
    label: str | None = None,
    dry_run: bool = False,
    replace: bool = False,
) -> list[IngestedRun]:
    """Store the results in an archive (a zip of one top folder) beside which there is room to unpack it."""
    check_text("label", label)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=PREFIX) as folder:
        root = Path(folder)
        with _as_sent(archive, root):
            with open_archive(archive) as found:
                found.extract(root, lambda *_: None)
                _set_times(found, root)
                _check_records(found, root)
            runs = [changed(run, sent_as=run.file.relative_to(root).as_posix()) for run in read_runs([root])]
            return ingest_runs(opened, runs, label=label, dry_run=dry_run, replace=replace)


def sweep_unpacked(incoming: Path) -> None:
    """Remove what servers that were killed had unpacked."""
    for folder in incoming.glob(f"{PREFIX}*"):
        if folder.stat().st_mtime < time.time() - STALE_S:
            shutil.rmtree(folder, ignore_errors=True)


def _set_times(found: OpenArchive, root: Path) -> None:
    """Files are as old as the archive says, and none is from the future."""
    now = time.time()
    for member in found.members:
        if not member.is_folder:
            when = min(float(calendar.timegm((*member.info.date_time, 0, 0, 0))), now)
            os.utime(root / member.name, (when, when))


def _check_records(found: OpenArchive, root: Path) -> None:
    """A small archive can hold a great deal: a server has other things to remember."""
    held = (root / one.name for one in found.members if one.name.rpartition("/")[2] in _HELD)
    size = sum(file.stat().st_size for file in held if file.is_file())
    if size > MOST_RECORDS:
        raise UserError(
            f"These results have {size >> 20} MiB besides artifacts and logs; {MOST_RECORDS >> 20} are taken "
            "at a time. Send fewer runs at once.",
            cause="too_large",
        )


@contextmanager
def _as_sent(archive: Path, root: Path) -> Iterator[None]:
    """Errors name files as they were sent: where they lie on this machine is its own affair."""
    try:
        yield
    except ValkyrieError as error:
        text = str(error).replace(f"{root}/", "").replace(str(root), "The archive")
        error.args = (text.replace(str(archive), "The archive"),)
        raise
