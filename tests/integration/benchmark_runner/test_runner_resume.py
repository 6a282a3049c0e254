"""Going on with a run: what is done again, what is refused, and what a broken file costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.benchmark_runner.runner_project import (
    QUESTIONS,
    RunnerProject,
    trivia_task,
    trivia_tasks,
)

SPIDER, PLANET, GOLD = list(QUESTIONS)[:3]


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes one away."""
    document = json.loads(path.read_text())
    document |= changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


@pytest.fixture
def done(trivia: RunnerProject) -> RunnerProject:
    """A run of three tasks that is complete; what was asked for so far is forgotten."""
    trivia.write_tasks([trivia_task(SPIDER), trivia_task(PLANET), trivia_task(GOLD)])
    trivia.run()
    trivia.service.forget()
    Path(trivia.root.parent / "journal").unlink()
    return trivia


def folder(project: RunnerProject, task_id: str = SPIDER) -> Path:
    return project.results / "r1" / task_id


def test_a_complete_run_has_nothing_left_to_do(done: RunnerProject) -> None:
    before = done.read("run_config.json")
    said = done.run()
    assert "Resuming r1: 3 tasks\nProcessing 0/3 tasks\n" in said and "Final score: 100" in said
    assert done.journal() == done.service.graded() == []
    assert done.read("run_config.json") == before


@pytest.mark.parametrize(
    ("status", "again"), [("error", True), ("success", False), ("max_time", False), ("max_turns", False)]
)
def test_generated_again_only_after_an_error(done: RunnerProject, status: str, again: bool) -> None:
    edit(folder(done) / "generation.json", status=status)
    done.run()
    assert done.journal() == done.service.graded() == ([SPIDER] if again else [])


@pytest.mark.parametrize(
    ("status", "again"),
    [("error", True), ("generation_error", True), ("evaluated", False), ("did_not_complete", False)],
)
def test_evaluated_again_only_after_an_error(done: RunnerProject, status: str, again: bool) -> None:
    edit(folder(done) / "eval.json", status=status, result={"correct": True})
    done.run()
    assert done.journal() == []
    assert done.service.graded() == ([SPIDER] if again else [])


@pytest.mark.parametrize(("name", "generated"), [("generation.json", [SPIDER]), ("eval.json", [])])
@pytest.mark.parametrize("content", [None, b"", b'{"task_id": "le', b"\xff\x00", b"[]", b'{"task_id": "x"}'])
def test_missing_and_broken_files_are_done_again(
    done: RunnerProject, name: str, generated: list[str], content: bytes | None
) -> None:
    path = folder(done) / name
    path.unlink() if content is None else path.write_bytes(content)
    said = done.run()
    assert "Processing 1/3 tasks" in said and "Final score: 100" in said
    assert (done.journal(), done.service.graded()) == (generated, [SPIDER])
    aside = path.with_name(f"{name}.unreadable")
    assert aside.exists() == (content is not None) == (str(aside.relative_to(done.root)) in said)


def test_either_name_of_the_answer_is_read(done: RunnerProject) -> None:
    path = folder(done) / "generation.json"
    for name, other in (("data", "answer"), ("answer", "data")):
        edit(path, **{name: "8", other: None})
        (folder(done) / "eval.json").unlink()
        done.run()
        assert done.service.bodies("/evaluate-response/")[-1]["response"] == "8"
    assert done.journal() == []


