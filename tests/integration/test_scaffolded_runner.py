"""A runner made by create-benchmark-runner, taken from generation to scores without an edit."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_scaffolded_service import author_environment, run
from tests.integration.test_service_examples import Service
from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder
from valkyrie.testing import ModelServer, Say, Script

ROOT = Path(__file__).resolve().parents[2]
NAME = "demo-bench"
CREATE = "from benchmark_runner.scaffolder.main import main; main(prog_name='create-benchmark-runner')"
QUESTIONS: dict[str, Any] = json.loads((ROOT / "examples/services/trivia/questions.json").read_text())
MISTAKES = ("largest-planet", "bits-of-a-byte", "smallest-prime")
"""What the model does not know, so that the score is none a mistake of ours would give, too."""
SCORE = 75.0
HELD = ("capital-of-portugal", "largest-planet", "smallest-prime", "sides-of-a-hexagon")
"""Questions on which a stuck model never answers."""
FOREVER_S = 3600.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def knowing(stuck: Collection[str] = ()) -> Script:
    """A model that knows the answers but for its mistakes."""

    def answer(task_id: str) -> Say:
        text = "I do not know" if task_id in MISTAKES else QUESTIONS[task_id]["answers"][0]
        return Say(text, delay=FOREVER_S if task_id in stuck else 0.0)

    by_text = {entry["question"]: task_id for task_id, entry in QUESTIONS.items()}
    return Script({task_id: [answer(task_id)] for task_id in QUESTIONS}, by_text)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated project, installed and checked by its own `make`."""
    folder = tmp_path_factory.mktemp("runner")
    probe = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), "click"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("pip cannot fetch packages here")
    run(sys.executable, "-c", CREATE, NAME, "--framework", str(ROOT), cwd=folder)
    made = folder / f"{NAME}-runner"
    said = run("make", "install", "test", "lint", "typecheck", f"PYTHON={sys.executable}", cwd=made)
    for green in ("passed", "All checks passed!", "already formatted", "no issues found"):
        assert green in said
    return made


@pytest.fixture(scope="module")
def trivia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service("trivia", tmp_path_factory.mktemp("trivia") / "log")
    try:
        service.start()
        yield service
    finally:
        service.end()


class Desk:
    """Runs of a generated runner with one service."""

    def __init__(self, project: Path, service: Service) -> None:
        self.project, self.service = project, service

    async def start(self, command: str, run_id: str, *more: str) -> asyncio.subprocess.Process:
        program = str(self.project / ".venv" / "bin" / f"{NAME}-runner")
        words = (command, "--run-id", run_id, "--service-url", self.service.url, *more)
        return await asyncio.create_subprocess_exec(
            program,
            *words,
            cwd=self.project,
            env=author_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    async def end(self, command: str, run_id: str, *more: str, code: int = 0) -> str:
        process = await self.start(command, run_id, *more)
        said = (await process.communicate())[0].decode()
        assert process.returncode == code, said
        return said

    def kept(self, run_id: str, name: str) -> dict[str, Path]:
        """Files of that name, by task."""
        return {file.parent.name: file for file in (self.project / "results" / run_id).glob(f"*/{name}")}

    def score(self, run_id: str) -> Any:
        return json.loads((self.project / "results" / run_id / "final_score.json").read_text())

    def evaluations(self) -> int:
        """How often the service was asked to grade, ever."""
        return len(re.findall(r"POST /evaluate-response/", self.service.log()))


@pytest.fixture
def desk(project: Path, trivia: Service) -> Desk:
    return Desk(project, trivia)


def asked(server: ModelServer) -> list[str]:
    return sorted(request.conversation or "" for request in server.requests)


async def test_a_killed_run_goes_on_and_does_nothing_twice(desk: Desk) -> None:
    async with ModelServer(knowing()) as model:
        options = ("--model", "any", "--custom-endpoint", model.url)
        said = await desk.end("run", "whole", *options)
        assert f"Final score: {SCORE:g}" in said
        assert asked(model) == sorted(QUESTIONS)
        port = int(model.url.rpartition(":")[2])

    before = desk.evaluations()
    free = sorted(set(QUESTIONS) - set(HELD))
    async with ModelServer(knowing(HELD), port=port) as stuck:
        process = await desk.start("run", "killed", *options)
        try:
            async with asyncio.timeout(60):
                while len(desk.kept("killed", "eval.json")) < len(free):
                    await asyncio.sleep(0.02)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            await process.communicate()
        # The server counts what it answered: the others were asked and are still being thought about.
        assert asked(stuck) == free
    done = {path: path.read_bytes() for path in desk.kept("killed", "generation.json").values()}
    assert sorted(path.parent.name for path in done) == free
    assert "incomplete" in await desk.end("score", "killed", code=1)

    async with ModelServer(knowing(), port=port) as model:
        assert f"Final score: {SCORE:g}" in await desk.end("run", "killed", *options)
        assert asked(model) == sorted(HELD)
    assert {path: path.read_bytes() for path in done} == done
    assert sorted(desk.kept("killed", "eval.json")) == sorted(QUESTIONS)
    assert desk.evaluations() - before == len(QUESTIONS)
    assert "(cached)" in await desk.end("score", "killed")
    assert desk.score("killed") == desk.score("whole")


async def test_the_folder_is_an_agent_of_the_platform(desk: Desk, tmp_path: Path) -> None:
    """`make agent`, then the README's command; a sandbox a task, and the model behind its door."""
    if not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed; scripts/setup-system installs it")
    valk = str(desk.project / ".venv" / "bin" / "valk")
    env = {
        "VALKYRIE_HOME": str(tmp_path / "home"),
        "VALKYRIE_CONFIG_PATH": str(tmp_path / "config.yaml"),
        "VALKYRIE_EXECUTOR_IDLE_S": "1",
    }
    tasks = ("legs-of-a-spider", "largest-planet")
    await asyncio.to_thread(run, "make", "agent", cwd=desk.project)
    async with ModelServer(knowing()) as model:
        start = ("run", "start", "--benchmark", "trivia", "--agent", ".", "--task-ids", ",".join(tasks))
        more = ("--model", "any", "--model-url", model.url, "-k", "options", "--temperature 0", "--connect")
        commands = (
            ("config", "service", "add", "trivia", desk.service.url),
            ("agent", "push", "."),
            (*start, *more),
        )
        for command in commands:
            said = await asyncio.to_thread(run, valk, *command, cwd=desk.project, env=env)
        assert re.search(r"final_score +50\b", said), said
        assert asked(model) == sorted(tasks)
        assert all(request.body["temperature"] == 0 for request in model.requests)
    results = str(tmp_path / "outputs")
    run_id = re.findall(r"Run +([0-9a-f-]{36})", said)[0]
    run(valk, "run", "outputs", run_id, "--output-dir", results, cwd=desk.project, env=env)
    kept = {file.parent.name: json.loads(file.read_text()) for file in Path(results).rglob("generation.json")}
    answers = {task_id: generation["answer"] for task_id, generation in kept.items()}
    assert answers == {"legs-of-a-spider": "8", "largest-planet": "I do not know"}
    executor = ExecutorClient(DataFolder(tmp_path / "home"))
    executor.ask("end")
    while executor.status() is not None:
        time.sleep(0.05)
