"""Services of every era, as their authors wrote them, from a served port to a score in real sandboxes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from benchmark_service import BenchmarkServiceClient, BenchmarkServiceError
from sandboxes.local.provider import LocalProvider
from tests.abilities import need_local_sandboxes
from tests.integration.conftest import end_executor
from tests.integration.eras.tblike_service import TerminalBenchmark
from tests.ports import free_port
from valkyrie.agents.protocol import AgentExit, AgentTrial
from valkyrie.config import values
from valkyrie.domain import Json
from valkyrie.errors import UserError
from valkyrie.store.layout import DataFolder
from valkyrie.testing.null import NapAgent
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, RunView

pytestmark = pytest.mark.slow

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
SOLVER = f"{__name__}:Solver"
HOLD = "/tmp/hold"
SOLUTIONS = {
    "reverse": "echo desserts > answer.txt",
    "double": "echo 44 > answer.txt",
    "sum": "echo 'print(1 + 2)' > answer.py",
    "power": "echo 'print(1024)' > answer.py",
    "remainder": "echo 'print(pow(10, 6, 17))' > answer.py",
    "calc__calc-1": "echo 'def add(a, b): return a + b' >> calc.py",
    "calc__calc-2": "echo 'def mul(a, b): return a - b' >> calc.py",
    "make-file": "touch hello.txt",
}
STUBBORN = f"""
touch {HOLD}
cat >> calc.py <<'CODE'
import pathlib, time
while pathlib.Path("{HOLD}").exists(): time.sleep(0.05)
def add(a, b): return a + b
CODE
"""
SETUP = """
set -x
mkdir -p /testbed/tests && cd /testbed && git init -q .
echo 'ZERO = 0' > calc.py && touch tests/__init__.py
cat > tests/__init__.py <<'CODE'
cases = {"test_add": "calc.add(2, 3) == 5", "test_mul": "calc.mul(2, 3) == 6", "test_zero": "calc.ZERO == 0"}
CODE
echo __pycache__ > .gitignore
git add -A && git -c user.name=a -c user.email=a@b commit -qm "before $1"
exit 7
"""


class Solver(NapAgent):
    """Knows what to write for each task, or nothing at all."""

    name = "solver"
    frozen: ClassVar[Json] = {"kind": "plugin", "target": SOLVER}
    digest = "solver:1"
    scripts: ClassVar[dict[str, str]] = SOLUTIONS

    async def run(self, trial: AgentTrial) -> AgentExit:
        trial.log("stdout", "the agent runs\n")
        script = self.scripts.get(trial.task.id, "true")
        done = await trial.sandbox.exec(script, cwd=trial.task.cwd)
        return AgentExit(done.exit_code)


class StubbornSolver(Solver):
    """Writes code that does not end while a file is there, so that its grading does not."""

    frozen: ClassVar[Json] = {"kind": "plugin", "target": f"{__name__}:StubbornSolver"}
    scripts: ClassVar[dict[str, str]] = {"calc__calc-1": STUBBORN}


class Service:
    """A service in a process of its own, on a port that stays the same."""

    def __init__(self, app: str, cwd: Path, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._app, self._cwd, self._settings = app, cwd, settings
        self._log = cwd / "service.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["-m", "uvicorn", self._app, "--app-dir", str(HERE), "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self._cwd,
                env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self._answers)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()
        try:
            return httpx.get(f"{self.url}/health", trust_env=False).json() == {"status": "ok"}
        except httpx.TransportError:
            return False

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


Serve = Callable[..., Service]


def until(condition: Callable[[], Any], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTracker]:
    need_local_sandboxes(tmp_path / "probe")
    home = tmp_path / "home"
    monkeypatch.setenv("VALKYRIE_HOME", str(home))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "30")
    monkeypatch.chdir(tmp_path)
    made = LocalTracker(home)
    yield made
    made.close()
    end_executor(home)


@pytest.fixture
def serve(tracker: LocalTracker, tmp_path: Path) -> Iterator[Serve]:
    """Starts a service and makes it known, to the tracker's own config, under its module's name."""
    _ = tracker
    started: list[Service] = []

    def start(app: str, **settings: str) -> Service:
        service = Service(app, tmp_path, **settings)
        started.append(service)
        service.start()
        values.set_entry("custom_benchmark_services", app.partition("_")[0], service.url)
        return service

    yield start
    for service in started:
        service.end()


def begun(tracker: LocalTracker, benchmark: str, **more: Any) -> str:
    asked = {"agent": SOLVER, "benchmark": benchmark, "provider": "local", "host_image": True, **more}
    return tracker.start(RunRequest(**asked)).run.id


def finished(tracker: LocalTracker, benchmark: str, **more: Any) -> RunView:
    return tracker.wait(begun(tracker, benchmark, **more), timeout=90)


def log_of(tracker: LocalTracker, run_id: str, task_id: str) -> str:
    return "".join(tracker.logs(run_id, task_id)) if tracker.attempts(run_id, task_id) else ""


def results_of(tracker: LocalTracker, run: RunView, *keys: str) -> dict[str, list[Any]]:
    """These keys of each task's result, as the service gave it."""
    found = tracker.results(run.id)["evaluation_results"]
    return {task: [result[key] for key in keys] for task, result in found.items()}


