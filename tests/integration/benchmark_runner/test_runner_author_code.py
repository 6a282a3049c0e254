"""An author's code that prints, goes elsewhere, blocks or panics, and overrides that look into tasks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from benchmark_runner import EvalResult, EvalStatus, GenerationResult, ScoreResult, Task, make_cli
from benchmark_runner.console import DEAF_S
from tests.integration.benchmark_runner.quiz_runner import QuizRunner
from tests.integration.benchmark_runner.runner_project import QUESTIONS, RunnerProject, sum_task, trivia_task

SPIDER, PLANET, GOLD = list(QUESTIONS)[:3]


class Panic(BaseException):
    """As extension modules raise it."""


class Careless(QuizRunner):
    async def _panic(self, *_: Any) -> None:
        raise Panic("index out of bounds")

    async def _go_elsewhere(self, *_: Any) -> None:
        os.chdir("/")


def project_of(project: RunnerProject, runner: type[QuizRunner], **given: Any) -> RunnerProject:
    return RunnerProject(
        project.root, project.service, make_cli(runner, default_dataset_file="tasks.json", **given)
    )


def test_a_panic_is_one_tasks_error(trivia: RunnerProject) -> None:
    project = project_of(trivia, Careless)
    project.write_tasks([trivia_task(SPIDER, does="panic"), trivia_task(GOLD)])
    said = project.run("--parallelism", "1", code=1)
    assert "Done: 1/2 evaluated" in said and f"{SPIDER}: LeftError: Panic: index out of bounds" in said


def test_results_stay_where_they_are_when_a_generator_goes_elsewhere(trivia: RunnerProject) -> None:
    project = project_of(trivia, Careless)
    project.write_tasks([trivia_task(SPIDER, does="go_elsewhere"), trivia_task(GOLD)])
    said = project.run("--parallelism", "1")
    assert "Final score: 100" in said and "Results: results/r1" in said
    assert project.generation(SPIDER)["status"] == "success"


def test_a_folder_for_logs_is_there(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER, does="keep_a_log"), trivia_task(GOLD)])
    trivia.run()
    assert (trivia.results / "r1" / SPIDER / "agent_logs" / "seen.json").is_file()
    assert Path(trivia.generation(GOLD)["log_dir"]).is_dir()


def test_what_is_printed_is_not_in_the_document(sums: RunnerProject) -> None:
    sums.write_tasks([sum_task(1, "print")])
    process = sums.start(
        *("run", "--model", "m1", "--run-id", "r1", "--service-url", sums.service.url, "--json")
    )
    output, errors = process.communicate(timeout=60)
    assert json.loads(output)["evaluated"] == 1
    assert "printed by the generator" in errors and "printed by its child" in errors


@pytest.mark.parametrize(
    ("number", "pauses", "code"), [(signal.SIGINT, (3 * DEAF_S, 0), 130), (signal.SIGTERM, (0,), 143)]
)
def test_code_that_blocks_is_ended_by_a_second_interrupt_or_a_sigterm(
    sums: RunnerProject, number: signal.Signals, pauses: Sequence[float], code: int
) -> None:
    sums.write_tasks([sum_task(1, "block")])
    process = sums.start("run", "--model", "m1", "--run-id", "r1", "--service-url", sums.service.url)
    try:
        deadline = time.monotonic() + 60
        while not sums.journal():
            assert time.monotonic() < deadline and process.poll() is None, "it does not begin"
            time.sleep(0.05)
        # Not more of them: once it has no handler any longer, it would die of one.
        for pause in pauses:
            process.send_signal(number)
            while is_pending(process.pid, number):
                time.sleep(0.05)
            time.sleep(pause)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert "Stopped. Give the same command to go on." in errors and "Traceback" not in errors
    sums.write_tasks([sum_task(1)])
    assert "Resuming r1: 1 tasks" in sums.run()


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal still waits for its process: another one of the kind would be lost."""
    try:
        words = Path(f"/proc/{pid}/status").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return bool(int(words[words.index("ShdPnd:") + 1], 16) >> (number - 1) & 1)


