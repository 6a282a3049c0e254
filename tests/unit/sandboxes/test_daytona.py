"""What the Daytona provider promises beyond the contract."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pexpect
import pytest

from sandboxes.compose import ComposeSandbox
from sandboxes.daytona import DaytonaSandbox, DaytonaSandboxProvider
from sandboxes.errors import SandboxCommandError, SandboxError, SandboxUnsupportedError
from sandboxes.process import ProcessProvider
from sandboxes.server import SandboxServer
from sandboxes.testing.base import HEARTBEAT, assert_no_beats, output_of
from sandboxes.types import (
    Command,
    ComposeSource,
    DaytonaProviderConfig,
    ExecResult,
    HostSource,
    ImageSource,
    SandboxCreateRequest,
    SandboxQuery,
)

NOWHERE = DaytonaProviderConfig(
    DAYTONA_API_KEY="key-nobody-sees", DAYTONA_API_URL="http://127.0.0.1:9/api", DAYTONA_TARGET="eu"
)


@pytest.fixture
async def config(tmp_path: Path) -> AsyncIterator[DaytonaProviderConfig]:
    behind = ProcessProvider(tmp_path / "state")
    server = SandboxServer()
    await server.start()
    grant = server.grant(behind, labels={"grant": "unit"})
    yield DaytonaProviderConfig(
        DAYTONA_API_KEY=grant.api_key, DAYTONA_API_URL=grant.api_url, DAYTONA_TARGET=grant.target
    )
    await server.close()
    await behind.reap({})


@pytest.fixture
async def provider(config: DaytonaProviderConfig) -> AsyncIterator[DaytonaSandboxProvider]:
    async with DaytonaSandboxProvider(config) as provider:
        yield provider


async def made(provider: DaytonaSandboxProvider, **fields: Any) -> DaytonaSandbox:
    sandbox = await provider.create_sandbox(SandboxCreateRequest(**fields))
    assert isinstance(sandbox, DaytonaSandbox)
    return sandbox


async def test_services_of_every_age_find_what_they_use(provider: DaytonaSandboxProvider) -> None:
    sandbox = await made(provider, labels={"Id": "6e3f"}, name="mine")
    found: Any = await provider.get_sandbox(sandbox.id)
    assert found._sandbox.labels["Id"] == "6e3f"
    assert found.labels["Id"] == "6e3f"
    assert found.name == "mine"
    # As one writes for the SDK's own object.
    await found.fs.upload_file(b"hello", "/app/x")
    answer = await found.process.exec("cat x", cwd="/app")
    assert (answer.exit_code, answer.result) == (0, "hello")
    assert (await found.get_work_dir()).startswith("/")
    assert provider._daytona is not None
    with pytest.raises(AttributeError):
        _ = found.no_such_thing


async def test_variables_reach_the_command_as_they_are(provider: DaytonaSandboxProvider) -> None:
    sandbox = await made(provider)
    value = "a'b\"c $HOME `id` \\ \n end é"
    pieces = [piece async for piece in sandbox.command('printf %s "$ODD"', env_vars={"ODD": value})]
    assert "".join(pieces) == value


@pytest.mark.parametrize("name", ["LANG", "TERM", "A B", "1A", "A;id", ""])
async def test_some_names_are_refused(provider: DaytonaSandboxProvider, name: str) -> None:
    sandbox = await made(provider)
    with pytest.raises(SandboxError, match="environment variable"):
        async for _ in sandbox.command("true", env_vars={name: "x"}):
            pass


async def test_a_timeout_bounds_the_whole_command(provider: DaytonaSandboxProvider) -> None:
    sandbox = await made(provider)
    with pytest.raises(SandboxCommandError) as caught:
        async for _ in sandbox.command(f"true && sleep 0.2 && {HEARTBEAT}", timeout=0.5):
            pass
    assert caught.value.exit_code == 124
    await assert_no_beats(sandbox)


async def test_output_comes_in_the_order_it_was_written(provider: DaytonaSandboxProvider) -> None:
    sandbox = await made(provider)
    script = "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); echo $i >&2; i=$((i+1)); done"
    assert (await sandbox.exec(script)).output.split() == [str(number) for number in range(200)]


async def test_an_error_of_the_sink_is_the_callers_own(provider: DaytonaSandboxProvider) -> None:
    sandbox = await made(provider)

    def full(_stream: object, _text: str) -> None:
        raise LookupError("no more room")

    with pytest.raises(LookupError, match="no more room"):
        await sandbox.run(Command.shell(f"echo started; {HEARTBEAT}"), full)
    await assert_no_beats(sandbox)


async def test_another_user_is_refused_plainly(provider: DaytonaSandboxProvider) -> None:
    sandbox = await made(provider)
    with pytest.raises(SandboxUnsupportedError, match="someone"):
        await sandbox.run(Command.shell("true", user="someone"))


async def commands_in_sessions(sandbox: DaytonaSandbox) -> list[int]:
    return sorted(len(session.commands or []) for session in await sandbox.process.list_sessions())


async def test_a_session_serves_one_command_after_another(config: DaytonaProviderConfig) -> None:
    async with DaytonaSandboxProvider(config) as provider:
        sandbox = await made(provider)
        await sandbox.exec("export A=1; cd /; exec 2>/dev/null", cwd="/tmp")
        assert (await sandbox.exec("echo [$A]; echo err >&2; exit 3")) == ExecResult(3, "[]\nerr\n")
        with pytest.raises(SandboxCommandError):
            _ = [piece async for piece in sandbox.command("exit 4")]
        assert await commands_in_sessions(sandbox) == [3]
        await asyncio.gather(*(sandbox.exec("sleep 0.3") for _ in range(6)))
        assert len(await commands_in_sessions(sandbox)) == 4
    async with DaytonaSandboxProvider(config) as provider:
        found = await provider.get_sandbox(sandbox.id)
        assert await commands_in_sessions(found) == []


async def test_what_a_command_leaves_behind_keeps_its_session(config: DaytonaProviderConfig) -> None:
    async with DaytonaSandboxProvider(config) as provider:
        sandbox = await made(provider)
        await sandbox.exec(f"({HEARTBEAT}) & (sleep 0.1; echo late; sleep 60) &")
        assert (await sandbox.exec("sleep 0.5; echo mine")).output == "mine\n"
        assert await commands_in_sessions(sandbox) == [1, 1]
    async with DaytonaSandboxProvider(config) as provider:
        found = await provider.get_sandbox(sandbox.id)
        assert await commands_in_sessions(found) == [1]
        with pytest.raises(AssertionError):
            await assert_no_beats(found)


async def test_a_waiting_session_that_is_gone_is_replaced(provider: DaytonaSandboxProvider) -> None:
    sandbox = await made(provider)
    await sandbox.exec("true")
    (session,) = await sandbox.process.list_sessions()
    await sandbox.process.delete_session(session.session_id)
    assert (await sandbox.exec("echo here")).output == "here\n"
    await sandbox.exec("head -c 2000000 /dev/zero | tr '\\0' x")
    assert await sandbox.process.list_sessions() == [], "one whose output fills the other side is not kept"


async def test_a_session_ended_from_elsewhere_is_no_missing_file(provider: DaytonaSandboxProvider) -> None:
    sandbox = await made(provider)

    async def end_it() -> None:
        async for piece in sandbox.command("echo started; sleep 60"):
            if "started" in piece:
                (session,) = await sandbox.process.list_sessions()
                await sandbox.process.delete_session(session.session_id)

    with pytest.raises(SandboxError, match="session") as caught:
        await end_it()
    assert type(caught.value) is SandboxError
    assert await output_of(sandbox, "echo usable") == "usable\n"


async def test_an_empty_folder_comes_out_empty(provider: DaytonaSandboxProvider, tmp_path: Path) -> None:
    sandbox = await made(provider)
    await sandbox.clear_folder("/app/empty")
    report = await sandbox.download_folder("/app/empty", tmp_path / "out")
    assert (report.files, report.skipped_count, list((tmp_path / "out").iterdir())) == (0, 0, [])


async def test_egress_rules_that_cannot_be_enforced_are_refused(provider: DaytonaSandboxProvider) -> None:
    sandbox = await made(provider)
    with pytest.raises(SandboxError, match="network"):
        await sandbox.modify_egress_rules(["pypi.org"])


async def test_listing_goes_through_all_pages(provider: DaytonaSandboxProvider) -> None:
    ids = {(await made(provider, labels={"n": str(number)})).id for number in range(5)}
    assert {each.id async for each in provider.list_sandboxes(SandboxQuery(page_size=2))} == ids
    past, future = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)
    assert [each async for each in provider.list_sandboxes(SandboxQuery(created_at_lte=past))] == []
    assert len([each async for each in provider.list_sandboxes(SandboxQuery(created_at_lte=future))]) == 5


async def test_a_name_in_use_is_adopted_by_its_owner_only(provider: DaytonaSandboxProvider) -> None:
    first = await made(provider, name="taken", labels={"run": "1"})
    again = await made(provider, name="taken", labels={"run": "1"})
    assert again.id == first.id
    with pytest.raises(SandboxError, match="taken"):
        await made(provider, name="taken", labels={"run": "2"})
    assert [each.id async for each in provider.list_sandboxes()] == [first.id]


async def test_a_refused_request_leaves_nothing(provider: DaytonaSandboxProvider) -> None:
    with pytest.raises(SandboxError):
        await made(provider, source=ImageSource(image="debian:12"))
    assert [each async for each in provider.list_sandboxes()] == []


async def test_a_compose_source_gives_its_service(provider: DaytonaSandboxProvider) -> None:
    source = ComposeSource(outer=HostSource(), service="web", compose_command="echo compose")
    service = await provider.create_sandbox(SandboxCreateRequest(source=source, labels={"Id": "r"}))
    assert isinstance(service, ComposeSandbox)
    assert isinstance(service.outer, DaytonaSandbox)
    assert getattr(service, "_sandbox").labels["Id"] == "r"  # noqa: B009 - as services write it
    assert (await service.exec("true", cwd="/app")).output.startswith("compose exec -T -w ")
    await provider.delete_sandbox(service.id)
    assert service.state == "deleted"


async def test_a_wrong_key_is_told_as_one(config: DaytonaProviderConfig) -> None:
    wrong = config.model_copy(update={"DAYTONA_API_KEY": "wrong-and-secret"})
    async with DaytonaSandboxProvider(wrong) as provider:
        with pytest.raises(SandboxError, match="DAYTONA_API_KEY") as caught:
            await provider.get_sandbox("any")
    assert "wrong-and-secret" not in str(caught.value)


def test_capabilities_need_neither_network_nor_sdk() -> None:
    provider = DaytonaSandboxProvider(NOWHERE)
    capabilities = provider.capabilities()
    assert capabilities.images
    assert capabilities.problem is None
    assert {"none", "public", "allowlist"} == capabilities.networks
    assert "key-nobody-sees" not in provider.admission_pool_id
    assert "_daytona" not in vars(provider)


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_importing_it_does_not_import_the_sdk() -> None:
    program = (
        "import sys, sandboxes.daytona, sandboxes.compose; print(*{'daytona', 'aiohttp'} & {*sys.modules})"
    )
    assert python(program) == "\n"


def test_without_the_sdk_the_way_to_it_is_named() -> None:
    program = f"""
