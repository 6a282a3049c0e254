"""`evaluate`, what a service that is busy or broken does to a run, and authors' own evaluations."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from benchmark_runner import EvalResult, EvalStatus, GenerationResult, make_cli
from tests.integration.benchmark_runner.quiz_runner import QuizRunner
from tests.integration.benchmark_runner.runner_project import (
    QUESTIONS,
    RunnerProject,
    trivia_task,
    trivia_tasks,
)

SPIDER, PLANET, GOLD = list(QUESTIONS)[:3]


@pytest.fixture
def generated(trivia: RunnerProject) -> RunnerProject:
    """A run with answers and without evaluations."""
    trivia.write_tasks(trivia_tasks(wrong=4))
    trivia.run("--skip-eval", service=False)
    return trivia


def test_answers_are_graded_without_generating(generated: RunnerProject) -> None:
    journal = generated.journal()
    (generated.root / "tasks.json").unlink()
    said = generated.evaluate()
    assert "Evaluating r1: 12 tasks\nProcessing 12/12 tasks\nDone: 12/12 evaluated" in said
    assert "Final score: 66.67" in said
    assert generated.read("final_score.json")["complete"] is True
    assert generated.journal() == journal
    assert sorted(generated.service.graded()) == sorted(QUESTIONS)
    generated.service.forget()
    assert "Processing 0/12 tasks" in generated.evaluate()
    assert generated.service.graded() == []
    assert "Processing 12/12 tasks" in generated.evaluate("--force")
    assert len(generated.service.graded()) == 12


def test_only_some_answers(generated: RunnerProject) -> None:
    said = generated.evaluate(SPIDER)
    assert "Done: 1/1 evaluated" in said and "Run is incomplete: 11 not evaluated of 12 tasks." in said
    assert "Unknown task IDs: ['nonesuch']" in generated.evaluate("nonesuch", code=1)
    assert f"Did you mean '{SPIDER}'?" in generated.evaluate(SPIDER[:-1], code=1)
    assert "does not exist. Did you mean 'r1'?" in generated.score(code=1, run_id="r12")
    assert generated.service.graded() == [SPIDER]


def test_what_was_not_generated_is_named(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks())
    trivia.run("--skip-eval", service=False)
    (trivia.results / "r1" / GOLD / "generation.json").unlink()
    said = trivia.evaluate(code=1)
    assert "Done: 11/12 evaluated" in said and f"Not generated yet:\n  {GOLD}: use `run`" in said


def test_a_generation_error_stays_one(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER, does="raise"), trivia_task(GOLD)])
    trivia.run("--skip-eval", service=False, code=1)
    said = trivia.evaluate(code=1)
    assert "Done: 1/2 evaluated, 0 eval errors." in said
    assert f"Generation failed for:\n  {SPIDER}: RuntimeError: 8" in said
    assert trivia.evaluation(SPIDER)["status"] == "generation_error"


def test_a_run_that_does_not_exist(trivia: RunnerProject) -> None:
    said = trivia.evaluate(code=1)
    assert "There is no run r1: results/r1/run_config.json does not exist. Start it with `run`." in said
    assert trivia.files() == []


def test_the_service_of_the_run_is_asked_where_none_is_named(generated: RunnerProject) -> None:
    said = generated("evaluate", "--run-id", "r1", code=2).output
    assert "--service-url (or SERVICE_URL)" in said
    generated.evaluate(SPIDER)
    generated.run("--skip-eval")
    generated("evaluate", "--run-id", "r1")
    assert len(generated.service.graded()) == 12


def test_one_evaluation_that_fails(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER), trivia_task(PLANET), {"id": "stranger", "question": "?"}])
    said = trivia.run(code=1)
    assert "Done: 2/3 evaluated, 1 eval errors." in said
    assert "Evaluation failed for:\n  stranger: Evaluate response failed with status code 400" in said
    assert "Generation failed for:" not in said and "Final score" not in said
    assert trivia.evaluation("stranger")["status"] == "error"


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again_when_it_says(trivia: RunnerProject, status: int) -> None:
    trivia.write_tasks([trivia_task(SPIDER)])
    trivia.service.refuse("/evaluate-response/", status, Retry_After="0")
    assert "Final score: 100" in trivia.run()
    assert len(trivia.service.bodies("/evaluate-response/")) == 2
    assert trivia.service.graded() == [SPIDER]


def test_an_answer_is_not_sent_again_where_it_may_have_been_graded(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER)])
    trivia.service.refuse("/evaluate-response/", 503)
    said = trivia.run(code=1)
    assert "status code 503" in said
    assert len(trivia.service.bodies("/evaluate-response/")) == 1
    assert "Final score: 100" in trivia.run()


def test_a_score_that_fails_is_tried_again(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER)])
    trivia.service.refuse("/final-score/", 500)
    said = trivia.run(code=1)
    assert "The run cannot be scored: Final score failed with status code 500" in said
    assert "All evaluations are kept; `score` tries again." in said
    assert "Final score: 100" in trivia.score()
    assert trivia.service.graded() == [SPIDER]


class Odd(QuizRunner):
    """Evaluations of an author's own, none of which may stop the others."""

    async def evaluate(self, task_id: str, generation: GenerationResult) -> Any:
        match generation.data:
            case "raise":
                raise RuntimeError("the judge is out")
            case "exit":
                raise SystemExit(4)
            case "cancel":
                raise asyncio.CancelledError
            case "text":
                return "fine"
            case "no json":
                return EvalResult(task_id=task_id, status=EvalStatus.EVALUATED, result=object())
        return await super().evaluate(task_id, generation)


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ("raise", "RuntimeError: the judge is out"),
        ("exit", "LeftError: SystemExit: 4"),
        ("cancel", "LeftError: CancelledError"),
        ("text", "TypeError: evaluate returned str, not an EvalResult"),
        ("no json", "ValueError: what would be written is not JSON"),
    ],
)
def test_whatever_evaluate_does_the_others_go_on(trivia: RunnerProject, says: str, error: str) -> None:
    project = RunnerProject(trivia.root, trivia.service, make_cli(Odd, default_dataset_file="tasks.json"))
    project.write_tasks([trivia_task(SPIDER, says), trivia_task(GOLD), trivia_task(PLANET, says)])
    said = project.run("--eval-concurrency", "1", code=1)
    assert "Done: 1/3 evaluated, 2 eval errors." in said
    assert f"Evaluation failed for:\n  {PLANET}, {SPIDER}: {error}" in said


class Structured(QuizRunner):
    """Answers that are no text."""

    async def generate(self, task: Any, *_: Any, **__: Any) -> GenerationResult:
        return GenerationResult(task_id=task.id, status="success", data={"steps": [1, 2], "task": task})


def test_an_answer_that_is_no_text_is_sent_as_json(trivia: RunnerProject) -> None:
    project = RunnerProject(
        trivia.root, trivia.service, make_cli(Structured, default_dataset_file="tasks.json")
    )
    project.write_tasks([trivia_task(SPIDER)])
    project.run()
    sent = json.loads(project.service.bodies("/evaluate-response/")[0]["response"])
    assert sent == project.generation(SPIDER)["data"] == project.generation(SPIDER)["answer"]
    assert (sent["steps"], sent["task"]["id"]) == ([1, 2], SPIDER)
