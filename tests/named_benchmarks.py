"""Convert sample records, then try the tasks on `local` sandboxes as the engine does.

    with_samples = Sample("aime", records_file, wrong={"aime_60": {"answer.txt": "about 70"}})
    outcomes = await tried(sample, tmp_path)

`check` is the bar every converter has to clear: oracle 1, nop 0, a wrong-format answer 0.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandboxes.local.provider import LocalProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, SandboxCreateRequest
from valkyrie.benchmarks.named import conversion as writing
from valkyrie.benchmarks.named.catalog import converter_of, find
from valkyrie.benchmarks.named.conversion import ConverterOptions
from valkyrie.benchmarks.protocol import Benchmark, Grading
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark
from valkyrie.domain import Grade, TaskSpec


@dataclass(frozen=True)
class Sample:
    """Records in the published shape, and answers of the wrong form."""

    benchmark: str
    """Its name in the catalogue."""
    source: Path
    """File or folder of records."""
    wrong: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Task id → files (below the working folder) that are an answer of the wrong form; must earn 0."""
    host_image: bool = False
    """Run tasks that name an image on the host's file system."""


def converted(sample: Sample, folder: Path) -> TaskDirBenchmark:
    """The sample's tasks as a benchmark below `folder`."""
    entry = find(sample.benchmark)
    assert entry is not None, f"{sample.benchmark} is not in the catalogue"
    drafts = converter_of(entry)(sample.source, ConverterOptions(entry.name, entry.variant))
    writing.write_tasks(drafts, folder / entry.name, entry.name)
    return TaskDirBenchmark(folder / entry.name, host_image=sample.host_image)


async def graded(
    benchmark: Benchmark,
    task_id: str,
    agent: str | Mapping[str, str],
    folder: Path,
    provider: LocalProvider | None = None,
) -> Grade:
    """The grade of one trial on a `local` sandbox: agent `oracle`, `nop`, or the files one would leave."""
    if provider is None:
        async with local_sandboxes(folder) as own:
            return await graded(benchmark, task_id, agent, folder, own)
    task = await benchmark.describe(task_id)
    request = SandboxCreateRequest(limits=task.limits, network=task.network, env_vars=dict(task.env))
    sandbox = await provider.create_sandbox(request)
    log: list[str] = []
    try:
        await benchmark.setup(task, sandbox, lambda _, text: log.append(text), folder / "start")
        if agent == "oracle":
            await _solve(benchmark, task, sandbox, log)
        elif not isinstance(agent, str):
            for name, content in agent.items():
                await sandbox.upload_file(f"{task.cwd}/{name}", content.encode())
        await sandbox.kill_all()
        evidence = folder / "evidence" / f"{task_id}-{agent if isinstance(agent, str) else 'wrong'}"
        return await benchmark.evaluate(Grading(task, sandbox, lambda _, text: log.append(text), evidence))
    except BaseException as error:
        error.add_note("".join(log)[-2000:])
        raise
    finally:
        await provider.delete_sandbox(sandbox.id)


def local_sandboxes(folder: Path) -> LocalProvider:
    """A provider to be used with `async with`."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return LocalProvider(folder / "sandboxes")


async def _solve(benchmark: Benchmark, task: TaskSpec, sandbox: Sandbox, log: list[str]) -> None:
    solution = benchmark.solution(task)
    assert solution is not None, f"{task.id} has no solution"
    await sandbox.upload_folder(solution, "/solution")
    command = Command(("bash", "/solution/solve.sh"), cwd=task.cwd, env=task.env, timeout=60)
    code = await sandbox.run(command, lambda _, text: log.append(text))
    assert code == 0, "".join(log)


async def check(sample: Sample, folder: Path) -> TaskDirBenchmark:
    """Assert the bar for every task of the sample, four trials at a time."""
    benchmark = converted(sample, folder)
    assert not await benchmark.check(), "a converted task is broken"
    gate = asyncio.Semaphore(4)
    async with local_sandboxes(folder) as provider:

        async def one(task_id: str, what: str, agent: str | Mapping[str, str]) -> tuple[str, float | None]:
            async with gate:
                grade = await graded(benchmark, task_id, agent, folder / what, provider)
                return f"{task_id} {what}", grade.score

        trials = []
        for task_id in await benchmark.list_tasks():
            if (await benchmark.describe(task_id)).has_solution:
                trials.append(one(task_id, "oracle", "oracle"))
            trials.append(one(task_id, "nop", "nop"))
        trials += [one(task_id, "wrong", files) for task_id, files in sample.wrong.items()]
        scores = dict(await asyncio.gather(*trials))
    assert scores == {trial: 1.0 if trial.endswith(" oracle") else 0.0 for trial in scores}
    return benchmark
