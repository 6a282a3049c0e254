"""Tasks a service lists, and who may have them: the hosted example service with the real SDK's exchange."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner import Task, make_cli
from benchmark_runner.client import build_client
from benchmark_service import BenchmarkService, BenchmarkServiceApp, auth
from benchmark_service.v1_schemas import V1ScoreItem
from tests.integration.benchmark_runner.quiz_runner import QuizRunner
from tests.integration.benchmark_runner.runner_project import (
    QUESTIONS,
    Live,
    RunnerProject,
    live,
    load_trivia,
    trivia_tasks,
)
from tests.integration.benchmark_service.conftest import serving
from tests.integration.benchmark_service.hosted import Descope
from tests.integration.benchmark_service.quizzes import require_auth
from tests.integration.benchmark_service.scripted_service import unused_url

SPIDER, PLANET, GOLD = list(QUESTIONS)[:3]
TENANTS = {"acme": {"datasets": ["default"]}, "small": {"datasets": ["other"]}}


@pytest.fixture
def hosted(trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunnerProject]:
    """The service where callers show an access key; the environment has a good one."""
    descope = Descope({"acme-key": ["acme"], "small-key": ["small"]})
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()
    with serving(descope.app()) as descope.url:
        require_auth(monkeypatch, descope, TENANTS)
        monkeypatch.setenv("VALS_AUTH_KEY", "acme-key")
        yield trivia
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()


def test_a_run_of_the_services_tasks(hosted: RunnerProject) -> None:
    said = hosted.run("--dataset-name", "default")
    assert "Starting r1: 12 tasks" in said and "Done: 12/12 evaluated" in said and "Final score: 0" in said
    config = hosted.read("run_config.json")
    assert (config["task_source"], config["dataset_name"]) == ("service", "default")
    assert config["dataset_file"] is None and config["tasks"] == sorted(QUESTIONS)
    assert hosted.generation(SPIDER)["question"] == QUESTIONS[SPIDER]["question"]
    bodies = [*hosted.service.bodies("/evaluate-response/"), *hosted.service.bodies("/final-score/")]
    assert {body["dataset"] for body in bodies} == {"default"}
    keys = {one.headers.get("x-descope-api-key") for one in hosted.service.asked}
    assert keys == {"acme-key"}


def test_a_run_of_the_services_tasks_goes_on_with_them(hosted: RunnerProject) -> None:
    hosted.run("--dataset-name", "default", SPIDER, "--skip-eval")
    hosted.service.forget()
    said = hosted.run()
    assert "Resuming r1: 1 tasks" in said
    assert [one.path for one in hosted.service.asked] == [
        "/v1/datasets/default/tasks",
        "/health",
        "/evaluate-response/",
        "/final-score/",
    ]
    hosted.write_tasks(trivia_tasks())
    said = hosted.run("--dataset-file", "tasks.json", code=1)
    assert "task source: service, now file" in said
    hosted.service.forget()
    hosted.evaluate("--force")
    hosted.score("--force")
    asked = [one for one in hosted.service.asked if one.body]
    assert {one.body["dataset"] for one in asked} == {"default"}


def test_evaluations_score_the_same_at_both_doors(hosted: RunnerProject) -> None:
    hosted.write_tasks([*trivia_tasks(wrong=4)[:11], {**trivia_tasks()[11], "does": "run_out_of_turns"}])
    hosted.run()
    legacy = hosted.read("final_score.json")
    items = {task_id: V1ScoreItem.model_validate(hosted.evaluation(task_id)) for task_id in QUESTIONS}

    async def at_v1() -> Any:
        async with build_client(hosted.service.url) as client:
            return await client.v1_score("r1", items, dataset="default")

    answer = asyncio.run(at_v1())
    assert legacy["final_score"] == answer.final_score == 58.33
    assert legacy["metadata"] == answer.metadata


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ({"VALS_AUTH_KEY": "a", "VALS_API_KEY": "b", "BENCHMARK_API_KEY": "c"}, ("a", None)),
        ({"VALS_API_KEY": "b", "BENCHMARK_API_KEY": "c"}, ("b", None)),
        ({"VALS_AUTH_KEY": " ", "VALS_API_KEY": "b"}, ("b", None)),
        ({"BENCHMARK_API_KEY": "c"}, (None, "Bearer c")),
        ({}, (None, None)),
    ],
)
def test_which_key_is_sent(
    trivia: RunnerProject,
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, str],
    sent: tuple[str | None, str | None],
) -> None:
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    trivia.write_tasks(trivia_tasks())
    # In this process, the service wants the bearer key the runner has; without it, it refuses.
    trivia.run(SPIDER, code=int(sent[1] is None and "BENCHMARK_API_KEY" in keys))
    headers = [one.headers for one in trivia.service.asked]
    assert {(one.get("x-descope-api-key"), one.get("authorization")) for one in headers} == {sent}


def test_the_older_key_is_refused_where_tasks_are_listed(
    trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHMARK_API_KEY", "a-shared-key")
    said = trivia.run("--dataset-name", "default", code=1)
    assert f"Dataset 'default' cannot be loaded from {trivia.service.url}: " in said
    assert "403" in said and "set VALS_AUTH_KEY" in said and "a-shared-key" not in said
    assert trivia.files() == []


@pytest.mark.parametrize("key", ["unknown-key", "small-key"])
def test_a_key_that_may_not(hosted: RunnerProject, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("VALS_AUTH_KEY", key)
    said = hosted.run("--dataset-name", "default", code=1)
    assert "cannot be loaded from" in said and key not in said
    assert "the one in VALS_AUTH_KEY may not" in said
    assert hosted.files() == []


def test_a_dataset_the_service_does_not_have(hosted: RunnerProject, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = {"acme": {"datasets": ["default", "nonesuch"]}}
    monkeypatch.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", json.dumps({"tenants": tenants}))
    said = hosted.run("--dataset-name", "nonesuch", code=1)
    assert "Dataset 'nonesuch' cannot be loaded from" in said and hosted.files() == []


def test_a_service_that_lists_nothing(hosted: RunnerProject, place: Path) -> None:
    trivia = load_trivia()

    class Silent(trivia.Trivia):  # type: ignore[misc,name-defined]
        list_tasks = BenchmarkService.list_tasks

    with live(BenchmarkServiceApp(Silent)) as service:
        said = RunnerProject(place, service).run("--dataset-name", "default", code=1)
    assert f"Dataset 'default' cannot be loaded from {service.url}" in said
    assert "does not list its tasks" in said and "--dataset-file" in said


@pytest.mark.slow
def test_a_service_that_is_not_there(trivia: RunnerProject) -> None:
    project = RunnerProject(trivia.root, Live(None, unused_url().replace("http://", "http://user:pass@")))
    said = project.run("--dataset-name", "default", code=1)
    assert "Dataset 'default' cannot be loaded from http://127.0.0.1" in said and "pass@" not in said


def test_tasks_are_read_as_the_runners_own_kind(hosted: RunnerProject) -> None:
    class Priced(Task):
        price: float

    class Runner(QuizRunner):
        TASK_MODEL = Priced

    project = RunnerProject(hosted.root, hosted.service, make_cli(Runner))
    said = project.run("--dataset-name", "default", code=1)
    assert "is no Priced: price: Field required" in said
    (hosted.root / "p.txt").write_text("?")
    assert "p.txt cannot be loaded" in project.run("--problem", "p.txt", SPIDER, code=1)


def test_tasks_need_a_service(trivia: RunnerProject) -> None:
    said = trivia.run("--dataset-name", "default", "--skip-eval", service=False, code=2)
    assert "--dataset-name takes tasks from a service" in said
