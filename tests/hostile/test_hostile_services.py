"""Benchmark services that mean harm, through the whole engine: contained, categorised, discreet."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.integration.benchmark_service.conftest import serving
from tests.integration.conftest import end_executor
from tests.integration.faulty_service import TASK, FaultyService
from valkyrie.config import values
from valkyrie.errors import BenchmarkError, UsageError, UserError
from valkyrie.schedule.policy import TABLE, backoff
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, RunView, TrialFilter, TrialView

pytestmark = pytest.mark.slow

AGENT = "tests.integration.test_service_runs:SilentAgent"
ROOT = Path(__file__).parents[2]
SECRET = "Bearer s3cret-credential-of-mine"
BOXES = "[" + "[]," * 600_000 + "[]]"


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def task(**other: Any) -> str:
    return json.dumps({**TASK, **other})


def resources(**other: int) -> str:
    return task(resources={"vcpu": 1, "memory": 1, "disk": 1, **other})


LATER: dict[str, str] = {
    "endless": task().replace("60.0", "1e999"),
    "negative": task(agent_timeout=-5),
    "cpu": resources(vcpu=-1),
    "memory": resources(memory=10**30),
    "disk": resources(disk=-1),
    "newline": task(problem_path="/tmp/problem.txt\n/etc"),
    "zero": task(cwd="/work\0space"),
    "rootfs": task(source={"type": "host", "rootfs": "/etc"}, docker_image=None),
    "outer": task(source={"type": "compose", "outer": {"type": "host", "rootfs": "/"}}, docker_image=None),
    "build": task(
        source={"type": "build", "context": "/etc", "digest": "ab" * 32, "dockerfile": "hostname"},
        docker_image=None,
    ),
    "huge": task(problem_path="/" + "x" * 1_000_000),
    "volumes": task(volumes=[{"a": 1}]),
}
"""What the service says of a task when the run is under way, having been harmless at planning."""

RESULTS: dict[str, str] = {
    "nested": nested(600),
    "bottomless": nested(100_000),
    "boxes": BOXES,
    "infinite": '{"score": 1e999}',
}


class HostileService(FaultyService):
    """Tasks are named by what is done to whoever runs them."""

    metadata: str = "{}"

    async def _retrieve(self, request: Request) -> Response:
        name = request.query_params["task_id"]
        self.asked["retrieve", name] += 1
        said = LATER.get(name) if self.asked["retrieve", name] > 1 else None
        return Response(said or task(), media_type="application/json")

    async def _evaluate(self, socket: WebSocket) -> None:
        name, _ = await self._begin(socket, "evaluate")
        key = socket.headers["x-api-key"]
        try:
            match name:
                case "states":
                    for number in range(2000):
                        await socket.send_json({"type": "eval_resume_state", "data": {"n": number}})
                case "large-state":
                    await socket.send_json({"type": "eval_resume_state", "data": {"a": "x" * (2 << 20)}})
                case "echo":
                    for text in (f"{SECRET} {key}", key):
                        await socket.send_json({"type": "message", "data": text})
                    state = {SECRET: [key, SECRET.removeprefix("Bearer ")]}
                    await socket.send_json({"type": "eval_resume_state", "data": state})
                    await socket.send_json({"type": "result", "data": {"resolved": True, **state}})
                case "echo-error":
                    await socket.send_json({"type": "error", "data": f"no sandbox for {SECRET} and {key}"})
                    await socket.close()
                case "digits":
                    await socket.send_text('{"type": "result", "data": {"score": %s}}' % ("9" * 4000))
            if name in RESULTS:
                await socket.send_text(f'{{"type": "result", "data": {RESULTS[name]}}}')
            await socket.send_json({"type": "result", "data": {"resolved": True}})
        except (WebSocketDisconnect, RuntimeError):
            return

    async def _score(self, request: Request) -> Response:
        await request.json()
        said = f'{{"tasks_evaluated": [], "final_score": 1.0, "metadata": {self.metadata}}}'
        return Response(said, media_type="application/json")

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"service_version": f"1 {SECRET} " + "x" * 1_000_000, "eval_mode": None})


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTracker]:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    made = LocalTracker(tmp_path / "home")
    yield made
    made.close()
    end_executor(tmp_path / "home")


@contextmanager
def served(service: FaultyService) -> Iterator[None]:
    with serving(service.app()) as url:
        values.set_entry("custom_benchmark_services", "hostile", url)
        yield


def play(tracker: LocalTracker, service: FaultyService, **more: Any) -> tuple[RunView, dict[str, TrialView]]:
    """Run the service's tasks to their end."""
    asked = {"agent": AGENT, "benchmark": "hostile", "provider": "null", "max_attempts": 1, "concurrency": 20}
    with served(service):
        started = tracker.start(RunRequest(**{**asked, **more}))
        run = tracker.wait(started.run.id, timeout=90)
    found, _ = tracker.trials(run.id, TrialFilter(limit=100))
    return run, {trial.task_id: trial for trial in found}


def test_a_task_that_turns_bad_is_its_author_s_and_no_one_else_s(tracker: LocalTracker) -> None:
    run, trials = play(tracker, HostileService([*LATER, "good"]))
    for name in LATER:
        trial = trials[name]
        assert (trial.state, trial.category, trial.cause) == ("ERROR", "benchmark", "task_broken"), trial
        assert len(trial.message or "") < 500 and "\n" not in (trial.message or "")
    assert trials["good"].state == "FINISHED" and run.state == "FINISHED"


