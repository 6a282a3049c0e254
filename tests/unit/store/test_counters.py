"""Whatever happens, in whatever order and at the same time: counters equal what they count."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from tests.stored_runs import ROOM, add_run, assert_counters_true
from valkyrie.domain import Category, Outcome, TrialState
from valkyrie.errors import UserError
from valkyrie.store import Store, executors, journal, leases, runs
from valkyrie.store.executors import StaleLeaseError
from valkyrie.store.journal import Advance, Finish, Save
from valkyrie.store.leases import Leased, Room, Tick
from valkyrie.store.schema import attempt, trial

ENDINGS = {
    "finish": (TrialState.FINISHED, Outcome.GRADED, None),
    "error": (TrialState.ERROR, Outcome.FAILED, Category.BENCHMARK),
    "retry": (TrialState.PENDING, Outcome.FAILED, Category.INFRASTRUCTURE),
}
MOVES = [
    "tick",
    "advance",
    "save",
    "several",
    *ENDINGS,
    "lose",
    "recover",
    "stop",
    "force",
    "part",
    "resume",
    "again",
]
NEXT = {
    TrialState.BUILDING: TrialState.IN_PROGRESS,
    TrialState.IN_PROGRESS: TrialState.EVALUATING,
}


class Player:
    """An executor that does one thing after another, whether or not it makes sense."""

    def __init__(self, store: Store, run_ids: list[str], name: str) -> None:
        self._store = store
        self._runs = run_ids
        self.name = name
        self._held: list[tuple[Leased, TrialState]] = []
        self.graded: list[tuple[int, int]] = []
        self.refused = 0

    def play(self, move: str, pick: int, room: Room = ROOM) -> None:
        run_id = self._runs[pick % len(self._runs)]
        if move == "tick":
            self._tick(room)
        elif move == "lose":
            self._write(lambda connection: executors.abandon(connection, self.name, 1.0))
        elif move == "recover":  # nobody has registered, so all others are dead
            self._write(lambda connection: executors.recover(connection, self.name, home="here"))
        elif move in ("stop", "force", "part"):
            tasks = ["t0", "t2"] if move == "part" else None
            self._write(
                lambda c: runs.stop(c, run_id, 1.0, force=move == "force", task_ids=tasks), may_fail=True
            )
        elif move in ("resume", "again"):
            self._write(lambda c: runs.reopen(c, run_id, errors_too=move == "again"))
        elif move == "several":
            self._several(pick)
        elif self._held:
            self._change(move, pick)

    def _tick(self, room: Room) -> None:
        tick = Tick(self.name, time.time(), room, {}, self._runs)
        found = self._store.write(lambda connection: leases.lease(connection, tick))
        self._held += [(one, TrialState.BUILDING) for one in found.leased]

    def _several(self, pick: int) -> None:
        """Changes of several trials in one transaction, all or none of them."""
        some = random.Random(pick).sample(self._held, min(5, len(self._held)))
        changes: list[journal.Change] = [Save(leased, {"n": pick}) for leased, _ in some]
        moved = [(leased, state) for leased, state in some if state in NEXT]
        changes += [Advance(leased, state, NEXT[state]) for leased, state in moved]
        try:
            self._store.write(lambda connection: journal.record(connection, changes))
        except StaleLeaseError:
            self.refused += 1
            return
        self._held = [
            (leased, NEXT[state]) if (leased, state) in moved else (leased, state)
            for leased, state in self._held
        ]

    def _change(self, move: str, pick: int) -> None:
        number = pick % len(self._held)
        leased, state = self._held[number]
        if move == "save":
            change: journal.Change = Save(leased, {"n": pick})
        elif move == "advance":
            if state not in NEXT:
                return
            self._held[number] = (leased, NEXT[state])
            change = Advance(leased, state, NEXT[state])
        else:
            after, outcome, category = ENDINGS[move]
            score, cost = (0.5 if outcome is Outcome.GRADED else None), (0.25 if pick % 2 else None)
            change = Finish(
                leased, state, after, outcome, 1.0, category=category, cause="x", score=score, cost=cost
            )
            del self._held[number]
        try:
            self._store.write(lambda connection: journal.record(connection, [change]))
        except StaleLeaseError:
            self.refused += 1
            self._held = [held for held in self._held if held[0] is not leased]
        else:
            if move == "finish":
                self.graded.append((leased.trial_id, leased.number))

    def _write(self, work: Callable[[Connection], object], *, may_fail: bool = False) -> None:
        try:
            self._store.write(work)
        except UserError:
            assert may_fail


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(MOVES), st.integers(0, 9)), max_size=30))
@settings(max_examples=8)
def test_counters_stay_true_whatever_happens(store: Store, moves: list[tuple[int, str, int]]) -> None:
    run_ids = [add_run(store, tasks=4, concurrency=2) for _ in range(2)]
    players = [Player(store, run_ids, f"{name} {uuid.uuid4()}") for name in ("first", "second")]
    for who, move, pick in moves:
        players[who].play(move, pick)
    assert_counters_true(store, *run_ids)


def storm(store: Store, seconds: float, players: int, seed: int) -> list[Player]:
    """Let players loose on the same few runs at the same time."""
    run_ids = [add_run(store, tasks=25, concurrency=7, priority=n % 3) for n in range(4)]
    over = threading.Event()

    def play(number: int) -> Player:
        rng = random.Random(seed * 100 + number)
        player = Player(store, run_ids, f"executor {number}")
        while not over.is_set():
            weights = [9, 9, 2, 5, 6, 2, 3, 1, 2, 1, 2, 2, 4, 4]
            (move,) = rng.choices(MOVES, weights)
            player.play(move, rng.randrange(1000), Room(rng.randrange(1, 9), 1e9, idle=True))
            with store.reading() as connection:
                for run_id in run_ids:
                    row = runs.get(connection, run_id)
                    assert row.n_building + row.n_in_progress + row.n_evaluating <= row.concurrency
        return player

    with ThreadPoolExecutor(players) as pool:
        games = [pool.submit(play, number) for number in range(players)]
        over.wait(seconds)
        over.set()
        played = [game.result() for game in games]
    assert_counters_true(store)
    return played


def assert_every_grade_was_meant(store: Store, players: list[Player]) -> None:
    """What is graded in the store is what someone was told had been written, each attempt once."""
    told = [one for player in players for one in player.graded]
    assert len(told) == len(set(told))
    with store.reading() as connection:
        graded = connection.execute(
            select(attempt.c.trial_id, attempt.c.number).where(attempt.c.outcome == Outcome.GRADED.value)
        ).all()
        finished = connection.execute(select(trial.c.id).where(trial.c.state == TrialState.FINISHED.value))
        assert {one.trial_id for one in graded} >= set(finished.scalars())
    assert sorted(told) == sorted((one.trial_id, one.number) for one in graded)


def assert_no_deadlock(request: pytest.FixtureRequest, store: Store) -> None:
    """A deadlock is got over, but none should be there: all lock runs in the same order."""
    if store.kind == "postgresql":
        store.close()  # with its connections go the numbers they kept back
        name = request.getfixturevalue("postgres_url").rsplit("/", 1)[1]
        counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = %s"
        assert request.getfixturevalue("postgres").execute(counted, name) == [(0,)]


def test_counters_stay_true_when_everything_happens_at_once(
    request: pytest.FixtureRequest, store: Store
) -> None:
    assert_every_grade_was_meant(store, storm(store, 0.7, players=4, seed=1))
    assert_no_deadlock(request, store)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_counters_stay_true_for_long(request: pytest.FixtureRequest, store: Store, seed: int) -> None:
    players = storm(store, 8.0, players=8, seed=seed)
    assert_every_grade_was_meant(store, players)
    assert sum(player.refused for player in players), "nobody was ever too late: the storm was none"
    assert_no_deadlock(request, store)
