"""`benchmark-job logs`: the tree, its names, and what happens when something cannot be fetched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.filled_store import CODEX, NOP, FilledStore, graded, passed
from tests.unit.cli.recorded_tracker import RecordedTracker
from tests.unit.cli.sample_views import make_job, make_run, make_trial, trials_of_two
from valkyrie.compare.job_documents import Names, folder_name, places
from valkyrie.errors import InfrastructureError

Valk = Callable[..., CommandResult]
TREE = Path("logs/bbbb2222")


@pytest.fixture(autouse=True)
def logged_job(filled: FilledStore) -> None:
    filled.add_job_of_two()
    for run_id in (CODEX, NOP):
        for task in ("add", "fix/it"):
            for k in (0, 1):
                filled.log(f"{run_id} {task} {k}\n", task, run_id, k)


def files(tree: Path) -> set[str]:
    return {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}


def test_every_trial_has_its_folder(valk: Valk) -> None:
    done = valk("job", "logs", "nightly")
    assert done.code == 0 and "8 scenarios in logs/bbbb2222" in done.out
    folders = [f"{agent}/{task}" for agent in ("codex_gpt-5", "nop") for task in TASKS]
    assert files(TREE) == {
        f"{folder}/{name}" for folder in folders for name in ("attempt.log", "results.json")
    }
    assert (TREE / "nop/fix_it-1/attempt.log").read_text() == "2222bbbb fix/it 1\n"
    assert (TREE / "nop/fix_it/attempt.log").read_text() == "2222bbbb fix/it 0\n"


TASKS = ("add", "add-1", "fix_it", "fix_it-1")


def test_results_have_the_fields_of_the_reference(valk: Valk, filled: FilledStore) -> None:
    rewards = {"rewards": {"correct": 1.0, "tidy": 0.5}}
    filled.add_run(CODEX, [passed("add", result=rewards), graded(0.5, "fix/it")])
    valk("job", "logs", "nightly")
    found = json.loads((TREE / "codex_gpt-5/add/results.json").read_text())
    assert found["scenario_run_id"] == "1111aaaa/add" and found["scenario_id"] == "add"
    assert (found["state"], found["score"], found["duration_ms"]) == ("completed", 1.0, 3200)
    assert [(one["name"], one["score"]) for one in found["scoring_functions"]] == [
        ("correct", 1.0),
        ("tidy", 0.5),
    ]
    failed = json.loads((TREE / "nop/fix_it-1/results.json").read_text())
    assert failed["state"] == "failed" and failed["failure_reason"]["exception_message"] == "no room"


def test_some_can_be_asked_for(valk: Valk) -> None:
    valk("job", "logs", "nightly", "--run", "1111", "--scenario", "fix/it", "-o", "some")
    assert files(Path("some/bbbb2222")) == {
        f"codex_gpt-5/{task}/{name}" for task in TASKS[2:] for name in ("attempt.log", "results.json")
    }
    document = valk("job", "logs", "nightly", "--scenario", "2222bbbb/add#1", "-o", "one", "--json").json
    assert [one["scenario_run_id"] for one in document["scenarios"]] == ["2222bbbb/add#1"]
    assert files(Path("one/bbbb2222")) == {"nop/add-1/attempt.log", "nop/add-1/results.json"}


def test_a_first_trial_comes_without_its_repetitions(valk: Valk) -> None:
    for asked in ("2222bbbb/add", "add#0"):
        document = valk("job", "logs", "nightly", "--run", "2222bbbb", "--scenario", asked, "--json").json
        assert [one["scenario_run_id"] for one in document["scenarios"]] == ["2222bbbb/add"]
        assert files(TREE) == {"nop/add/attempt.log", "nop/add/results.json"}


def test_a_second_time_replaces_the_first(valk: Valk) -> None:
    valk("job", "logs", "nightly")
    (TREE / "nop/add/left-over").write_text("old")
    (TREE / "nop/add-1/results.json").unlink()
    valk("job", "logs", "nightly")
    assert "nop/add/left-over" not in files(TREE) and len(files(TREE)) == 16


def test_what_cannot_be_fetched_keeps_nothing_else_back(valk: Valk, tracker: RecordedTracker) -> None:
    gone = InfrastructureError("the bucket is gone")
    tracker.fail("outputs", gone, when=lambda _ref, _to, request: "add" in (request.task_ids or ()))
    done = valk("job", "logs", "nightly")
    assert done.code == 0 and "4 scenarios in" in done.out
    assert done.err.count("the bucket is gone") == 4
    tracker.fail("outputs", gone)
    assert valk("job", "logs", "nightly", "-o", "none").code == 1


def test_what_is_not_there_is_refused(valk: Valk) -> None:
    wrong = valk("job", "logs", "nightly", "--run", "nope")
    assert wrong.code == 2 and "1111aaaa (codex)" in wrong.err
    wrong = valk("job", "logs", "nightly", "--scenario", "fix-it")
    assert wrong.code == 2 and "Did you mean 'fix/it'?" in wrong.err


def test_links_are_not_written_through(valk: Valk, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    TREE.mkdir(parents=True)
    (TREE / "nop").symlink_to(outside)
    done = valk("job", "logs", "nightly")
    assert "is a link" in done.err and not list(outside.iterdir())
    assert "4 scenarios in" in done.out


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('a/b\\c:d*e?f"g<h>i|j', "a_b_c_d_e_f_g_h_i_j"),
        ("two  words\tand", "two-words-and"),
        ("..", "_."),
        (".hidden", "_hidden"),
        ("../../etc/passwd", "_._.._etc_passwd"),
        ("", "_"),
        ("nul\0byte", "nul_byte"),
    ],
)
def test_names_are_harmless(text: str, name: str) -> None:
    assert folder_name(text) == name


def test_long_names_are_cut_and_stay_apart() -> None:
    names = {folder_name("é" * 300 + end) for end in "ab"}
    assert len(names) == 2 and all(len(name.encode()) <= 120 for name in names)


def test_names_taken_get_a_number() -> None:
    names = Names()
    assert [names.give(text) for text in ("a", "a-1", "a", "A", "b/c", "b:c")] == [
        "a", "a-1", "a-2", "A-3", "b_c", "b_c-1",
    ]  # fmt: skip


def test_first_trials_keep_the_plain_names_and_agents_of_one_name_stay_apart() -> None:
    same = [make_run(run_id, agent="mine", total=2) for run_id in ("run-one", "run-two")]
    trials = {"run-one": [make_trial("a", k=1), make_trial("a-1", k=0), make_trial("a", k=0)]}
    trials |= {"run-two": [make_trial("a", attempts=0)]}
    found = {(place.run.id, place.trial.task_id, place.trial.k): str(place.folder) for place in
             places(make_job(runs=same), trials)}  # fmt: skip
    assert found == {
        ("run-one", "a-1", 0): "mine/a-1",
        ("run-one", "a", 0): "mine/a",
        ("run-one", "a", 1): "mine/a-2",
    }
    trials["run-two"] = trials_of_two()["run-two"]
    assert {place.folder.parts[0] for place in places(make_job(runs=same), trials)} == {"mine", "mine-1"}