def test_results_no_one_can_walk_through_are_protocol_errors(tracker: LocalTracker) -> None:
    names = [*RESULTS, "digits", "large-state", "good"]
    run, trials = play(tracker, HostileService(names))
    for name in RESULTS:
        assert (trials[name].category, trials[name].cause) == ("benchmark", "service_protocol"), trials[name]
    assert (trials["digits"].state, trials["digits"].score) == ("FINISHED", None)
    assert trials["large-state"].state == trials["good"].state == "FINISHED"
    assert "It is not kept" in "".join(tracker.logs(run.id, "large-state"))


def test_credentials_that_come_back_are_kept_nowhere(tracker: LocalTracker, tmp_path: Path) -> None:
    service = HostileService(["echo", "echo-error", "good"], key=SECRET)
    service.metadata = json.dumps({"said": SECRET, SECRET: [SECRET.removeprefix("Bearer ")]})
    run, trials = play(tracker, service, headers={"Authorization": SECRET})
    assert run.score.final_score == 1.0 and trials["echo"].state == "FINISHED"
    document = tracker.results(run.id)
    assert document["final_evaluation"]["properties"] == {"said": "***", "***": ["***"]}
    seen = {headers["x-api-key"] for headers in service.seen_headers if "x-api-key" in headers}
    kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    for secret in {"s3cret-credential", *seen}:
        assert secret not in json.dumps(document) and secret not in str(trials["echo-error"].message)
        assert [path for path in kept if secret.encode() in path.read_bytes()] == []
    assert len(json.dumps(document["benchmark_arguments"])) < 10_000


@pytest.mark.parametrize("metadata", [nested(600), BOXES, json.dumps("x" * (20 << 20))])
def test_a_final_score_s_metadata_is_bounded(tracker: LocalTracker, metadata: str) -> None:
    service = HostileService(["good"])
    service.metadata = metadata
    run, trials = play(tracker, service)
    assert trials["good"].state == "FINISHED"
    assert run.state == "ERROR" and "final score could not be computed" in (run.error or "")


@pytest.mark.parametrize("ids", [[""], ["a\nb"], ["a\0"], ["x" * 100_000], ["\u202efdp.exe"]])
def test_ids_that_cannot_be_shown_are_refused(tracker: LocalTracker, ids: list[str]) -> None:
    with served(HostileService(ids)), pytest.raises(BenchmarkError, match="is no task id"):
        tracker.start(RunRequest(agent=AGENT, benchmark="hostile", provider="null"))


def test_ids_that_look_like_paths_are_only_names(tracker: LocalTracker, tmp_path: Path) -> None:
    ids = ["../../escaped", "..", ".", "/etc/passwd", "same", "same", "%2e%2e/x", "*"]
    run, trials = play(tracker, HostileService(ids))
    assert run.counts["FINISHED"] == len(set(ids)) == len(trials)
    outside = {path.name for path in tmp_path.iterdir()} - {"home", "valkyrie.yaml"}
    assert not any("escaped" in name for name in outside)
    logs = [path for path in tmp_path.rglob("*.log") if path.name.startswith("attempt")]
    assert len(logs) == len(set(ids)) and all("/trials/" in str(path) for path in logs)


@pytest.mark.parametrize("kind", ["rootfs", "outer", "build"])
def test_a_folder_of_this_machine_is_not_a_service_s_to_choose(tracker: LocalTracker, kind: str) -> None:
    class Greedy(HostileService):
        async def _retrieve(self, request: Request) -> Response:
            return Response(LATER[kind], media_type="application/json")

    for more in ({"provider": "local"}, {"provider": "process", "host_image": True}):
        asked = RunRequest(**{"agent": AGENT, "benchmark": "hostile", **more})
        with served(Greedy(["a"])), pytest.raises(UserError, match="of this machine"):
            tracker.start(asked)


@pytest.mark.parametrize("url", ["http://me:s3cret@127.0.0.1:9", "https://s3cret@example.com/x"])
def test_a_credential_in_the_address_is_neither_used_nor_shown(tracker: LocalTracker, url: str) -> None:
    with pytest.raises(UsageError, match="config auth set") as caught:
        tracker.start(RunRequest(agent=AGENT, benchmark=url, provider="null"))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("policy", TABLE, ids=lambda policy: policy.cause)
def test_no_service_can_put_a_run_off_for_ever(policy: Any) -> None:
    assert backoff(policy, 1, 999_999_999.0, random.Random(1)) <= 86_400


async def test_a_flood_of_states_waits_for_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sandboxes.null import NullProvider
    from sandboxes.types import SandboxCreateRequest
    from valkyrie.benchmarks.protocol import Grading
    from valkyrie.benchmarks.service import results
    from valkyrie.benchmarks.service.address import given_url
    from valkyrie.benchmarks.service.benchmark import ServiceBenchmark

    kept: list[Any] = []

    enough = asyncio.Event()

    async def save(state: Any) -> None:
        kept.append(state)
        if len(kept) >= results.KEPT_FREELY:
            enough.set()

    monkeypatch.setattr(results, "KEPT_EVERY_S", 3600.0)
    with serving(HostileService(["states"]).app()) as url:
        address = given_url(url)
        assert address is not None
        benchmark = ServiceBenchmark(address, {"x-api-key": "k", "x-api-url": "u", "x-target": "t"})
        async with NullProvider(tmp_path) as provider:
            sandbox = await provider.create_sandbox(SandboxCreateRequest())
            described = await benchmark.describe("states")
            grading = Grading(described, sandbox, lambda *_: None, evidence=tmp_path, save=save)
            flooding = asyncio.create_task(benchmark.evaluate(grading))
            async with asyncio.timeout(60):
                await enough.wait()
            assert await asyncio.wait([flooding], timeout=1) == (set(), {flooding})
            flooding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await flooding
        await benchmark.close()
    assert len(kept) == results.KEPT_FREELY
