"""Server, executors, database and bucket fail during a run: graded once, the same score, nothing to be done.

A few blows each; `CRASH_ROUNDS` above ten strikes more often.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from tests.abilities import need_local_sandboxes
from tests.aws_server import running_ministack
from tests.crash.team_processes import Program, Team, room_for, until
from tests.crash.test_crash import ROUNDS, SEED
from tests.crash.tracker_invariants import (
    Watcher,
    assert_graded_once,
    assert_nothing_left,
    assert_outputs_complete,
    graded,
    graded_by,
    held_by,
)
from tests.postgres import Postgres
from valkyrie.views import RunFilter, RunRequest, UpdateRequest

KILLS = 8 if ROUNDS > 10 else 4
RNG = random.Random()
BACK = "can be written again after"
"""What an executor says of its database after an outage."""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL that may be stopped: nobody else's tests are on it."""
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def address(server: Postgres) -> Iterator[str]:
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture
def teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Team]]:
    """Makes installations; whatever the test comes to, nothing of them is left running."""
    need_local_sandboxes(tmp_path / "probe", network="none")
    print(f"CRASH_SEED={SEED}")
    RNG.seed(SEED + 11)
    made: list[Team] = []

    def make(database: str | None = None, **settings: str) -> Team:
        made.append(Team(tmp_path / f"team{len(made)}", database, settings))
        for name, value in made[-1].person().items():
            monkeypatch.setenv(name, value)
        return made[-1]

    yield make
    for team in made:
        team.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def team(request: pytest.FixtureRequest, teams: Callable[..., Team]) -> Team:
    return teams(request.getfixturevalue("address") if request.param == "postgresql" else None)


Blow = Callable[[], object]


def under_fire(team: Team, request: RunRequest, blows: Sequence[Blow]) -> None:
    """As many runs as there is time for before every blow was struck, each of them watched to its end."""
    with team.tracker() as tracker:
        watchers: dict[str, Watcher] = {}
        left = list(blows)
        while left:
            run_id = tracker.start(request).run.id
            watchers[run_id] = Watcher(team, run_id)
            left = strike(team, run_id, left)
        started = [one.id for one in tracker.list(RunFilter(limit=500)).runs]
        assert set(started) >= set(watchers)
        print(f"{len(blows)} blows on {len(started)} runs")
        for run_id in started:
            run = tracker.wait(run_id, timeout=120)
            assert_graded_once(team, run)
            if run_id in watchers:
                watchers[run_id].assert_saw_it_all(run)
    assert_nothing_left(team)


def strike(team: Team, run_id: str, blows: Sequence[Blow]) -> list[Blow]:
    """One blow after another, at random instants; what is left of them when the run is over."""
    for number, blow in enumerate(blows):
        time.sleep(RNG.uniform(0.2, 1.5))
        if team.is_over(run_id):
            return list(blows[number:])
        blow()
    return []


def strike_server(serve: Program) -> None:
    serve.kill()
    time.sleep(RNG.uniform(0.0, 1.0))
    serve.start(ready='"url"')


def strike_child(team: Team) -> int:
    """The executor of the server; which process it was."""
    pid = until(team.executor_pid, "there is an executor")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def strike_child_and_see(team: Team) -> None:
    """Its server starts another one, and nobody has to ask for it."""
    struck = strike_child(team)
    until(lambda: team.executor_pid() not in (None, struck), "it is started again")


def test_server_and_its_executor_killed(teams: Callable[..., Team]) -> None:
    team = teams()
    serve = team.serve()
    serve.start(ready='"url"')
    blows = [lambda: strike_child_and_see(team), lambda: strike_server(serve)]
    under_fire(team, team.request(trials=2), blows)


def test_server_and_its_executor_killed_at_random_instants(team: Team) -> None:
    serve = team.serve()
    serve.start(ready='"url"')
    blows: list[Blow] = [lambda: strike_child(team), lambda: strike_server(serve)]
    under_fire(team, team.request(trials=5), [blows[number % 2] for number in range(KILLS)])