def sandboxes_left(home: Path) -> list[str]:
    async def names() -> list[str]:
        async with LocalProvider(DataFolder(home).sandboxes("local")) as provider:
            return [sandbox.name async for sandbox in provider.list_sandboxes()]

    return asyncio.run(names())


async def resumed(url: str) -> tuple[Any, list[str]]:
    """What a mid-era service makes of a saved state."""
    heard: list[str] = []
    async with BenchmarkServiceClient(url, {}) as client:
        assert (await client.version()).service_version == "2.3.4"
        return await client.resume_evaluation("sum", {"answer": "3"}, on_message=heard.append), heard


async def look_at_terminal_service(url: str) -> None:
    async with BenchmarkServiceClient(url, {}) as client:
        composed = await client.retrieve_task("fill-file", dataset="compose")
        assert composed.docker_image == "compose+source-required"
        with pytest.raises(BenchmarkServiceError, match="403"):
            await client.list_tasks("default")
    listed = await (await TerminalBenchmark.create()).list_tasks()
    assert [task.question for task in listed] == ["Create hello.txt", "Fill full.txt"]


def test_a_service_of_the_first_era(tracker: LocalTracker, serve: Serve, tmp_path: Path) -> None:
    serve("seed_service:app", SEED_CREDENTIAL="open sesame")
    with pytest.raises(UserError, match="config auth set seed"):
        tracker.plan(RunRequest(agent=SOLVER, benchmark="seed", host_image=True))
    values.set_entry("benchmark_auth", "seed", "open sesame")
    run = finished(tracker, "seed")
    document = tracker.results(run.id)
    assert results_of(tracker, run, "answer", "resolved") == {
        "reverse": ["desserts", True],
        "double": ["44", False],
        "count": [None, False],
    }
    assert run.state == "FINISHED" and run.score.final_score == pytest.approx(100 / 3)
    assert document["final_evaluation"]["properties"] == {"resolved_tasks": ["reverse"]}
    log = log_of(tracker, run.id, "reverse")
    assert "workspace is ready" in log and "error: cat: /no/such/file" in log
    assert "checking reverse" in log and "warning: case matters" in log
    assert sandboxes_left(tmp_path / "home") == []


