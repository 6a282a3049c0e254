"""Gradings of a run: the one its own trials made (0), and those of kept work that was graded again.

A verdict is never deleted: each is an ended attempt with the number of its grading. A trial that a grading
did not grade has there the verdict of the grading it was started from. The trial's own row, the run's
counters and its final score are those of the grading in use (`run.grading`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, Row, func, insert, select, update

from valkyrie.domain import Category, Json, Outcome, RunState, TrialState
from valkyrie.errors import UnknownError, UserError
from valkyrie.store.counters import add_grade, count
from valkyrie.store.runs import locked, regrades_under_way
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, attempt, regrade, run, trial

if TYPE_CHECKING:
    from valkyrie.store.rows import RegradeRow, RunRow

_FINALS = ("final_score", "score_graded", "score_confirmed", "final_evaluation")
_VERDICT = (
    *("score", "passed", "confirmed", "score_confirmed", "evidence", "category", "cause", "message"),
    *("exit_code", "exit_reason", "result", "timing"),
)
"""Columns a trial has from the attempt that decided it."""
_STATES = {
    Outcome.GRADED.value: TrialState.FINISHED,
    Outcome.FAILED.value: TrialState.ERROR,
    Outcome.STOPPED.value: TrialState.STOPPED,
    Outcome.LOST.value: TrialState.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Regraded:
    """One trial that is to be graded again, and what its attempt is told (`Leased.saved`)."""

    trial_id: int
    saved: Json


@dataclass(frozen=True, slots=True)
class GradingVerdict:
    """What one grading says of one trial."""

    trial_id: int
    task_id: str
    k: int
    state: TrialState
    attempt: int | None
    """The attempt that decided it; None if there was none."""
    grading: int
    """The grading that attempt was of."""
    values: Mapping[str, Any]

    @property
    def score(self) -> float | None:
        score: float | None = self.values.get("score") if self.state is TrialState.FINISHED else None
        return score

    @property
    def passed(self) -> bool | None:
        passed: bool | None = self.values.get("passed") if self.state is TrialState.FINISHED else None
        return passed


def gradings(connection: Connection, run_id: str) -> Sequence[RegradeRow]:
    """Return the run's gradings by number; none if it was never graded again."""
    rows = select(regrade).where(regrade.c.run_id == run_id).order_by(regrade.c.number)
    return cast("Sequence[RegradeRow]", connection.execute(rows).all())


def of_number(connection: Connection, run_id: str, number: int) -> RegradeRow | None:
    """Return one grading, or None if there is none of that number."""
    rows = select(regrade).where(regrade.c.run_id == run_id, regrade.c.number == number)
    return cast("RegradeRow | None", connection.execute(rows).one_or_none())


def decided(connection: Connection, run_id: str) -> Sequence[Row[Any]]:
    """Return the run's trials in order with the last attempt an agent's own work was made in.

    `number` and the other columns of the attempt are null where there was none.
    """
    last = (
        select(attempt.c.trial_id, func.max(attempt.c.number).label("number"))
        .join(trial, trial.c.id == attempt.c.trial_id)
        .where(trial.c.run_id == run_id, attempt.c.grading == 0)
        .group_by(attempt.c.trial_id)
        .subquery()
    )
    columns = ("number", "outcome", "exit_code", "exit_reason", "result", "timing", "evidence", "confirmed")
    return connection.execute(
        select(
            trial.c.id,
            trial.c.task_id,
            trial.c.k,
            trial.c.state,
            *(attempt.c[name] for name in columns),
        )
        .outerjoin(last, last.c.trial_id == trial.c.id)
        .outerjoin(attempt, (attempt.c.trial_id == trial.c.id) & (attempt.c.number == last.c.number))
        .where(trial.c.run_id == run_id, trial.c.state != TrialState.SKIPPED.value)
        .order_by(trial.c.position)
    ).all()


def next_number(connection: Connection, run_id: str) -> int:
    found = connection.execute(select(func.max(regrade.c.number)).where(regrade.c.run_id == run_id)).scalar()
    return (found or 0) + 1


