"""Two sides as if they were two runs: one set of rules, tables, tests and sentences serves both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from valkyrie.evals.comparing.record import FolderComparison
from valkyrie.evals.comparing.sides import ResultSide
from valkyrie.evals.results import TrialResult
from valkyrie.evals.run_views import is_fraction, run_of, views_of
from valkyrie.nouns import INGESTED
from valkyrie.report.comparing import Metric, Summary, summarise
from valkyrie.views import RunView, TrialView

BASELINE, TREATMENT = "baseline", "treatment"


def summary_of(compared: FolderComparison, metric: Metric, margin: float | None = None) -> Summary:
    """Return each side's numbers over all its trials, and the paired comparison, as of runs of the store.

    `margin` is the difference that counts as none, 2 points unless said.
    """
    matched = compared.matched
    fraction = is_fraction([*compared.baseline.trials, *compared.treatment.trials])
    runs = [
        _run(BASELINE, compared.baseline, matched.baseline, fraction=fraction),
        _run(TREATMENT, compared.treatment, matched.treatment, fraction=fraction),
    ]
    names = [compared.baseline.name, compared.treatment.name]
    return summarise(runs, metric=metric, names=names, margin=margin)


def _run(
    id: str, side: ResultSide, tasks: Mapping[str, Sequence[TrialResult]], *, fraction: bool
) -> tuple[RunView, Sequence[TrialView]]:
    first = side.trials[0]
    planned = {task: max(trial.planned or 0 for trial in own) for task, own in tasks.items()}
    trials = views_of(tasks, planned)
    agent = first.executor or side.name
    folder = str(side.folder)
    run = run_of(id, agent=agent, model=first.model, trials=trials, fraction=fraction, folder=folder)
    return replace(run, provider=INGESTED if any(one.ingested for one in side.trials) else ""), trials
