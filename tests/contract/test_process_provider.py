import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes import process
from sandboxes.cgroups import Cgroup, CgroupSupport, detect_cgroups
from sandboxes.errors import SandboxNotFoundError, SandboxUnsupportedError
from sandboxes.process import ProcessProvider
from sandboxes.testing import ProviderContract
from sandboxes.testing.base import HEARTBEAT, output_of, wait_for_beats
from sandboxes.types import Command, ImageSource, SandboxCreateRequest


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[ProcessProvider]:
    provider = ProcessProvider(tmp_path / "state")
    yield provider
    await provider.reap({})


class TestProcessProvider(ProviderContract):
    isolates_processes = False
    isolates_network = False
    changes_users = False
    limits_disk = False
    limits_memory = detect_cgroups().memory is not None
    limits_processes = detect_cgroups().pids is not None

    @pytest.fixture
    async def provider(self, provider: ProcessProvider) -> ProcessProvider:
        return provider


class TestProcessProviderWithoutCgroups(TestProcessProvider):
    """An ordinary user's machine: processes are found by the mark in their environment."""

    limits_memory = False
    limits_processes = False

    @pytest.fixture(autouse=True)
    def _no_cgroups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sandboxes.cgroups.detect_cgroups", lambda: CgroupSupport())


async def test_paths_are_moved_into_the_folder(provider: ProcessProvider) -> None:
    sandbox = await provider.create_sandbox(SandboxCreateRequest(env_vars={"WHERE": "/app:/usr/bin"}))
    root = await output_of(sandbox, "printf %s $VALKYRIE_ROOT")
    assert await output_of(sandbox, 'echo "$WHERE"') == f"{root}/app:/usr/bin\n"
    assert await output_of(sandbox, "pwd") == f"{root}/app\n"
    assert (await sandbox.exec("pwd", cwd="/tests")).output == f"{root}/tests\n"
    assert (await sandbox.exec("pwd", cwd="/usr")).output == "/usr\n"
    assert await output_of(sandbox, "cd /tmp && pwd; echo $HOME") == f"{root}/tmp\n{root}/home\n"


async def test_a_working_folder_that_is_not_there_is_126(provider: ProcessProvider) -> None:
    sandbox = await provider.create_sandbox(SandboxCreateRequest())
    assert await sandbox.run(Command.shell("true", cwd="/no/such/folder")) == 126


async def test_what_it_cannot_do_is_refused(provider: ProcessProvider) -> None:
    with pytest.raises(SandboxUnsupportedError, match="image"):
        await provider.create_sandbox(SandboxCreateRequest(source=ImageSource(image="debian")))
    sandbox = await provider.create_sandbox(SandboxCreateRequest())
    with pytest.raises(SandboxUnsupportedError, match="someone"):
        await sandbox.run(Command.shell("true", user="someone"))
    assert provider.capabilities().isolation.startswith("none")


async def test_another_process_finds_and_ends_what_was_left(tmp_path: Path) -> None:
    left_behind = f"""
import asyncio, os
from pathlib import Path
from sandboxes.process import ProcessProvider
from sandboxes.types import Command, SandboxCreateRequest

async def main():
    provider = ProcessProvider(Path({str(tmp_path)!r}))
    sandbox = await provider.create_sandbox(SandboxCreateRequest(labels={{"run": "lost"}}))
    await sandbox.run(Command.shell({HEARTBEAT!r} + " > /dev/null 2>&1 &"))
    os._exit(9)

asyncio.run(main())
"""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", left_behind)
    assert await child.wait() == 9
    provider = ProcessProvider(tmp_path)
    (sandbox,) = [sandbox async for sandbox in provider.list_sandboxes()]
    await wait_for_beats(sandbox)
    assert await provider.reap({"run": "other"}) == 0
    assert await provider.reap({"run": "lost"}) == 1
    assert list((tmp_path / "process").iterdir()) == []
    assert sandbox.id not in "".join(Cgroup.find())
    assert process.kill_marked(f"{process.SANDBOX_MARK}={sandbox.id}")
    with pytest.raises(SandboxNotFoundError):
        await sandbox.exec("true")