def begin(
    connection: Connection,
    run_id: str,
    number: int,
    chosen: Sequence[Regraded],
    *,
    arguments: Json,
    started_by: str | None,
    now: float,
) -> None:
    """Open the run again with these trials pending, to be graded from what was kept of them.

    The verdicts they have are kept as those of the grading in use.
    """
    row = locked(connection, run_id)
    if not RunState(row.state).terminal:
        raise UserError(f"Run {run_id[:8]} is {row.state}; wait for its end, or stop it first.")
    if opened := regrades_under_way(connection, [run_id]).get(run_id):
        raise UserError(
            f"Grading {opened.number} of run {run_id[:8]} has not ended: `valk run resume {run_id[:8]}` goes "
            f"on with it, `valk run regrade {run_id[:8]} --use {row.grading}` drops it."
        )
    if next_number(connection, run_id) != number:
        raise UserError(f"Run {run_id[:8]} was graded again meanwhile; ask once more.")
    if of_number(connection, run_id, 0) is None:
        _add(connection, run_id, 0, {}, row.started_by, row.finished_at or now)
        _write_finals(connection, row, 0, row.finished_at or now)
    _add(connection, run_id, number, {**arguments, "base": row.grading}, started_by, now)
    version = _make_pending(connection, run_id, chosen)
    connection.execute(
        update(run)
        .where(run.c.id == run_id)
        .values(
            state=RunState.IN_PROGRESS.value,
            finished_at=None,
            error=None,
            note=None,
            bound=None,
            passes=run.c.passes + 1,
            version=version,
        )
    )


def settle(connection: Connection, run_id: str) -> int | None:
    """Give trials that could not be graded again the verdict they had; return the grading under way."""
    row = locked(connection, run_id)
    opened = regrades_under_way(connection, [run_id]).get(run_id)
    if opened is None:
        return None
    ended = [TrialState.ERROR.value, TrialState.STOPPED.value]
    rows = connection.execute(
        select(trial.c.id, trial.c.saved).where(trial.c.run_id == run_id, trial.c.state.in_(ended))
    )
    failed = {found.id for found in rows if found.saved and found.saved.get("regrade") == opened.number}
    if failed:
        wanted = verdicts(connection, run_id, opened.number)
        _write_verdicts(connection, row, [one for one in wanted if one.trial_id in failed])
    number: int = opened.number
    return number


def finish(connection: Connection, run_id: str, now: float) -> None:
    """Write a run's new final score to the grading it is of; in the transaction that concludes the run."""
    row = locked(connection, run_id)
    opened = regrades_under_way(connection, [run_id]).get(run_id)
    if opened is not None:
        _write_finals(connection, row, opened.number, now)
        connection.execute(update(run).where(run.c.id == run_id).values(grading=opened.number))
        return
    rows = gradings(connection, run_id)
    if not rows:
        return
    _write_finals(connection, row, row.grading, now)
    ran_at = connection.execute(
        select(func.max(attempt.c.started_at))
        .join(trial, trial.c.id == attempt.c.trial_id)
        .where(trial.c.run_id == run_id, attempt.c.grading == 0)
    ).scalar()
    for found in rows[1:]:
        if ran_at is not None and ran_at > found.created_at:
            # Agents ran again: it is of work that is no longer the run's.
            _change(connection, run_id, found.number, arguments={**found.arguments, "outdated": True})


def use(connection: Connection, run_id: str, number: int, now: float) -> None:
    """Make one grading the run's own: its verdicts, counters and final score, all or nothing.

    One that was under way and cannot go on is dropped with that.
    """
    row = locked(connection, run_id)
    if not RunState(row.state).terminal:
        raise UserError(f"Run {run_id[:8]} is {row.state}; wait for its end, or stop it first.")
    opened = regrades_under_way(connection, [run_id]).get(run_id)
    if number == row.grading and opened is None:
        return
    found = usable(connection, run_id, number)
    if opened is not None:
        dropped = {**opened.arguments, "dropped": True}
        _change(connection, run_id, opened.number, arguments=dropped, finished_at=now)
    changed = _write_verdicts(connection, row, verdicts(connection, run_id, number))
    stopped = row.n_stopped + changed.get(STATE_COUNTERS[TrialState.STOPPED], 0)
    state = RunState.STOPPED if stopped else RunState.FINISHED
    connection.execute(
        update(run)
        .where(run.c.id == run_id)
        .values(
            grading=number,
            state=state.value,
            error=None,
            version=run.c.version + 1,
            **{name: getattr(found, name) for name in _FINALS},
        )
    )