def test_a_service_of_the_middle_era(tracker: LocalTracker, serve: Serve, tmp_path: Path) -> None:
    service = serve("mid_service:app")
    run = finished(tracker, "mid")
    document = tracker.results(run.id)
    assert results_of(tracker, run, "answer", "score") == {"sum": ["3\n", 1.0], "power": ["1024\n", 1.0]}
    assert document["final_evaluation"] == {
        "final_score": 2.0,
        "properties": {"dataset": "default", "tasks": 2},
    }
    log = log_of(tracker, run.id, "sum")
    assert "in /tmp of " in log and "hello" in log and "left with 3" in log
    hard = finished(tracker, "mid", dataset="hard")
    assert hard.score.final_score == 2.0
    assert "there is no answer.py" in log_of(tracker, hard.id, "unwritten")
    assert sandboxes_left(tmp_path / "home") == []
    assert asyncio.run(resumed(service.url)) == ({"answer": "3", "score": 1.0}, ["resumed"])


@pytest.fixture
def swe(serve: Serve, tmp_path: Path) -> Service:
    (tmp_path / "setup.sh").write_text(SETUP)
    return serve("swe_like_service:app", SWEBENCH_EVAL_STATE_LOCAL_DIR=str(tmp_path / "states"))


@pytest.mark.slow
@pytest.mark.usefixtures("swe")
def test_patches_are_graded_as_swe_bench_does(tracker: LocalTracker, tmp_path: Path) -> None:
    run = finished(tracker, "swe")
    results = tracker.results(run.id)["evaluation_results"]
    good, bad = results["calc__calc-1"], results["calc__calc-2"]
    assert "+def add(a, b): return a + b" in good["prediction"]
    assert good["resolved"] and good["resolution_status"] == "FULL" and good["f2p_score"] == 1.0
    assert bad["status_map"] == {"test_mul": "FAILED", "test_zero": "PASSED"}
    assert bad["fail_to_pass"] == {"success": [], "failure": ["test_mul"]} and not bad["resolved"]
    assert run.score.final_score == 50.0
    assert "setup.sh complained" in log_of(tracker, run.id, "calc__calc-1")
    kept = {file.parent.name for file in (tmp_path / "states").rglob("*.json")}
    assert kept == {str(uuid.UUID(run.id))}
    assert sandboxes_left(tmp_path / "home") == []


@pytest.mark.slow
def test_a_killed_service_goes_on_from_its_saved_state(
    tracker: LocalTracker, swe: Service, tmp_path: Path
) -> None:
    asked = {"agent": f"{__name__}:StubbornSolver", "dataset": "vals_index"}
    run_id = begun(tracker, "swe", **asked)
    until(lambda: "Start Test Output" in log_of(tracker, run_id, "calc__calc-1"))
    swe.end(signal.SIGKILL)
    swe.start()
    run = tracker.wait(run_id, timeout=90)
    result = tracker.results(run.id)["evaluation_results"]["calc__calc-1"]
    assert result["resumed"] and result["resolved"] and run.score.final_score == 100.0
    logs = [Path(one.log or "").read_text() for one in tracker.attempts(run_id, "calc__calc-1")]
    assert "".join(logs).count("the agent runs") == 1
    assert sandboxes_left(tmp_path / "home") == []


@pytest.mark.slow
def test_a_service_like_terminal_bench(tracker: LocalTracker, serve: Serve) -> None:
    service = serve("tblike_service:app")
    run = finished(tracker, "tblike")
    assert results_of(tracker, run, "reward") == {"make-file": [1.0], "fill-file": [0.0]}
    assert run.score.final_score == 0.5
    assert "tests ran" in log_of(tracker, run.id, "fill-file")
    asyncio.run(look_at_terminal_service(service.url))


@pytest.mark.slow
def test_a_service_that_replaces_a_route(tracker: LocalTracker, serve: Serve) -> None:
    service = serve("tblike_service:skills_app")
    run = finished(tracker, "tblike", task_ids=["make-file"])
    assert run.score.final_score == 1.0
    assert "reached 3" in log_of(tracker, run.id, "make-file")
    task = httpx.get(f"{service.url}/retrieve-task/", params={"task_id": "make-file"}, trust_env=False).json()
    assert task["skills"] == ["touch"] and task["asked_by"] == "_legacy"
