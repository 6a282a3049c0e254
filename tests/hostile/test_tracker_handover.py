"""What executors of a server are handed with a run: whose it is, how long it stays, whom it keeps waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.integration.api.stage import Stage, open_stage
from valkyrie.domain import RunState
from valkyrie.executor.open_runs import OpenRuns, TenantAccess
from valkyrie.secrets.delivery import Sealer, new_key, parse_keys
from valkyrie.store import runs

VALUES = {"KEY": "planted-value-5512"}
ARGUMENTS = {"secrets": {"KEY": "key"}, "settings": {"provider": "null"}}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = open_stage(tmp_path / "home")
    yield made
    made.tracker_app.close()


@pytest.fixture
async def open_runs(stage: Stage) -> AsyncIterator[OpenRuns]:
    tracker_app = stage.tracker_app
    writer = tracker_app.store.writer()
    made = OpenRuns(
        TenantAccess(tracker_app.data, tracker_app.store, server=True, sealer=tracker_app.sealer),
        writer,
        "here",
    )
    yield made
    await made.close()
    await writer.close()


def hand(stage: Stage, run_id: str, values: Mapping[str, str]) -> None:
    """As a server does when a run is started or goes on."""
    with stage.tracker_app.store.writing() as connection:
        stage.tracker_app.dispatch.seal(connection, run_id, values)


def is_sealed(stage: Stage, run_id: str) -> bool:
    with stage.tracker_app.store.reading() as connection:
        return runs.handed(connection, run_id) is not None


async def test_nothing_handed_outlives_a_run_that_cannot_be_opened(stage: Stage, open_runs: OpenRuns) -> None:
    run_id = stage.add_run(arguments=ARGUMENTS)  # its agent is nothing that could be opened
    hand(stage, run_id, VALUES)
    await open_runs.open(run_id)
    with stage.tracker_app.store.reading() as connection:
        assert runs.get(connection, run_id).state == RunState.ERROR
    assert not is_sealed(stage, run_id)
    assert await open_runs.handed(run_id) is None, "the executor's memory holds it still"


async def test_an_agent_that_is_on_another_machine_only(stage: Stage, open_runs: OpenRuns) -> None:
    run_id = stage.add_run(
        arguments={"settings": {"provider": "null"}}, agent_frozen={"archive": "agent.zip"}
    )
    await open_runs.open(run_id)
    with stage.tracker_app.store.reading() as connection:
        found = runs.get(connection, run_id)
    assert found.state == RunState.ERROR and "artifacts_folder" in found.error
    assert str(stage.tracker_app.data.root) not in found.error, (
        "the executor's folders are no caller's business"
    )


async def test_what_its_messages_need_stays_until_they_are_sent(stage: Stage, open_runs: OpenRuns) -> None:
    wishes = {"slack": {"secret": "S", "intervals": [100]}, "webhook": None, "lambda": None}
    run_id = stage.add_run(arguments=ARGUMENTS, notify=wishes)
    hand(stage, run_id, VALUES)
    await open_runs.open(run_id)
    assert is_sealed(stage, run_id)
    assert await open_runs.handed(run_id) == VALUES


async def test_what_was_handed_last_counts(stage: Stage, open_runs: OpenRuns) -> None:
    """Else the server's own credential for a service, handed when the run was there, would go along when its
    owner resumes it at an address of theirs."""
    run_id = stage.add_run(arguments=ARGUMENTS)
    hand(stage, run_id, {"header:Authorization": "Bearer of-the-server"})
    assert await open_runs.handed(run_id) == {"header:Authorization": "Bearer of-the-server"}
    hand(stage, run_id, {"header:Authorization": "Bearer of-the-caller"})
    assert await open_runs.handed(run_id) == {"header:Authorization": "Bearer of-the-caller"}


async def test_a_run_sealed_with_another_key_waits_and_ends_nobody_else(
    stage: Stage, open_runs: OpenRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = stage.add_run(arguments=ARGUMENTS)
    other = Sealer(parse_keys(new_key()))
    with stage.tracker_app.store.writing() as connection:
        runs.hand(connection, run_id, other.seal(VALUES, f"run:{run_id}"))
    await open_runs.open(run_id)
    await open_runs.open(run_id)
    with stage.tracker_app.store.reading() as connection:
        assert "KEY" in runs.get(connection, run_id).note
    assert run_id in open_runs.waiting()
    assert capsys.readouterr().err.count("is not the key it was sealed with") == 1
    hand(stage, run_id, VALUES)
    assert await open_runs.handed(run_id) == VALUES


async def test_a_provider_that_never_answers_holds_up_nobody_else(open_runs: OpenRuns) -> None:
    asked = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {
        "DAYTONA_API_KEY": "theirs",
        "DAYTONA_API_URL": f"http://127.0.0.1:{port}/api",
        "DAYTONA_TARGET": "us",
    }
    hanging = asyncio.create_task(open_runs.provider("daytona", settings))
    try:
        async with asyncio.timeout(60):
            await asked.wait()
            assert (await open_runs.provider("null")) is await open_runs.provider("null")
        assert not hanging.done()
    finally:
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        server.close()
