"""Grading in a fresh sandbox: made as the task says, prepared, always deleted."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmark_service import submissions
from benchmark_service.context import current_sandbox_provider
from benchmark_service.schemas import (
    EvalMode,
    EvalSandboxSpec,
    Resources,
    RetrieveTaskResponse,
    StreamResultChunk,
)
from benchmark_service.submissions import TextGradingSubmission
from sandboxes.null import NullProvider
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.types import DaytonaProviderConfig, SandboxCreateRequest
from tests.integration.benchmark_service.quizzes import Quiz, hosted, submission
from tests.secret_forms import FORMS, SECRET, shows_secret


class Recording(NullProvider):
    """Makes sandboxes that run nothing, and remembers what was asked of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.requests: list[SandboxCreateRequest] = []
        self.deleted: list[str] = []
        self.closed = False

    async def create_sandbox(self, request: SandboxCreateRequest) -> Sandbox:
        self.requests.append(request)
        return await super().create_sandbox(request)

    async def delete_sandbox(self, sandbox_id: str) -> None:
        self.deleted.append(sandbox_id)
        await super().delete_sandbox(sandbox_id)

    async def close(self) -> None:
        self.closed = True  # and ends nothing, as a remote provider does


class Coding(Quiz):
    """Graded by what lies in the sandbox."""

    eval_mode = EvalMode.SANDBOX
    accepted_submission_schemas: ClassVar[Any] = {"text": frozenset({"quiz.text.v1"})}
    spec: ClassVar[EvalSandboxSpec | None] = None

    async def retrieve_task(
        self, task_id: str, skip_validation: bool = False, dataset: str | None = None
    ) -> Any:
        return RetrieveTaskResponse(
            docker_image="python:3.12-slim",  # type: ignore[call-arg]
            problem_path="/p",
            cwd="/w",
            resources=Resources(vcpu=2, memory=4, disk=10),
            eval_sandbox=self.spec,
        )

    async def prepare_grading_sandbox(
        self, sandbox: Any, submission: Any, dataset: str | None = None
    ) -> None:
        assert isinstance(submission, TextGradingSubmission)
        if submission.data.startswith("unpreparable"):
            raise RuntimeError(submission.data.replace("unpreparable", "no room"))
        await sandbox.upload_file("/w/answer", submission.data.encode())

    async def evaluate_instance(self, task_id: str, sandbox: Any, dataset: str | None = None) -> Any:
        answer = (await sandbox.download_file("/w/answer")).decode()
        if answer == "hang":
            await asyncio.Event().wait()
        provider = current_sandbox_provider()
        yield StreamResultChunk(
            type="result", data={"answer": answer, "provider": type(provider).__name__, "name": sandbox.name}
        )


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recording:
    made = Recording(tmp_path)

    def create(_config: DaytonaProviderConfig) -> SandboxProvider:
        return made

    monkeypatch.setattr(DaytonaProviderConfig, "create_provider", create)
    monkeypatch.setenv("GRADING_SANDBOX_PROVIDER", "daytona")
    monkeypatch.setenv("DAYTONA_API_KEY", "very-secret-key")
    monkeypatch.setenv("DAYTONA_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setenv("DAYTONA_TARGET", "local")
    return made


async def test_graded_in_a_sandbox_of_its_own(monkeypatch: pytest.MonkeyPatch, provider: Recording) -> None:
    async with hosted(monkeypatch, Coding) as service, service.caller() as caller:
        answer = (await caller.post("/v1/evaluate", json=submission("four"))).json()
    assert answer["status"] == "evaluated", answer
    assert (answer["result"]["answer"], answer["result"]["provider"]) == ("four", "Recording")
    assert re.fullmatch(r"grade-q1-[0-9a-f]{10}", answer["result"]["name"])
    [request] = provider.requests
    assert request.network_block_all
    assert request.resources == Resources(vcpu=2, memory=4, disk=10)
    assert request.source.type == "image"
    assert request.labels == {
        "Benchmark": "Coding",
        "Task": "q1",
        "vals-eval": "grade-instance",
        "tenant": "acme",
        "run-id": "r1",
    }
    assert len(provider.deleted) == 1
    assert provider.closed


async def test_the_tasks_own_grading_sandbox_wins(
    monkeypatch: pytest.MonkeyPatch, provider: Recording
) -> None:
    own = {"resources": {"vcpu": 8, "memory": 16, "disk": 1}, "network_block_all": False}
    source = {"type": "snapshot", "snapshot": "grader"}
    monkeypatch.setattr(Coding, "spec", EvalSandboxSpec.model_validate({**own, "source": source}))
    async with hosted(monkeypatch, Coding) as service, service.caller() as caller:
        await caller.post("/v1/evaluate", json=submission("four"))
    [request] = provider.requests
    assert (request.source.type, request.network_block_all) == ("snapshot", False)
    assert request.resources == Resources(vcpu=8, memory=16, disk=1)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_deleted_also_when_preparing_fails_and_no_secret_is_told(
    monkeypatch: pytest.MonkeyPatch, provider: Recording, form: str
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", SECRET)
    async with hosted(monkeypatch, Coding) as service, service.caller() as caller:
        answer = await caller.post("/v1/evaluate", json=submission(f"unpreparable for <{form}>"))
    assert answer.json()["status"] == "error"
    [told] = answer.json()["errors"]
    assert "no room for <" in told and "***" in told
    assert not shows_secret(told)
    assert len(provider.deleted) == 1


async def test_grading_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, provider: Recording) -> None:
    monkeypatch.setattr(Coding, "spec", EvalSandboxSpec(timeout_s=0.05))
    async with hosted(monkeypatch, Coding) as service, service.caller() as caller:
        answer = (await caller.post("/v1/evaluate", json=submission("hang"))).json()
    assert (answer["status"], answer["errors"]) == ("error", ["grading did not end within 0.05 s"])
    assert len(provider.deleted) == 1


async def test_preparation_is_bounded_too(monkeypatch: pytest.MonkeyPatch, provider: Recording) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Coding, "prepare_grading_sandbox", never)
    monkeypatch.setattr(submissions, "PREPARATION_TIMEOUT_S", 1.0)
    async with hosted(monkeypatch, Coding) as service, service.caller() as caller:
        answer = (await caller.post("/v1/evaluate", json=submission("x"))).json()
    assert answer["errors"] == ["the grading sandbox was not ready within 1 s"]
    assert len(provider.deleted) == 1


