"""The example services and their agents, from a served port to a scored run, in real sandboxes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandboxes.local.provider import LocalProvider
from tests.abilities import need_local_sandboxes
from tests.integration.conftest import alive
from tests.ports import free_port
from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import AttemptView

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SERVICES, AGENTS = ROOT / "examples" / "services", ROOT / "examples" / "agents"
BIN = Path(sys.executable).parent
KEY = "let-me-in"
PLAIN = {"PATH": f"{BIN}:{os.environ['PATH']}", "LANG": "C.UTF-8"}

BLOCKED = "/workspace/blocked"
STUBBORN = f'''
from pathlib import Path

print("at work")
Path("{BLOCKED}").touch()
Path("solution.py").write_text("""
import time
from pathlib import Path

def clamp(value, low, high):
    while Path("{BLOCKED}").exists():
        time.sleep(0.05)
    return max(low, min(value, high))
""")
'''
SNOOPING = """
find / -xdev \\( -name 'pycode*' -o -name 'runner.py' -o -name 'cases.json' -o -name 'tasks.json' \\) \
    -not -path '/bundle/*' 2>/dev/null > /workspace/found.txt
ls /workspace /tmp >> /workspace/found.txt
"""


class Service:
    """An example service in a process of its own, on a port that stays the same."""

    def __init__(self, name: str, log: Path, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder, self._log, self._settings = SERVICES / name, log, settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "main.py"],
                cwd=self._folder,
                env={**PLAIN, "PORT": str(self.port), **self._settings},
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

    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text()

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


@dataclass
class Desk:
    """A user with a config and a data folder of their own."""

    root: Path
    env: dict[str, str]

    def valk(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(BIN / "valk"), *words],
            cwd=self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
        )
        assert done.returncode == code, f"{' '.join(words)}\nexit {done.returncode}\n{done.stdout}"
        return done.stdout

    def start(self, benchmark: str, agent: Path, *more: str) -> str:
        """A run's id."""
        said = self.valk("run", "start", "--benchmark", benchmark, "--agent", str(agent), *more, "--json")
        run_id: str = json.loads(said.splitlines()[0])["run"]["id"]
        return run_id

    def results(self, run_id: str) -> Any:
        self.valk("run", "wait", run_id, "--timeout", "80")
        file = self.root / f"{run_id}.json"
        self.valk("run", "results", run_id, "--path", str(file))
        return json.loads(file.read_text())

    def attempts(self, run_id: str, task_id: str) -> list[AttemptView]:
        tracker = LocalTracker(self.root / "data")
        try:
            return list(tracker.attempts(run_id, task_id))
        finally:
            tracker.close()

    def wait_for(self, run_id: str, task_id: str, words: str) -> None:
        """Until the log of the task's last attempt says so."""
        until(lambda: words in self.valk("run", "logs", run_id, task_id))

    async def sandboxes(self) -> list[str]:
        """Names of the sandboxes that are there."""
        async with LocalProvider(DataFolder(self.root / "data").sandboxes("local")) as provider:
            return [sandbox.name async for sandbox in provider.list_sandboxes()]

    def agent(self, name: str, script: str, run_cmd: str) -> Path:
        """An agent of a few lines."""
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        (folder / "script").write_text(script)
        (folder / "contract.yaml").write_text(
            f"name: {name}\ninstall_cmd: 'true'\nrun_cmd: {run_cmd} /bundle/{name}/script "
            "{problem_statement_path}\noutput_artifacts:\n"
            "  - {path: found.txt, source: /workspace/found.txt, required: false}\n"
        )
        return folder


