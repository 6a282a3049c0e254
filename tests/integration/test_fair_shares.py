"""Three people's runs on one executor with room for eight trials: at every moment each has its share."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.integration.conftest import ROOT
from valkyrie.domain import Identity
from valkyrie.schedule.scheduler import FILES_OF_OUR_OWN, FILES_PER_TRIAL
from valkyrie.store.layout import DataFolder
from valkyrie.store.schema import attempt, run, trial
from valkyrie.tracker.app import TrackerApp
from valkyrie.views import RunRequest

ROOM = 8
TRIALS = 200
RUNS = {"ada": 5, "ben": 4, "cy": 1}


def files_for(trials: int) -> None:
    """Let a process have files enough for so many trials at once, and no more."""
    most = FILES_OF_OUR_OWN + FILES_PER_TRIAL * trials
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.mark.slow
def test_nobody_holds_more_than_one_trial_above_anothers_share(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tracker_app = TrackerApp(DataFolder(home))
    request = RunRequest(
        agent="valkyrie.testing.null:NapAgent",
        benchmark="valkyrie.testing.null:NullBenchmark",
        dataset=f"{TRIALS}~0.01",
        concurrency=ROOM,
        provider="null",
    )
    for person, count in RUNS.items():
        for _ in range(count):
            tracker_app.tracker(Identity(person=person)).enqueue(request)
    environment = {
        **os.environ,
        "VALKYRIE_HOME": str(home),
        "VALKYRIE_EXECUTOR_IDLE_S": "0",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    command = [sys.executable, "-m", "valkyrie.executor", str(home)]
    subprocess.run(command, env=environment, preexec_fn=lambda: files_for(ROOM), check=True, timeout=300)
    query = (
        select(run.c.started_by, run.c.id, attempt.c.started_at, attempt.c.finished_at)
        .join(trial, trial.c.id == attempt.c.trial_id)
        .join(run, run.c.id == trial.c.run_id)
        .where(attempt.c.outcome == "graded")
    )
    with tracker_app.store.reading() as connection:
        rows = [tuple(row) for row in connection.execute(query)]
    tracker_app.close()
    check_shares(rows)


def check_shares(rows: list[tuple[str, str, float, float]]) -> None:
    """Go through all moments at which a trial began or ended."""
    assert len(rows) == TRIALS * sum(RUNS.values())
    begins = [(at, 1, person, run_id) for person, run_id, at, _ in rows]
    ends = [(at, -1, person, run_id) for person, run_id, _, at in rows]
    first = min(begins)[0]
    half = sorted(begins)[len(begins) // 2][0]
    left = Counter({person: TRIALS * count for person, count in RUNS.items()})
    held: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    looked_at, most = 0, 0
    # Trials that were leased together began at the same moment: shares are looked at when all of them have.
    for at, changes in groupby(sorted(begins + ends), key=lambda change: change[0]):
        began = False
        for _, change, person, run_id in changes:
            held[person] += change
            if change > 0:
                began = True
                left[person] -= 1
                begun[run_id] += at <= half
        most = max(most, held.total())
        waiting = [one for one in RUNS if left[one]]
        if at > first + 1 and began and len(waiting) > 1:
            share = (ROOM - sum(held[one] for one in RUNS if not left[one])) / len(waiting)
            assert all(held[one] <= share + 1 for one in waiting), (at - first, held, left)
            looked_at += 1
    assert looked_at > 100 and most == ROOM
    assert len(begun) == sum(RUNS.values()), "at half-time some run had not begun anything"
