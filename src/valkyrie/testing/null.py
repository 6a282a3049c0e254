"""A benchmark and an agent that do nothing, or wait: for tests, and to measure the engine itself.

`--benchmark valkyrie.testing.null:NullBenchmark --dataset 5000` plans 5,000 tasks; `2000x5` makes each
wait 5 s in the agent's phase, `500~2` for log-normal times with a median of 2 s (σ 0.5, fixed seed).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink
from valkyrie.agents.loader import adapted as adapted_agent
from valkyrie.agents.protocol import (
    Agent,
    AgentCapabilities,
    AgentExit,
    AgentOptions,
    AgentTrial,
    LayerSpec,
    OutputArtifact,
)
from valkyrie.benchmarks.catalog import adapted as adapted_benchmark
from valkyrie.benchmarks.protocol import Benchmark, BenchmarkCapabilities, Grading
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


# The contracts of agents and benchmarks: what their protocols say, checked before anything is run.


def check_agent(make: Callable[[AgentOptions], object]) -> Agent:
    """Check what `make` gives (a class of an agent) as the platform would load it; return that agent.

    Raises AssertionError where the contract is broken. Nothing is installed or run.
    """
    options = AgentOptions("vendor/model", secrets={"KEY": "key-name"})
    agent, again = (adapted_agent(make(options), "the agent") for _ in range(2))
    assert agent.name.strip() and agent.name.isprintable(), "an agent has a name that can be printed"
    assert agent.digest, "an agent has a digest of what is tested"
    assert agent.digest == again.digest, "the same agent has the same digest in every process"
    assert all(isinstance(one, str) for pair in agent.secrets.items() for one in pair), (
        "`secrets` maps environment variables to names of secrets"
    )
    assert isinstance(agent.capabilities, AgentCapabilities), "`capabilities` is an AgentCapabilities"
    assert not agent.capabilities.skills_at.startswith("/"), "`skills_at` is below the working folder"
    assert agent.layer is None or isinstance(agent.layer, LayerSpec), "`layer` is a LayerSpec or None"
    output = agent.final_output
    assert output is None or output.startswith("/"), "`final_output` is an absolute path of the sandbox"
    for method in (agent.install, agent.run):
        assert inspect.iscoroutinefunction(method), "`install` and `run` are coroutine functions"
    return agent


async def check_benchmark(made: object) -> Benchmark:
    """Check a benchmark as the platform would load it; return that benchmark.

    Raises AssertionError where the contract is broken. No sandbox is asked for.
    """
    benchmark = adapted_benchmark(made)
    assert benchmark.name.strip(), "a benchmark has a name"
    assert json.loads(json.dumps(benchmark.source)) == benchmark.source, "`source` is plain data"
    assert benchmark.source.get("kind"), "`source` has a `kind`"
    assert isinstance(benchmark.capabilities, BenchmarkCapabilities), (
        "`capabilities` is a BenchmarkCapabilities"
    )
    datasets = await benchmark.datasets()
    assert datasets[:1] == ["default"], "the dataset `default` comes first"
    task_ids = await benchmark.list_tasks()
    assert task_ids and len(set(task_ids)) == len(task_ids), "tasks have ids, each once"
    assert await benchmark.list_tasks() == task_ids, "tasks have an order"
    task = await benchmark.describe(task_ids[0])
    assert task.id == task_ids[0], "a task has the id it was asked for by"
    assert task.digest and (await benchmark.describe(task.id)).digest == task.digest, (
        "a task has a digest of its content"
    )
    passed = {task_id: [Grade(1.0, True)] for task_id in task_ids}
    assert (await benchmark.final_score({})).score is None, "without tasks there is no score"
    score = (await benchmark.final_score(passed)).score
    assert score == 1.0 or not benchmark.fraction, "all tasks passed make 1 where scores are fractions"
    await benchmark.close()
    return benchmark
