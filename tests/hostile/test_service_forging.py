"""Agents that forge or break what a benchmark service sees: no pass, no second try, an honest one passes."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from benchmark_service.schemas import (
    EvaluateResponseRequest,
    FinalScoreResult,
    Resources,
    RetrieveTaskResponse,
    StreamResultChunk,
)
from tests.abilities import need_local_sandboxes
from tests.integration.benchmark_service.conftest import environment, serving
from tests.integration.conftest import end_executor
from valkyrie.config import values
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, RunView, TrialFilter, TrialView

pytestmark = pytest.mark.slow

CONTRACT = """\
name: forger
install_cmd: "true"
run_cmd: bash /bundle/forger/forgeries.sh {task_id} {problem_statement_path}
final_output: /logs/agent
"""
SCRIPT = Path(__file__).with_name("service_forgeries.sh")
IN_SANDBOX = [
    *("replaced-sh", "replaced-bash", "replaced-grep", "replaced-python", "shadowed", "preload-link"),
    *("no-tools", "killed", "fifo", "raising"),
]
IN_TEXT = ["raising", "two-answers", "large-answer", "linked-answer", "fifo-answer"]
CHECK = b"import os, sys\nsys.exit(0 if os.path.exists('/app/honest') else 1)\n"


class Checked(BenchmarkService):
    """Grades in the sandbox by names that are looked up there: a shell, grep, an interpreter."""

    tasks: ClassVar[list[str]] = ["honest", "nothing", *IN_SANDBOX]
    where: ClassVar[Any] = None

    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {"default": dict.fromkeys(self.tasks, 0)}

    async def retrieve_task(self, task_id: str, *_: Any, **__: Any) -> RetrieveTaskResponse:
        return RetrieveTaskResponse(
            problem_path="/app/problem.txt",
            cwd="/app",
            agent_timeout=60,
            resources=Resources(vcpu=1, memory=1, disk=1),
            grading_sandbox=self.where,
        )

    async def setup_task(self, task_id: str, sandbox: Any, dataset: str | None = None) -> AsyncIterator[Any]:
        await sandbox.upload_file("/app/problem.txt", b"Be good.")
        await sandbox.upload_file("/app/answer", b"none")
        yield StreamResultChunk(type="result", data={"status": "success"})

    async def evaluate_response(self, request: EvaluateResponseRequest, dataset: str | None = None) -> Any:
        if (request.response or "").strip() == "raise":
            raise RuntimeError("what is this answer?")
        return {"correct": (request.response or "").strip() == "42"}

    async def evaluate_instance(
        self, task_id: str, sandbox: Any, dataset: str | None = None
    ) -> AsyncIterator[Any]:
        if await sandbox.download_file("/app/answer") == b"raise":
            raise RuntimeError("what is this answer?")
        await sandbox.upload_file("/tests/check.py", CHECK)
        codes = [
            (await sandbox.exec(command)).exit_code
            for command in (
                "sh -c '[ -e /app/honest ]'",
                "ls /app | grep -qx honest",
                "python3 /tests/check.py",
            )
        ]
        yield StreamResultChunk(type="result", data={"resolved": codes == [0, 0, 0], "codes": codes})

    async def calculate_final_score(self, results: dict[str, Any], dataset: Any = None) -> FinalScoreResult:
        solved = [bool(one and (one.get("resolved") or one.get("correct"))) for one in results.values()]
        return FinalScoreResult(score=sum(solved))


class Fresh(Checked):
    """The same, declaring that a fresh sandbox will do."""

    where = "fresh"


class Answers(Checked):
    """Grades text."""

    tasks: ClassVar[list[str]] = ["honest", "nothing", *IN_TEXT]


Scene = Mapping[str, tuple[RunView, Mapping[str, TrialView]]]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("service-forging")
    need_local_sandboxes(root / "probe")
    agent = root / "forger"
    agent.mkdir()
    (agent / "contract.yaml").write_text(CONTRACT)
    shutil.copy(SCRIPT, agent / "forgeries.sh")
    services = {"checked": Checked, "fresh": Fresh, "answers": Answers}
    found: dict[str, tuple[RunView, Mapping[str, TrialView]]] = {}
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        stack.enter_context(environment())
        patch.setenv("VALKYRIE_HOME", str(root / "home"))
        patch.setenv("VALKYRIE_CONFIG_PATH", str(root / "valkyrie.yaml"))
        patch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "60")
        for name, service in services.items():
            url = stack.enter_context(serving(BenchmarkServiceApp(service)))
            values.set_entry("custom_benchmark_services", name, url)
        values.set_entry("custom_benchmark_services", "answers", {"url": url, "grading": "text"})
        tracker = LocalTracker(root / "home")
        try:
            for name in services:
                request = RunRequest(agent=str(agent), benchmark=name, provider="local", concurrency=3)
                run = tracker.wait(tracker.start(request).run.id, timeout=280)
                trials, _ = tracker.trials(run.id, TrialFilter(limit=100))
                found[name] = run, {one.task_id: one for one in trials}
            yield found
        finally:
            tracker.close()
            end_executor(root / "home")


@pytest.mark.parametrize("service", ["checked", "fresh", "answers"])
def test_only_the_honest_agent_scores(scene: Scene, service: str) -> None:
    run, trials = scene[service]
    honest = trials["honest"]
    assert (honest.state, honest.passed) == ("FINISHED", True), honest
    assert honest.confirmed is (service != "checked")
    assert run.score.final_score == 1.0


@pytest.mark.parametrize(
    ("service", "way"),
    [("checked", way) for way in IN_SANDBOX]
    + [("fresh", way) for way in IN_SANDBOX]
    + [("answers", way) for way in IN_TEXT],
)
def test_no_way_passes_or_is_tried_again(scene: Scene, service: str, way: str) -> None:
    trial = scene[service][1][way]
    assert trial.attempts == 1 and not trial.passed, trial
    if trial.state != "FINISHED":
        assert (trial.state, trial.category) == ("ERROR", "agent"), trial
