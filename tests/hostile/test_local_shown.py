"""Folders of the host that sandboxes see (agents' layers, doors to models): none can change them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sandboxes.local.provider import LocalProvider
from sandboxes.testing.base import Capture
from sandboxes.types import Command, Mount, SandboxCreateRequest
from tests.hostile.test_local_hostile import USERS
from tests.hostile.test_local_hostile import provider as provider
from valkyrie.executor.proxies import ModelProxies, proxy_folder
from valkyrie.trial.context import PROXY

LAYER = "/opt/valkyrie/agent"
TAMPERING = """
cd /opt/valkyrie/agent || exit 1
exec 2>/dev/null
echo evil > bin/agent; echo evil > planted; echo evil >> bin/agent
rm -f bin/agent door; mv bin gone; chmod 777 bin/agent bin . door; chown nobody bin/agent door
touch bin/agent
ln bin/agent /tmp/agent && echo evil > /tmp/agent
mount -o remount,rw /opt/valkyrie/agent; mount -o remount,bind,rw /opt/valkyrie/agent
mount --bind /tmp /opt/valkyrie/agent; umount /opt/valkyrie/agent; umount -l /opt/valkyrie/agent
unshare -rm sh -c 'mount -o remount,bind,rw /opt/valkyrie/agent; echo evil > /opt/valkyrie/agent/bin/agent'
echo evil > bin/agent; truncate -s 0 bin/agent; rm -rf -- * .[a-z]*
mv /opt/valkyrie/agent /opt/elsewhere; rm -rf /opt/valkyrie
true
"""


def everything(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    found = {}
    for path in (folder, *folder.rglob("*")):
        entry = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = entry.st_mode, entry.st_uid, entry.st_mtime_ns, content
    return found


@pytest.mark.parametrize("sockets", [False, True])
@pytest.mark.parametrize("user", USERS)
async def test_what_is_shown_cannot_be_tampered_with(
    provider: LocalProvider, tmp_path: Path, user: str | None, sockets: bool
) -> None:
    layer = tmp_path / "layer"
    (layer / "bin").mkdir(parents=True)
    (layer / "bin" / "agent").write_text("#!/bin/sh\necho honest\n")
    (layer / "bin" / "agent").chmod(0o755)
    heard = asyncio.Queue[None]()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(None)
        writer.close()

    async with await asyncio.start_unix_server(answer, layer / "door"):
        (layer / "door").chmod(0o666)
        before = everything(layer)
        shown = Mount(source=str(layer), target=LAYER, sockets=sockets)
        request = SandboxCreateRequest(mounts=(shown,), network="none")
        attacker, other = [await provider.create_sandbox(request) for _ in range(2)]
        await attacker.run(Command(("/bin/sh", "-c", TAMPERING), user=user, timeout=30))
        assert everything(layer) == before
        said: list[str] = []
        command = Command((f"{LAYER}/bin/agent",), user=user, timeout=30)
        assert await other.run(command, lambda _, text: said.append(text)) == 0
        assert "".join(said) == "honest\n"
        if not sockets:
            return
        speak = f"import socket; socket.socket(socket.AF_UNIX).connect('{LAYER}/door')"
        assert await other.run(Command(("python3", "-c", speak), user=user, timeout=60)) == 0
        await asyncio.wait_for(heard.get(), 60)


async def test_a_sandbox_sees_only_what_it_was_shown(provider: LocalProvider, tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of-{name}-{os.getpid()}").touch()
    one = SandboxCreateRequest(mounts=(Mount(source=str(tmp_path / "mine"), target=LAYER),), network="none")
    two = SandboxCreateRequest(mounts=(Mount(source=str(tmp_path / "theirs"), target=LAYER),), network="none")
    sandbox = await provider.create_sandbox(one)
    await provider.create_sandbox(two)
    found = await sandbox.exec(f"ls {LAYER}; find / -xdev -name 'of-theirs-*'; ls {LAYER}/..", timeout=60)
    assert f"of-mine-{os.getpid()}" in found.output and "theirs" not in found.output


LISTS = "cat /proc/self/mountinfo /proc/self/mounts /proc/1/mountinfo /proc/self/mountstats"


async def test_no_list_of_mounts_tells_where_the_host_keeps_things(tmp_path: Path) -> None:
    folder = tmp_path / "home-of-a-user"
    for name in ("layer", "view"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text(name)
    doors = ModelProxies(proxy_folder(folder / "doors"))
    door = doors.to("http://127.0.0.1:9")
    assert door is not None
    async with LocalProvider(folder / "state") as provider, door.opened() as opened:
        mounts = (
            Mount(source=str(folder / "layer"), target=LAYER),
            Mount(source=str(opened), target=PROXY, sockets=True),
            Mount(source=str(folder / "view"), target="/workspace", copy_on_write=True),
        )
        request = SandboxCreateRequest(mounts=mounts, separate_folders=("/tests",), network="none")
        sandbox = await provider.create_sandbox(request)
        for user in USERS:
            said = Capture()
            await sandbox.run(Command(("/bin/sh", "-c", LISTS), user=user, timeout=60), said)
            found = said.stdout
            assert LAYER in found and PROXY in found
            for secret in (str(folder), folder.name, tmp_path.name, str(Path.home())):
                assert secret not in found.replace(" /root ", " "), found
        assert (await sandbox.exec(f"cat {LAYER}/file", timeout=60)).output == "layer"
        if sandbox.views:  # not for an ordinary user
            assert (await sandbox.exec("cat /workspace/file", timeout=60)).output == "view"
        # What lies beside the layer in the file system it is seen in cannot be filled from inside.
        script = f"for at in /mnt /sys /run; do echo evil > $at/planted; done 2>/dev/null; ls {LAYER}"
        assert (await sandbox.exec(script, timeout=60)).output.split() == ["file"]
    await doors.clear()