def usable(connection: Connection, run_id: str, number: int) -> RegradeRow:
    """Return a grading that has ended and is of the run's present work; UserError else."""
    found = of_number(connection, run_id, number)
    if found is None:
        shown = f"`valk run regrade {run_id[:8]} --list` shows them."
        raise UnknownError(f"Run {run_id[:8]} has no grading {number}. {shown}")
    if found.finished_at is None:
        raise UserError(f"Grading {number} of run {run_id[:8]} has not ended yet.")
    if found.arguments.get("dropped"):
        raise UserError(f"Grading {number} of run {run_id[:8]} was dropped before it ended.")
    if found.arguments.get("outdated"):
        raise UserError(
            f"Agents ran again in run {run_id[:8]} after grading {number}; grade it again: "
            f"`valk run regrade {run_id[:8]}`."
        )
    return found


def verdicts(connection: Connection, run_id: str, number: int) -> list[GradingVerdict]:
    """Return what one grading says of every trial, in order."""
    chain = _chain({row.number: row.arguments for row in gradings(connection, run_id)}, number)
    found = connection.execute(
        select(
            trial.c.id,
            trial.c.task_id,
            trial.c.k,
            attempt.c.number,
            attempt.c.grading,
            attempt.c.outcome,
            attempt.c.finished_at,
            *(attempt.c[name] for name in _VERDICT),
        )
        .outerjoin(attempt, (attempt.c.trial_id == trial.c.id) & attempt.c.outcome.is_not(None))
        .where(trial.c.run_id == run_id, trial.c.state != TrialState.SKIPPED.value)
        .order_by(trial.c.position, attempt.c.number)
    )
    of_trial: dict[int, list[Any]] = defaultdict(list)
    for row in found:
        of_trial[row.id].append(row)
    return [_verdict(rows, chain) for rows in of_trial.values()]


def attempts_shown(connection: Connection, run_id: str) -> dict[tuple[str, int], int]:
    """Return the attempt behind each trial's verdict in the grading in use, by task id and k.

    Empty where a run was never graded again: there it is the last one.
    """
    grading = connection.execute(
        select(run.c.grading).join(regrade, regrade.c.run_id == run.c.id).where(run.c.id == run_id)
    ).scalar()
    if grading is None:
        return {}
    found = verdicts(connection, run_id, grading)
    return {(one.task_id, one.k): one.attempt for one in found if one.attempt is not None}


def _chain(arguments: Mapping[int, Json], number: int) -> list[int]:
    """Return the grading, the one it was started from, and so on down to 0."""
    chain = [number]
    while chain[-1]:
        chain.append(int(arguments[chain[-1]]["base"]))
    return chain


def _verdict(rows: Sequence[Any], chain: Sequence[int]) -> GradingVerdict:
    own = [row for row in rows if row.number is not None and row.grading == 0]
    last = own[-1] if own else None
    chosen = last
    for number in chain[:-1]:
        again = [
            row
            for row in rows
            if row.grading == number and row.outcome == Outcome.GRADED and _is_of(row, last)
        ]
        if again:
            chosen = again[-1]
            break
    first = rows[0]
    if chosen is None:
        return GradingVerdict(first.id, first.task_id, first.k, TrialState.STOPPED, None, 0, {})
    values = {name: getattr(chosen, name) for name in (*_VERDICT, "finished_at")}
    state = _STATES[chosen.outcome]
    return GradingVerdict(first.id, first.task_id, first.k, state, chosen.number, chosen.grading, values)


def _is_of(row: Any, last: Any) -> bool:
    """Return whether it graded the work that is still the trial's."""
    return last is None or row.number > last.number


def _add(
    connection: Connection, run_id: str, number: int, arguments: Json, started_by: str | None, now: float
) -> None:
    connection.execute(
        insert(regrade).values(
            run_id=run_id, number=number, created_at=now, started_by=started_by, arguments=arguments
        )
    )


