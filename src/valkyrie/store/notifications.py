"""The outbox: what is to be sent about runs, who sends it, and how that went."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select, update

from valkyrie.domain import Json, RunState
from valkyrie.store import schema
from valkyrie.store.counters import run_scores, state_counts
from valkyrie.store.schema import ERROR_COUNTERS, executor, hook, run
from valkyrie.views import HookView

if TYPE_CHECKING:
    from valkyrie.store.rows import RunRow

NAMES = ("benchmark", "dataset", "agent", "model", "label", "started_by", "created_at")
"""Columns of a run that stay as they are."""
MOST_ERROR = 2000
_SCORE = (
    *("final_score", "score_graded", "score_confirmed", "score_low", "score_high", "graded", "ungraded"),
    *("coverage", "confirmed", "unconfirmed", "open_to_tampering"),
)


def progress(row: RunRow) -> tuple[int, int]:
    """(trials that ended, however; all trials)."""
    done = row.n_finished + row.n_error + row.n_stopped + row.n_skipped
    return done, done + row.n_pending + row.n_building + row.n_in_progress + row.n_evaluating


def snapshot(row: RunRow, now: float) -> Json:
    """A run's state, counts and score at this moment: it may have moved on when the message is sent."""
    done, total = progress(row)
    errors = {category.value: getattr(row, name) for category, name in ERROR_COUNTERS.items()}
    score = run_scores(row)
    return {
        "at": now,
        "state": row.state,
        "done": done,
        "total": total,
        "repeated": row.arguments.get("trials", 1) > 1,
        "counts": state_counts(row),
        "score": {
            **{name: getattr(score, name) for name in _SCORE},
            "planned": total,
            "errors": {name: number for name, number in errors.items() if number},
            "fraction": bool(row.fraction),
        },
        "error": row.error[:MOST_ERROR] if row.error else None,
        "stop_reason": row.note if row.state == RunState.STOPPED else None,
        "exit_codes": row.exit_codes or {},
        "worked_s": row.worked_s + (now - row.working_since if row.working_since else 0.0),
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


def packed(told: Json, note: str | None) -> str:
    """Return what a pending row's `detail` holds: what it will tell, and why it has not yet."""
    return json.dumps({"told": told, "note": note}, separators=(",", ":"))


def unpacked(detail: str | None) -> tuple[Json, str | None]:
    """(what it will tell, why it has not yet) of a pending row."""
    held = json.loads(detail or "{}")
    return held.get("told", {}), held.get("note")


# The outbox: what is to be told about runs, by whom, and how that went.
#
# Writing a row down is the claim on it: (run, kind, trigger) is there once, so a threshold is told once
# ever, however often its run is retried or resumed. Executors take rows and send them.

RESULTS, LAMBDA, SLACK, WEBHOOK = "results", "lambda", "slack", "webhook"
MESSAGES = (SLACK, WEBHOOK)
PENDING, DONE, FAILED = "pending", "done", "failed"
PROGRESS, ENDED = "progress:", "ended:"


def plan_progress(connection: Connection, row: RunRow, now: float) -> None:
    """Write down the thresholds a run has passed; `row` is its row as it stands.

    At 100 % there is none: the run's ending is told instead. Neither while it is being stopped.
    """
    wishes: Json = row.notify or {}
    done, total = progress(row)
    if not wishes or row.state != RunState.IN_PROGRESS or done >= total:
        return
    passed = [
        (kind, f"{PROGRESS}{percent}")
        for kind in MESSAGES
        for percent in (wishes.get(kind) or {}).get("intervals", ())
        if done * 100 >= percent * total
    ]
    _write_down(connection, row, passed, now)


def plan_progress_of(connection: Connection, run_ids: Collection[str], now: float) -> None:
    """`plan_progress` for each of these runs that wishes to tell anyone."""
    wishing = select(run).where(run.c.id.in_(list(run_ids)), run.c.notify.is_not(None))
    for row in connection.execute(wishing).all():
        plan_progress(connection, cast("RunRow", row), now)


def plan_ending(connection: Connection, row: RunRow, now: float) -> None:
    """Write down what an ending sets off; `row` is the run's row with its last state and `endings` counted.

    In the transaction that ends the run, so that no crash can come between.
    """
    wishes: Json = row.notify or {}
    kinds = [RESULTS] if (row.place or {}).get("artifacts") else []
    kinds += [kind for kind in (LAMBDA, *MESSAGES) if wishes.get(kind)]
    _write_down(connection, row, [(kind, f"{ENDED}{row.endings}") for kind in kinds], now)


def _write_down(connection: Connection, row: RunRow, wanted: Sequence[tuple[str, str]], now: float) -> None:
    if not wanted:
        return
    there = connection.execute(select(hook.c.kind, hook.c.trigger).where(hook.c.run_id == row.id)).all()
    known = {(one.kind, one.trigger) for one in there}
    new = [one for one in wanted if one not in known]
    if new:
        detail = packed(snapshot(row, now), None)
        created_at = schema.now(connection)
        rows = [
            {
                "run_id": row.id,
                "kind": kind,
                "trigger": trigger,
                "state": PENDING,
                "detail": detail,
                "created_at": created_at,
            }
            for kind, trigger in new
        ]
        # One statement: between several, a suspended executor would hold the run's lock.
        # And one that leaves a row which someone else wrote at the same moment.
        connection.execute(schema.insert_or(connection, hook).values(rows).on_conflict_do_nothing())


def supplied(connection: Connection, run_id: str) -> None:
    """Make messages due that waited for what their run needs."""
    connection.execute(
        update(hook)
        .where(hook.c.run_id == run_id, hook.c.state == PENDING, hook.c.executor_id.is_(None))
        .values(not_before=None)
    )


def unfinished(connection: Connection, run_id: str) -> bool:
    """Return whether something is still to be told of a run: what it was handed is needed until then."""
    found = select(hook.c.id).where(hook.c.run_id == run_id, hook.c.state == PENDING).limit(1)
    return connection.execute(found).scalar() is not None


def settled(connection: Connection, run_id: str) -> bool:
    """Return whether a run has ended and nothing is left to tell of it."""
    state = connection.execute(select(run.c.state).where(run.c.id == run_id)).scalar()
    return state is not None and RunState(state).terminal and not unfinished(connection, run_id)


def of_run(connection: Connection, run_id: str) -> list[HookView]:
    """Everything told about a run, oldest first."""
    rows = connection.execute(select(hook).where(hook.c.run_id == run_id).order_by(hook.c.id)).all()
    return [
        HookView(
            kind=row.kind,
            trigger=row.trigger,
            state=row.state,
            detail=unpacked(row.detail)[1] if row.state == PENDING else row.detail,
            attempts=row.attempts,
            created_at=row.created_at,
            finished_at=row.finished_at,
        )
        for row in rows
    ]


# Who sends what stands in the outbox, and how that went.
#
# A row is taken before it is sent. When its executor dies in between, nobody knows whether it was: what
# tells that a run ended is then sent again (at least once), progress is not (at most once).

PER_ORG = 4
"""How many of a kind an organisation has in hand at once: slow receivers of one do not hold up others."""
GRACE_S = 30.0
"""How long after its lease ran out an executor is still taken to live: the database may have been away."""
MOST_AT_ONCE = 100
MOST_DETAIL = 1000


@dataclass(frozen=True, slots=True)
class DueQuery:
    """A look for what is due."""

    executor_id: str
    room: Mapping[str, int]
    """How many more of each kind can be in hand."""
    in_hand: Mapping[tuple[str, str], int]
    """How many are, by organisation and kind."""
    home: str = ""
    """The data folder whose lock we hold: whoever had it before us is dead, lease or not."""


@dataclass(frozen=True, slots=True)
class Due:
    """One row, ours to act on until our executor dies."""

    id: int
    run_id: str
    org_id: str
    kind: str
    trigger: str
    attempt: int
    """Which one this is, from 1; what an earlier holder writes is refused by it."""
    executor_id: str
    age: float
    """Seconds since it became due."""
    wishes: Json
    place: Json
    told: Json
    """What may be told of the run, as it stood when this became due (see `snapshot`)."""
    superseded: bool
    """The run went on after the ending this is about."""

    @property
    def progress(self) -> bool:
        """It tells of a threshold, not of an ending."""
        return self.trigger.startswith(PROGRESS)


def recover_hooks(connection: Connection, look: DueQuery) -> None:
    """Take back what dead executors had in hand."""
    now = schema.now(connection)
    living = select(executor.c.id).where(executor.c.expires_at > now - GRACE_S, executor.c.ended_at.is_(None))
    if look.home:
        living = living.where(executor.c.home != look.home)
    lost = and_(
        hook.c.state == PENDING,
        hook.c.executor_id.is_not(None),
        hook.c.executor_id != look.executor_id,
        hook.c.executor_id.not_in(living),
    )
    progress = hook.c.trigger.startswith(PROGRESS)
    connection.execute(
        update(hook)
        .where(lost, progress)
        .values(
            state=FAILED,
            detail="its executor ended while sending it; it may have arrived, and is not sent twice",
            finished_at=now,
        )
    )
    connection.execute(update(hook).where(lost, ~progress).values(executor_id=None, not_before=None))


def due(connection: Connection, look: DueQuery) -> list[Due]:
    """Take what is due: of a run and kind the oldest; of an ending results, then Lambda, then messages."""
    now = schema.now(connection)
    chosen = _choose(connection, look, now)
    if not chosen:
        return []
    rows = connection.execute(
        select(hook, *(run.c[name].label(f"run_{name}") for name in _OF_RUN))
        .join(run, run.c.id == hook.c.run_id)
        .where(hook.c.id.in_(chosen), hook.c.state == PENDING, hook.c.executor_id.is_(None))
        .order_by(hook.c.id)
        .with_for_update(of=hook, skip_locked=True)
    ).all()
    connection.execute(
        update(hook)
        .where(hook.c.id.in_([row.id for row in rows]))
        .values(executor_id=look.executor_id, attempts=hook.c.attempts + 1, not_before=None)
    )
    return [_due(row, look.executor_id, now) for row in rows]


_OF_RUN = ("org_id", "notify", "place", "state", "endings", *NAMES)


def _due(row: Any, executor_id: str, now: float) -> Due:
    ended = row.trigger.startswith(ENDED)
    current = f"{ENDED}{row.run_endings}" if RunState(row.run_state).terminal else ""
    names = {name: getattr(row, f"run_{name}") for name in NAMES}
    return Due(
        id=row.id,
        run_id=row.run_id,
        org_id=row.run_org_id,
        kind=row.kind,
        trigger=row.trigger,
        attempt=row.attempts + 1,
        executor_id=executor_id,
        age=now - row.created_at,
        wishes=row.run_notify or {},
        place=row.run_place or {},
        told={"id": row.run_id, **names, **unpacked(row.detail)[0]},
        superseded=ended and row.trigger != current,
    )


def _ready(now: float) -> ColumnElement[bool]:
    """Pending, in nobody's hand, its pause over, and nothing that comes first still open."""
    first = hook.alias()
    same_kind = and_(first.c.kind == hook.c.kind, first.c.id < hook.c.id)
    same_ending = and_(
        first.c.trigger == hook.c.trigger,
        or_(
            and_(hook.c.kind == LAMBDA, first.c.kind == RESULTS),
            and_(hook.c.kind.in_(MESSAGES), first.c.kind.in_([RESULTS, LAMBDA])),
        ),
    )
    comes_first = exists().where(
        first.c.run_id == hook.c.run_id, first.c.state == PENDING, or_(same_kind, same_ending)
    )
    return and_(
        hook.c.state == PENDING,
        hook.c.executor_id.is_(None),
        or_(hook.c.not_before.is_(None), hook.c.not_before <= now),
        ~comes_first,
    )


def _choose(connection: Connection, look: DueQuery, now: float) -> list[int]:
    """In turn among organisations, as far as there is room."""
    rank = func.row_number().over(partition_by=[run.c.org_id, hook.c.kind], order_by=hook.c.id)
    ranked = (
        select(hook.c.id, hook.c.kind, run.c.org_id, rank.label("rank"))
        .join(run, run.c.id == hook.c.run_id)
        .where(_ready(now), hook.c.kind.in_([kind for kind, most in look.room.items() if most > 0]))
        .subquery()
    )
    found = connection.execute(select(ranked).order_by(ranked.c.rank, ranked.c.id).limit(MOST_AT_ONCE))
    room, theirs = Counter(look.room), Counter(look.in_hand)
    chosen = []
    for row in found:
        if room[row.kind] > 0 and theirs[row.org_id, row.kind] < PER_ORG:
            room[row.kind] -= 1
            theirs[row.org_id, row.kind] += 1
            chosen.append(row.id)
    return chosen


def done(connection: Connection, taken: Due, detail: str) -> bool:
    """It was sent; False when it is no longer ours to say."""
    return _write(connection, taken, state=DONE, detail=_short(detail), finished_at=schema.now(connection))


def failed(connection: Connection, taken: Due, detail: str, pause: float | None) -> bool:
    """It was not sent: for good, or until it is tried again after a pause. False as above."""
    if pause is not None:
        return _put_back(connection, taken, detail, pause)
    return _write(connection, taken, state=FAILED, detail=_short(detail), finished_at=schema.now(connection))


def wait(connection: Connection, taken: Due, detail: str, pause: float) -> bool:
    """It could not even be tried, which is no attempt. False as above."""
    return _put_back(connection, taken, detail, pause, attempts=taken.attempt - 1)


def _put_back(connection: Connection, taken: Due, detail: str, pause: float, **more: int) -> bool:
    kept = {name: value for name, value in taken.told.items() if name not in ("id", *NAMES)}
    return _write(
        connection,
        taken,
        detail=packed(kept, _short(detail)),
        executor_id=None,
        not_before=schema.now(connection) + pause,
        **more,
    )


def _write(connection: Connection, taken: Due, **values: Any) -> bool:
    written = connection.execute(
        update(hook)
        .where(
            hook.c.id == taken.id,
            hook.c.state == PENDING,
            hook.c.executor_id == taken.executor_id,
            hook.c.attempts == taken.attempt,
        )
        .values(**values)
    )
    return bool(written.rowcount)


def _short(detail: str) -> str:
    return detail if len(detail) <= MOST_DETAIL else detail[: MOST_DETAIL - 1] + "…"


def outlook(connection: Connection, besides: Collection[str]) -> tuple[bool, float | None]:
    """Return whether anything is pending in nobody's hand, but for runs that wait for a person (`besides`),
    and in how many seconds the next pause ends."""
    now = schema.now(connection)
    open_ = and_(hook.c.state == PENDING, hook.c.executor_id.is_(None), hook.c.run_id.not_in(list(besides)))
    count = connection.execute(select(func.count()).select_from(hook).where(open_)).scalar()
    later = connection.execute(
        select(func.min(hook.c.not_before)).where(open_, hook.c.not_before > now)
    ).scalar()
    return bool(count), None if later is None else later - now


def any_pending(connection: Connection) -> bool:
    return connection.execute(select(hook.c.id).where(hook.c.state == PENDING).limit(1)).scalar() is not None
