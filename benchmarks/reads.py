"""Commands that read every trial of a run: CPU and memory at three sizes of the store."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from benchmarks.commands import VALK
from benchmarks.engine import line, scratch_home
from valkyrie.store import Store
from valkyrie.store.layout import DataFolder
from valkyrie.store.schema import attempt, job, run, trial

SIZES = (1000, 10_000, 100_000)
BAR = "bar: 5 s and 120 MB at 100,000 trials, linear in N"
_BATCH = 2000
_LAUNCHER = """
import os, sys
nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
_, status, used = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=nowhere), 0)
print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
_TIMING = {"build": 0.0001, "setup": 0.0001, "install": 0.0, "agent": 0.0, "grade": 0.0001, "total": 0.0675}
_ASKED = {
    "source": {},
    "template": {
        "trials": 1,
        "agent_timeout": None,
        "default_agent_timeout": None,
        "timeout_multiplier": 1.0,
    },
}
_WITHOUT_GRADE = {
    "state": "ERROR", "score": None, "passed": None, "result": None, "confirmed": None,
    "score_confirmed": None, "category": "infrastructure", "cause": "sandbox_failed",
    "message": "The sandbox did not start.",
}  # fmt: skip


def measure() -> Iterator[dict[str, Any]]:
    """Every reading command on a job of two runs with N trials each."""
    for trials in SIZES:
        with scratch_home() as home:
            first, second = fill_job(home, trials)
            for name, command in commands(first, second, home).items():
                cpu, rss = _spent(command, home)
                note = f"N = {trials:,}; {BAR}"
                yield line(f"{name}_cpu_s", cpu, None, "s", note, n=trials)
                yield line(f"{name}_peak_rss_mb", rss, None, "MB", note, n=trials)


def commands(first: str, second: str, home: Path) -> dict[str, list[str]]:
    """What people type to read a run, or two of them."""
    return {
        "compare": ["compare", first, second],
        "export_csv": ["export", first, "--exporter", "csv", "--output-dir", str(home / "csv")],
        "job_summary": ["job", "summary", "measured"],
        "run_logs": ["run", "logs", first],
        "run_results": ["run", "results", first, "--path", str(home / "results.json")],
        "run_tasks": ["run", "tasks", first, "--sort", "duration"],
        "run_show": ["run", "show", first],
    }


def _spent(command: list[str], home: Path) -> tuple[float, float]:
    """CPU seconds and peak memory of one command, started by a small process: a child counts as large as
    whoever forked it."""
    environment = {**os.environ, "VALKYRIE_HOME": str(home)}
    asked = [sys.executable, "-S", "-c", _LAUNCHER, str(VALK), *command]
    done = subprocess.run(asked, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    code, cpu, peak = done.stdout.split()
    if code != "0":
        raise RuntimeError(f"valk {' '.join(command)} ended with {code}")
    return float(cpu), float(peak) / 1024


def fill_job(home: Path, trials: int) -> tuple[str, str]:
    """Store a finished job of two runs with so many trials each; return the ids of the runs."""
    store = Store(DataFolder(home).database)
    job_id = str(uuid.uuid4())
    with store.writing() as connection:
        connection.execute(
            insert(job).values(
                id=job_id, name="measured", created_at=1e9, concurrency=50, about={}, arguments=_ASKED
            )
        )
    found = [_fill_run(store, job_id, position, trials) for position in range(2)]
    store.close()
    return found[0], found[1]


def _fill_run(store: Store, job_id: str, position: int, trials: int) -> str:
    run_id = str(uuid.uuid4())
    chance = random.Random(position)
    outcomes = [chance.choices(("passed", "failed", "error"), (0.7 - position / 20, 0.29, 0.01))[0]
                for _ in range(trials)]  # fmt: skip
    passed, errors = outcomes.count("passed"), outcomes.count("error")
    values = {
        "id": run_id, "state": "FINISHED", "agent": f"nap-{position}", "benchmark": "null",
        "dataset": "default", "provider": "null", "concurrency": 50, "fraction": True,
        "created_at": 1e9 + position, "started_at": 1e9, "finished_at": 1e9 + 60, "job_id": job_id,
        "job_position": position, "arguments": {"trials": 1, "agent_digest": f"nap:{position}"},
        "agent_frozen": {}, "benchmark_source": {}, "enforcement": {}, "n_finished": trials - errors,
        "n_error": errors, "e_infrastructure": errors, "n_passed": passed, "score_sum": float(passed),
        "n_confirmed": passed, "confirmed_sum": float(passed), "n_verified": trials - errors,
        "final_score": passed / trials, "score_graded": passed / (trials - errors),
        "score_confirmed": passed / trials, "final_evaluation": {"final_score": passed / trials},
    }  # fmt: skip
    with store.writing() as connection:
        connection.execute(insert(run).values(**values))
    for start in range(0, trials, _BATCH):
        _fill_trials(store, run_id, start, outcomes[start : start + _BATCH])
    return run_id


def _fill_trials(store: Store, run_id: str, start: int, outcomes: list[str]) -> None:
    rows = []
    for number, outcome in enumerate(outcomes, start):
        score = float(outcome == "passed")
        row = {
            "run_id": run_id, "position": number, "task_id": f"task-{number}", "k": 0,
            "digest": f"sha256:{uuid.uuid4().hex}{uuid.uuid4().hex}", "attempts": 1, "exit_code": 0,
            "state": "FINISHED", "score": score, "passed": bool(score), "confirmed": True,
            "score_confirmed": score, "result": {}, "timing": _TIMING, "category": None, "cause": None,
            "message": None, "started_at": 1e9 + number / 1000, "finished_at": 1e9 + number / 999,
        }  # fmt: skip
        rows.append({**row, **_WITHOUT_GRADE} if outcome == "error" else row)
    with store.writing() as connection:
        connection.execute(insert(trial), rows)
        ids = connection.execute(
            trial.select().with_only_columns(trial.c.id, trial.c.state).where(
                trial.c.run_id == run_id, trial.c.position >= start
            )
        )  # fmt: skip
        tried = [
            {"trial_id": one.id, "number": 1, "executor_id": "x", "epoch": 1, "phase": "EVALUATING",
             "outcome": "graded" if one.state == "FINISHED" else "failed", "timing": _TIMING, "result": {},
             "started_at": 1e9, "finished_at": 1e9 + 1}
            for one in ids
        ]  # fmt: skip
        connection.execute(insert(attempt), tried)
