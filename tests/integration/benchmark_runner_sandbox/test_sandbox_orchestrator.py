"""Whole runs from Python: real sandboxes, the live example service, resuming, slices, phases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner.runs import RunError
from benchmark_runner.sandbox import SandboxTaskSpec, evaluate_run, run_benchmark, score_run
from benchmark_runner.sandbox.orchestrator import RUN_LABEL, sandbox_name
from benchmark_runner.sandbox.setup import load_contract
from benchmark_service.client import BenchmarkServiceClient
from sandboxes.errors import SandboxError
from sandboxes.local.provider import LocalProvider
from sandboxes.protocol import Sandbox
from sandboxes.server import SandboxServer
from sandboxes.types import ImageSource, SandboxCreateRequest, SnapshotSource
from tests.integration.benchmark_runner.runner_project import QUESTIONS, Live
from tests.integration.benchmark_runner_sandbox.agents import agent, shell_agent

SPIDER, PLANET, GOLD = list(QUESTIONS)[:3]
FILL = 'mkdir -p /out/{task_id}; echo \'{"status": "success", "data": "x"}\' > /out/{task_id}/generation.json'


class Watched(LocalProvider):
    """Remembers what it was asked for, and how many sandboxes there were at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.requests: list[SandboxCreateRequest] = []
        self.alive = self.most = 0

    async def create_sandbox(self, request: SandboxCreateRequest) -> Sandbox:
        self.requests.append(request)
        self.alive += 1
        self.most = max(self.most, self.alive)
        return await super().create_sandbox(request)

    async def delete_sandbox(self, sandbox_id: str) -> None:
        await super().delete_sandbox(sandbox_id)
        self.alive -= 1


@pytest.fixture
async def watched(place: Path) -> AsyncIterator[Watched]:
    async with Watched(place / "sandboxes") as made:
        yield made
        assert [one async for one in made.list_sandboxes()] == []


