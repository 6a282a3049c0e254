"""A benchmark that is graded as text, for the tests of `/v1`, and its app behind hosted authentication."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmark_service import BenchmarkService, BenchmarkServiceApp, auth
from benchmark_service.base import TaskInput
from benchmark_service.schemas import EvaluateResponseRequest, FinalScoreResult
from benchmark_service.v1_schemas import V1Task
from tests.integration.benchmark_service.hosted import PROJECT, Descope, running
from tests.integration.benchmark_service.scripted_service import serving

TENANTS: dict[str, Any] = {
    "acme": {"datasets": ["default", "hard", "unloaded"]},
    "tiny": {"datasets": ["default"], "trial_mode": True},
}


class Quiz(BenchmarkService):
    """Two tasks; the right answer is the task's object."""

    inputs_folder: Path | None = None
    scored: dict[str, Any] | None = None

    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {"default": {"q1": "4", "q2": "9"}, "hard": {"h1": "42"}, "private": {"p1": "0"}}

    async def retrieve_task(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("text is graded without a sandbox")

    async def setup_task(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError
        yield

    async def evaluate_instance(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError
        yield

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        if request.response == "crash":
            raise RuntimeError("the judge is down")
        if request.response == "nan":
            return {"score": float("nan")}
        right = request.response == self.get_dataset(dataset)[request.task_id]
        return {"resolved": right, "secret_key_facts": "the answer was 4"}

    async def calculate_final_score(self, results: dict[str, Any], dataset: str | None = None) -> Any:
        type(self).scored = results
        solved = [name for name, result in results.items() if result and result["resolved"]]
        return FinalScoreResult(score=100 * len(solved) / max(1, len(results)), metadata={"solved": solved})

    async def list_tasks(self, dataset: str | None = None) -> list[V1Task]:
        tasks = self.get_dataset(dataset)
        return [V1Task(id=name, question="?", timeout=5, hint=answer) for name, answer in tasks.items()]  # type: ignore[call-arg]

    def project_trial_result(self, result: Any) -> Any:
        return {"resolved": result["resolved"]}

    def get_service_version(self) -> str | None:
        return "7.1"

    async def list_task_inputs(self, task_id: str, dataset: str | None = None) -> list[TaskInput]:
        return [TaskInput("data.csv", "/inputs/data.csv"), TaskInput("gone.csv", "/inputs/gone.csv")]

    async def task_input_path(self, task_id: str, filename: str, dataset: str | None = None) -> Path:
        assert self.inputs_folder is not None
        return self.inputs_folder / filename


class Hosted:
    """A running service with what authenticates its callers."""

    def __init__(self, url: str, descope: Descope, app: BenchmarkServiceApp) -> None:
        self.url, self.descope, self.app = url, descope, app

    def caller(self, key: str | None = "acme-key", **headers: str) -> httpx.AsyncClient:
        if key is not None:
            headers["x-descope-api-key"] = key
        return httpx.AsyncClient(verify=False, base_url=self.url, headers=headers, timeout=30)


def require_auth(patch: pytest.MonkeyPatch, descope: Descope, tenants: dict[str, Any] | None = None) -> None:
    """Set the environment of a hosted service."""
    for name in ("BENCHMARK_CATALOG_API_URL", "SERVICE_NAME", "DESCOPE_ALLOWLIST_PATH"):
        patch.delenv(name, raising=False)
    patch.setenv("AUTH_REQUIRED", "true")
    patch.setenv("DESCOPE_PROJECT_ID", PROJECT)
    patch.setenv("DESCOPE_BASE_URI", descope.url)
    patch.setenv("DESCOPE_TENANT_ALLOWLIST_JSON", json.dumps({"tenants": tenants or TENANTS}))


@asynccontextmanager
async def hosted(
    patch: pytest.MonkeyPatch, service: type[BenchmarkService] = Quiz, tenants: dict[str, Any] | None = None
) -> AsyncIterator[Hosted]:
    """The service behind authentication with the real SDK."""
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()
    known = {"acme-key": ["acme"], "tiny-key": ["tiny"], "both-key": ["acme", "tiny"], "odd-key": ["odd"]}
    async with running(Descope(known)) as descope:
        require_auth(patch, descope, tenants)
        app = BenchmarkServiceApp(service)
        async with serving(app) as url:
            yield Hosted(url, descope, app)
    auth.clear_auth_cache()
    auth.clear_allowlist_cache()


def submission(
    answer: Any = "4", task_id: str = "q1", dataset: str | None = None, **more: Any
) -> dict[str, Any]:
    """A body of /v1/evaluate."""
    payload = {"type": "text", "schema": "quiz.text.v1", "data": answer}
    return {"run_id": "r1", "task_id": task_id, "dataset": dataset, "payload": payload, **more}
