"""What containers are shown of ours: as volumes of the engine, which tell no path of this machine."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sandboxes.docker import DockerProvider
from sandboxes.docker import shared_resources as volumes_module
from sandboxes.docker.shared_resources import FolderVolumes
from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.testing.base import output_of
from sandboxes.types import Command, Mount, SandboxCreateRequest
from tests.docker_engine import PrivateEngine

pytestmark = pytest.mark.slow

LAYER = "/opt/valkyrie/agent"
LISTS = "cat /proc/self/mountinfo /proc/self/mounts /proc/1/mountinfo /proc/self/mountstats"


@pytest.fixture
async def provider(engine: PrivateEngine, tmp_path: Path) -> AsyncIterator[DockerProvider]:
    async with DockerProvider(tmp_path / "state") as provider:
        yield provider
        await provider.reap({})
    assert engine.left() == []


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    folder = tmp_path / "home-of-a-user" / "layer"
    (folder / "bin" / "__pycache__").mkdir(parents=True)
    (folder / "bin" / "agent").write_text("#!/bin/sh\necho honest\n")
    (folder / "bin" / "agent").chmod(0o755)
    (folder / "bin" / "__pycache__" / "x.pyc").write_bytes(b"compiled")
    (folder / "first").symlink_to("bin/agent")
    (folder / "second").symlink_to("first")
    return folder


def shows(layer: Path) -> SandboxCreateRequest:
    return SandboxCreateRequest(mounts=(Mount(source=str(layer), target=LAYER),), network="none")


def volumes(engine: PrivateEngine) -> dict[str, dict[str, str]]:
    names = engine.docker("volume", "ls", "-q", "--filter", "label=valkyrie.kind=folder").split()
    found = json.loads(engine.docker("volume", "inspect", *names)) if names else []
    return {one["Name"]: one["Labels"] for one in found}


async def runs_agent(sandbox: Sandbox) -> bool:
    return await output_of(sandbox, f"{LAYER}/second") == "honest\n"


async def test_no_list_of_mounts_tells_where_the_host_keeps_things(
    provider: DockerProvider, layer: Path, tmp_path: Path
) -> None:
    sandbox = await provider.create_sandbox(shows(layer))
    assert await runs_agent(sandbox)
    assert await output_of(sandbox, f"cat {LAYER}/bin/__pycache__/x.pyc; readlink {LAYER}/second") == (
        "compiledfirst\n"
    )
    found = await output_of(sandbox, LISTS)
    assert LAYER in found and "/.valkyrie" in found
    for secret in (str(tmp_path), tmp_path.name, "home-of-a-user", str(Path.home() / ".local")):
        assert secret not in found, found
    tampering = f"echo evil > {LAYER}/bin/agent; rm -rf {LAYER}/first; mount -o remount,rw {LAYER}; true"
    for user in (None, "nobody"):
        await sandbox.run(Command.shell(f"({tampering}) 2>/dev/null", user=user, timeout=60))
    assert await runs_agent(await provider.create_sandbox(shows(layer)))


async def test_a_volume_is_filled_once_for_many(engine: PrivateEngine, layer: Path, tmp_path: Path) -> None:
    # Two processes of one data folder, and one of another.
    async with AsyncExitStack() as held:
        places = [tmp_path / name for name in ("state", "state", "other")]
        providers = [await held.enter_async_context(DockerProvider(place)) for place in places]
        made = await asyncio.gather(*(one.create_sandbox(shows(layer)) for one in providers * 2))
        marks = {name: labels["valkyrie.made"] for name, labels in volumes(engine).items()}
        assert len(marks) == 2  # the layer, and our own programs
        assert all([await runs_agent(sandbox) for sandbox in made])
        await asyncio.gather(*(provider.close() for provider in providers[:2]))
        assert await runs_agent(await providers[2].create_sandbox(shows(layer)))
        # What is in use stays, and is not filled again.
        assert {name: labels["valkyrie.made"] for name, labels in volumes(engine).items()} == marks
        await providers[2].reap({})
        assert volumes(engine) == {}
        assert await runs_agent(await providers[2].create_sandbox(shows(layer)))
        await providers[2].reap({})
    assert engine.left() == []


@pytest.mark.parametrize("is_seen_here", [True, False])
async def test_content_is_verified_when_it_is_used(
    provider: DockerProvider,
    engine: PrivateEngine,
    layer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_seen_here: bool,
) -> None:
    if not is_seen_here:  # as for a user who may speak to the engine and is not root
        monkeypatch.setattr(volumes_module.os, "access", lambda *_: False)
    used = await provider.create_sandbox(shows(layer))
    assert await runs_agent(used)
    name = next(name for name in volumes(engine) if "/bin/agent" in _content(engine, name))
    place = Path(json.loads(engine.docker("volume", "inspect", name))[0]["Mountpoint"])
    (place / "bin" / "agent").write_text("#!/bin/sh\necho evil\n")
    async with DockerProvider(tmp_path / "state") as other:
        with pytest.raises(SandboxError, match=f"docker volume rm {name}"):
            await other.create_sandbox(shows(layer))
        await provider.delete_sandbox(used.id)
        # Nobody has it: it is filled anew.
        assert await runs_agent(await other.create_sandbox(shows(layer)))


def _content(engine: PrivateEngine, name: str) -> str:
    place = Path(json.loads(engine.docker("volume", "inspect", name))[0]["Mountpoint"])
    return "\n".join(map(str, place.rglob("*")))


async def test_a_volume_that_goes_in_between_is_made_again(
    provider: DockerProvider, engine: PrivateEngine, layer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, gone = FolderVolumes.mount, []

    async def removed_at_once(self: FolderVolumes, folder: Path, target: str, image: str) -> object:
        mount = await original(self, folder, target, image)
        if len(gone) < 3:
            gone.append(engine.docker("volume", "rm", mount["Source"]))
        return mount

    monkeypatch.setattr(FolderVolumes, "mount", removed_at_once)
    assert await runs_agent(await provider.create_sandbox(shows(layer)))
    assert len(gone) == 3


FILL = """
import asyncio, os, sys
from pathlib import Path
from sandboxes.docker import DockerProvider, files
from sandboxes.types import Mount, SandboxCreateRequest

