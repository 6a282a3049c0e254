"""What looks wrong with a run that goes on: slow trials, room that is not used, more errors than before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from valkyrie.report.formats import duration, plural, trial_name

if TYPE_CHECKING:
    from valkyrie.views import RunView, TrialView

LONG_S = 30 * 60.0
SETTLING_S = 60.0
"""A run that was just started has no work in hand yet, and that is no alarm."""
ACTIVE = ("BUILDING", "IN_PROGRESS", "EVALUATING")
ENDED = ("FINISHED", "ERROR")
LAST_ENDED = 20
"""So many trials that ended last are held against all before."""
_NAMED = 3


def alarms(run: RunView, trials: Sequence[TrialView], now: float) -> list[str]:
    """Sentences; none when all is well.

    `trials` are the longest active ones, some that are pending, and the last that ended.
    """
    if run.state != "IN_PROGRESS":
        return []
    return [*_long(run, trials, now), *_idle_room(run, trials, now), *_failing(run, trials)]


def _long(run: RunView, trials: Sequence[TrialView], now: float) -> list[str]:
    late = [
        (now - trial.started_at, trial)
        for trial in trials
        if trial.state in ACTIVE and trial.started_at is not None and now - trial.started_at > LONG_S
    ]
    if not late:
        return []
    late.sort(key=lambda item: -item[0])
    named = ", ".join(f"{trial_name(trial)} ({duration(seconds)})" for seconds, trial in late[:_NAMED])
    shown = sum(trial.state in ACTIVE for trial in trials)
    least = "at least " if len(late) == shown < _active(run) else ""
    more = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
    verb = "is" if len(late) == 1 else "are"
    return [f"{least}{plural(len(late), 'trial')} {verb} under way for more than 30 min: {named}{more}"]


def _idle_room(run: RunView, trials: Sequence[TrialView], now: float) -> list[str]:
    pending, active = run.counts.get("PENDING", 0), _active(run)
    if not pending or run.executor != "alive" or run.note or now - run.created_at < SETTLING_S:
        return []
    seen = [trial for trial in trials if trial.state == "PENDING"]
    if seen and all(trial.retry_at is not None and trial.retry_at > now for trial in seen):
        return []  # each waits for its next attempt
    if not active:
        return [
            f"{plural(pending, 'trial')} pending and none in progress, although an executor is alive; "
            "valk queue status says what the others have"
        ]
    if active < run.concurrency:
        return [
            f"{active} of {run.concurrency} trials at once, although {pending} are pending: there is no room "
            "for more, or runs before it in the queue take it (valk queue status)"
        ]
    return []


def _failing(run: RunView, trials: Sequence[TrialView]) -> list[str]:
    """Say that most of what ended of late failed, and less of what ended before."""
    last = [trial for trial in trials if trial.state in ENDED]
    failed = sum(trial.state == "ERROR" for trial in last)
    if len(last) < LAST_ENDED or 2 * failed < len(last):
        return []
    before = sum(run.counts.get(state, 0) for state in ENDED) - len(last)
    failed_before = max(0, run.counts.get("ERROR", 0) - failed)
    if before > 0 and failed * before <= 2 * failed_before * len(last):
        return []
    earlier = f", {failed_before} of {before} before" if before > 0 else ""
    return [f"{failed} of the last {len(last)} trials that ended failed{earlier}; valk run errors says why"]


def _active(run: RunView) -> int:
    return sum(run.counts.get(state, 0) for state in ACTIVE)
