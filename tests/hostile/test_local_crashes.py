"""Whatever of ours is killed, no sandbox outlives it, and no stranger is ever signalled."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxes.errors import SandboxConnectionError, SandboxDiedError, SandboxError, SandboxNotFoundError
from sandboxes.local import sandbox as records
from sandboxes.local.processes import ProcessIdentity
from sandboxes.local.provider import LocalProvider
from sandboxes.local.sandbox import LocalSandbox
from sandboxes.types import Command, SandboxCreateRequest, SandboxLimits, SandboxQuery
from tests.live_folders import control_groups

ROOT = Path(__file__).parents[2]
LABELS = {"run": "crash"}

ENGINE = """
import asyncio, sys
from pathlib import Path
from sandboxes.local.provider import LocalProvider
from sandboxes.types import SandboxCreateRequest, SandboxLimits

async def main():
    provider = LocalProvider(Path(sys.argv[1]))
    limits = SandboxLimits(memory_mb=64)
    request = SandboxCreateRequest(network="none", labels={"run": "crash"}, limits=limits)
    made = [await provider.create_sandbox(request) for _ in range(3)]
    for sandbox in made:
        await sandbox.exec(f"exec > /dev/null 2>&1; setsid sleep {sys.argv[2]} & sleep {sys.argv[2]} &")
    print(made[0].id, provider._keeper.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def sleepers(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == f"sleep\0{mark}\0".encode():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def start_engine(state: Path, mark: str) -> tuple[subprocess.Popen[str], str, int]:
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(state), mark],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None
    sandbox_id, keeper = engine.stdout.readline().split()
    return engine, sandbox_id, int(keeper)


def groups_of(state: Path) -> list[str]:
    prefix = LocalProvider(state)._cgroup_prefix
    return [str(path) for path in control_groups() if path.name.startswith(prefix)]


async def test_killing_the_engine_ends_its_sandboxes(tmp_path: Path) -> None:
    state, mark = tmp_path / "state", f"6{os.getpid()}1"
    engine, _, _ = await asyncio.to_thread(start_engine, state, mark)
    with engine:
        await eventually(lambda: len(sleepers(mark)) == 6)
        engine.kill()
    await eventually(lambda: not sleepers(mark))
    await eventually(lambda: not list(state.iterdir()) and not groups_of(state))


async def test_killing_engine_and_keeper_together_ends_their_sandboxes(tmp_path: Path) -> None:
    state, mark = tmp_path / "state", f"6{os.getpid()}2"
    engine, _, keeper = await asyncio.to_thread(start_engine, state, mark)
    with engine:
        engine.send_signal(signal.SIGSTOP)
        os.kill(keeper, signal.SIGKILL)
        engine.kill()
    await eventually(lambda: not sleepers(mark))
    assert len(list(state.iterdir())) == 3
    async with LocalProvider(state) as successor:
        assert [sandbox async for sandbox in successor.list_sandboxes()] == []
        assert await successor.reap(LABELS) == 3
        assert await successor.reap(LABELS) == 0
    assert list(state.iterdir()) == []
    assert groups_of(state) == []


async def test_another_process_sees_and_can_end_a_live_sandbox(tmp_path: Path) -> None:
    state, mark = tmp_path / "state", f"6{os.getpid()}3"
    engine, sandbox_id, _ = await asyncio.to_thread(start_engine, state, mark)
    try:
        async with LocalProvider(state) as other:
            query = SandboxQuery(labels=LABELS)
            assert len([sandbox async for sandbox in other.list_sandboxes(query)]) == 3
            found = await other.get_sandbox(sandbox_id)
            assert found.state == "started"
            with pytest.raises(SandboxConnectionError):
                await found.exec("true")
            await other.delete_sandbox(sandbox_id)
            assert found.state == "deleted"
            await eventually(lambda: len(sleepers(mark)) == 4)
            assert await other.reap(LABELS) == 2
        assert sleepers(mark) == []
    finally:
        with engine:
            engine.kill()
    await eventually(lambda: not list(state.iterdir()))


async def test_a_recycled_pid_is_never_signalled(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        now = ProcessIdentity.of(stranger.pid)
        assert now is not None
        for number, mark in enumerate(
            (
                {"pid": now.pid, "start": now.start - 1, "boot": now.boot},
                {"pid": now.pid, "start": now.start, "boot": "another-boot"},
            )
        ):
            record = records.SandboxRecord(
                f"old{number}", "old", LABELS, 0.0, "valkyrie-none", ProcessIdentity(**mark)
            )
            text = record.opening() + json.dumps({"first": mark}) + "\n"
            (state / f"old{number}{records.RECORD_SUFFIX}").write_text(text)
        (state / f"torn{records.RECORD_SUFFIX}").write_text('{"id": "to')
        async with LocalProvider(state) as provider:
            assert [sandbox async for sandbox in provider.list_sandboxes()] == []
            with pytest.raises(SandboxNotFoundError):
                await provider.get_sandbox("old0")
            await provider.delete_sandbox("old0")
            assert await provider.reap(LABELS) == 2
        assert list(state.iterdir()) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def make_with_sleeper(provider: LocalProvider, mark: str) -> LocalSandbox:
    sandbox = await provider.create_sandbox(
        SandboxCreateRequest(network="none", limits=SandboxLimits(memory_mb=64))
    )
    assert isinstance(sandbox, LocalSandbox)
    await sandbox.exec(f"setsid sleep {mark} > /dev/null 2>&1 &")
    await eventually(lambda: sleepers(mark) != [])
    return sandbox


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


@pytest.mark.parametrize("victim", ["first process", "bubblewrap", "warden"])
async def test_the_loss_of_one_sandbox_is_noticed_and_whole(tmp_path: Path, victim: str) -> None:
    mark = f"6{os.getpid()}4"
    async with LocalProvider(tmp_path / "state") as provider:
        sandbox, other = (
            await make_with_sleeper(provider, mark),
            await make_with_sleeper(provider, mark + "9"),
        )
        begun = asyncio.Event()
        command = Command.shell("echo begun; sleep 60")
        waiting = asyncio.create_task(sandbox.run(command, lambda _stream, _text: begun.set()))
        await begun.wait()
        pid = sandbox.first_pid
        for _ in range(["first process", "bubblewrap", "warden"].index(victim)):
            pid = parent_of(pid)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxDiedError) as died:
            async with asyncio.timeout(60):
                await waiting
        assert not died.value.outside
        assert sandbox.state == "deleted"
        for use in (sandbox.exec("true"), sandbox.download_file("/etc/hosts"), sandbox.kill_all()):
            with pytest.raises(SandboxDiedError) as died:
                await use
            assert not died.value.outside
        await eventually(lambda: not sleepers(mark))
        assert (await other.exec("echo fine")).output == "fine\n"
        await provider.delete_sandbox(sandbox.id)
        assert len(list((tmp_path / "state").iterdir())) == 1
    assert groups_of(tmp_path / "state") == []


async def test_an_operator_who_ends_a_sandbox_is_outside(tmp_path: Path) -> None:
    mark = f"6{os.getpid()}6"
    async with LocalProvider(tmp_path / "state") as provider, LocalProvider(tmp_path / "state") as other:
        sandbox = await make_with_sleeper(provider, mark)
        begun = asyncio.Event()
        command = Command.shell("echo begun; sleep 60")
        waiting = asyncio.create_task(sandbox.run(command, lambda _stream, _text: begun.set()))
        await begun.wait()
        await other.delete_sandbox(sandbox.id)
        with pytest.raises(SandboxDiedError) as died:
            async with asyncio.timeout(60):
                await waiting
        assert died.value.outside
    assert list((tmp_path / "state").iterdir()) == []


async def test_an_agent_that_uses_up_its_memory_is_inside(tmp_path: Path) -> None:
    async with LocalProvider(tmp_path / "state") as provider:
        if not provider.capabilities().enforcement["memory"].startswith("cgroup"):
            pytest.skip("memory is not limited by group here")
        folders = tuple(f"/room{number}" for number in range(4))
        request = SandboxCreateRequest(
            network="none", limits=SandboxLimits(memory_mb=48), separate_folders=folders, labels=LABELS
        )
        sandbox = await provider.create_sandbox(request)
        fill = "for room in /room0 /room1 /room2 /room3; do head -c 36m /dev/zero > $room/x; done"
        try:
            # Files outlive those who wrote them: what is killed for them does not help.
            for _ in range(20):
                await sandbox.run(Command.shell(fill, timeout=30))
        except SandboxDiedError as died:
            assert not died.outside
        except SandboxError:
            pass  # no room for another process: the sandbox lives, and nothing runs in it


async def test_the_loss_of_the_keeper_is_noticed_and_mended(tmp_path: Path) -> None:
    mark = f"6{os.getpid()}5"
    async with LocalProvider(tmp_path / "state") as provider:
        sandbox = await make_with_sleeper(provider, mark)
        assert provider._keeper is not None
        waiting = asyncio.create_task(sandbox.exec("sleep 60"))
        os.kill(provider._keeper.pid, signal.SIGKILL)
        await eventually(lambda: not sleepers(mark))
        for use in (waiting, sandbox.exec("sleep 60"), sandbox.kill_all(), sandbox.changes()):
            with pytest.raises(SandboxDiedError) as died:
                async with asyncio.timeout(60):
                    await use
            assert died.value.outside
        await provider.delete_sandbox(sandbox.id)
        again = await make_with_sleeper(provider, mark)
        assert (await again.exec("echo fine")).output == "fine\n"
        assert [record.id for record in records.load_records(tmp_path / "state")] == [again.id]
    assert list((tmp_path / "state").iterdir()) == []
    assert groups_of(tmp_path / "state") == []
    assert sleepers(mark) == []


async def test_cancelling_anywhere_leaves_nothing(tmp_path: Path) -> None:
    mark = f"6{os.getpid()}6"
    async with LocalProvider(tmp_path / "state") as provider:
        request = SandboxCreateRequest(network="none", limits=SandboxLimits(memory_mb=64))
        await provider.delete_sandbox((await provider.create_sandbox(request)).id)

        async def cycle() -> None:
            sandbox = await provider.create_sandbox(request)
            try:
                await sandbox.exec(f"sleep {mark} & sleep {mark}")
            finally:
                await provider.delete_sandbox(sandbox.id)

        for number in range(25):
            task = asyncio.create_task(cycle())
            await asyncio.sleep(number * 0.001)
            task.cancel()
            await asyncio.wait((task,))
            assert list((tmp_path / "state").iterdir()) == []
        assert sleepers(mark) == []
        assert groups_of(tmp_path / "state") == []


FEW_FILES = """
import asyncio, resource, sys
from pathlib import Path
from sandboxes.errors import SandboxCapacityError
from sandboxes.local.provider import LocalProvider
from sandboxes.types import SandboxCreateRequest, SandboxLimits

async def main():
    request = SandboxCreateRequest(network="none", limits=SandboxLimits(memory_mb=64))
    async with LocalProvider(Path(sys.argv[1])) as provider:
        made = [await provider.create_sandbox(request)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        refused = 0
        async with asyncio.TaskGroup() as tasks:
            found = [tasks.create_task(one(provider, request)) for _ in range(20)]
        made += [sandbox for sandbox in (task.result() for task in found) if sandbox]
        print(len(found) + 1 - len(made) > 0, len(made) > 0)
        for sandbox in made:
            await provider.delete_sandbox(sandbox.id)
        again = await provider.create_sandbox(request)
        print((await again.exec("ulimit -n")).output.strip())

async def one(provider, request):
    try:
        return await provider.create_sandbox(request)
    except SandboxCapacityError:
        return None

asyncio.run(main())
"""


async def test_a_lack_of_open_files_is_a_lack_of_room_and_leaves_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-c", FEW_FILES, str(state)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["True", "True"]
    assert groups_of(state) == []
