"""`benchmark-job logs`: the tree, its names, and what happens when something cannot be fetched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import valkyrie.tracker
from tests.unit.cli.fake_jobs import FakeJobs, make_job, trials_of_two
from tests.unit.cli.fake_tracker import make_run, make_trial
from tests.unit.cli.said import Said
from valkyrie.compare.job_documents import Names, folder_name, places

Valk = Callable[..., Said]
TREE = Path("logs/job-aaaa1111")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    tracker = FakeJobs()
    monkeypatch.setattr(valkyrie.tracker, "open_tracker", lambda **_options: tracker)
    return tracker


def files(tree: Path) -> set[str]:
    return {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}


def test_every_trial_has_its_folder(valk: Valk) -> None:
    done = valk("job", "logs", "nightly")
    assert done.code == 0 and "8 scenarios in logs/job-aaaa1111" in done.out
    folders = [f"{agent}/{task}" for agent in ("codex_gpt-5", "nop") for task in TASKS]
    assert files(TREE) == {
        f"{folder}/{name}" for folder in folders for name in ("attempt.log", "results.json")
    }
    assert (TREE / "nop/fix_it-1/attempt.log").read_text() == "run-two fix/it 1\n"
    assert (TREE / "nop/fix_it/attempt.log").read_text() == "run-two fix/it 0\n"


TASKS = ("add", "add-1", "fix_it", "fix_it-1")


def test_results_have_the_fields_of_the_reference(valk: Valk) -> None:
    valk("job", "logs", "nightly")
    graded = json.loads((TREE / "codex_gpt-5/add/results.json").read_text())
    assert graded["scenario_run_id"] == "run-one/add" and graded["scenario_id"] == "add"
    assert (graded["state"], graded["score"], graded["duration_ms"]) == ("completed", 1.0, 3200)
    assert [(one["name"], one["score"]) for one in graded["scoring_functions"]] == [
        ("correct", 1.0),
        ("tidy", 0.5),
    ]
    failed = json.loads((TREE / "nop/fix_it-1/results.json").read_text())
    assert failed["state"] == "failed" and failed["failure_reason"]["exception_message"] == "no room"


def test_some_can_be_asked_for(valk: Valk) -> None:
    valk("job", "logs", "nightly", "--run", "run-o", "--scenario", "fix/it", "-o", "some")
    assert files(Path("some/job-aaaa1111")) == {
        f"codex_gpt-5/{task}/{name}" for task in TASKS[2:] for name in ("attempt.log", "results.json")
    }
    document = valk("job", "logs", "nightly", "--scenario", "run-two/add#1", "-o", "one", "--json").json
    assert [one["scenario_run_id"] for one in document["scenarios"]] == ["run-two/add#1"]
    assert files(Path("one/job-aaaa1111")) == {"nop/add-1/attempt.log", "nop/add-1/results.json"}


def test_a_first_trial_comes_without_its_repetitions(valk: Valk) -> None:
    for asked in ("run-two/add", "add#0"):
        document = valk("job", "logs", "nightly", "--run", "run-two", "--scenario", asked, "--json").json
        assert [one["scenario_run_id"] for one in document["scenarios"]] == ["run-two/add"]
        assert files(TREE) == {"nop/add/attempt.log", "nop/add/results.json"}


def test_a_second_time_replaces_the_first(valk: Valk) -> None:
    valk("job", "logs", "nightly")
    (TREE / "nop/add/left-over").write_text("old")
    (TREE / "nop/add-1/results.json").unlink()
    valk("job", "logs", "nightly")
    assert "nop/add/left-over" not in files(TREE) and len(files(TREE)) == 16


def test_what_cannot_be_fetched_keeps_nothing_else_back(valk: Valk, fake: FakeJobs) -> None:
    fake.unfetchable = {"add"}
    done = valk("job", "logs", "nightly")
    assert done.code == 0 and "4 scenarios in" in done.out
    assert done.err.count("the bucket is gone") == 4
    fake.unfetchable = {"add", "fix/it"}
    assert valk("job", "logs", "nightly", "-o", "none").code == 1


def test_what_is_not_there_is_refused(valk: Valk) -> None:
    wrong = valk("job", "logs", "nightly", "--run", "nope")
    assert wrong.code == 2 and "run-one (codex)" in wrong.err
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
