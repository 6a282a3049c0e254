"""A data folder: runs and jobs in the states a test asks for, and an executor that only answers."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from valkyrie import __version__
from valkyrie.domain import Category, Outcome, RunState, TrialState
from valkyrie.executor.client import socket_path
from valkyrie.store import REVISION, Store, jobs, runs
from valkyrie.store.counters import add_grade, spending
from valkyrie.store.layout import DataFolder
from valkyrie.store.schema import ERROR_COUNTERS, STATE_COUNTERS, attempt, run, trial
from valkyrie.views import RunRequest

BEGUN = 1_700_000_000.0
RUN = "aaaa1111"
JOB = "bbbb2222"
CODEX, NOP = "1111aaaa", "2222bbbb"
"""The runs of a job of two."""
KEPT = (
    *("job_id", "job_position", "agent", "model", "benchmark", "dataset", "provider", "created_at"),
    *("concurrency", "arguments", "agent_frozen", "benchmark_source", "enforcement", "fraction"),
)
"""Columns that stay when other trials take the place of a run's."""
ACTIVE = (TrialState.BUILDING, TrialState.IN_PROGRESS, TrialState.EVALUATING)
Trial = Mapping[str, Any]


def graded(score: float, task_id: str | None = None, **columns: Any) -> Trial:
    """A trial whose score was seen in a fresh sandbox."""
    return {
        **({"task_id": task_id} if task_id is not None else {}),
        "state": "FINISHED",
        "score": score,
        "passed": score >= 1,
        "confirmed": True,
        "score_confirmed": score,
        "exit_code": 0,
        **columns,
    }


def passed(task_id: str | None = None, **columns: Any) -> Trial:
    return graded(1.0, task_id, **columns)


def failed(task_id: str | None = None, **columns: Any) -> Trial:
    return graded(0.0, task_id, **columns)


def lost(task_id: str | None = None, **columns: Any) -> Trial:
    """A trial that ended in an error, of the infrastructure unless said."""
    return {
        **({"task_id": task_id} if task_id is not None else {}),
        "state": "ERROR",
        "category": "infrastructure",
        "cause": "sandbox_failed",
        "message": "no room",
        **columns,
    }


def unended(state: str, task_id: str | None = None, **columns: Any) -> Trial:
    """A trial that waits, is under way, or was stopped."""
    return {**({"task_id": task_id} if task_id is not None else {}), "state": state, **columns}


HALFWAY = [*[passed()] * 4, failed(), *[unended("PENDING")] * 7]
PROVISIONAL = [*[passed()] * 9, failed(), *[lost()] * 2]


