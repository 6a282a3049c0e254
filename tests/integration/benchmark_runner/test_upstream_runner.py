"""A runner written on upstream's template runs, evaluates and scores as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner import (
    EvalResult,
    EvalStatus,
    GenerationResult,
    GenerationStatus,
    RunArtifacts,
    ScoreResult,
)
from benchmark_runner.base import BenchmarkRunner
from benchmark_runner.checkpoint import RunConfig
from benchmark_runner.cli import make_cli
from benchmark_runner.client import build_client
from benchmark_runner.schemas import FinalScoreResponse, Task
from tests.integration.benchmark_runner.runner_project import RunnerProject

QUESTIONS = ("first", "second")


class UpstreamRunner(BenchmarkRunner):
    """As upstream's template has it: the dataset lies beside the runner and names what it is graded on."""

    NAME = "quiz"
    PAYLOAD_TYPE = "text"
    PAYLOAD_SCHEMA_VERSION = 1
    GENERATION_VERSION_ENV = "QUIZ_GENERATION_VERSION"

    def load_tasks(self, dataset_file: Path | None) -> list[Task]:
        path = dataset_file or Path("bundled.json")
        raw = json.loads(path.read_text())
        if dataset_file is None:
            self._dataset = raw.get("dataset_name")
        return [Task(**entry) for entry in raw["tests"]]

    async def generate(
        self, task: Task, model: str, llm_config: Any = None, log_dir: Path | None = None
    ) -> GenerationResult:
        return GenerationResult(task_id=task.id, status=GenerationStatus.SUCCESS, answer=f"to {task.id}")


class Graded:
    """A service's client as upstream's tests put one in place; remembers on which dataset it was asked."""

    def __init__(self) -> None:
        self.datasets: list[str | None] = []

    async def evaluate_response(self, task_id: str, response: str, dataset: str | None = None) -> Any:
        self.datasets.append(dataset)
        return {"pass_percentage": 50.0 if response == f"to {task_id}" else 0.0}

    async def final_score(self, results: dict[str, Any], dataset: str | None = None) -> FinalScoreResponse:
        self.datasets.append(dataset)
        return FinalScoreResponse(tasks_evaluated=sorted(results), final_score=50.0, metadata={})


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Graded:
    made = Graded()
    monkeypatch.setattr("benchmark_runner.base.build_client", lambda _url: made)
    return made


def write(path: Path, **named: str) -> None:
    path.write_text(json.dumps({**named, "tests": [{"id": one, "question": one} for one in QUESTIONS]}))


@pytest.mark.parametrize("options", [(), ("--dataset-file", "other.json")])
def test_it_is_graded_on_the_dataset_its_file_names(
    trivia: RunnerProject, client: Graded, options: tuple[str, ...]
) -> None:
    write(trivia.root / "bundled.json", dataset_name="hard")
    write(trivia.root / "other.json", dataset_name="hard")
    project = RunnerProject(trivia.root, trivia.service, make_cli(UpstreamRunner))
    assert "Final score: 50" in project.run(*options)
    assert project.read("run_config.json")["dataset_name"] == "hard"
    project.evaluate("--force")
    project.score("--force")
    assert set(client.datasets) == {"hard"} and len(client.datasets) == 2 * 3 + 1


def test_scoring_is_given_a_list(trivia: RunnerProject, client: Graded) -> None:
    class Own(UpstreamRunner):
        async def score(self, eval_results: list[EvalResult]) -> ScoreResult:
            assert isinstance(eval_results, list)
            assert {one.status for one in eval_results} == {EvalStatus.EVALUATED}
            mean = sum(one.score or 0 for one in eval_results) / len(eval_results)
            return ScoreResult(tasks_evaluated=[one.task_id for one in eval_results], final_score=mean)

    write(trivia.root / "bundled.json")
    assert "Final score: 50" in RunnerProject(trivia.root, trivia.service, make_cli(Own)).run()


def test_files_of_a_run_have_upstreams_names(tmp_path: Path) -> None:
    artifacts = RunArtifacts(tmp_path, "r1")
    assert artifacts.run_dir == tmp_path / "r1"
    assert artifacts.run_config_path == tmp_path / "r1/run_config.json"
    assert artifacts.final_score_path == tmp_path / "r1/final_score.json"
    assert artifacts.agent_logs_dir("a") == tmp_path / "r1/a/agent_logs"
    config = RunConfig(run_id="r1", model="m", tasks=["a"])
    answer = GenerationResult(task_id="a", status=GenerationStatus.SUCCESS, data="x")
    graded = EvalResult(task_id="a", status=EvalStatus.EVALUATED, result={"pass_percentage": 1.0})
    score = ScoreResult(tasks_evaluated=["a"], final_score=1.0)
    artifacts.save_run_config(config)
    artifacts.save_generation(answer)
    artifacts.save_eval(graded)
    artifacts.save_final_score(score)
    kept = (artifacts.load_run_config(), artifacts.load_generation("a"), artifacts.load_eval("a"))
    assert (*kept, artifacts.load_final_score()) == (config, answer, graded, score)


async def test_a_client_takes_a_timeout() -> None:
    async with build_client("http://127.0.0.1:1", timeout=3) as client:
        assert client._timeout == 3


def test_nobody_pays_a_model_while_the_service_is_away(trivia: RunnerProject) -> None:
    write(trivia.root / "bundled.json")
    asked: list[str] = []

    class Paid(UpstreamRunner):
        async def generate(self, task: Task, *given: Any, **more: Any) -> GenerationResult:
            asked.append(task.id)
            return await super().generate(task, *given, **more)

    project = RunnerProject(trivia.root, trivia.service, make_cli(Paid))
    trivia.service.refuse("/health", *[503] * 9)
    said = project.run(code=1)
    assert "cannot grade" in said and "503" in said and "--skip-eval" in said
    assert asked == []
