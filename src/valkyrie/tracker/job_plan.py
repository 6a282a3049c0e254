"""Plan a job: its runs, and the scenarios a request may name instead of tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie.benchmarks import open_benchmark
from valkyrie.benchmarks.protocol import Benchmark
from valkyrie.domain import Json
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.text import did_you_mean
from valkyrie.tracker.checks import check_text
from valkyrie.views import RunRequest
from valkyrie.views.jobs import DEFAULT_ERROR_RATE, JobAgent, JobRequest

if TYPE_CHECKING:
    from valkyrie.client.client import ValkyrieClient
    from valkyrie.tracker.prepare import PreparedRun


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
    """Yield every way to read `benchmark[@dataset]/task`; benchmarks (paths) and task ids may hold slashes.

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


# From a job's request to its runs, all of them checked before the first is stored.

MOST_AGENTS = 50
MOST_RUNS = 200
MOST_METADATA = 64
MOST_ERROR_RATE = 0.2
MOST_SECONDS = 10 * 365 * 86_400.0
_NOT_STORED = ("agent", "model", "headers")


@dataclass(frozen=True, slots=True)
class JobPlanned:
    """What a job is made of, once its scenarios are known."""

    agents: Sequence[JobAgent]
    selections: Sequence[Selection]

    def requests(self, template: RunRequest) -> list[RunRequest]:
        """One run for each agent and selection."""
        return [self.request(template, agent, one) for agent in self.agents for one in self.selections]

    @staticmethod
    def request(template: RunRequest, agent: JobAgent, selection: Selection) -> RunRequest:
        return replace(
            template,
            agent=agent.agent,
            model=agent.model,
            benchmark=selection.benchmark,
            dataset=selection.dataset,
            task_ids=selection.task_ids,
            kwargs={**template.kwargs, **agent.kwargs},
        )


def check(request: JobRequest) -> None:
    """Raise UsageError for what no job can be."""
    if not request.agents:
        raise UsageError("a job needs an agent: --agent AGENT[:MODEL], once for each.")
    if len(request.agents) > MOST_AGENTS:
        raise UsageError(f"{len(request.agents)} agents are more than the {MOST_AGENTS} a job can have.")
    said = [agent.said for agent in request.agents]
    twice = next((one for one in said if said.count(one) > 1), None)
    if twice:
        raise UsageError(f"--agent {twice} was given twice; --trials N runs each task N times.")
    named = list(request.benchmarks)
    if len([one for one in (request.scenarios, request.template.benchmark, named) if one]) != 1:
        raise UsageError("name either --benchmark or --scenarios.")
    if len(named) * len(request.agents) > MOST_RUNS:
        raise UsageError(
            f"{len(named)} benchmarks with {len(request.agents)} agents are more than the {MOST_RUNS} runs a "
            "job can have."
        )
    if twice := next((one for one in named if named.count(one) > 1), None):
        raise UsageError(f"--benchmark {twice} was given twice; --trials N runs each task N times.")
    if request.concurrency < 1:
        raise UsageError(f"--concurrency must be at least 1, not {request.concurrency}.")
    check_seconds("--time-limit", request.time_limit)
    check_stop(request)
    check_text("job's name", request.name)
    if len(request.metadata) > MOST_METADATA:
        raise UsageError(
            f"{len(request.metadata)} entries of metadata are more than the {MOST_METADATA} kept."
        )
    for key, value in request.metadata.items():
        check_text("metadata's key", key)
        check_text(f"metadata {key!r}", value)


def check_stop(request: JobRequest) -> None:
    if not request.stop_when_decided:
        if request.margin is not None or request.error_rate != DEFAULT_ERROR_RATE:
            raise UsageError("--margin and --error-rate go with --stop-when-decided.")
        return
    if len(request.agents) < 2:
        raise UsageError("--stop-when-decided compares agents: name at least two.")
    if request.margin is not None and not 0 < request.margin < 1:
        raise UsageError(f"--margin must be above 0 and below 100 points, not {request.margin * 100:g}.")
    if not 0 < request.error_rate <= MOST_ERROR_RATE:
        raise UsageError(f"--error-rate must be above 0 and at most {MOST_ERROR_RATE:g}.")


def stop_rule(request: JobRequest, prepared: Sequence[PreparedRun]) -> Json | None:
    """Return when a job is decided, as it is stored and digested; None where it runs whole."""
    if not request.stop_when_decided:
        return None
    unknown = next((one.benchmark.name for one in prepared if not one.benchmark.fraction), None)
    if unknown is not None:
        raise UsageError(
            f"--stop-when-decided needs scores between 0 and 1; {unknown!r} has a scale of its own."
        )
    agents = len(request.agents)
    comparisons = len(prepared) // agents * (agents * (agents - 1) // 2)
    return {"error": request.error_rate, "margin": request.margin, "comparisons": comparisons}


def check_seconds(flag: str, seconds: float | None, most: float = MOST_SECONDS) -> None:
    if seconds is not None and not 0 < seconds <= most:
        raise UsageError(f"{flag} must be above 0 and at most {most:.0f} seconds, not {seconds:g}.")


def job_name(request: JobRequest, now: float) -> str:
    """Return the name people gave, or one that says what and when."""
    if request.name and request.name.strip():
        return request.name.strip()
    first = request.template.benchmark or (request.benchmarks[0] if request.benchmarks else "")
    what = first.rstrip("/").rpartition("/")[2] or "scenarios"
    if len(request.benchmarks) > 1:
        what += f"-and-{len(request.benchmarks) - 1}-more"
    return f"{what}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}"


def stored(request: JobRequest, planned: JobPlanned, names: Mapping[str, str]) -> Json:
    """Return what is kept of the request, so that the job can grow; values of headers are not.

    `names`: what benchmarks are called that the request names by a path or an upload.
    """
    template = {name: value for name, value in asdict(request.template).items() if name not in _NOT_STORED}
    source: Json = {"type": "benchmark", "benchmark_name": names.get(request.template.benchmark)}
    if request.scenarios:
        source = {"type": "scenarios", "scenario_ids": [_called(one, names) for one in request.scenarios]}
    elif request.benchmarks:
        source = {"type": "benchmarks", "benchmark_names": [names[one] for one in request.benchmarks]}
    return {
        "agents": [asdict(agent) for agent in planned.agents],
        "template": template,
        "selections": [asdict(one) for one in planned.selections],
        "source": source,
    }


def _called(scenario: str, names: Mapping[str, str]) -> str:
    for spec, name in names.items():
        if scenario.startswith((f"{spec}/", f"{spec}@")):
            return name + scenario.removeprefix(spec)
    return scenario


def stored_template(arguments: Mapping[str, Any]) -> RunRequest:
    """Return the template of a stored job; what this version does not know any more is left out."""
    known = {one.name for one in fields(RunRequest)}
    kept = {name: value for name, value in arguments["template"].items() if name in known}
    return RunRequest(**{"agent": "", **kept})


def stored_selections(arguments: Mapping[str, Any]) -> list[Selection]:
    return [
        Selection(
            one["benchmark"], one["dataset"], None if one["task_ids"] is None else tuple(one["task_ids"])
        )
        for one in arguments["selections"]
    ]


def stored_agents(arguments: Mapping[str, Any]) -> list[JobAgent]:
    return [JobAgent(**one) for one in arguments["agents"]]