def kept(task_id: str, name: str = "generation.json", run_id: str = "r1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("results", run_id, task_id, name).read_text())
    return found


def asked(*task_ids: str, **more: Any) -> dict[str, SandboxTaskSpec]:
    return {one: SandboxTaskSpec(question=QUESTIONS[one]["question"], **more) for one in task_ids}


async def test_a_run_where_the_service_sets_tasks_up(
    client: BenchmarkServiceClient, watched: Watched, service: Live, place: Path
) -> None:
    score = await run_benchmark(
        run_id="r1",
        model="some/model",
        task_ids=[SPIDER, GOLD, "longest-river-of-france"],
        dataset=None,
        results_dir="results",
        client=client,
        contract_path=agent(place, install_cmd="test -f agent.py"),
        provider=watched,
        parallelism=2,
        network="none",
    )
    assert score is not None and score.complete and round(score.final_score) == 67
    got = kept(SPIDER)
    assert (got["data"], got["task_id"], got["model"], got["total_turns"]) == (
        "Eight",
        SPIDER,
        "some/model",
        3,
    )
    assert (
        got["log_dir"].endswith(f"{SPIDER}/agent_logs") and kept(SPIDER, "eval.json")["status"] == "evaluated"
    )
    config = json.loads(Path("results/r1/run_config.json").read_text())
    assert config["task_source"] == "sandbox" and config["settings"]["agent"] == "quizzer"
    request = watched.requests[0]
    assert request.name is not None and request.name.startswith("r1-")
    assert (request.auto_stop_interval, request.create_timeout, watched.most) == (30, 600, 2)
    assert (request.resources.memory if request.resources else None) == 1


async def test_a_run_goes_on_where_it_was(
    client: BenchmarkServiceClient, watched: Watched, service: Live, place: Path
) -> None:
    common: dict[str, Any] = {
        "run_id": "r1",
        "model": "m",
        "dataset": None,
        "results_dir": "results",
        "client": client,
        "provider": watched,
        "network": "none",
    }
    folder = agent(place)
    first = await run_benchmark(
        **common, task_ids=[SPIDER], contract_path=folder, task_specs=asked(SPIDER), skip_eval=True
    )
    assert first is None and not Path(f"results/r1/{SPIDER}/eval.json").exists()
    assert service.asked == []
    await run_benchmark(
        **common, task_ids=[GOLD], contract_path=folder, task_specs=asked(GOLD), skip_eval=True
    )
    assert json.loads(Path("results/r1/run_config.json").read_text())["tasks"] == sorted([SPIDER, GOLD])
    with pytest.raises(RunError, match="model: m, now other"):
        await run_benchmark(
            **{**common, "model": "other"}, task_ids=[GOLD], contract_path=folder, task_specs=asked(GOLD)
        )
    changed = agent(place, program="print()")
    with pytest.raises(RunError, match="agent bundle"):
        await run_benchmark(**common, task_ids=[GOLD], contract_path=changed, task_specs=asked(GOLD))
    assert len(watched.requests) == 2

    with pytest.raises(RunError, match="incomplete: 0 of 2"):
        await score_run(run_id="r1", results_dir="results", client=client)
    found = await evaluate_run(run_id="r1", results_dir="results", client=client)
    assert found.complete and sorted(service.graded()) == sorted([SPIDER, GOLD])
    await evaluate_run(run_id="r1", results_dir="results", client=client)
    assert len(service.graded()) == 2
    score = await score_run(run_id="r1", results_dir="results", client=client)
    assert score.complete and score.final_score == 100


async def test_phases_of_a_run_that_is_not_there(client: BenchmarkServiceClient) -> None:
    with pytest.raises(RunError, match="There is no run r1"):
        await score_run(run_id="r1", results_dir="results", client=client)
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"contract_path": None}, "exactly one of contract and contract_path"),
        ({"task_ids": ["other"]}, "Unknown task IDs"),
        ({"task_specs": asked(SPIDER, source=SnapshotSource(snapshot="s"))}, "snapshot of a provider"),
        ({"task_specs": asked(SPIDER, source=ImageSource(image="snapshot:s"))}, "snapshot of a provider"),
        ({"source_override": SnapshotSource(snapshot="s")}, "snapshot of a provider"),
        ({"secrets": {"QUIZ_KEY": "THEIR_KEY"}}, "needs QUIZ_KEY"),
        ({"final_output": None}, "final_output"),
        ({"run_cmd": "a {problem_statement_path} {effort}"}, "nothing fills"),
        ({"provider": "locl"}, "did you mean 'local'"),
        ({"provider": "daytona"}, "DAYTONA_API_KEY"),
        (
            {"provider": "local", "task_specs": asked(SPIDER, source=ImageSource(image="i"))},
            "cannot run images",
        ),
    ],
)
async def test_what_is_wrong_is_said_before_anything_starts(
    client: BenchmarkServiceClient, watched: Watched, place: Path, wrong: dict[str, Any], said: str
) -> None:
    contract = {name: wrong[name] for name in ("secrets", "final_output", "run_cmd") if name in wrong}
    arguments: dict[str, Any] = {
        "contract_path": agent(place, **contract),
        "task_ids": [SPIDER],
        "task_specs": asked(SPIDER),
        "provider": watched,
        **{name: value for name, value in wrong.items() if name not in contract},
    }
    with pytest.raises(Exception, match=said):
        await run_benchmark(
            run_id="r1",
            model="m",
            dataset=None,
            results_dir="results",
            client=client,
            network="none",
            **arguments,
        )
    assert watched.requests == [] and not Path("results/r1").exists()


async def test_an_agent_is_given_what_it_declares(
    client: BenchmarkServiceClient, watched: Watched, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "hush-hush-9")
    monkeypatch.setenv("OTHER_TOKEN", "not-for-agents")
    monkeypatch.setenv("CUSTOM_ENDPOINT", "http://model.example")
    monkeypatch.setenv("CUSTOM_API_KEY", "hush-hush-8")
    told = shell_agent(place, f"env; exec {'sh -c'} 'exit 0'", secrets={"QUIZ_KEY": "THEIR_KEY"})
    await run_benchmark(
        run_id="r1",
        model="m",
        task_ids=[SPIDER],
        dataset=None,
        results_dir="results",
        client=client,
        contract=load_contract(told),
        task_specs=asked(SPIDER),
        provider=watched,
        skip_eval=True,
        network="none",
    )
    env = watched.requests[0].env_vars
    assert env == {
        "QUIZ_KEY": "hush-hush-9",
        "CUSTOM_ENDPOINT": "http://model.example",
        "CUSTOM_API_KEY": "hush-hush-8",
    }
    everything = "".join(path.read_text() for path in Path("results").rglob("*") if path.is_file())
    assert "CUSTOM_ENDPOINT=http://model.example" in everything and "QUIZ_KEY=***" in everything
    assert "hush" not in everything and "not-for-agents" not in everything


