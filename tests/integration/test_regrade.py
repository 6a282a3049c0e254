"""Kept work graded again in real sandboxes: other tests, tests changed in place, limits, judges."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import end_executor
from tests.integration.evals.commands import Valk
from tests.integration.evals.commands import valk as valk
from tests.integration.evals.serving import serving
from tests.integration.evals.test_eval_command import spec, stimulus
from tests.integration.evals.test_eval_judges import JUDGE, KEY, grade
from valkyrie.config import values
from valkyrie.errors import UserError
from valkyrie.testing.model_server import Script
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RegradeRequest, RunFilter, RunRequest, RunView, StopRequest, TrialFilter

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

TOML = '[environment]\nnetwork_mode = "no-network"\n'
REWARD = "/logs/verifier/reward.txt"


def write_task(folder: Path, name: str, test: str, **more: str) -> None:
    files = {
        "task.toml": TOML,
        "instruction.md": "Write your name.",
        "solution/solve.sh": f"echo {name} > /app/out.txt; rm -f /app/given",
        "environment/given": "",
        "tests/test.sh": test,
        **more,
    }
    for path, text in files.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text)


def expecting(text: str) -> str:
    return f"[ ! -e given ] && grep -q {text} out.txt && echo 1 > {REWARD} || echo 0 > {REWARD}"


def finished(tracker: LocalTracker, folder: Path, **more: object) -> RunView:
    request = RunRequest(agent="oracle", benchmark=str(folder), provider="local", **more)  # type: ignore[arg-type]
    return tracker.wait(tracker.start(request).run.id, timeout=120)


def regraded(tracker: LocalTracker, run: RunView, **how: object) -> RunView:
    assert tracker.regrade(run.id, RegradeRequest(**how)).started  # type: ignore[arg-type]
    return tracker.wait(run.id, timeout=120)


@pytest.mark.slow
def test_tests_that_were_changed_in_place(tracker: LocalTracker, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    write_task(tasks, "one", expecting("wrong"))
    write_task(tasks, "two", expecting("two"))
    run = finished(tracker, tasks)
    assert run.score.passed == 1
    write_task(tasks, "one", expecting("one"))
    again = regraded(tracker, run, tests=str(tasks))
    assert (again.score.passed, again.score.confirmed) == (2, 2)
    assert again.folder == run.folder
    # Without --tests the task must be what it was: its verdict stays, and the attempt says why.
    assert tracker.use_grading(run.id, 0).score.passed == 1
    third = regraded(tracker, run, task_ids=["one"])
    assert third.score == run.score
    attempts = tracker.attempts(run.id, "one")
    assert [one.outcome for one in attempts] == ["graded", "graded", "failed"]
    assert attempts[-1].cause == "task_changed"
    # What people take is of the attempt the verdict is of, not of the failed one.
    files = tracker.outputs(run.id, tmp_path / "outputs")
    assert (tmp_path / "outputs" / "one" / "grading" / "verifier" / "reward.txt").is_file(), files
    # What was kept is shared by all gradings.
    assert len(list(Path(run.folder, "work").iterdir())) == 2


@pytest.mark.slow
def test_only_tests_and_verifier_settings_are_taken(tracker: LocalTracker, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "one", expecting("one"))
    run = finished(tracker, tmp_path / "tasks")
    toml = f'{TOML}workdir = "/elsewhere"\n[verifier.env]\nWANTED = "one"\n'
    test = f'[ "$PWD" = /app ] && grep -q "$WANTED" out.txt && echo 0.5 > {REWARD}'
    write_task(tmp_path / "new", "one", test, **{"task.toml": toml, "instruction.md": "Another."})
    plan = tracker.regrade(run.id, RegradeRequest(tests=str(tmp_path / "new"), dry_run=True))
    assert (plan.started, plan.number, plan.trials) == (False, 1, [("one", 0)])
    assert "differs in instruction, cwd too" in plan.notices[0]
    assert tracker.fetch(run.id).state == "FINISHED"
    again = regraded(tracker, run, tests=str(tmp_path / "new"))
    assert (again.score.final_score, again.score.passed) == (0.5, 0)
    (change,) = tracker.compare_gradings(run.id, 0, 1).changes
    assert (change.kind, change.score_a, change.score_b) == ("now fails", 1.0, 0.5)
    (trial,), _ = tracker.trials(run.id, TrialFilter())
    assert {"agent", "grade"} <= set(trial.timing)


@pytest.mark.slow
def test_work_that_was_not_kept_is_named(tracker: LocalTracker, tmp_path: Path) -> None:
    values.set_value("work_max_mb", "1")
    write_task(tmp_path / "tasks", "small", expecting("small"))
    large = {"solution/solve.sh": "echo large > out.txt; rm given; head -c 2000000 /dev/urandom > data"}
    write_task(tmp_path / "tasks", "large", expecting("large"), **large)
    shared = f'{TOML}[verifier]\nenvironment_mode = "shared"\n'
    write_task(tmp_path / "tasks", "shared", expecting("shared"), **{"task.toml": shared})
    run = finished(tracker, tmp_path / "tasks")
    assert run.score.passed == 3
    plan = tracker.regrade(run.id, RegradeRequest(dry_run=True))
    assert plan.trials == [("small", 0)]
    reasons = {one.task_id: one.reason for one in plan.left_out}
    assert "work_max_mb" in reasons["large"] and "agent's own sandbox" in reasons["shared"]
    with pytest.raises(UserError, match="No trial of run") as refused:
        tracker.regrade(run.id, RegradeRequest(task_ids=["large", "shared"]))
    assert "large: its work was not kept" in str(refused.value)
    with pytest.raises(UserError, match="has no task 'small'"):
        write_task(tmp_path / "others", "other", expecting("x"))
        tracker.regrade(run.id, RegradeRequest(tests=str(tmp_path / "others")))
    assert regraded(tracker, run).score.passed == 3


def test_a_run_says_that_it_is_graded_again(tracker: LocalTracker, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "one", expecting("one"))
    run = finished(tracker, tmp_path / "tasks")
    write_task(tmp_path / "new", "one", "sleep 600")
    view = tracker.regrade(run.id, RegradeRequest(tests=str(tmp_path / "new"))).run
    said = "regrading: 0 of 1 trials are graded again (grading 1); grading 0 had 100.0 %"
    assert (view.state, view.note) == ("IN_PROGRESS", said)
    assert [one.note for one in tracker.list(RunFilter()).runs] == [said]
    tracker.stop(run.id, StopRequest(force=True))
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.state, ended.note, ended.score) == ("FINISHED", None, run.score)


def test_judges_are_asked_again(valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_JUDGE_API_KEY", KEY)
    matches = {"type": "output-matches", "config": {"pattern": "."}}
    file = spec(tmp_path, stimulus("a", matches, JUDGE), stimulus("b", matches))
    with serving(Script.of(grade(5))) as server:
        asked = ("--judge-model", "openai/kind", "--judge-url", server.url)
        assert valk("eval", "-e", file, *asked).code == 0
        server.script = Script.of(grade(1))
        (run,) = json.loads(valk("run", "list", "--json").out)["runs"]
        started = valk("run", "regrade", run["id"], "--judge", "openai/strict", "--json")
        assert started.code == 0, started.err
        told = json.loads(started.out)
        assert told["trials"] == [["a", 0]]
        assert [(one["task_id"], one["reason"]) for one in told["left_out"]] == [("b", "no judge graded it")]
        valk("run", "wait", run["id"], "--timeout", "60")
        assert server.requests[-1].body["model"] == "openai/strict"
        end_executor(tmp_path / "home")
    (change,) = json.loads(valk("run", "regrade", run["id"], "--diff", "0", "1", "--json").out)["changes"]
    assert (change["task_id"], change["kind"]) == ("a", "now fails")