async def test_a_sandbox_that_will_not_go_away_does_not_cost_the_result(
    monkeypatch: pytest.MonkeyPatch, provider: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_sandbox_id: str) -> None:
        raise OSError("the provider is down")

    monkeypatch.setattr(provider, "delete_sandbox", refuse)
    async with hosted(monkeypatch, Coding) as service, service.caller() as caller:
        answer = (await caller.post("/v1/evaluate", json=submission("four"))).json()
    assert answer["status"] == "evaluated"
    assert "was not ended" in caplog.text


async def test_text_grading_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Quiz, "evaluate_response", never)
    monkeypatch.setattr(submissions, "GRADING_TIMEOUT_S", 0.05)
    async with hosted(monkeypatch) as service, service.caller() as caller:
        answer = (await caller.post("/v1/evaluate", json=submission("x"))).json()
    assert answer["errors"] == ["grading did not end within 0.05 s"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"GRADING_SANDBOX_PROVIDER": ""}, "GRADING_SANDBOX_PROVIDER=daytona"),
        ({"GRADING_SANDBOX_PROVIDER": "modal"}, "no 'modal' grading sandboxes"),
        ({"DAYTONA_API_KEY": "", "DAYTONA_TARGET": " "}, "need DAYTONA_API_KEY, DAYTONA_TARGET"),
    ],
)
async def test_a_service_not_set_up_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, provider: Recording, changed: dict[str, str], told: str
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    async with hosted(monkeypatch, Coding) as service, service.caller() as caller:
        answer = await caller.post("/v1/evaluate", json=submission("four"))
    assert answer.status_code == 503
    assert told in answer.json()["detail"]
    assert provider.requests == []