import asyncio, sys
sys.modules["daytona"] = None
from sandboxes.types import DaytonaProviderConfig
from sandboxes.daytona import DaytonaSandboxProvider
provider = DaytonaSandboxProvider(DaytonaProviderConfig(**{NOWHERE.model_dump()!r}))
print(provider.capabilities().problem)
try:
    asyncio.run(provider.create_sandbox(None))
except Exception as error:
    print(type(error).__name__, error)
"""
    problem, raised = python(program).splitlines()
    assert "-m pip install 'daytona>=" in problem
    assert raised == f"SandboxUnsupportedError {problem}"


@pytest.mark.slow
async def test_nothing_is_left_open(config: DaytonaProviderConfig) -> None:
    program = f"""
import asyncio
from sandboxes.types import DaytonaProviderConfig

async def main():
    provider = DaytonaProviderConfig(**{config.model_dump()!r}).create_provider()
    async with provider:
        from sandboxes.types import SandboxCreateRequest
        sandbox = await provider.create_sandbox(SandboxCreateRequest())
        print((await sandbox.exec("echo done")).output, end="")
        await provider.delete_sandbox(sandbox.id)

asyncio.run(main())
"""
    assert await asyncio.to_thread(python, program) == "done\n"


async def test_a_shell_on_this_terminal(
    provider: DaytonaSandboxProvider, config: DaytonaProviderConfig
) -> None:
    sandbox = await made(provider)
    root = await output_of(sandbox, "printf %s $VALKYRIE_ROOT")
    argv = sandbox.shell_argv("/tests")
    assert config.DAYTONA_API_KEY not in " ".join(argv)

    def talk() -> tuple[str, int | None]:
        environment = {**os.environ, "DAYTONA_API_KEY": config.DAYTONA_API_KEY}
        child = pexpect.spawn(argv[0], argv[1:], env=environment, encoding="utf-8", timeout=30)
        child.sendline("echo in-$((1+1)) $PWD; exit 7")
        child.expect(r"in-2 (\S+)\s")
        where = child.match[1]
        child.expect(pexpect.EOF)
        child.close()
        return where, child.exitstatus

    assert await asyncio.to_thread(talk) == (f"{root}/tests", 7)
