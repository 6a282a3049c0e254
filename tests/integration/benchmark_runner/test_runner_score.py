"""`score`: cached, incomplete, forced; and envelopes that score the same at both doors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmark_runner import ScoreResult, make_cli
from tests.integration.benchmark_runner.quiz_runner import QuizRunner
from tests.integration.benchmark_runner.runner_project import (
    QUESTIONS,
    RunnerProject,
    trivia_task,
    trivia_tasks,
)

SPIDER, PLANET, GOLD = list(QUESTIONS)[:3]


@pytest.fixture
def done(trivia: RunnerProject) -> RunnerProject:
    trivia.write_tasks(trivia_tasks(wrong=4))
    trivia.run()
    trivia.service.forget()
    return trivia


def test_a_score_that_is_there_is_not_asked_for_again(done: RunnerProject) -> None:
    said = done.score()
    assert "Scoring: r1 (12/12 tasks evaluated)\nFinal score: 66.67 (cached)" in said
    assert done.service.asked == []
    said = done.score("--force")
    assert "Final score: 66.67\n" in said and "cached" not in said
    assert len(done.service.bodies("/final-score/")) == 1


def test_exactly_the_tasks_of_the_run_are_scored(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks(wrong=4))
    trivia.run(SPIDER, GOLD, "sides-of-a-hexagon", "capital-of-portugal")
    (trivia.results / "r1" / "final_score.json").unlink()
    trivia.score("--dataset-file", "tasks.json")
    [*_, body] = trivia.service.bodies("/final-score/")
    assert len(body["evaluation_results"]) == 4
    assert trivia.read("final_score.json")["metadata"]["questions"] == 4


def test_an_incomplete_run_is_not_scored_unless_forced(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER), trivia_task(GOLD), trivia_task(PLANET, does="raise")])
    trivia.run(code=1)
    (trivia.results / "r1" / GOLD / "eval.json").unlink()
    said = trivia.score(code=1)
    assert "Run is incomplete: 1 not evaluated, 1 generation errors of 3 tasks." in said
    assert not (trivia.results / "r1" / "final_score.json").exists()
    assert trivia.service.bodies("/final-score/") == []
    said = trivia.score("--force")
    assert "Final score: 33.33 (incomplete run)" in said
    assert trivia.read("final_score.json")["complete"] is False
    [body] = trivia.service.bodies("/final-score/")
    assert body["evaluation_results"][GOLD] is None
    assert body["evaluation_results"][PLANET]["status"] == "generation_error"
    assert "Run is incomplete" in trivia.score(code=1), "a forced score is not a cached one"


def test_a_run_that_was_never_started(trivia: RunnerProject) -> None:
    assert "There is no run nonesuch" in trivia.score(code=1, run_id="nonesuch")


def test_a_broken_score_is_made_again(done: RunnerProject) -> None:
    (done.results / "r1" / "final_score.json").write_text('{"final_')
    said = done.score()
    assert "Final score: 66.67\n" in said and "final_score.json.unreadable" in said


def test_as_json(done: RunnerProject) -> None:
    words = ("score", "--run-id", "r1", "--service-url", done.service.url, "--json")
    document = json.loads(done(*words).stdout)
    assert document["score"] == done.read("final_score.json")
    assert (document["run_id"], document["exit_code"], document["complete"]) == ("r1", 0, True)
    (done.results / "r1" / SPIDER / "eval.json").unlink()
    document = json.loads(done(*words, code=1).stdout)
    assert (document["exit_code"], document["complete"], document["score"]) == (1, False, None)
    assert document["not_evaluated"] == [SPIDER]


def test_a_dataset_file_must_have_the_tasks_of_the_run(done: RunnerProject) -> None:
    done.write_tasks([trivia_task(SPIDER)], "short.json")
    said = done.score("--force", "--dataset-file", "short.json", code=1)
    assert "short.json lacks tasks of run r1" in said and "and 6 more" in said


@pytest.mark.parametrize("form", ["envelope", "raw"])
def test_envelopes_and_raw_results_score_the_same(trivia: RunnerProject, form: Any) -> None:
    class Runner(QuizRunner):
        SCORE_INPUT = form

    project = RunnerProject(trivia.root, trivia.service, make_cli(Runner, default_dataset_file="tasks.json"))
    project.write_tasks(
        [trivia_task(SPIDER), trivia_task(GOLD, "Ag"), trivia_task(PLANET, does="hang", timeout=0.02)]
    )
    assert "Final score: 33.33" in project.run()
    [body] = project.service.bodies("/final-score/")
    sent = body["evaluation_results"]
    raw = {"correct": True, "answer": "8"}
    if form == "raw":
        assert sent == {SPIDER: raw, GOLD: {"correct": False, "answer": "Ag"}, PLANET: None}
    else:
        assert sent[SPIDER] == {"task_id": SPIDER, "status": "evaluated", "result": raw, "error": None}
        assert sent[PLANET]["status"] == "did_not_complete"


def test_a_score_of_the_authors_own(done: RunnerProject) -> None:
    class Own(QuizRunner):
        async def score(self, eval_results: Any) -> Any:
            right = sum(one.result.correct for one in eval_results)
            return ScoreResult(tasks_evaluated=sorted(one.task_id for one in eval_results), final_score=right)

    class Odd(QuizRunner):
        async def score(self, eval_results: Any) -> Any:
            return {"final_score": 1}

    assert "Final score: 8\n" in RunnerProject(done.root, done.service, make_cli(Own)).score("--force")
    said = RunnerProject(done.root, done.service, make_cli(Odd)).score("--force", code=1)
    assert "TypeError: score returned dict, not a ScoreResult" in said
    assert done.read("final_score.json")["final_score"] == 8