class Judge(QuizRunner):
    """Looks into its tasks to grade, and is interrupted or confused when it scores."""

    async def evaluate(self, task_id: str, generation: GenerationResult) -> EvalResult:
        task: Any = self._tasks[task_id]
        right = generation.answer == task.says
        return EvalResult(task_id=task_id, status=EvalStatus.EVALUATED, result={"correct": right})

    async def score(self, eval_results: list[EvalResult]) -> ScoreResult:
        match os.environ.get("QUIZ_SCORE"):
            case "interrupted":
                raise KeyboardInterrupt
            case "infinite":
                return ScoreResult(tasks_evaluated=[], final_score=float("inf"))
        answer = await self._client.final_score(
            dict.fromkeys(one.task_id for one in eval_results), dataset=self._dataset
        )
        return ScoreResult(tasks_evaluated=answer.tasks_evaluated, final_score=7)


def test_an_evaluation_of_the_authors_own_has_the_tasks(trivia: RunnerProject) -> None:
    project = project_of(trivia, Judge)
    project.write_tasks([trivia_task(SPIDER)])
    project.run("--skip-eval")
    assert "Final score: 7" in project.evaluate()
    assert project.evaluation(SPIDER)["result"] == {"correct": True}


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("interrupted", 130, "Stopped. Give the same command to go on."),
        ("infinite", 1, "The run cannot be scored: ValueError: inf is no score"),
    ],
)
def test_a_score_that_does_not_come_about(
    trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch, how: str, code: int, said: str
) -> None:
    project = project_of(trivia, Judge)
    project.write_tasks([trivia_task(SPIDER)])
    monkeypatch.setenv("QUIZ_SCORE", how)
    assert said in project.run(code=code)
    assert not (project.results / "r1" / "final_score.json").exists()
    monkeypatch.delenv("QUIZ_SCORE")
    assert "Final score: 7" in project.score()


class Demanding(QuizRunner):
    class TASK_MODEL(Task):
        repo: str


def test_a_problem_that_says_too_little(trivia: RunnerProject) -> None:
    (trivia.root / "statement.txt").write_text("How many?")
    said = project_of(trivia, Demanding).run("--problem", "statement.txt", SPIDER, code=1)
    assert "a question alone makes no TASK_MODEL (repo: Field required); override load_problem" in said


def test_options_keep_no_logins(trivia: RunnerProject) -> None:
    project = project_of(trivia, QuizRunner, extra_run_options=[click.option("--judge")])
    project.write_tasks([trivia_task(SPIDER)])
    project.run("--judge", "https://ann:pass-1234@judge.test/v1")
    assert project.read("run_config.json")["settings"]["options"] == {"judge": "https://***@judge.test/v1"}


@pytest.mark.slow
def test_an_override_that_is_checked_by_types(tmp_path: Path) -> None:
    """What authors write against has types that let them."""
    (tmp_path / "author.py").write_text(AUTHOR)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-incremental",
            "--config-file",
            os.devnull,
            "author.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(__file__).parents[3] / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


AUTHOR = """
from pathlib import Path

from benchmark_runner import (
    BenchmarkRunner, EvalResult, EvalStatus, GenerationResult, GenerationStatus, LLMConfig, ScoreResult, Task
)


class RepoTask(Task):
    repo: str


class Runner(BenchmarkRunner):
    NAME = "repos"
    TASK_MODEL = RepoTask

    def load_tasks(self, dataset_file: Path) -> list[RepoTask]:
        return [RepoTask(id="a", question="?", repo="r")]

    async def generate(
        self, task: RepoTask, model: str, llm_config: LLMConfig | None = None, log_dir: Path | None = None
    ) -> GenerationResult:
        return GenerationResult(task_id=task.id, status=GenerationStatus.SUCCESS, data=task.repo)

    async def evaluate(self, task_id: str, generation: GenerationResult) -> EvalResult:
        async with self._eval_sem:
            result = await self._client.evaluate_response(
                task_id=task_id, response=generation.answer, dataset=self._dataset
            )
        return EvalResult(task_id=task_id, status=EvalStatus.EVALUATED, result=result)

    async def score(self, eval_results: list[EvalResult]) -> ScoreResult:
        given = {one.task_id: one for one in eval_results}
        answer = await self._client.final_score(given, dataset=self._dataset)
        return ScoreResult(tasks_evaluated=answer.tasks_evaluated, final_score=answer.final_score)
"""
