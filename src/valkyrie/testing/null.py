"""A benchmark and an agent that do nothing, or wait: for tests, and to measure the engine itself.

`--benchmark valkyrie.testing.null:NullBenchmark --dataset 5000` plans 5,000 tasks; `2000x5` makes each
wait 5 s in the agent's phase, `500~2` for log-normal times with a median of 2 s (σ 0.5, fixed seed).
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink
from valkyrie.agents.protocol import AgentCapabilities, AgentExit, AgentTrial, LayerSpec, OutputArtifact
from valkyrie.benchmarks.protocol import BenchmarkCapabilities, Grading
from valkyrie.domain import FinalScore, Grade, Json, TaskSpec
from valkyrie.errors import UsageError
from valkyrie.secrets.sources import SecretSource

_DATASET = re.compile(r"(\d+)(?:([x~])(\d+(?:\.\d+)?))?")
SEED = 20260101
SIGMA = 0.5


def durations(dataset: str) -> list[float]:
    """Return seconds each task of a null dataset waits."""
    match = _DATASET.fullmatch("10" if dataset == "default" else dataset)
    if match is None:
        raise UsageError(f"{dataset!r} is not a null dataset; try 100, 100x0.5 or 100~2")
    count, kind, seconds = int(match[1]), match[2], float(match[3] or 0)
    if kind == "~":
        rng = random.Random(SEED)  # noqa: S311 - a fixed list, not a secret
        return [rng.lognormvariate(math.log(seconds), SIGMA) for _ in range(count)]
    return [seconds] * count


class NullBenchmark:
    """Tasks that need nothing and are graded 1."""

    name = "null"
    fraction = True
    capabilities = BenchmarkCapabilities()
    source: ClassVar[Json] = {"kind": "plugin", "target": "valkyrie.testing.null:NullBenchmark"}

    def __init__(self) -> None:
        self._durations: dict[str, list[float]] = {}

    async def datasets(self) -> list[str]:
        return ["default"]

    def _times(self, dataset: str) -> list[float]:
        if dataset not in self._durations:
            self._durations[dataset] = durations(dataset)
        return self._durations[dataset]

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        return [f"task-{number}" for number in range(len(self._times(dataset)))]

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        wait = self._times(dataset)[int(task_id.removeprefix("task-"))]
        return TaskSpec(
            id=task_id,
            digest=f"null:{wait}",
            instruction="",
            network="none",
            grading_runs=False,
            metadata={"wait_s": wait},
        )

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        return

    def solution(self, task: TaskSpec) -> Path | None:
        return None

    async def evaluate(self, grading: Grading) -> Grade:
        return Grade(score=1.0, passed=True)

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        values = [(grade.score or 0.0) if grade else 0.0 for found in grades.values() for grade in found]
        return FinalScore(sum(values) / len(values) if values else None)

    async def close(self) -> None:
        return


class NapAgent:
    """Waits as long as the task says."""

    name = "nap"
    digest = "nap:1"
    secrets: Mapping[str, str] = {}
    final_output: str | None = None
    output_artifacts: Sequence[OutputArtifact] = ()
    needs_solution = False
    capabilities = AgentCapabilities()
    layer: LayerSpec | None = None

    def __init__(self, options: object = None) -> None:
        _ = options

    async def install(self, trial: AgentTrial) -> None:
        return

    async def run(self, trial: AgentTrial) -> AgentExit:
        if wait := trial.task.metadata["wait_s"]:
            await asyncio.sleep(wait)
        return AgentExit(0)


class OneCommandAgent(NapAgent):
    """Runs one `true` in the sandbox: what a sandboxed trial costs at the least."""

    name = "one-command"
    digest = "one-command:1"

    async def run(self, trial: AgentTrial) -> AgentExit:
        return AgentExit(await trial.sandbox.run(Command(argv=("/bin/true",))))


# The contract every secret source passes, and a source in memory.


class MemorySource:
    """Holds what it is given."""

    place = "memory"
    by_variable = False
    remote = False
    problems: Sequence[str] = ()

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def get(self, name: str) -> str | None:
        return self._values.get(name) or None


def check_source(make: Callable[[Mapping[str, str]], SecretSource]) -> None:
    """`make` gives a source that holds these values; raises AssertionError where the contract is broken."""
    values = {
        "PLAIN": "value-1",
        "SPACES": "  two words  ",
        "SYMBOLS": "a'b\"c$d`e\\f#g=h",
        "UNICODE": "schlüssel-☃",
        "LINES": "-----BEGIN-----\nabc\n-----END-----\n",
        "LONG": "x" * 60_000,
        "OBJECT": '{"user": "me", "password": "pässword-1", "port": 5432}',
    }
    source = make(values)
    for name, value in values.items():
        assert source.get(name) == value, f"{name} did not come back as it was given"
        assert source.get(name) == value, f"{name} differs the second time"
    for name in ("MISSING", "plain", "PLAI", ""):
        assert source.get(name) is None, f"{name!r} has a value"
    assert make({}).get("PLAIN") is None, "an empty source has values"
    assert source.place, "a source says where it is"
    shown = f"{source!r} {source!s} {source.place} {list(source.problems)}"
    assert not any(value.strip() in shown for value in values.values()), (
        "a value shows in the source's own words"
    )
