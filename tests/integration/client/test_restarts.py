"""The client against a real server that is killed and started again while it is listened to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abilities import need_local_sandboxes
from tests.integration.backends.installations import Server
from valkyrie.client import RunChanged, TrialChanged, ValkyrieClient
from valkyrie.errors import AccessError
from valkyrie.views import RunFilter, RunRequest, StartedRun, TrialView

pytestmark = pytest.mark.slow

FILES = Path(__file__).parents[1] / "backends" / "files"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("server")
    need_local_sandboxes(root / "trying", network="none")
    made = Server(root)
    made.begin()
    yield made
    made.close()


async def start(client: ValkyrieClient, seconds: str) -> StartedRun:
    agent = await client.upload_agent(FILES / "worker")
    benchmark = await client.upload_benchmark(FILES / "tasks")
    return await client.start(RunRequest(agent, benchmark, dataset="good", kwargs={"seconds": seconds}))


@pytest.mark.slow
async def test_streams_go_on_after_a_kill(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    key = await asyncio.to_thread(server.key)
    async with ValkyrieClient(server.url, key) as client:
        run = (await start(client, "3")).run
        heard = asyncio.Event()
        trials: dict[str, TrialView] = {}

        async def listen() -> str:
            state = ""
            async for event in client.events(run.id):
                if isinstance(event, TrialChanged):
                    trials[event.trial.task_id] = event.trial
                elif isinstance(event, RunChanged):
                    state = event.run.state
                    if event.run.counts["IN_PROGRESS"]:
                        heard.set()
            return state

        async def read() -> str:
            await heard.wait()
            return "".join([piece async for piece in client.logs(run.id, "right", follow=True)])

        async with asyncio.TaskGroup() as group:
            listening = group.create_task(listen())
            waiting = group.create_task(client.wait(run.id, timeout=90))
            reading = group.create_task(read())
            await heard.wait()
            await asyncio.sleep(0.3)  # all three listen
            await asyncio.to_thread(server.end, signal.SIGKILL)
            await asyncio.to_thread(server.begin)
    assert listening.result() == "FINISHED" and waiting.result().state == "FINISHED"
    assert {task_id: trial.score for task_id, trial in trials.items()} == {"right": 1.0, "wrong": 0.0}
    assert reading.result().count("thinking about right") == 1


async def test_a_start_asked_for_twice_is_one_run(server: Server) -> None:
    key = await asyncio.to_thread(server.key)
    async with ValkyrieClient(server.url, key) as client:
        benchmark = await client.upload_benchmark(FILES / "tasks")
        request = RunRequest("nop", benchmark, provider="null", slice=":1", label="twice")
        first, again = [await client.start(request, key="the-same-start") for _ in range(2)]
        assert first.run.id == again.run.id
        assert (await client.list(RunFilter(label="twice"))).total == 1
        assert (await client.wait(first.run.id, timeout=60)).state == "FINISHED"
        assert (await client.me()).person == "ann" and (await client.health())["status"] == "ok"
    async with ValkyrieClient(server.url, "vk_nobody") as stranger:
        with pytest.raises(AccessError, match="VALKYRIE_API_KEY") as caught:
            await stranger.list()
    assert "vk_nobody" not in str(caught.value)
