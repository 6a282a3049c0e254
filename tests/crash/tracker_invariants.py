"""What must be true of a run when it is over, whatever happened to the tracker meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import select

from tests.crash.team_processes import SCORE, TASKS, Team, left_behind, signature, until
from tests.stored_runs import assert_counters_true
from valkyrie.client.events import RunChanged, TrialChanged
from valkyrie.store.schema import attempt, executor, handover, trial
from valkyrie.tracker.remote import RemoteTracker
from valkyrie.views import RunView


class Watcher(threading.Thread):
    """Someone who watches a run to its end, over HTTP."""

    def __init__(self, team: Team, run_id: str) -> None:
        super().__init__(daemon=True)
        self._team, self._run_id = team, run_id
        self.runs: list[RunChanged] = []
        self.trials: dict[tuple[str, int], list[str]] = {}
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception as error:  # noqa: BLE001 - told to whoever waits for it
            self.error = error

    async def _watch(self) -> None:
        async with self._team.client() as client:
            async for event in client.events(self._run_id):
                if isinstance(event, TrialChanged):
                    self.trials.setdefault((event.trial.task_id, event.trial.k), []).append(event.trial.state)
                else:
                    self.runs.append(event)

    def assert_saw_it_all(self, run: RunView) -> None:
        """To the end, in order, each trial graded for good; and that nobody was asked for anything."""
        self.join(60)
        assert not self.is_alive() and self.error is None, self.error
        versions = [event.version for event in self.runs]
        assert versions == sorted(versions)
        last = self.runs[-1].run
        assert (last.state, last.score.final_score) == (run.state, run.score.final_score)
        assert len(self.trials) == run.total
        for states in self.trials.values():
            graded = states.index("FINISHED")
            assert set(states[graded:]) == {"FINISHED"}, states
        notes = {event.run.note for event in self.runs}
        assert not [note for note in notes if note and "waits for" in note], notes


def assert_graded_once(team: Team, run: RunView, before: frozenset[str] = frozenset({"lost"})) -> None:
    """The score of a quiet run; every trial has one grade and nothing after it, `before` it may have what is
    nobody's fault; the books are right, and nothing that was handed over is kept."""
    assert run.state == "FINISHED", (run.state, run.error, run.counts)
    assert run.counts["FINISHED"] == run.total
    assert run.score.final_score == run.score.score_graded == SCORE
    with team.store.reading() as connection:
        rows = connection.execute(
            select(trial.c.id, attempt.c.outcome)
            .join(attempt, attempt.c.trial_id == trial.c.id)
            .where(trial.c.run_id == run.id)
            .order_by(trial.c.id, attempt.c.number)
        ).all()
    until(lambda: run.id not in handed_over(team), "what was handed over is let go")
    assert_counters_true(team.store, run.id)
    outcomes: dict[int, list[str | None]] = {}
    for row in rows:
        outcomes.setdefault(row.id, []).append(row.outcome)
    assert len(outcomes) == run.total
    for found in outcomes.values():
        assert found[-1] == "graded" and set(found[:-1]) <= before, found


def handed_over(team: Team) -> Sequence[str]:
    """Runs for which sealed values are kept: until they ended and everyone was told."""
    with team.store.reading() as connection:
        return connection.execute(select(handover.c.run_id)).scalars().all()


def assert_nothing_left(team: Team) -> None:
    """Everyone leaves when told to, and no machine has anything of a trial but what it kept."""
    team.end()
    assert team.homes()
    for home in team.homes():
        assert left_behind(home) == []


def assert_outputs_complete(tracker: RemoteTracker, run_id: str, trials: int, folder: Path) -> None:
    """Every trial's files and log can be had of the tracker, wherever it ran."""
    tracker.outputs(run_id, folder)
    for number in range(TASKS):
        task_id = f"task-{number:02}"
        for k in range(trials):
            kept = folder / task_id / (str(k) if k else "")
            assert (kept / "agent_output" / "answer.txt").read_text() == f"{signature(number)}\n"
            assert (kept / "artifacts" / "seen.txt").read_text() == f"Sign number {number}.\n"
            assert "the agent has signed" in (kept / "attempt.log").read_text()
            assert "the agent has signed" in "".join(tracker.logs(run_id, task_id, k=k))


def graded_by(team: Team, run_id: str) -> dict[int, list[tuple[str, int]]]:
    """Which trials (task id, k) the executor of each process graded."""
    with team.store.reading() as connection:
        rows = connection.execute(
            select(executor.c.pid, trial.c.task_id, trial.c.k)
            .select_from(attempt)
            .join(trial, trial.c.id == attempt.c.trial_id)
            .join(executor, executor.c.id == attempt.c.executor_id)
            .where(trial.c.run_id == run_id, attempt.c.outcome == "graded")
        ).all()
    found: dict[int, list[tuple[str, int]]] = {}
    for row in rows:
        found.setdefault(row.pid, []).append((row.task_id, row.k))
    return found


def graded(team: Team, run_id: str) -> int:
    """How many trials are graded by now."""
    return sum(map(len, graded_by(team, run_id).values()))


def held_by(team: Team, pid: int) -> int:
    """How many trials the executor of a process holds."""
    held = (
        select(trial.c.id).join(executor, executor.c.id == trial.c.executor_id).where(executor.c.pid == pid)
    )
    with team.store.reading() as connection:
        return len(connection.execute(held.where(executor.c.pid == pid)).all())