def test_an_error_is_made_good(trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIZ_BROKEN", "1")
    trivia.write_tasks([trivia_task(SPIDER, does="raise_if_broken"), trivia_task(GOLD)])
    assert "Generation failed for:" in trivia.run(code=1)
    assert (folder(trivia) / "agent_logs" / "exception.txt").exists()
    monkeypatch.delenv("QUIZ_BROKEN")
    said = trivia.run()
    assert "Processing 1/2 tasks" in said and "Done: 2/2 evaluated" in said and "Final score: 100" in said
    assert trivia.generation(SPIDER)["status"] == "success"
    assert not (folder(trivia) / "agent_logs" / "exception.txt").exists()
    assert sorted(trivia.service.graded()) == sorted([GOLD, SPIDER])


def test_a_broken_configuration_is_said(done: RunnerProject) -> None:
    path = done.results / "r1" / "run_config.json"
    for content in ("", "{", '{"run_id": "r1"}'):
        path.write_text(content)
        for said in (done.run(code=1), done.score(code=1), done.evaluate(code=1)):
            assert "run_config.json is not a run's configuration" in said
            assert "start anew with another --run-id" in said
    assert done.journal() == [] and path.read_text() == '{"run_id": "r1"}'


def test_answers_nobody_knows_the_making_of(done: RunnerProject) -> None:
    (done.results / "r1" / "run_config.json").unlink()
    said = done.run(code=1)
    assert "holds answers, and no run_config.json" in said and "--force-resume" in said
    said = done.run("--force-resume")
    assert "Resuming r1: 3 tasks\nProcessing 0/3 tasks" in said
    assert done.journal() == done.service.graded() == []


CHANGES = [
    (["--model", "m2"], "model: m1, now m2"),
    (["--temperature", "0.5"], "temperature: not set, now 0.5"),
    (["--max-tokens", "10"], "max tokens: not set, now 10"),
    (["--reasoning-effort", "high"], "reasoning effort: not set, now high"),
    (["--timeout", "5"], "timeout: 1800.0, now 5.0"),
    (["--custom-endpoint", "http://u:p@m.test"], "custom endpoint: not set, now http://m.test"),
    (["--chat-completions"], "native: true, now false"),
    (["--prompt-style", "terse"], 'options: {"prompt_style": "plain"}, now {"prompt_style": "terse"}'),
]


@pytest.mark.parametrize(("words", "said"), CHANGES, ids=[words[0] for words, _ in CHANGES])
def test_changed_settings_are_refused(done: RunnerProject, words: list[str], said: str) -> None:
    (folder(done) / "generation.json").unlink()
    before = done.read("run_config.json")
    output = done.run(*words, code=1)
    assert "Run r1 was started otherwise:" in output and f"\n  {said}\n" in output
    assert "--force-resume" in output and "another --run-id" in output
    assert done.journal() == [] and done.read("run_config.json") == before


def test_what_failed_whole_may_be_tried_otherwise(
    trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIZ_BROKEN", "1")
    trivia.write_tasks([trivia_task(SPIDER, does="raise_if_broken")])
    trivia.run(code=1)
    monkeypatch.delenv("QUIZ_BROKEN")
    said = trivia.run("--custom-endpoint", "http://m.test", model="m2")
    assert "Resuming r1: 1 tasks" in said and "Final score: 100" in said
    config = trivia.read("run_config.json")
    assert (config["model"], config["settings"]["custom_endpoint"]) == ("m2", "http://m.test")
    assert config["mixed"] == []
    assert "model: m2, now m1" in trivia.run(code=1)


def test_another_generation_version_is_refused(done: RunnerProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIZ_GENERATION_VERSION", "2")
    assert "generation version: dev, now 2" in done.run(code=1)


def test_another_dataset_is_refused(done: RunnerProject) -> None:
    tasks = [trivia_task(SPIDER), trivia_task(PLANET), trivia_task(GOLD)]
    done.write_tasks([*tasks, trivia_task("capital-of-portugal")])
    assert "Resuming r1: 3 tasks" in done.run(), "tasks that joined the dataset are not the run's"
    done.write_tasks([{**tasks[0], "question": "How many arms has an octopus?"}, *tasks[1:]])
    assert "the dataset: its tasks ask something else" in done.run(code=1)
    done.write_tasks(tasks[1:])
    assert f"its dataset does not have any more: {SPIDER}" in done.run(code=1)
    done.write_tasks(tasks, "moved.json")
    done.run("--dataset-file", "moved.json")
    assert done.read("run_config.json")["dataset_file"] == "moved.json"
    (done.root / "tasks.json").unlink()
    assert "Processing 0/3 tasks" in done.run(), "the run's own file goes before the bundled one"


def test_what_is_mixed_on_purpose_is_written_down(done: RunnerProject) -> None:
    (folder(done) / "generation.json").unlink()
    said = done.run("--force-resume", model="m2")
    assert "Mixed on purpose (--force-resume): model: m1, now m2" in said
    config = done.read("run_config.json")
    assert (config["model"], config["mixed"]) == ("m2", ["model: m1, now m2"])
    assert (done.generation(SPIDER)["model"], done.generation(GOLD)["model"]) == ("m2", "m1")
    assert done.journal() == [SPIDER]
    assert "Mixed" not in done.run(model="m2")


def test_a_part_of_a_run_that_is_not_complete(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks(wrong=0))
    trivia.run("--skip-eval")
    said = trivia.run(SPIDER, GOLD)
    assert "Resuming r1: 12 tasks\nProcessing 2/12 tasks\nDone: 2/2 evaluated" in said
    assert "Not scored yet.\nRun is incomplete: 10 not evaluated of 12 tasks." in said
    assert "Final score: 100" in trivia.run()
    assert sorted(trivia.service.graded()) == sorted(QUESTIONS)


def test_tasks_join_a_run_only_on_purpose(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks(wrong=0))
    trivia.run(SPIDER)
    assert f"tasks that are not in the run: {GOLD}" in trivia.run(GOLD, code=1)
    assert "Resuming r1: 2 tasks" in trivia.run(GOLD, "--force-resume")
    assert trivia.read("run_config.json")["tasks"] == [GOLD, SPIDER]


def test_a_problem_is_resumed_with_the_same_file_only(trivia: RunnerProject) -> None:
    (trivia.root / "p.txt").write_text("How many legs?")
    trivia.run("--problem", "p.txt", SPIDER)
    assert "was started with --problem" in trivia.run(code=1)
    assert "Processing 0/1 tasks" in trivia.run("--problem", "p.txt", SPIDER)
    (trivia.root / "p.txt").write_text("How many eyes?")
    assert "its tasks ask something else" in trivia.run("--problem", "p.txt", SPIDER, code=1)


def test_a_configuration_of_an_older_runner(done: RunnerProject) -> None:
    """Without a task source it counts as loaded from a file; what it does not say is not compared."""
    path = done.results / "r1" / "run_config.json"
    path.write_text(
        json.dumps({"run_id": "r1", "model": "m1", "tasks": [SPIDER, PLANET, GOLD], "note": "by hand"})
    )
    assert "Processing 0/3 tasks" in done.run("--temperature", "0.5")
    config = done.read("run_config.json")
    assert (config["task_source"], config["note"]) == ("file", "by hand")


def test_a_stale_score_goes_with_what_it_spoke_of(
    done: RunnerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(folder(done) / "generation.json", status="error")
    done.service.refuse("/evaluate-response/", 500)
    assert "1 eval errors" in done.run(code=1)
    assert not (done.results / "r1" / "final_score.json").exists()


def test_an_evaluation_goes_with_the_answer_it_spoke_of(done: RunnerProject) -> None:
    edit(folder(done) / "generation.json", status="error")
    done.run("--skip-eval")
    assert done.generation(SPIDER)["status"] == "success"
    assert not (folder(done) / "eval.json").exists()
    assert "1 not evaluated of 3 tasks" in done.score(code=1)


def test_leftovers_of_a_killed_process_are_swept(done: RunnerProject) -> None:
    left = [done.results / "r1" / ".new-run_config.json-1", folder(done) / ".new-eval.json-1"]
    for path in left:
        path.write_text("{")
    done.run()
    assert not any(path.exists() for path in left)
