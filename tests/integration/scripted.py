"""A benchmark whose tasks do what their names say, for a real executor in another process.

`held` works until `open_gate`: what a test does meanwhile, it does while the trial is at work, however slow
the machine is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sandboxes.errors import SandboxCapacityError, SandboxDiedError, SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.agents.protocol import AgentExit, AgentTrial
from valkyrie.benchmarks.protocol import Grading
from valkyrie.domain import ExitReason, FinalScore, Grade, Json, TaskSpec
from valkyrie.errors import AgentInstallError, GraderError
from valkyrie.testing.null import NapAgent, NullBenchmark

ODD_GRADES = {
    "oddgrade": Grade(1.0, True, {"odd": {1, 2}}),
    "nangrade": Grade(float("nan"), False, {}),
}


class ScriptedBenchmark(NullBenchmark):
    """`--dataset ok*3,flaky,slow=2` → ok-0 ok-1 ok-2 flaky-0 slow=2-0."""

    name = "scripted"
    source: ClassVar[Json] = {"kind": "plugin", "target": "tests.integration.scripted:ScriptedBenchmark"}

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        found = []
        for part in dataset.split(","):
            kind, _, count = part.partition("*")
            found += [f"{kind}-{number}" for number in range(int(count or 1))]
        return found

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        return TaskSpec(id=task_id, digest=task_id, instruction="", network="none")

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        kind = task.id.partition("-")[0]
        if kind == "flaky" and first_time(task.id):
            raise SandboxCapacityError("no room right now", retry_after=0.3)
        if kind == "full":
            raise SandboxCapacityError("no room today", retry_after=3600)
        if kind == "sandbox":
            raise SandboxError("the sandbox is broken")
        if kind == "bug":
            raise ZeroDivisionError("a defect")

    async def evaluate(self, grading: Grading) -> Grade:
        kind, evidence = grading.task.id.partition("-")[0], grading.evidence
        if kind == "ungraded":
            raise GraderError("no reward file")
        if kind == "leaky":
            evidence.mkdir(parents=True)
            (evidence / "output.txt").write_text("the key is secret-value-123")
            raise GraderError("no reward file")
        if kind in ODD_GRADES:
            return ODD_GRADES[kind]
        if kind == "halfword":
            raise GraderError("half a character: \ud800")
        score = float(kind.partition("=")[2]) if kind.startswith("score=") else 1.0
        evidence.mkdir(parents=True)
        (evidence / "verdict.txt").write_text(f"{score} secret-value-123")
        return Grade(score=score, passed=score >= 1, result={"reward": score})

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        if any(task_id.startswith("unscorable") for task_id in grades):
            raise GraderError("the aggregate cannot be computed")
        if any(task_id.startswith("unthinkable") for task_id in grades):
            raise KeyError("a defect of the benchmark")
        if any(task_id.startswith("unstorable") for task_id in grades):
            return FinalScore(1.0, {"odd": {1, 2}})
        return await super().final_score(grades, dataset)


class ScriptedAgent(NapAgent):
    """Does what the task's name says."""

    name = "scripted"
    frozen: ClassVar[Json] = {"kind": "plugin", "target": "tests.integration.scripted:ScriptedAgent"}
    digest = "scripted:1"

    async def install(self, trial: AgentTrial) -> None:
        if trial.task.id.startswith("install"):
            raise AgentInstallError("no such package: secret-value-123")

    async def run(self, trial: AgentTrial) -> AgentExit:
        kind, _, value = trial.task.id.partition("-")[0].partition("=")
        trial.log("stdout", f"working on {trial.task.id}\n")
        if trial.secrets:
            trial.log("stdout", f"the key is {trial.secrets['API_KEY']}\n")
        if kind == "slow":
            await asyncio.sleep(float(value))
        if kind in ("held", "broken"):
            await _gate_opens()
        if kind == "clinging" and first_time(trial.task.id):
            try:
                await asyncio.Event().wait()
            finally:
                await _gate_opens()  # as a sandbox that takes its time to end
        if kind == "chatty":
            for _ in range(10):
                trial.log("stdout", "word " * 1000)
                await asyncio.sleep(float(value) / 10)
        if kind == "broken":
            raise SandboxDiedError("the sandbox is broken", outside=True)
        if kind == "exit":
            return AgentExit(int(value))
        if kind == "timeout":
            return AgentExit(124, ExitReason.TIMEOUT)
        return AgentExit(0)


class KeyedAgent(ScriptedAgent):
    """The same, and wants a secret."""

    name = "keyed"
    frozen: ClassVar[Json] = {"kind": "plugin", "target": "tests.integration.scripted:KeyedAgent"}
    secrets: Mapping[str, str] = {"API_KEY": "API_KEY"}


def open_gate(home: Path | None = None) -> None:
    """Let all go on that are held, in the data folder of this process's environment or another."""
    _gate(home or Path(os.environ["VALKYRIE_HOME"])).touch()


def _gate(home: Path) -> Path:
    return home / "gate-open"


async def _gate_opens() -> None:
    gate = _gate(Path(os.environ["VALKYRIE_HOME"]))
    while not gate.exists():
        await asyncio.sleep(0.02)


def first_time(task_id: str) -> bool:
    """True once per data folder."""
    mark = Path(os.environ["VALKYRIE_HOME"]) / f"seen-{task_id}"
    if mark.exists():
        return False
    mark.touch()
    return True
