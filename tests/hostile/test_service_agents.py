"""Agents that attack a benchmark service's run: its key, its hidden tests, the commands it grades with."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from benchmark_service.context import current_sandbox_provider
from benchmark_service.schemas import (
    FinalScoreResult,
    Resources,
    RetrieveTaskResponse,
    StreamMessageChunk,
    StreamResultChunk,
)
from tests.abilities import need_local_sandboxes
from tests.integration.benchmark_service.conftest import environment, serving
from tests.integration.conftest import end_executor
from valkyrie.config import values
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, RunView, TrialFilter

pytestmark = pytest.mark.slow

CONTRACT = """\
name: hostile
install_cmd: "true"
run_cmd: bash /bundle/hostile/attacks.sh {task_id} {problem_statement_path}
final_output: /logs/agent
"""
ATTACKS = "spy knock forge daemon traps".split()
Scene = tuple[LocalTracker, RunView, int]
"""The tracker, the run, and the executor's process."""


class Seen:
    """What the service was given, and what it found."""

    key = ""
    found: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - one service, one test module


class Guarded(BenchmarkService):
    """Uploads its tests when it grades, never before; tells the agent its key, as a careless one might."""

    async def load_datasets(self) -> dict[str, dict[str, Any]]:
        return {"default": dict.fromkeys(ATTACKS, 0)}

    async def retrieve_task(self, task_id: str, *_: Any, **__: Any) -> RetrieveTaskResponse:
        return RetrieveTaskResponse(
            problem_path="/app/problem.txt",
            cwd="/app",
            agent_timeout=60,
            resources=Resources(vcpu=1, memory=1, disk=1),
        )

    async def setup_task(self, task_id: str, sandbox: Any, dataset: str | None = None) -> AsyncIterator[Any]:
        settings = current_sandbox_provider()._config  # type: ignore[union-attr]
        Seen.key = settings.DAYTONA_API_KEY
        told = f"{settings.DAYTONA_API_URL} {settings.DAYTONA_API_KEY}" if task_id == "knock" else "Be good."
        await sandbox.upload_file("/app/problem.txt", told.encode())
        yield StreamResultChunk(type="result", data={"status": "success"})

    async def evaluate_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def evaluate_instance(
        self, task_id: str, sandbox: Any, dataset: str | None = None
    ) -> AsyncIterator[Any]:
        yield StreamMessageChunk(type="message", data="grading")
        found: dict[str, Any] = {}
        await sandbox.upload_file("/tests/hidden.sh", b"# HIDDEN-CANARY\nsleep 1; [ -e /app/honest ]\n")
        found["verdict"] = (await sandbox.exec("sh /tests/hidden.sh")).exit_code
        found["beats"] = (await sandbox.exec("cat /app/beat; sleep 1; cat /app/beat")).output
        for name in ("pipe", "shadow", "zero"):
            try:
                found[name] = len(await sandbox.download_file(f"/app/{name}"))
            except Exception as error:  # noqa: BLE001 - what the service is told is what is tested
                found[name] = type(error).__name__
        Seen.found[task_id] = found
        yield StreamResultChunk(type="result", data={"resolved": found["verdict"] == 0})

    async def calculate_final_score(self, results: dict[str, Any], dataset: Any = None) -> FinalScoreResult:
        return FinalScoreResult(score=sum(bool(one and one["resolved"]) for one in results.values()))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("service-hostile")
    need_local_sandboxes(root / "probe")
    agent = root / "hostile"
    agent.mkdir()
    (agent / "contract.yaml").write_text(CONTRACT)
    shutil.copy(Path(__file__).with_name("service_attacks.sh"), agent / "attacks.sh")
    with pytest.MonkeyPatch.context() as patch, environment(), serving(BenchmarkServiceApp(Guarded)) as url:
        patch.setenv("VALKYRIE_HOME", str(root / "home"))
        patch.setenv("VALKYRIE_CONFIG_PATH", str(root / "valkyrie.yaml"))
        patch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "60")
        values.set_entry("custom_benchmark_services", "guarded", url)
        tracker = LocalTracker(root / "home")
        started = tracker.start(
            RunRequest(agent=str(agent), benchmark="guarded", provider="local", concurrency=5)
        )
        status = tracker.executor_status()
        assert status is not None
        yield tracker, tracker.wait(started.run.id, timeout=280), status["pid"]
        tracker.close()
        end_executor(root / "home")


def log(scene: Scene, task_id: str) -> str:
    tracker, run, _ = scene
    return "".join(tracker.logs(run.id, task_id))


def test_no_attack_earns_anything(scene: Scene) -> None:
    tracker, run, _ = scene
    rows, _ = tracker.trials(run.id, TrialFilter(limit=100))
    assert {row.task_id: (row.state, row.score) for row in rows} == dict.fromkeys(ATTACKS, ("FINISHED", 0.0))
    assert run.score.final_score == 0.0


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_leaked(scene: Scene, attack: str) -> None:
    assert "LEAK" not in log(scene, attack)


def test_who_knows_the_key_still_does_not_reach_the_server(scene: Scene) -> None:
    said = log(scene, "knock")
    assert said.count("no way to") >= 3
    assert Seen.key not in said


def test_the_key_is_in_no_file_argument_or_environment(scene: Scene) -> None:
    _, run, pid = scene
    assert len(Seen.key) >= 40
    key = Seen.key.encode()
    for name in ("cmdline", "environ"):
        assert key not in Path(f"/proc/{pid}/{name}").read_bytes()
    home = Path(run.folder).parents[1]
    assert (home / "valkyrie.db").exists()
    files = [path for path in home.rglob("*") if path.is_file()]
    assert [path for path in files if key in path.read_bytes()] == []


def test_what_the_agent_left_running_is_dead_when_the_service_grades(scene: Scene) -> None:
    before, after = Seen.found["daemon"]["beats"].split()
    assert before == after


def test_traps_are_refused_at_once(scene: Scene) -> None:
    found = Seen.found["traps"]
    assert {found[name] for name in ("pipe", "shadow", "zero")} == {"SandboxFileNotFoundError"}
    assert "3 entries of /logs/agent were left behind" in log(scene, "traps")