def test_a_server_ends_with_the_executor_a_killed_one_left(teams: Callable[..., Team]) -> None:
    team = teams()
    serve = team.serve()
    serve.start(ready='"url"')
    with team.tracker() as tracker:
        # One after another: whatever the machine, it is not over before two servers have come up.
        run_id = tracker.start(team.request(trials=4, concurrency=1)).run.id
        until(lambda: graded(team, run_id) > 0, "it works")
        left = team.executor_pid()
        serve.kill()
        serve.start(ready='"url"')
        until(lambda: "this one stands by" in serve.said(), "the new one waits for the old one")
        assert team.executor_pid() == left
        serve.send(signal.SIGTERM)
        assert serve.wait() == 0
        until(lambda: not team.processes(), "it leaves, too", state=team.processes)
        assert not team.is_over(run_id)
        serve.start(ready='"url"')
        tracker.update(run_id, UpdateRequest(concurrency=6))
        assert_graded_once(team, tracker.wait(run_id, timeout=120), before=frozenset())
    assert_nothing_left(team)


def test_postgres_restarted_twice(server: Postgres, address: str, teams: Callable[..., Team]) -> None:
    team = teams(address)
    serve = team.serve()
    serve.start(ready='"url"')
    with team.tracker() as tracker:
        run_id = tracker.start(team.request(trials=5, concurrency=1)).run.id
        watcher = Watcher(team, run_id)
        until(lambda: graded(team, run_id) > 0, "it works")
        pids = (serve.pid, team.executor_pid())
        for outage in (1, 2):
            server.stop(signal.SIGQUIT)
            until(lambda: team.health() == 503, "the server sees that the database is away")
            time.sleep(2.0)
            server.start()
            until(lambda number=outage: serve.said().count(BACK) >= number, "the executor writes again")
            until(lambda: team.health() == 200, "so does the server")
            assert not team.is_over(run_id)
        tracker.update(run_id, UpdateRequest(concurrency=6))
        run = tracker.wait(run_id, timeout=120)
        assert_graded_once(team, run)
        watcher.assert_saw_it_all(run)
        assert (serve.pid, team.executor_pid()) == pids
    assert serve.said().count("GET /health 503") >= 2
    assert_nothing_left(team)


def test_the_bucket_is_away_for_20_seconds(tmp_path: Path, teams: Callable[..., Team]) -> None:
    with running_ministack(tmp_path / "aws") as aws:
        team = teams(**aws.environment, S3_BUCKET=aws.bucket())
        serve = team.serve()
        serve.start(ready='"url"')
        with team.tracker() as tracker:
            run_id = tracker.start(team.request(trials=4)).run.id
            watcher = Watcher(team, run_id)
            until(lambda: graded(team, run_id) > 0, "it works")
            aws.stop()
            time.sleep(20)
            aws.start()
            run = tracker.wait(run_id, timeout=120)
            assert_graded_once(team, run)
            watcher.assert_saw_it_all(run)
            shutil.rmtree(team.home().runs)  # what is not in the bucket is nowhere
            assert_outputs_complete(tracker, run_id, 4, tmp_path / "outputs")
        assert_nothing_left(team)


def test_an_executor_frozen_past_its_lease(tmp_path: Path, address: str, teams: Callable[..., Team]) -> None:
    team = two_machines(teams, address, tmp_path)
    team.serve("--no-executor").start(ready='"url"')
    first, second = team.executor("first"), team.executor("second", f"{address}?application_name=second")
    with team.tracker() as tracker:
        run_id = tracker.start(team.request(trials=7, concurrency=1)).run.id
        forget_files_of_the_server(team)
        for program in (first, second):
            program.start(ready="Executor")
        tracker.update(run_id, UpdateRequest(concurrency=8))
        watcher = Watcher(team, run_id)
        until(lambda: len(graded_by(team, run_id)) == 2, "both work")
        freeze_while_it_writes(second, address, run_id)
        until(lambda: not held_by(team, second.pid), "its trials are others' by now")
        second.send(signal.SIGCONT)
        until(lambda: "was refused: another lease is in force" in second.said(), "its late write is refused")
        run = tracker.wait(run_id, timeout=120)
        assert_graded_once(team, run)
        watcher.assert_saw_it_all(run)
        worked = graded_by(team, run_id)
        assert set(worked) == {first.pid, second.pid}
        assert_outputs_complete(tracker, run_id, 7, tmp_path / "outputs")
    assert_nothing_left(team)


