"""What runs left: results files, results that came about elsewhere, and gradings of kept work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from valkyrie.views.runs import RunView


@dataclass(frozen=True, slots=True)
class ResultsLink:
    """Where a results file was uploaded to."""

    url: str
    """s3://bucket/key, or a file's address."""
    download_url: str | None
    """Good for a day, for whoever has it."""
    console_url: str | None = None


@dataclass(frozen=True, slots=True)
class IngestedRun:
    """What became of one run that came about elsewhere."""

    run_id: str
    """Here."""
    name: str
    """For people."""
    status: str
    """`stored`, `known` (it was here already) or `replaced`; `would be …` where nothing was to be stored."""
    trials: int
    errors: int
    """Trials that ended without a grade."""
    file: str
    """The file that says so."""
    notices: Sequence[str] = ()


# Gradings of a run: kept work graded again, which of them is in use, how two of them differ.


@dataclass(frozen=True, slots=True)
class RegradeRequest:
    """How kept work is graded again; without `tests` and `judge` as it was graded before."""

    tests: str | None = None
    """A folder of task directories, or a benchmark: its tests are used for the tasks of the same id."""
    judge: str | None = None
    """The model that judges the trials of an eval instead."""
    task_ids: Sequence[str] | None = None
    dry_run: bool = False
    """Say what would be graded again, and change nothing."""


@dataclass(frozen=True, slots=True)
class TrialLeftOut:
    """A trial that keeps its verdict, and why it cannot be graded again."""

    task_id: str
    k: int
    reason: str


@dataclass(frozen=True, slots=True)
class RegradeView:
    """What is graded again."""

    run: RunView
    number: int
    """Of the grading; 0 is the one the run's own trials made."""
    base: int
    """The grading in use before, whose verdicts the other trials keep."""
    trials: Sequence[tuple[str, int]]
    """(task id, k) of those that are graded again."""
    left_out: Sequence[TrialLeftOut]
    notices: Sequence[str]
    started: bool
    """False where nothing was to be changed."""


@dataclass(frozen=True, slots=True)
class GradingView:
    """One grading of a run."""

    number: int
    created_at: float
    finished_at: float | None
    started_by: str | None
    tests: str | None
    judge: str | None
    trials: int | None
    """How many trials it graded again; None for grading 0."""
    base: int | None
    """The grading whose verdicts the other trials keep."""
    in_use: bool
    state: Literal["ended", "under way", "dropped", "outdated"]
    """outdated: agents ran again after it, so that it is not of the run's present work."""
    final_score: float | None
    score_graded: float | None
    score_confirmed: float | None


@dataclass(frozen=True, slots=True)
class GradingChange:
    """One trial that two gradings judge differently."""

    task_id: str
    k: int
    kind: Literal["now passes", "now fails", "score", "now graded", "no longer graded"]
    score_a: float | None
    score_b: float | None
    passed_a: bool | None
    passed_b: bool | None
    attempt_a: int | None
    attempt_b: int | None


@dataclass(frozen=True, slots=True)
class GradingComparison:
    """Two gradings of one run beside each other."""

    run_id: str
    a: GradingView
    b: GradingView
    trials: int
    same: int
    """Trials with the same verdict in both."""
    changes: Sequence[GradingChange]
    fraction: bool
    """Scores are 0..1 and print as per cent."""
