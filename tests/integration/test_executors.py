"""Several executors, as processes of their own, on one PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from tests.integration.conftest import ROOT, until
from tests.integration.scripted import open_gate
from tests.postgres import TEMPLATE, Postgres
from tests.stored_runs import assert_counters_true
from valkyrie.config import values
from valkyrie.domain import TrialState
from valkyrie.schedule.scheduler import host_cpus
from valkyrie.store import Store, executors, runs, upkeep
from valkyrie.store.schema import attempt, trial
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

BENCHMARK = "tests.integration.scripted:ScriptedBenchmark"
AGENT = "tests.integration.scripted:ScriptedAgent"
LEASE_S = 3.0


class Team:
    """Executors of one database, each with a data folder of its own as if on another host."""

    def __init__(self, url: str, folder: Path) -> None:
        self.store = Store(url)
        self._url = url
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def hire(self) -> subprocess.Popen[bytes]:
        """One more; it is at work when this returns."""
        number = len(self._processes)
        environment = {
            **os.environ,
            "VALKYRIE_DATABASE_URL": self._url,
            "VALKYRIE_HOME": str(self._folder),
            "VALKYRIE_LEASE_S": str(LEASE_S),
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        }
        with self.log(number).open("wb") as log:
            command = [
                sys.executable,
                "-m",
                "valkyrie.executor",
                str(self._folder / f"host-{number}"),
                "--stay",
            ]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._processes.append(process)
        until(lambda: process.pid in self.at_work())
        return process

    def log(self, number: int) -> Path:
        return self._folder / f"executor-{number}.log"

    def at_work(self) -> dict[int, int]:
        """Trials in hand, by process."""
        with self.store.reading() as connection:
            return {row.pid: row.active for row in executors.living(connection)}

    def start(self, dataset: str, concurrency: int, *, at_once: int | None = None) -> str:
        """A run; of its trials a host has room for so many `at_once`."""
        tracker = LocalTracker(self._folder / "office")
        run_id = tracker.enqueue(RunRequest(AGENT, BENCHMARK, None, dataset, concurrency, provider="null"))
        tracker.close()
        if at_once:
            room = host_cpus() * float(values.effective("cpu_overcommit").value or 1.0)
            needs = update(trial).where(trial.c.run_id == run_id).values(cpus=room / at_once)
            with self.store.writing() as connection:
                connection.execute(needs)
        return run_id

    def open_gate(self) -> None:
        """Let all go on that are held."""
        open_gate(self._folder)

    def state(self, run_id: str) -> str:
        with self.store.reading() as connection:
            return str(runs.get(connection, run_id).state)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.store.close()


@pytest.fixture
def team(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    url = postgres.create(template=TEMPLATE)
    monkeypatch.setenv("VALKYRIE_DATABASE_URL", url)
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    made = Team(url, tmp_path)
    yield made
    made.close()
    postgres.drop(url)


def assert_graded_once(store: Store, run_id: str, tasks: int) -> Counter[str]:
    """Every trial has one grade and all books are right; how many each executor gave."""
    with store.reading() as connection:
        row = runs.get(connection, run_id)
        assert (row.state, row.n_finished, row.n_passed, row.final_score) == ("FINISHED", tasks, tasks, 1.0)
        graded = connection.execute(
            select(attempt.c.trial_id, attempt.c.executor_id)
            .join(trial, trial.c.id == attempt.c.trial_id)
            .where(trial.c.run_id == run_id, attempt.c.outcome == "graded")
        ).all()
    assert len({one.trial_id for one in graded}) == len(graded) == tasks
    assert_counters_true(store)
    return Counter(one.executor_id for one in graded)


@pytest.mark.slow
def test_two_share_a_run(team: Team) -> None:
    run_id = team.start("held*20,ok*140", 20, at_once=10)
    first, second = team.hire(), team.hire()
    until(lambda: team.at_work() == {first.pid: 10, second.pid: 10})
    team.open_gate()
    most = 0

    def done() -> bool:
        nonlocal most
        with team.store.reading() as connection:
            row = runs.get(connection, run_id)
        most = max(most, row.n_building + row.n_in_progress + row.n_evaluating)
        return bool(row.state == "FINISHED")

    until(done, timeout=60)
    assert 0 < most <= 20, "the two together stay within the run's concurrency"
    shares = assert_graded_once(team.store, run_id, 160)
    assert len(shares) == 2, "one alone has not the room"
    for process in (first, second):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert team.at_work() == {}
    assert upkeep.problems(os.environ["VALKYRIE_DATABASE_URL"]) == []


@pytest.mark.slow
def test_one_that_stood_still_past_its_lease_is_too_late(team: Team) -> None:
    sleeper = team.hire()
    run_id = team.start("held*6", 6)
    until(lambda: team.at_work().get(sleeper.pid) == 6)
    sleeper.send_signal(signal.SIGSTOP)
    other = team.hire()
    until(lambda: team.at_work().get(other.pid) == 6)
    team.open_gate()
    until(lambda: team.state(run_id) == "FINISHED", timeout=60)
    shares = assert_graded_once(team.store, run_id, 6)
    assert len(shares) == 1
    sleeper.send_signal(signal.SIGCONT)
    # Whatever it still does with what was its own is refused; what comes next it does alone.
    until(lambda: team.at_work() == {sleeper.pid: 0, other.pid: 0})
    other.send_signal(signal.SIGTERM)
    assert other.wait(60) == 0
    second = team.start("ok*20", 5)
    until(lambda: team.state(second) == "FINISHED", timeout=60)
    assert_graded_once(team.store, second, 20)
    assert_graded_once(team.store, run_id, 6)
    with team.store.reading() as connection:
        outcomes = select(attempt.c.outcome).join(trial, trial.c.id == attempt.c.trial_id)
        counted = Counter(connection.execute(outcomes.where(trial.c.run_id == run_id)).scalars())
    assert counted == {"lost": 6, "graded": 6}


@pytest.mark.slow
def test_what_a_killed_one_held_is_done_by_another(team: Team) -> None:
    run_id = team.start("held*10,ok*50", 10, at_once=5)
    victim, _other = team.hire(), team.hire()
    until(lambda: team.at_work().get(victim.pid, 0) > 0)
    victim.kill()
    victim.wait()
    team.open_gate()
    until(lambda: team.state(run_id) == "FINISHED", timeout=60)
    assert_graded_once(team.store, run_id, 60)


@pytest.mark.slow
def test_a_restart_of_the_database_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Postgres()
    url = server.create(template=TEMPLATE)
    monkeypatch.setenv("VALKYRIE_DATABASE_URL", url)
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    team = Team(url, tmp_path)
    try:
        team.hire()
        team.hire()
        run_id = team.start("held,slow=0.1*399", 20)
        until(lambda: sum(team.at_work().values()) > 0)
        for how in (signal.SIGINT, signal.SIGQUIT):
            server.stop(how)
            server.start()
            until(lambda: sum(team.at_work().values()) > 0, timeout=60)
        team.open_gate()
        until(lambda: team.state(run_id) == "FINISHED", timeout=90)
        assert_graded_once(team.store, run_id, 400)
        with team.store.reading() as connection:
            states = Counter(connection.execute(select(trial.c.state)).scalars())
        assert states == {TrialState.FINISHED: 400}
    finally:
        team.close()
        server.close()
