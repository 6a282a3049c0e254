"""A benchmark on which agents pass as often as their model's name says, for comparisons that are known."""

from __future__ import annotations

import asyncio
import hashlib
from typing import ClassVar

from valkyrie.agents.protocol import AgentExit, AgentOptions, AgentTrial, AgentUsage
from valkyrie.benchmarks.protocol import Grading
from valkyrie.domain import Grade, Json, TaskSpec
from valkyrie.testing.null import NapAgent, NullBenchmark

BENCHMARK = "tests.integration.duel:DuelBenchmark"
AGENT = "tests.integration.duel:DuelAgent"
HALF_SHARED = 0.5
"""Of tasks, that are as hard for one agent as for another."""


class DuelBenchmark(NullBenchmark):
    """`--dataset 300x0.1`: so many tasks of 0.1 s, in families of ten; passed if the agent ended with 0."""

    name = "duel"
    source: ClassVar[Json] = {"kind": "plugin", "target": BENCHMARK}

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        number = int(task_id.removeprefix("task-"))
        metadata = {"wait_s": self._times(dataset)[number], "repository": f"repository-{number // 10}"}
        return TaskSpec(
            id=task_id, digest=task_id, instruction="", network="none", grading_runs=False, metadata=metadata
        )

    async def evaluate(self, grading: Grading) -> Grade:
        passed = grading.exit_code == 0
        return Grade(score=float(passed), passed=passed)


class DuelAgent(NapAgent):
    """`0.6`: passes 6 tasks of 10, always the same ones; `0.6-slow` takes ten times as long."""

    name = "duel"

    def __init__(self, options: AgentOptions) -> None:
        self._model = options.model or "1"
        self.digest = f"duel:{self._model}"
        self.frozen: Json = {  # type: ignore[misc]
            "kind": "plugin",
            "target": AGENT,
            "model": self._model,
            "kwargs": {},
            "secrets": {},
        }

    async def run(self, trial: AgentTrial) -> AgentExit:
        chance, _, slow = self._model.partition("-")
        await asyncio.sleep(trial.task.metadata["wait_s"] * (10 if slow else 1))
        code = 0 if luck(chance, trial.task.id) < float(chance) else 1
        return AgentExit(code, usage=AgentUsage(cost=0.5, cost_source="agent"))


def luck(chance: str, task_id: str) -> float:
    """Between 0 and 1, fixed: on some tasks the same for every agent."""
    shared = _uniform(f"kind {task_id}") < HALF_SHARED
    return _uniform(task_id if shared else f"{chance} {task_id}")


def _uniform(text: str) -> float:
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 16**12
