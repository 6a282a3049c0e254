"""Results that came about elsewhere as runs of this store: seen by `run list`, `compare` and `run results`.

A folder of eval results is one run per (eval × model × variant), that of a benchmark runner is one run. The
same results are stored once, however often they are ingested; nothing of such a run can go on here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.client.result_sources import RESULTS, ResultSource, find_sources
from valkyrie.errors import UserError
from valkyrie.evals.foreign import ForeignRun
from valkyrie.evals.ingest_storing import Replacing, known_runs, store
from valkyrie.tracker.bounds import check_text
from valkyrie.views import IngestedRun

if TYPE_CHECKING:
    from valkyrie.tracker.local import LocalTracker
    from valkyrie.tracker.protocol import Tracker


def find_results(folder: Path) -> list[Path]:
    """Every results.jsonl in or below a folder, or the file itself."""
    found = [source.file for source in find_sources(folder) if source.kind == "eval"]
    if not found:
        raise UserError(
            f"{folder} has no {RESULTS}, nor has any folder below it. The run of a benchmark runner is "
            "ingested first (`valk ingest`).",
            cause="no_results",
        )
    return found


def read_runs(folders: Sequence[Path]) -> list[ForeignRun]:
    """All foreign runs of these folders, each once, every one with a trial."""
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
        from valkyrie.evals.foreign_runner import read_runner

        return [read_runner(source.file)]
    from valkyrie.evals.foreign_results import read_results

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
    from valkyrie.tracker.local import LocalTracker
    from valkyrie.tracker.remote import RemoteTracker

    check_text("label", label)
    runs = read_runs(folders)
    if isinstance(opened, RemoteTracker):
        return opened.ingest(folders, label=label, dry_run=dry_run, replace=replace)
    assert isinstance(opened, LocalTracker)
    return ingest_runs(opened, runs, label=label, dry_run=dry_run, replace=replace)


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