def until(condition: Callable[[], Any], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def times_run(attempts: list[AttemptView]) -> int:
    """How often the stubborn agent was run."""
    return sum(Path(one.log or "").read_text().count("at work") for one in attempts)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    root = tmp_path_factory.mktemp("desk")
    need_local_sandboxes(root / "probe")
    env = {
        **PLAIN,
        "HOME": str(root),
        "VALKYRIE_HOME": str(root / "data"),
        "VALKYRIE_CONFIG_PATH": str(root / "config" / "valkyrie.yaml"),
        "VALKYRIE_EXECUTOR_IDLE_S": "60",
    }
    yield Desk(root, env)
    client = ExecutorClient(DataFolder(root / "data"))
    status = client.ask("end")
    if status:
        until(lambda: not alive(status["pid"]))


@pytest.fixture(scope="module")
def trivia(desk: Desk) -> Iterator[Service]:
    service = Service("trivia", desk.root / "trivia.log")
    try:
        service.start()
        desk.valk("config", "service", "set", "trivia", service.url)
        yield service
    finally:
        service.end()


@pytest.fixture(scope="module")
def pycode(desk: Desk) -> Iterator[Service]:
    service = Service("pycode", desk.root / "pycode.log", BENCHMARK_API_KEY=KEY)
    try:
        service.start()
        desk.valk("config", "service", "set", "pycode", service.url)
        desk.valk("config", "auth", "set", "pycode", f"Bearer {KEY}")
        yield service
    finally:
        service.end()


@pytest.mark.usefixtures("trivia")
def test_answers_are_graded_as_text(desk: Desk) -> None:
    listed = desk.valk("benchmark", "tasks", "trivia").split()
    assert len(listed) == 12
    said = desk.valk(
        "run", "start", "--benchmark", "trivia", "--agent", str(AGENTS / "trivia-answerer"), "--connect"
    )
    assert "final_score  66.67" in said
    run_id = next(line.split()[-1] for line in said.splitlines() if line.startswith("│ Run "))
    document = desk.results(run_id)
    assert document["final_evaluation"] == {
        "final_score": 66.67,
        "properties": {"questions": 12, "answered": 12, "correct": 8},
    }
    results = document["evaluation_results"]
    assert list(results) == listed
    assert [task_id for task_id in listed if results[task_id]["correct"]] == [*listed[:7], listed[8]]
    assert results["longest-river-of-france"]["answer"] == "the Seine"
    assert results["painter-of-guernica"]["answer"] == ""


@pytest.mark.usefixtures("pycode")
def test_solutions_are_graded_in_the_sandbox(desk: Desk) -> None:
    document = desk.results(desk.start("pycode", AGENTS / "pycode-writer"))
    assert document["final_evaluation"]["final_score"] == 70.0
    passed = {task: result["tests_passed"] for task, result in document["evaluation_results"].items()}
    assert passed == {"clamp": 4, "initials": 4, "run-lengths": 4, "median": 2, "digital-root": 0}
    properties = document["final_evaluation"]["properties"]
    assert properties["resolved_tasks"] == ["clamp", "initials", "run-lengths"]


@pytest.mark.slow
@pytest.mark.usefixtures("pycode")
def test_each_dataset_has_its_own_tasks(desk: Desk) -> None:
    document = desk.results(desk.start("pycode", AGENTS / "pycode-writer", "--dataset", "hard"))
    assert document["final_evaluation"]["final_score"] == 26.67
    assert set(document["evaluation_results"]) == {"balanced", "roman", "change"}
    said = desk.valk(
        *("run", "start", "--benchmark", "pycode", "--agent", str(AGENTS / "pycode-writer")),
        *("--dataset", "nonesuch"),
        code=2,
    )
    assert "There is no dataset 'nonesuch', only 'default', 'hard'" in said
    assert len(said.strip().splitlines()) == 1


def test_a_wrong_credential_is_told_in_one_line(desk: Desk, pycode: Service) -> None:
    desk.valk("config", "service", "set", "stranger", pycode.url)
    for more in ((), ("-H", "Authorization", "Bearer wrong-key")):
        said = desk.valk("benchmark", "tasks", "stranger", *more, code=1)
        assert "Authentication failed" in said and "valk config auth set stranger" in said
        assert "wrong-key" not in said and len(said.strip().splitlines()) == 1
    tasks = desk.valk("benchmark", "tasks", "stranger", "-H", "Authorization", f"Bearer {KEY}")
    assert tasks.split()[0] == "clamp"


@pytest.mark.usefixtures("pycode")
def test_agents_do_not_see_the_hidden_tests(desk: Desk) -> None:
    agent = desk.agent("snoop", SNOOPING, "bash")
    run_id = desk.start("pycode", agent, "--task-ids", "clamp")
    assert desk.results(run_id)["evaluation_results"]["clamp"]["tests_passed"] == 0
    desk.valk("run", "outputs", run_id, "--output-dir", "snooped")
    found = next((desk.root / "snooped").rglob("found.txt")).read_text()
    assert "solution.py" in found and "problem_statement.md" in found
    assert not [word for word in ("pycode", "runner.py", "cases.json", "tasks.json") if word in found]


@pytest.mark.slow
@pytest.mark.usefixtures("pycode")
async def test_a_stopped_run_goes_on_grading_without_its_agent(desk: Desk) -> None:
    run_id = desk.start("pycode", desk.agent("stubborn", STUBBORN, "python3"), "--task-ids", "clamp")
    desk.wait_for(run_id, "clamp", "the solution has")
    desk.valk("run", "stop", run_id, "--force", "--yes")
    until(lambda: desk.attempts(run_id, "clamp")[0].outcome == "stopped")
    desk.valk("run", "retry", run_id, "--connect")
    assert desk.results(run_id)["evaluation_results"]["clamp"]["tests_passed"] == 4
    attempts = desk.attempts(run_id, "clamp")
    assert [one.outcome for one in attempts] == ["stopped", "graded"]
    assert not {"build", "setup", "agent"} & set(attempts[1].timing)
    assert times_run(attempts) == 1
    assert "the agent is not run again" in desk.valk("run", "logs", run_id, "clamp")
    assert await desk.sandboxes() == []


@pytest.mark.slow
async def test_grading_survives_a_service_that_dies(desk: Desk, pycode: Service) -> None:
    run_id = desk.start("pycode", desk.agent("stubborn", STUBBORN, "python3"), "--task-ids", "clamp")
    desk.wait_for(run_id, "clamp", "the solution has")
    assert len(await desk.sandboxes()) == 1
    pycode.end(signal.SIGKILL)
    pycode.start()
    assert desk.results(run_id)["evaluation_results"]["clamp"]["tests_passed"] == 4
    assert times_run(desk.attempts(run_id, "clamp")) == 1
    assert await desk.sandboxes() == []
