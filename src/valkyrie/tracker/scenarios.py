"""From scenarios to tasks: `task`, or `benchmark[@dataset]/task` where that is not enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.benchmarks.protocol import Benchmark
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    from valkyrie.client.client import ValkyrieClient

MOST_SHOWN = 5
_OF_A_PATH = (".", "/", "~")

Open = Callable[[str], Benchmark]


@dataclass(frozen=True, slots=True)
class Selection:
    """Tasks of one dataset of one benchmark; None is all of them."""

    benchmark: str
    dataset: str = "default"
    task_ids: tuple[str, ...] | None = None


def select_scenarios(scenarios: Sequence[str], known: Sequence[str], open_benchmark: Open) -> list[Selection]:
    """Return the tasks that scenarios name, by benchmark and dataset, in the order they were named.

    A bare task is looked up in the `known` benchmarks; a path or name before the last `/`s is tried as a
    benchmark's when it is one.
    """
    looked: dict[tuple[str, str], list[str]] = {}

    def tasks_of(benchmark: str, dataset: str = "default") -> list[str]:
        key = benchmark, dataset
        if key not in looked:
            looked[key] = asyncio.run(_list(open_benchmark(benchmark), dataset))
        return looked[key]

    chosen: dict[tuple[str, str], dict[str, None]] = {}
    for scenario in scenarios:
        benchmark, dataset, task_id = _find(scenario, known, tasks_of)
        chosen.setdefault((benchmark, dataset), {})[task_id] = None
    return [Selection(name, dataset, tuple(tasks)) for (name, dataset), tasks in chosen.items()]


async def _list(benchmark: Benchmark, dataset: str) -> list[str]:
    try:
        return await benchmark.list_tasks(dataset)
    finally:
        await benchmark.close()


def _find(
    scenario: str, known: Sequence[str], tasks_of: Callable[[str, str], list[str]]
) -> tuple[str, str, str]:
    holders = [name for name in known if scenario in _quietly(tasks_of, name)]
    if len(holders) == 1:
        return holders[0], "default", scenario
    if len(holders) > 1:
        ways = " or ".join(f"{name}/{scenario}" for name in holders[:MOST_SHOWN])
        raise UsageError(f"scenario {scenario!r} is a task of several benchmarks; say {ways}.")
    for benchmark, dataset, task_id in _readings(scenario):
        if (
            benchmark in known
            or "/" in benchmark
            or benchmark.startswith((".", "~", "upload:"))
            or "://" in benchmark
        ):
            tasks = _quietly(tasks_of, benchmark, dataset) if benchmark not in known else None
            found = tasks_of(benchmark, dataset) if tasks is None else tasks
            if task_id in found:
                return benchmark, dataset, task_id
            if found:
                raise UsageError(
                    f"benchmark {benchmark} has no task {task_id!r}.{did_you_mean(task_id, found)} "
                    f"`valk benchmark tasks {benchmark}` lists them."
                )
    raise UsageError(_unknown(scenario, known, tasks_of))


def _readings(scenario: str) -> Iterable[tuple[str, str, str]]:
    """Every way to read `benchmark[@dataset]/task`; benchmarks (paths) and task ids may hold slashes.

    The longest path comes first: `./tasks/one` is a task of ./tasks, not of the folder one stands in.
    """
    parts = scenario.split("/")
    for cut in range(len(parts) - 1, 0, -1):
        name, _, dataset = "/".join(parts[:cut]).partition("@")
        if name:
            yield name, dataset or "default", "/".join(parts[cut:])


def _quietly(
    tasks_of: Callable[[str, str], list[str]], benchmark: str, dataset: str = "default"
) -> list[str]:
    """Its tasks; none where it cannot be read, as another one may be meant."""
    try:
        return tasks_of(benchmark, dataset)
    except ValkyrieError:
        return []


def _unknown(scenario: str, known: Sequence[str], tasks_of: Callable[[str, str], list[str]]) -> str:
    every = [task for name in known for task in _quietly(tasks_of, name)]
    near = did_you_mean(scenario, every)
    return (
        f"no task is called {scenario!r} in {', '.join(known)}.{near} Say benchmark/task for one of another "
        "benchmark; `valk benchmark tasks NAME` lists them."
    )


# Of the caller's own folders, for a tracker elsewhere


async def sent_scenarios(client: ValkyrieClient, scenarios: Sequence[str]) -> Sequence[str]:
    """Return the same scenarios as the tracker knows them: folders like `./tasks` are sent."""
    here = [one for one in scenarios if one.startswith(_OF_A_PATH)]
    if not here:
        return scenarios
    # In a thread: benchmarks are read in an event loop of their own.
    selections = await asyncio.to_thread(select_scenarios, here, (), _open_folder)
    known: dict[str, str] = {}
    for one in selections:
        uploaded = await client.upload_benchmark(Path(one.benchmark).expanduser())
        known |= _renamed(one, uploaded)
    return [known.get(one, one) for one in scenarios]


def _open_folder(name: str) -> Benchmark:
    from valkyrie.benchmarks import open_benchmark

    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UsageError(f"no folder {name}")
    return open_benchmark(str(folder.absolute()))


def _renamed(selection: Selection, uploaded: str) -> dict[str, str]:
    """Every way the caller may have said a task of a folder, and what it is to the tracker."""
    name, dataset = selection.benchmark, selection.dataset
    endings = [f"@{dataset}", *(("@", "") if dataset == "default" else ())]
    return {
        f"{name}{ending}/{task}": f"{uploaded}{ending}/{task}"
        for ending in endings
        for task in selection.task_ids or ()
    }