def _change(connection: Connection, run_id: str, number: int, **values: Any) -> None:
    of_number = (regrade.c.run_id == run_id, regrade.c.number == number)
    connection.execute(update(regrade).where(*of_number).values(**values))


def _write_finals(connection: Connection, row: RunRow, number: int, now: float) -> None:
    finals = {name: getattr(row, name) for name in _FINALS}
    _change(connection, row.id, number, finished_at=now, **finals)


def _make_pending(connection: Connection, run_id: str, chosen: Sequence[Regraded]) -> int:
    """Make the chosen trials pending, and count their verdicts out; return the run's version."""
    saved = {one.trial_id: one.saved for one in chosen}
    rows = [row for row in _rows(connection, run_id) if row.id in saved]
    deltas: dict[str, float] = defaultdict(float)
    for row in rows:
        _count(deltas, TrialState(row.state), row, -1)
        deltas[STATE_COUNTERS[TrialState.PENDING]] += 1
    version = count(connection, {run_id: deltas})[run_id]
    for row in rows:
        # Attempts did not always keep whether they passed; the trial's row did.
        connection.execute(
            update(attempt)
            .where(
                attempt.c.trial_id == row.id,
                attempt.c.number == row.attempts,
                attempt.c.outcome == Outcome.GRADED.value,
                attempt.c.passed.is_(None),
            )
            .values(passed=row.passed)
        )
        connection.execute(
            update(trial)
            .where(trial.c.id == row.id)
            .values(
                state=TrialState.PENDING.value,
                saved={**saved[row.id], **({"earlier": row.saved} if row.saved else {})},
                failures=0,
                not_before=None,
                category=None,
                cause=None,
                message=None,
                finished_at=None,
                epoch=trial.c.epoch + 1,
                version=version,
            )
        )
    return version


def _write_verdicts(
    connection: Connection, row: RunRow, wanted: Sequence[GradingVerdict]
) -> dict[str, float]:
    """Give trials these verdicts; return how that changed the run's counters."""
    before = {found.id: found for found in _rows(connection, row.id)}
    moved = [one for one in wanted if one.attempt is not None and _differs(before[one.trial_id], one)]
    deltas: dict[str, float] = defaultdict(float)
    for one in moved:
        _count(deltas, TrialState(before[one.trial_id].state), before[one.trial_id], -1)
        _count(deltas, one.state, one, +1)
    version = count(connection, {row.id: deltas})[row.id]
    for one in moved:
        # What a failed grading had saved is there for a retry again.
        earlier = (before[one.trial_id].saved or {}).get("earlier")
        saved = earlier if one.state is TrialState.ERROR else None
        connection.execute(
            update(trial)
            .where(trial.c.id == one.trial_id)
            .values(
                state=one.state.value, saved=saved, version=version, epoch=trial.c.epoch + 1, **one.values
            )
        )
    return deltas


def _differs(row: Any, verdict: GradingVerdict) -> bool:
    """Return whether the trial's row is not yet as the verdict says."""
    if row.state != verdict.state.value or (row.saved or {}).get("regrade"):
        return True
    return any(getattr(row, name) != value for name, value in verdict.values.items())


def _rows(connection: Connection, run_id: str) -> Iterator[Any]:
    columns = ("id", "state", "attempts", "saved", "finished_at", *_VERDICT)
    rows = select(*(trial.c[name] for name in columns)).where(trial.c.run_id == run_id)
    return iter(connection.execute(rows.order_by(trial.c.position)).all())


def _count(deltas: dict[str, float], state: TrialState, found: Any, sign: int) -> None:
    """Count one trial in (+1) or out (-1) of its run's counters."""
    values = dict(found.values if isinstance(found, GradingVerdict) else found._mapping)
    deltas[STATE_COUNTERS[state]] += sign
    if state is TrialState.FINISHED:
        add_grade(deltas, SimpleNamespace(**values), sign)
    elif state is TrialState.ERROR and values["category"]:
        deltas[ERROR_COUNTERS[Category(values["category"])]] += sign