async def test_a_broken_task_disturbs_no_other(
    client: BenchmarkServiceClient, watched: Watched, place: Path
) -> None:
    specs = {**asked(SPIDER, source=ImageSource(image="no-images-here")), **asked(GOLD)}
    score = await run_benchmark(
        run_id="r1",
        model="m",
        task_ids=[SPIDER, GOLD],
        dataset=None,
        results_dir="results",
        client=client,
        contract_path=agent(place),
        task_specs=specs,
        provider=watched,
        network="none",
    )
    assert score is None and "image" in kept(SPIDER)["error"] and kept(GOLD)["data"] == "Au"


async def test_what_a_killed_run_left_is_ended(
    client: BenchmarkServiceClient, watched: Watched, place: Path
) -> None:
    arguments: dict[str, Any] = {
        "run_id": "r1",
        "model": "m",
        "task_ids": [SPIDER],
        "dataset": None,
        "results_dir": "results",
        "client": client,
        "contract_path": shell_agent(place, "sleep 60"),
        "task_specs": asked(SPIDER),
        "provider": watched,
        "network": "none",
    }
    running = asyncio.create_task(run_benchmark(**arguments))
    while not watched.requests:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    labels = watched.requests[0].labels
    left = await watched.create_sandbox(SandboxCreateRequest(labels=labels, network="none"))
    other = await watched.create_sandbox(SandboxCreateRequest(labels={RUN_LABEL: "other"}, network="none"))
    await run_benchmark(**{**arguments, "contract_path": shell_agent(place, FILL), "run_id": "r2"})
    assert left.state == "started"
    await run_benchmark(**{**arguments, "contract_path": shell_agent(place, FILL)})
    assert (left.state, other.state) == ("deleted", "started")
    await watched.delete_sandbox(other.id)


@pytest.mark.parametrize("task_id", ["plain-1", "a/b", "ü" * 80, "x" * 200, "."])
def test_names_of_sandboxes(task_id: str) -> None:
    name = sandbox_name("run", task_id)
    assert len(name) <= 60 and name.isascii() and "/" not in name
    assert (name == f"run-{task_id}") == (task_id in ("plain-1", "."))
    assert sandbox_name("run", f"{task_id}!") != name


async def test_a_sandbox_that_stays_does_not_cost_the_answer(
    client: BenchmarkServiceClient, place: Path
) -> None:
    class Clinging(LocalProvider):
        async def delete_sandbox(self, sandbox_id: str) -> None:
            raise SandboxError("it clings")

    async with Clinging(place / "sandboxes") as provider:
        await run_benchmark(
            run_id="r1",
            model="m",
            task_ids=[SPIDER],
            dataset=None,
            results_dir="results",
            client=client,
            contract_path=agent(place),
            task_specs=asked(SPIDER),
            provider=provider,
            network="none",
        )
    assert kept(SPIDER)["data"] == "Eight"
    assert "it clings" in Path(f"results/r1/{SPIDER}/agent_logs/not_deleted.txt").read_text()


@pytest.mark.slow
async def test_sandboxes_of_daytonas_interface(
    client: BenchmarkServiceClient, provider: LocalProvider, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("daytona")
    server = SandboxServer()
    await server.start()
    try:
        grant = server.grant(provider, labels={}, host_image=True)
        monkeypatch.setenv("DAYTONA_API_KEY", grant.api_key)
        monkeypatch.setenv("DAYTONA_API_URL", grant.api_url)
        monkeypatch.setenv("DAYTONA_TARGET", grant.target)
        score = await run_benchmark(
            run_id="r1",
            model="m",
            task_ids=[SPIDER, PLANET],
            dataset=None,
            results_dir="results",
            client=client,
            contract_path=agent(place, install_cmd="test -f agent.py"),
            provider="daytona",
            source_override=ImageSource(image="any"),
            network="none",
        )
    finally:
        await server.close()
    assert score is not None and score.final_score == 100, kept(SPIDER)