async def stop(*_, **__):
    print("now", flush=True)
    await asyncio.Event().wait()

async def main():
    files.put_archive = stop
    mounts = (Mount(source=sys.argv[2], target="/opt/valkyrie/agent"),)
    request = SandboxCreateRequest(mounts=mounts, network="none")
    await DockerProvider(Path(sys.argv[1])).create_sandbox(request)

asyncio.run(main())
"""


async def test_a_process_killed_while_it_fills_leaves_no_trouble(
    engine: PrivateEngine, layer: Path, tmp_path: Path
) -> None:
    for attempt in range(2):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FILL, str(tmp_path / "state"), str(layer), stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert (await child.stdout.readline()).strip() == b"now"
        child.send_signal(signal.SIGKILL)
        await child.wait()
        assert engine.left() != []
        async with DockerProvider(tmp_path / "state") as provider:
            if attempt:
                await provider.reap({"Home": "any"})
                assert engine.left() == []
            assert await runs_agent(await provider.create_sandbox(shows(layer)))
            await provider.reap({})
        assert engine.left() == []


async def test_a_process_of_another_data_folder_that_was_killed_is_not_waited_for_for_ever(
    engine: PrivateEngine, layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FILL, str(tmp_path / "other"), str(layer), stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert (await child.stdout.readline()).strip() == b"now"
    child.send_signal(signal.SIGKILL)
    await child.wait()
    monkeypatch.setattr(volumes_module, "_STALE_SECONDS", 0.5)
    async with DockerProvider(tmp_path / "state") as provider:
        assert await runs_agent(await provider.create_sandbox(shows(layer)))
        await provider.reap({})
    assert engine.left() == []