class StandInExecutor:
    """Answers on the control socket of a data folder as an executor does, and runs nothing."""

    def __init__(self, data: DataFolder) -> None:
        self.on_wake: Callable[[], None] = lambda: None
        """Called when somebody needs it: after a run was stored, before its start returns."""
        self.shell = ["echo", "in", "the", "sandbox"]
        self.asked: list[dict[str, Any]] = []
        self._path = socket_path(data)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._path))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End it: nobody is at work any more."""
        if self._listener.fileno() < 0:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._path.unlink()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with link, link.makefile("rb") as lines:
                if line := lines.readline():
                    link.sendall(json.dumps(self._answer(json.loads(line))).encode() + b"\n")

    def _answer(self, ask: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(ask)
        if ask["verb"] == "wake":
            self.on_wake()
        return {"version": __version__, "schema": REVISION, "draining": False, "argv": self.shell}


@cache
def _template() -> Path:
    """An empty store, migrated once for all tests of a process."""
    path = Path(mkdtemp(prefix="valkyrie-template-")) / "valkyrie.db"
    Store(path).close()
    return path


class FilledStore:
    """Puts runs, trials and jobs into the store of a data folder."""

    def __init__(self, home: Path) -> None:
        self.data = DataFolder(home).make()
        shutil.copyfile(_template(), self.data.database)
        self.store = Store(self.data.database)
        self.executor = StandInExecutor(self.data)
        self._versions: dict[str, int] = defaultdict(int)

    def close(self) -> None:
        self.executor.leave()
        self.store.close()

    def add_run(self, run_id: str = RUN, trials: Sequence[Trial] = (passed(),) * 12, **columns: Any) -> str:
        """Put a run with these trials into the store, over one of the same id; `columns` are of its row."""
        rows = [_trial_row(run_id, position, one) for position, one in enumerate(trials)]
        with self.store.writing() as connection:
            before = connection.execute(select(run).where(run.c.id == run_id)).one_or_none()
            if before is not None:
                columns = {name: getattr(before, name) for name in KEPT} | columns
                digests = runs.planned(connection, run_id)
                rows = [
                    row | {"digest": digests.get((row["task_id"], row["k"]), row["digest"])} for row in rows
                ]
                self._versions[run_id] = before.version
                connection.execute(delete(run).where(run.c.id == run_id))
            self._versions[run_id] += 1
            values = _run_row(run_id, rows, columns) | {"version": self._versions[run_id]}
            connection.execute(insert(run).values(**values))
            _add_trials(connection, rows, values["version"])
            if RunState(values["state"]).terminal and "exit_codes" not in columns:
                codes = runs.exit_codes(connection, run_id) or None
                connection.execute(update(run).where(run.c.id == run_id).values(exit_codes=codes))
        return run_id

    def add_runs(self, run_ids: Sequence[str], **columns: Any) -> None:
        """Put many ended runs without trials into the store, the first of them the newest."""
        with self.store.writing() as connection:
            connection.execute(
                insert(run),
                [
                    _run_row(run_id, (), {"created_at": BEGUN - number, "state": "FINISHED", **columns})
                    for number, run_id in enumerate(run_ids)
                ],
            )

    def add_job(
        self, job_id: str = JOB, run_ids: Sequence[str] = (), *, trials: int = 1, **columns: Any
    ) -> str:
        """Put a job of these runs, which are in the store, into it."""
        with self.store.writing() as connection:
            rows = connection.execute(select(run).where(run.c.id.in_(run_ids))).all()
            agents = {row.id: {"agent": row.agent, "model": row.model, "kwargs": {}} for row in rows}
            jobs.create(connection, _job_row(job_id, [agents[one] for one in run_ids], trials, columns))
            for position, run_id in enumerate(run_ids):
                belongs = {"job_id": job_id, "job_position": position}
                connection.execute(update(run).where(run.c.id == run_id).values(**belongs))
        return job_id

    def add_jobs(self, job_ids: Sequence[str], **columns: Any) -> None:
        """Put many jobs without runs into the store."""
        with self.store.writing() as connection:
            for job_id in job_ids:
                jobs.create(connection, _job_row(job_id, (), 1, columns))

    def add_run_under_way(self, run_id: str = RUN, *, active: int = 1, **columns: Any) -> str:
        """A run that began 65 s ago: 4 trials passed, one failed, one is lost, some are active, 6 wait."""
        now = time.time()
        under_way = [
            unended("IN_PROGRESS", "solve-it" if active == 1 else f"task-{number:02d}", started_at=now - 3)
            for number in range(active)
        ]
        trials = [*under_way, *[passed()] * 4, failed(), lost("broke"), *[unended("PENDING")] * 6]
        return self.add_run(run_id, trials, started_at=now - 65, **columns)

    def add_job_of_two(self) -> str:
        """Two agents, two tasks twice each: codex passes 3 and half of one; nop fails 3 and has an error."""
        self.add_run(
            CODEX,
            [passed("add"), graded(0.5, "fix/it"), passed("add", k=1), passed("fix/it", k=1)],
            agent="codex",
            model="gpt-5",
        )
        timeout = failed("fix/it", exit_reason="TIMEOUT", exit_code=124)
        self.add_run(NOP, [failed("add"), timeout, failed("add", k=1), lost("fix/it", k=1)], agent="nop")
        return self.add_job(run_ids=[CODEX, NOP], trials=2)

    def change_run(self, run_id: str = RUN, **columns: Any) -> None:
        with self.store.writing() as connection:
            runs.set_values(connection, run_id, **columns)

    def run_ids(self) -> list[str]:
        with self.store.reading() as connection:
            return list(connection.execute(select(run.c.id)).scalars())

    def run_row(self, run_id: str = RUN) -> Any:
        with self.store.reading() as connection:
            return runs.get(connection, run_id)

    def end_runs(self, one: Callable[[str], Trial] = lambda _agent: passed()) -> None:
        """End every open run: all its trials as `one` says for its agent."""
        with self.store.reading() as connection:
            found = connection.execute(select(run).where(run.c.finished_at.is_(None))).all()
            tasks = {row.id: runs.planned(connection, row.id) for row in found}
        for row in found:
            trials = [{**one(row.agent), "task_id": task, "k": k} for task, k in tasks[row.id]]
            self.add_run(row.id, trials)

    def conclude_runs(self) -> None:
        """Give every run its last state that has nothing left to do."""
        with self.store.writing() as connection:
            for run_id in connection.execute(select(run.c.id)).scalars().all():
                runs.conclude(connection, run_id, BEGUN + 66, final=None, graded=None, error=None)

    def keep(self, files: Mapping[str, str], task_id: str, run_id: str = RUN, k: int = 0) -> None:
        """Put files into the folder of a trial's first attempt."""
        folder = self.data.run(run_id).attempt(task_id, k, 1)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def log(self, text: str, task_id: str, run_id: str = RUN, k: int = 0, number: int = 1) -> Path:
        """Write the log of an attempt."""
        path = self.data.run(run_id).log(task_id, k, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def _add_trials(connection: Connection, rows: Sequence[dict[str, Any]], version: int) -> None:
    passes = {row["position"]: row.pop("passes", None) or range(1, row["attempts"] + 1) for row in rows}
    if not rows:
        return
    names = dict.fromkeys(name for row in rows for name in row)
    connection.execute(
        insert(trial), [{**{name: row.get(name) for name in names}, "version": version} for row in rows]
    )
    found = select(trial.c.id, trial.c.position).where(trial.c.run_id == rows[0]["run_id"])
    ids = {row.position: row.id for row in connection.execute(found)}
    attempts = [
        _attempt_row(row, ids[row["position"]], number, passage)
        for row in rows
        for number, passage in enumerate(passes[row["position"]], 1)
    ]
    if attempts:
        connection.execute(insert(attempt), attempts)


def _attempt_row(row: Mapping[str, Any], trial_id: int, number: int, passage: int) -> dict[str, Any]:
    ended = {"FINISHED": Outcome.GRADED, "ERROR": Outcome.FAILED, "STOPPED": Outcome.STOPPED}
    outcome = ended.get(row["state"]) or (Outcome.FAILED if row.get("category") else None)
    found = ("category", "cause", "message", "exit_code", "exit_reason", "score", "result", "timing", "cost")
    return {
        **{name: row.get(name) for name in (*found, "passed", "confirmed", "score_confirmed", "finished_at")},
        "trial_id": trial_id,
        "number": number,
        "executor_id": "here",
        "epoch": 1,
        "phase": row["state"] if TrialState(row["state"]) in ACTIVE else "EVALUATING",
        "outcome": outcome.value if outcome else None,
        "passage": passage,
        "started_at": row["started_at"] or BEGUN,
    }


def _job_row(job_id: str, agents: Sequence[Any], trials: int, columns: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": job_id,
        "name": "nightly",
        "created_at": BEGUN,
        "concurrency": 10,
        "about": {},
        "arguments": {
            "agents": list(agents),
            "template": asdict(RunRequest("", "quickstart", trials=trials)),
            "selections": [{"benchmark": "quickstart", "dataset": "default", "task_ids": None}],
            "source": {"type": "benchmark", "benchmark_name": "quickstart"},
        },
        **columns,
    }


def _trial_row(run_id: str, position: int, given: Trial) -> dict[str, Any]:
    state = TrialState(given["state"])
    begun = state not in (TrialState.PENDING, TrialState.STOPPED) or given.get("category") is not None
    ended = state in (TrialState.FINISHED, TrialState.ERROR)
    return {
        "run_id": run_id,
        "position": position,
        "task_id": f"t{position}",
        "k": 0,
        "digest": "d" * 64,
        "attempts": len(given.get("passes", "1")) if begun else 0,
        "executor_id": "here" if state in ACTIVE else None,
        "started_at": BEGUN + 1 if begun else None,
        "finished_at": BEGUN + 4.2 if ended else None,
        "timing": {},
        **given,
    }


def _run_row(run_id: str, trials: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> dict[str, Any]:
    states = {TrialState(one["state"]) for one in trials}
    going = bool(states & {TrialState.PENDING, *ACTIVE})
    state = "IN_PROGRESS" if going else "STOPPED" if TrialState.STOPPED in states else "FINISHED"
    ended = RunState(columns.get("state", state)).terminal
    counters = _counters(trials)
    counted = counters["n_finished"] + counters["e_agent"]
    scores = {}
    if ended and counted:
        scores = {
            "final_score": counters["score_sum"] / len(trials),
            "score_graded": counters["score_sum"] / counted,
            "score_confirmed": counters["confirmed_sum"] / len(trials),
        }
    return {
        "id": run_id,
        "state": state,
        "agent": "oracle",
        "benchmark": "quickstart",
        "dataset": "default",
        "provider": "null",
        "concurrency": 5,
        "fraction": True,
        "created_at": BEGUN,
        "started_at": BEGUN + 1,
        "finished_at": BEGUN + 66 if ended else None,
        "arguments": {
            "agent": columns.get("agent", "oracle"),
            "benchmark": columns.get("benchmark", "quickstart"),
            "dataset": columns.get("dataset", "default"),
            "model": columns.get("model"),
            "trials": 1 + max((one["k"] for one in trials), default=0),
            "settings": {},
        },
        "agent_frozen": {},
        "benchmark_source": {"kind": "builtin", "name": "quickstart"},
        "enforcement": {"memory": "cgroup v2"},
        "version": 1,
        **counters,
        **scores,
        **columns,
    }


def _counters(trials: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What a run counts of its trials."""
    found = dict.fromkeys((*STATE_COUNTERS.values(), *ERROR_COUNTERS.values(), "score_sum"), 0.0)
    counters = defaultdict(float, found | {"confirmed_sum": 0.0})
    grades = ("score", "passed", "confirmed", "score_confirmed", "evidence")
    for one in trials:
        state = TrialState(one["state"])
        counters[STATE_COUNTERS[state]] += 1
        if state is TrialState.FINISHED:
            add_grade(counters, SimpleNamespace(**{name: one.get(name) for name in grades}), +1)
        elif state is TrialState.ERROR:
            counters[ERROR_COUNTERS[Category(one["category"])]] += 1
        for name, number in spending(one.get("cost"), one.get("usage")).items():
            counters[name] += number
    return dict(counters)
