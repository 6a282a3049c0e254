"""A run's scores and what they are taken over, from its row alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from valkyrie.nouns import Category, RunState, TrialState
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS


@dataclass(frozen=True, slots=True)
class RunScores:
    """The named numbers of docs/concepts/score."""

    final_score: float | None
    score_graded: float | None
    score_confirmed: float | None
    """None: not known, or nothing was graded yet."""
    score_low: float | None
    """If every ungraded trial had failed."""
    score_high: float | None
    """If every ungraded trial had passed."""
    graded: int
    zeroed: int
    """Trials without a grade that ended by the agent's doing: each counts 0."""
    planned: int
    confirmed: int
    """Passes that were seen in a fresh sandbox."""
    unconfirmed: int | None
    """Passes that were only seen in the sandbox the agent left; None: not known."""
    open_to_tampering: int
    """Graded trials whose tests ran in the sandbox the agent left, or beside its processes."""

    @property
    def counted(self) -> int:
        return self.graded + self.zeroed

    @property
    def ungraded(self) -> int:
        """Trials that say nothing about the agent: they failed for other reasons, or have not ended."""
        return self.planned - self.counted

    @property
    def coverage(self) -> float:
        return self.counted / self.planned if self.planned else 0.0


def state_counts(row: Any) -> dict[str, int]:
    """Return a run's trials by state; SKIPPED is there only where some are."""
    counts = {state: int(getattr(row, name)) for state, name in STATE_COUNTERS.items()}
    return {state.value: n for state, n in counts.items() if n or state is not TrialState.SKIPPED}


def run_scores(row: Any) -> RunScores:
    """The numbers of a run's row; while it goes on, those of what was graded so far."""
    graded = row.n_finished
    zeroed = getattr(row, ERROR_COUNTERS[Category.AGENT])
    planned = sum(
        getattr(row, name) for state, name in STATE_COUNTERS.items() if state is not TrialState.SKIPPED
    )
    counted, ended = graded + zeroed, RunState(row.state).terminal
    known = row.n_verified == graded
    so_far = row.score_sum / counted if counted and row.fraction else None
    confirmed_so_far = row.confirmed_sum / counted if counted and row.fraction and known else None
    final = _finite(row.final_score) if ended else None
    low, high = _range(row, planned, planned - counted, final if ended else so_far)
    if ended and not counted:  # nothing is known: that is no score of 0
        final = low = high = None
    said = ended and counted
    return RunScores(
        final_score=final,
        score_graded=_finite(row.score_graded) if said and row.score_graded is not None else so_far,
        score_confirmed=_finite(row.score_confirmed) if said else confirmed_so_far,
        score_low=low,
        score_high=high,
        graded=graded,
        zeroed=zeroed,
        planned=planned,
        confirmed=row.n_confirmed,
        unconfirmed=row.n_passed - row.n_confirmed if known else None,
        open_to_tampering=row.n_open,
    )


def _range(row: Any, planned: int, ungraded: int, score: float | None) -> tuple[float | None, float | None]:
    """What the score would be if all ungraded trials had failed, and if all had passed.

    Known where scores are fractions. The benchmark's own function said it when the run ended; else every
    trial has the same weight.
    """
    if not row.fraction or not planned:
        return None, None
    if not ungraded and score is not None:
        return score, score
    if not RunState(row.state).terminal or score is None:
        return row.score_sum / planned, (row.score_sum + ungraded) / planned
    said = row.final_evaluation or {}
    if said.get("score_low") is not None and said.get("score_high") is not None:
        return said["score_low"], said["score_high"]
    return score, min(1.0, score + ungraded / planned)


def _finite(number: float | None) -> float | None:
    """What is no number is no score."""
    return number if number is not None and math.isfinite(number) else None
