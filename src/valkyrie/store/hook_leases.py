"""Who sends what stands in the outbox, and how that went.

A row is taken before it is sent. When its executor dies in between, nobody knows whether it was: what tells
that a run ended is then sent again (at least once), progress is not (at most once).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select, update

from valkyrie.nouns import Json, RunState
from valkyrie.store import clock, telling
from valkyrie.store.hooks import DONE, ENDED, FAILED, LAMBDA, MESSAGES, PENDING, PROGRESS, RESULTS
from valkyrie.store.schema import executor, hook, run

PER_ORG = 4
"""How many of a kind an organisation has in hand at once: slow receivers of one do not hold up others."""
GRACE_S = 30.0
"""How long after its lease ran out an executor is still taken to live: the database may have been away."""
MOST_AT_ONCE = 100
MOST_DETAIL = 1000


@dataclass(frozen=True, slots=True)
class Look:
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
    """What may be told of the run, as it stood when this became due (see telling.snapshot)."""
    superseded: bool
    """The run went on after the ending this is about."""

    @property
    def progress(self) -> bool:
        """It tells of a threshold, not of an ending."""
        return self.trigger.startswith(PROGRESS)


def recover(connection: Connection, look: Look) -> None:
    """Take back what dead executors had in hand."""
    now = clock.now(connection)
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


def due(connection: Connection, look: Look) -> list[Due]:
    """Take what is due: of a run and kind the oldest; of an ending results, then Lambda, then messages."""
    now = clock.now(connection)
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


_OF_RUN = ("org_id", "notify", "place", "state", "endings", *telling.NAMES)


def _due(row: Any, executor_id: str, now: float) -> Due:
    ended = row.trigger.startswith(ENDED)
    current = f"{ENDED}{row.run_endings}" if RunState(row.run_state).terminal else ""
    names = {name: getattr(row, f"run_{name}") for name in telling.NAMES}
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
        told={"id": row.run_id, **names, **telling.unpacked(row.detail)[0]},
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


def _choose(connection: Connection, look: Look, now: float) -> list[int]:
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
    return _write(connection, taken, state=DONE, detail=_short(detail), finished_at=clock.now(connection))


def failed(connection: Connection, taken: Due, detail: str, pause: float | None) -> bool:
    """It was not sent: for good, or until it is tried again after a pause. False as above."""
    if pause is not None:
        return _put_back(connection, taken, detail, pause)
    return _write(connection, taken, state=FAILED, detail=_short(detail), finished_at=clock.now(connection))


def wait(connection: Connection, taken: Due, detail: str, pause: float) -> bool:
    """It could not even be tried, which is no attempt. False as above."""
    return _put_back(connection, taken, detail, pause, attempts=taken.attempt - 1)


def _put_back(connection: Connection, taken: Due, detail: str, pause: float, **more: int) -> bool:
    kept = {name: value for name, value in taken.told.items() if name not in ("id", *telling.NAMES)}
    return _write(
        connection,
        taken,
        detail=telling.packed(kept, _short(detail)),
        executor_id=None,
        not_before=clock.now(connection) + pause,
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
    """Whether anything is pending in nobody's hand, but for runs that wait for a person (`besides`), and in
    how many seconds the next pause ends."""
    now = clock.now(connection)
    open_ = and_(hook.c.state == PENDING, hook.c.executor_id.is_(None), hook.c.run_id.not_in(list(besides)))
    count = connection.execute(select(func.count()).select_from(hook).where(open_)).scalar()
    later = connection.execute(
        select(func.min(hook.c.not_before)).where(open_, hook.c.not_before > now)
    ).scalar()
    return bool(count), None if later is None else later - now


def any_pending(connection: Connection) -> bool:
    """Whether anything is left to send at all."""
    return connection.execute(select(hook.c.id).where(hook.c.state == PENDING).limit(1)).scalar() is not None