def two_machines(teams: Callable[..., Team], address: str, folder: Path) -> Team:
    """Executors who share a database and a folder, none with room for a whole run; dead after six seconds."""
    settings = {"VALKYRIE_LEASE_S": "6", "VALKYRIE_ARTIFACTS_FOLDER": str(folder / "artifacts")}
    return teams(address, **settings, **room_for(4))


def forget_files_of_the_server(team: Team) -> None:
    """Executors on other machines do not have them; those that are to come are on others."""
    for folder in (team.home().cache, team.home().runs, team.home().root / "uploads"):
        shutil.rmtree(folder, ignore_errors=True)


def freeze_while_it_writes(frozen: Program, address: str, run_id: str) -> None:
    """Stop a process that has something to write: while another transaction has the run, its writes wait."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'second' AND wait_event_type = 'Lock'"
    with psycopg.connect(address, autocommit=True) as looking, psycopg.connect(address) as holding:
        holding.execute("SELECT id FROM run WHERE id = %s FOR UPDATE", [run_id])
        until(lambda: looking.execute(waits).fetchall(), "it waits for the run")
        time.sleep(2)  # meanwhile each of its attempts comes to its next write
        frozen.send(signal.SIGSTOP)


def test_the_score_is_written_on_another_machine(
    tmp_path: Path, address: str, teams: Callable[..., Team]
) -> None:
    """All trials graded, the run not concluded when its executor died for good."""
    team = two_machines(teams, address, tmp_path)
    team.serve("--no-executor").start(ready='"url"')
    first = team.executor("first")
    first.start(ready="Executor")
    with team.tracker() as tracker, psycopg.connect(address, autocommit=True) as books:
        run_id = tracker.start(team.request(trials=1)).run.id
        handed = books.execute("SELECT run_id, sealed FROM handover").fetchall()
        assert_graded_once(team, tracker.wait(run_id, timeout=120))
        first.kill()
        forget_files_of_the_server(team)
        books.execute("UPDATE run SET state = 'IN_PROGRESS', final_score = NULL, final_evaluation = NULL")
        books.execute("INSERT INTO handover (run_id, sealed) VALUES (%s, %s)", handed[0])
        team.executor("second").start(ready="Executor")
        assert_graded_once(team, tracker.wait(run_id, timeout=120))
    assert_nothing_left(team)


def test_anyone_killed_at_random_instants(tmp_path: Path, address: str, teams: Callable[..., Team]) -> None:
    """Server, either executor, or a person's command line; the dead are started again, as a host would."""
    team = two_machines(teams, address, tmp_path)
    serve, executors = team.serve("--no-executor"), [team.executor("first"), team.executor("second")]
    serve.start(ready='"url"')
    for program in executors:
        program.start(ready="Executor")

    def strike_executor() -> None:
        struck = RNG.choice(executors)
        struck.kill()
        struck.start(ready="Executor")

    blows: list[Blow] = [lambda: strike_server(serve), strike_executor, lambda: strike_person(team)]
    under_fire(team, team.request(trials=4, concurrency=8), RNG.choices(blows, k=KILLS + 2))
    team.admin("db", "check")


def strike_person(team: Team) -> None:
    """Someone starts a run and is killed at it: there is a whole run then, or none."""
    words = ("--agent", str(team.agent), "--benchmark", str(team.benchmark))
    person = team.command("run", "start", *words)
    person.start()
    time.sleep(RNG.uniform(0.3, 2.5))
    person.kill()
