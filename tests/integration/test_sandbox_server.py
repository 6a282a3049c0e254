"""The real Daytona SDK drives our sandboxes through our server: life of a sandbox, and its commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaRateLimitError,
    Image,
    ListSandboxesQuery,
    Resources,
)

from sandboxes.server import SandboxServer
from tests.integration.sandbox_serving import Serving, serving, until


@pytest.fixture(params=["process", "local"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(request.param, tmp_path / "state") as served:
        yield served


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Serving]:
    """Where the provider makes no difference."""
    async with serving("process", tmp_path / "state") as served:
        yield served


async def test_a_sandbox_from_an_image_is_made_used_and_deleted(served: Serving) -> None:
    client = await served.client()
    sandbox = await served.sandbox(
        client,
        name="task-1",
        labels={"task": "one", "Id": "someone else's"},
        env_vars={"COLOUR": "red"},
        resources=Resources(cpu=1, memory=1, disk=1),
        auto_stop_interval=0,
    )
    assert sandbox.state == "started"
    assert (sandbox.cpu, sandbox.memory, sandbox.disk) == (1, 1, 1)
    assert sandbox.labels["task"] == "one"
    assert sandbox.labels["Id"] == "run-1"

    kept = await served.provider.get_sandbox(sandbox.id)
    assert dict(kept.labels or {})["Id"] == "run-1"

    result = await sandbox.process.exec("echo $COLOUR $SHAPE; echo loud >&2; exit 3", env={"SHAPE": "round"})
    assert result.exit_code == 3
    assert sorted(result.result.splitlines()) == ["loud", "red round"]

    assert (await client.get(sandbox.id)).name == "task-1"
    assert (await client.get("task-1")).id == sandbox.id

    await client.delete(sandbox)
    assert await served.living() == []
    with pytest.raises(DaytonaNotFoundError):
        await client.get(sandbox.id)
    with pytest.raises(DaytonaNotFoundError):
        await sandbox.process.exec("true")


async def test_commands_take_a_folder_and_a_time_limit(served: Serving) -> None:
    sandbox = await served.sandbox()
    await sandbox.fs.create_folder("/app/deep", "755")
    assert (await sandbox.process.exec("pwd", cwd="/app/deep")).result.endswith("/app/deep\n")
    work = await sandbox.get_work_dir()
    await sandbox.fs.create_folder("nested", "755")
    assert (await sandbox.process.exec("pwd", cwd="nested")).result.endswith(f"{work.rstrip('/')}/nested\n")
    with pytest.raises(DaytonaError, match="timeout of 1 s") as caught:
        await sandbox.process.exec("sleep 30", timeout=1)
    assert caught.value.status_code == 408
    assert (await sandbox.process.exec("exit 137")).exit_code == 137


async def test_a_command_may_be_longer_than_an_argument(served: Serving) -> None:
    sandbox = await served.sandbox()
    result = await sandbox.process.exec(f"X={'x' * 300_000}; echo ${{#X}}; exit 9")
    assert (result.exit_code, result.result) == (9, "300000\n")
    assert (await sandbox.process.exec("ls -A ${VALKYRIE_ROOT:-}/var/tmp")).result == ""


async def test_code_is_run(plain: Serving) -> None:
    sandbox = await plain.sandbox()
    result = await sandbox.process.code_run("import sys; print(sum(range(5))); sys.exit(4)")
    assert (result.exit_code, result.result) == (4, "10\n")


async def test_fifty_commands_at_once(served: Serving) -> None:
    sandbox = await served.sandbox()
    results = await asyncio.gather(*(sandbox.process.exec(f"echo {n}; exit {n}") for n in range(50)))
    assert [(r.exit_code, r.result) for r in results] == [(n, f"{n}\n") for n in range(50)]


async def test_sandboxes_are_listed_by_labels_page_by_page(plain: Serving) -> None:
    client = await plain.client()
    made = {(await plain.sandbox(client, labels={"group": "a" if n % 2 else "b"})).id for n in range(5)}
    assert {s.id async for s in client.list()} == made
    assert {s.id async for s in client.list(ListSandboxesQuery(limit=2))} == made
    a = [s async for s in client.list(ListSandboxesQuery(labels={"group": "a"}, limit=1))]
    assert len(a) == 2
    assert {s.labels["group"] for s in a} == {"a"}
    assert (await a[0].process.exec("echo listed")).result == "listed\n"


async def test_labels_can_be_replaced_but_not_the_runs_own(plain: Serving) -> None:
    client = await plain.client()
    sandbox = await plain.sandbox(client, labels={"old": "1"})
    assert await sandbox.set_labels({"new": "2", "Id": "forged"}) == {"new": "2", "Id": "run-1"}
    assert [s.id async for s in client.list(ListSandboxesQuery(labels={"new": "2"}))] == [sandbox.id]
    assert [s.id async for s in client.list(ListSandboxesQuery(labels={"old": "1"}))] == []
    assert [s.id async for s in client.list(ListSandboxesQuery(labels={"Id": "forged"}))] == []


async def test_stopping_kills_and_keeps_the_files(plain: Serving) -> None:
    client = await plain.client()
    sandbox = await plain.sandbox(client)
    await sandbox.fs.upload_file(b"kept", "/app/file")
    await sandbox.process.create_session("s")
    await sandbox.stop()
    assert sandbox.state == "stopped"
    with pytest.raises(DaytonaError, match="stopped; start it first"):
        await sandbox.process.exec("true")
    await sandbox.start()
    assert await sandbox.fs.download_file("/app/file") == b"kept"
    with pytest.raises(DaytonaNotFoundError):
        await sandbox.process.get_session("s")


async def test_an_ephemeral_sandbox_is_gone_when_stopped(plain: Serving) -> None:
    sandbox = await plain.sandbox(ephemeral=True)
    await sandbox.stop()
    assert await plain.living() == []


async def test_settings_about_idle_time_are_kept(plain: Serving) -> None:
    client = await plain.client()
    sandbox = await plain.sandbox(client)
    await sandbox.set_autostop_interval(7)
    await sandbox.set_auto_delete_interval(-1)
    await sandbox.refresh_activity()
    assert (await client.get(sandbox.id)).auto_stop_interval == 7


async def test_a_name_is_given_once(plain: Serving) -> None:
    client = await plain.client()
    outcomes = await asyncio.gather(
        *(plain.sandbox(client, name="same") for _ in range(5)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, DaytonaConflictError)]
    assert len(refused) >= 4
    assert len(await plain.living()) == 5 - len(refused)
    with_other_token = await plain.sandbox(await plain.client(plain.grant("run-2")), name="same")
    assert with_other_token.name == "same"


async def test_the_number_of_sandboxes_is_bounded(plain: Serving) -> None:
    client = await plain.client(plain.grant(max_sandboxes=2))
    outcomes = await asyncio.gather(*(plain.sandbox(client) for _ in range(6)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, DaytonaRateLimitError)]
    assert len(refused) >= 4
    assert int(refused[0].headers["Retry-After"]) >= 1
    assert len(await plain.living()) <= 2
    for sandbox in [s async for s in client.list()]:
        await sandbox.delete()
    assert (await plain.sandbox(client)).state == "started"


async def test_without_an_image_there_is_the_hosts_own_system(plain: Serving) -> None:
    client = await plain.client(plain.grant(host_image=False))
    sandbox = await client.create()
    assert (await sandbox.process.exec("echo here")).result == "here\n"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (CreateSandboxFromImageParams(image="alpine:3"), "alpine:3.*--host-image"),
        (CreateSandboxFromSnapshotParams(snapshot="mine"), "mine.*--host-image"),
        (CreateSandboxFromImageParams(image=Image.base("alpine:3").run_commands("true")), "not built here"),
    ],
)
async def test_an_image_that_cannot_be_had_is_refused(plain: Serving, params: Any, said: str) -> None:
    client = await plain.client(plain.grant(host_image=False))
    with pytest.raises(DaytonaError, match=said) as caught:
        await client.create(params)
    assert caught.value.status_code == 400
    assert await plain.living() == []


async def test_a_provider_with_images_gets_the_image(tmp_path: Path) -> None:
    async with serving("null", tmp_path) as served:
        client = await served.client(served.grant(host_image=False))
        sandbox = await served.sandbox(client, image="alpine:3")
        await sandbox.fs.upload_file(b"in memory", "/data/file")
        assert await sandbox.fs.download_file("/data/file") == b"in memory"
        await sandbox.delete()


async def test_a_client_that_goes_away_takes_its_command_with_it(served: Serving) -> None:
    sandbox = await served.sandbox()
    mark = "sleep 4321"
    pending = asyncio.ensure_future(sandbox.process.exec(f"touch /tmp/begun; {mark}"))
    await until(lambda: _succeeds(sandbox, "ls ${VALKYRIE_ROOT:-}/tmp/begun"))
    pending.cancel()
    await asyncio.wait((pending,))
    await until(lambda: _fails(sandbox, "ps ax | grep '[s]leep 4321' | grep -v defunct"))


async def _succeeds(sandbox: Any, command: str) -> bool:
    return bool((await sandbox.process.exec(command)).exit_code == 0)


async def _fails(sandbox: Any, command: str) -> bool:
    return not await _succeeds(sandbox, command)


async def test_deleted_by_its_owner_during_a_command(served: Serving) -> None:
    sandbox = await served.sandbox()
    pending = asyncio.ensure_future(sandbox.process.exec("touch /tmp/begun; sleep 60"))
    await until(lambda: _succeeds(sandbox, "ls ${VALKYRIE_ROOT:-}/tmp/begun"))
    await served.provider.delete_sandbox(sandbox.id)
    with pytest.raises(DaytonaNotFoundError):
        await pending


async def test_the_address_clients_are_told_can_be_another(tmp_path: Path) -> None:
    async with serving("process", tmp_path, public_url="https://tunnel.example/") as served:
        grant = served.grant()
        assert served.server.url == grant.api_url == "https://tunnel.example/api"
        listening = served.server._listener
        assert listening is not None
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {grant.api_key}"}) as client:
            made = (await client.post(f"{listening.url}/api/sandbox", json={})).json()
            assert made["toolboxProxyUrl"] == "https://tunnel.example/toolbox"


async def test_closing_ends_what_is_open_and_leaves_the_sandboxes(tmp_path: Path) -> None:
    async with serving("process", tmp_path) as served:
        sandbox = await served.sandbox()
        await sandbox.process.create_session("s")
        pending = asyncio.ensure_future(sandbox.process.exec("sleep 60"))
        await until(lambda: _succeeds(sandbox, "ps ax | grep '[s]leep 60'"))
        await served.server.close()
        with pytest.raises(DaytonaError):
            await pending
        assert await served.living() == [sandbox.id]
        again = SandboxServer()
        await again.start()
        await again.close()


async def test_a_port_that_is_taken_is_an_error(plain: Serving) -> None:
    port = int(plain.server.url.rsplit(":", 1)[1].split("/")[0])
    with pytest.raises(OSError, match="in use"):
        await SandboxServer(port=port).start()
