"""The whole contract in one class, and its parts about making and ending sandboxes, commands and limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from sandboxes.errors import SandboxCommandError, SandboxError, SandboxNotFoundError
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.testing.base import (
    HEARTBEAT,
    Capture,
    ContractBase,
    assert_no_beats,
    cancelled,
    output_of,
    wait_for_beats,
)
from sandboxes.testing.files import FileContract, MountContract
from sandboxes.testing.work import WorkContract
from sandboxes.types import Command, SandboxLimits, SandboxQuery

OPERATIONS: dict[str, Callable[[Sandbox, Path], Awaitable[object]]] = {
    "exec": lambda sandbox, _: sandbox.exec("true"),
    "run": lambda sandbox, _: sandbox.run(Command.shell("true")),
    "command": lambda sandbox, _: _all(sandbox.command("true")),
    "upload_file": lambda sandbox, _: sandbox.upload_file("/app/x", b"x"),
    "download_file": lambda sandbox, _: sandbox.download_file("/app/x"),
    "upload_stream": lambda sandbox, _: sandbox.upload_stream("/app/x", _pieces()),
    "stream_download": lambda sandbox, _: _all(sandbox.stream_download("/app/x")),
    "upload_folder": lambda sandbox, folder: sandbox.upload_folder(folder, "/app"),
    "download_folder": lambda sandbox, folder: sandbox.download_folder("/app", folder / "out"),
    "list_files": lambda sandbox, _: sandbox.list_files("/app/*"),
    "is_folder": lambda sandbox, _: sandbox.is_folder("/app"),
    "remove": lambda sandbox, _: sandbox.remove("/app/x"),
    "clear_folder": lambda sandbox, _: sandbox.clear_folder("/app"),
    "kill_all": lambda sandbox, _: sandbox.kill_all(),
}


class LifecycleContract(ContractBase):
    """What holds from the making of a sandbox to its end."""

    async def test_a_new_sandbox_is_what_was_asked_for(self, provider: SandboxProvider) -> None:
        before = datetime.now(UTC) - timedelta(seconds=5)
        sandbox = await provider.create_sandbox(self.request(name="asked", labels={"a": "1", "b": "2"}))
        try:
            assert sandbox.id
            assert sandbox.name in ("asked", sandbox.id)
            assert sandbox.state == "started"
            assert sandbox.labels is not None
            assert {"a": "1", "b": "2"}.items() <= dict(sandbox.labels).items()
            assert sandbox.created_at is not None
            assert before <= sandbox.created_at <= datetime.now(UTC) + timedelta(seconds=5)
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_listing_by_labels(self, provider: SandboxProvider) -> None:
        made = [
            await provider.create_sandbox(self.request(labels={"run": run, "kind": "test"}))
            for run in ("one", "one", "two")
        ]

        async def listed(**labels: str) -> set[str]:
            return {sandbox.id async for sandbox in provider.list_sandboxes(SandboxQuery(labels=labels))}

        assert await listed(run="one") == {made[0].id, made[1].id}
        assert await listed(run="one", kind="test") == {made[0].id, made[1].id}
        assert await listed(run="one", kind="other") == set()
        assert {sandbox.id async for sandbox in provider.list_sandboxes()} >= {item.id for item in made}
        assert await provider.reap({"run": "one"}) == 2
        assert await listed(kind="test") == {made[2].id}
        await provider.delete_sandbox(made[2].id)
        assert await listed(kind="test") == set()

    async def test_finding_by_id(self, provider: SandboxProvider, sandbox: Sandbox) -> None:
        await sandbox.upload_file("/app/mark", b"mine")
        found = await provider.get_sandbox(sandbox.id)
        assert found.id == sandbox.id
        assert await found.download_file("/app/mark") == b"mine"
        with pytest.raises(SandboxNotFoundError):
            await provider.get_sandbox("never-made")

    async def test_deleting_is_idempotent(self, provider: SandboxProvider) -> None:
        sandbox = await provider.create_sandbox(self.request())
        await provider.delete_sandbox(sandbox.id)
        await provider.delete_sandbox(sandbox.id)
        await provider.delete_sandbox("never-made")
        assert sandbox.state == "deleted"
        with pytest.raises(SandboxNotFoundError):
            await provider.get_sandbox(sandbox.id)

    @pytest.mark.parametrize("operation", OPERATIONS)
    async def test_a_stale_handle_says_so(
        self, provider: SandboxProvider, tmp_path: Path, operation: str
    ) -> None:
        sandbox = await provider.create_sandbox(self.request())
        again = await provider.get_sandbox(sandbox.id)
        await provider.delete_sandbox(sandbox.id)
        for handle in (sandbox, again):
            with pytest.raises(SandboxNotFoundError):
                await OPERATIONS[operation](handle, tmp_path)

    async def test_deleting_ends_a_running_stream(self, provider: SandboxProvider) -> None:
        self.needs("executes")
        sandbox = await provider.create_sandbox(self.request())
        with pytest.raises(SandboxNotFoundError):
            async with asyncio.timeout(60):
                async for piece in sandbox.command("while :; do echo tick; sleep 0.05; done"):
                    if "tick" in piece:
                        await provider.delete_sandbox(sandbox.id)

    async def test_sandboxes_do_not_see_each_other(self, provider: SandboxProvider) -> None:
        made = await asyncio.gather(*(provider.create_sandbox(self.request()) for _ in range(20)))
        try:
            assert len({sandbox.id for sandbox in made}) == 20

            async def use(sandbox: Sandbox) -> None:
                await sandbox.upload_file("/app/mine", sandbox.id.encode())
                await sandbox.exec("cp /app/mine /app/copy; ls /app > /app/seen")
                for path in await sandbox.list_files("/app/*"):
                    if path != "/app/seen":
                        assert await sandbox.download_file(path) == sandbox.id.encode()

            await asyncio.gather(*(use(sandbox) for sandbox in made))
        finally:
            await asyncio.gather(*(provider.delete_sandbox(sandbox.id) for sandbox in made))

    async def test_a_cancelled_creation_leaves_nothing(self, provider: SandboxProvider) -> None:
        for delay in (0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016):
            request = self.request(labels={"cancelled": str(delay)})
            task: asyncio.Task[object] = asyncio.create_task(provider.create_sandbox(request))
            await asyncio.sleep(delay)
            finished = task.done()
            await cancelled(task)
            left = await provider.reap(request.labels)
            assert left == (1 if finished else 0)

    async def test_capabilities_are_plain_to_read(self, provider: SandboxProvider) -> None:
        capabilities = provider.capabilities()
        assert capabilities.provider
        assert capabilities.isolation
        assert set(capabilities.enforcement) >= {"cpus", "memory", "disk", "pids"}
        assert "none" in capabilities.networks

    async def test_shell_argv_names_a_program(self, provider: SandboxProvider, sandbox: Sandbox) -> None:
        self.needs("executes")
        assert sandbox.shell_argv()
        gone = await provider.create_sandbox(self.request())
        await provider.delete_sandbox(gone.id)
        with pytest.raises(SandboxError):
            gone.shell_argv()


async def _all(items: AsyncIterator[object]) -> list[object]:
    return [item async for item in items]


async def _pieces() -> AsyncIterator[bytes]:
    yield b"x"


# Contract: running commands, and ending them.


class CommandContract(ContractBase):
    """What holds for every command."""

    @pytest.fixture(autouse=True)
    def _only_where_commands_run(self, request: pytest.FixtureRequest) -> None:
        if request.function.__module__ == __name__:
            self.needs("executes")

    @pytest.mark.parametrize("code", [0, 1, 42, 43])
    async def test_exit_code_is_the_commands(self, sandbox: Sandbox, code: int) -> None:
        assert await sandbox.run(Command.shell(f"exit {code}")) == code
        assert (await sandbox.exec(f"exit {code}")).exit_code == code

    async def test_killed_is_137(self, sandbox: Sandbox) -> None:
        assert await sandbox.run(Command.shell("kill -9 $$")) == 137

    async def test_unknown_program_is_127(self, sandbox: Sandbox) -> None:
        assert await sandbox.run(Command(argv=("no-such-program-here",))) == 127

    async def test_streams_come_apart_and_in_order(self, sandbox: Sandbox) -> None:
        captured = Capture()
        script = "i=0; while [ $i -lt 500 ]; do echo out$i; echo err$i >&2; i=$((i+1)); done"
        assert await sandbox.run(Command.shell(script), captured) == 0
        assert captured.stdout.split() == [f"out{number}" for number in range(500)]
        assert captured.stderr.split() == [f"err{number}" for number in range(500)]

    async def test_characters_are_not_split(self, sandbox: Sandbox) -> None:
        pieces: list[str] = []
        script = r"printf '\342'; sleep 0.1; printf '\202'; sleep 0.1; printf '\254|'"
        assert await sandbox.run(Command.shell(script), lambda _, text: pieces.append(text)) == 0
        assert "".join(pieces) == "€|"
        assert all("\ufffd" not in piece for piece in pieces)

    async def test_output_that_is_not_utf8_is_replaced(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(r"printf 'a\377\376b\342'")).output == "a\ufffd\ufffdb\ufffd"

    async def test_environment_of_request_and_command(self, provider: SandboxProvider) -> None:
        sandbox = await provider.create_sandbox(self.request(env_vars={"ONE": "request", "TWO": "request"}))
        try:
            captured = Capture()
            command = Command.shell('echo "$ONE $TWO $THREE"', env={"TWO": "command", "THREE": "a=b c"})
            assert await sandbox.run(command, captured) == 0
            assert captured.stdout == "request command a=b c\n"
            assert await output_of(sandbox, 'echo "$ONE $TWO $THREE"') == "request request \n"
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_the_hosts_environment_stays_outside(
        self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CONTRACT_SECRET_KEY", "leaked-from-host")
        environment = await output_of(sandbox, "env; tr '\\0' '\\n' < /proc/self/environ")
        assert "leaked-from-host" not in environment
        assert "PATH=" in environment

    async def test_working_folder(self, sandbox: Sandbox) -> None:
        await sandbox.upload_file("/app/deep/here.txt", b"found")
        captured = Capture()
        assert await sandbox.run(Command.shell("cat here.txt", cwd="/app/deep"), captured) == 0
        assert captured.stdout == "found"
        assert (await sandbox.exec("cat here.txt", cwd="/app/deep")).output == "found"

    async def test_other_users(self, sandbox: Sandbox) -> None:
        self.needs("changes_users")
        captured = Capture()
        assert await sandbox.run(Command.shell("id -u", user="nobody"), captured) == 0
        assert captured.stdout.strip() not in ("", "0")

    async def test_a_user_that_is_not_there_is_said_to_be_none(self, sandbox: Sandbox) -> None:
        self.needs("executes", "changes_users")
        with pytest.raises(SandboxError, match=r"nosuchuser|unable to find user"):
            await sandbox.run(Command.shell("true", user="nosuchuser"))
        assert await sandbox.run(Command.shell("true", user="nobody")) == 0

    async def test_a_folder_is_given_to_a_user(self, sandbox: Sandbox) -> None:
        self.needs("executes", "changes_users")
        await sandbox.clear_folder("/logs/verifier")
        await sandbox.upload_file("/logs/verifier/kept", b"x")
        script = "echo 1 > /logs/verifier/reward.txt"
        assert await sandbox.run(Command.shell(script, user="nobody")) != 0
        await sandbox.give_folder("/logs/verifier", "nobody")
        assert await sandbox.run(Command.shell(script, user="nobody")) == 0
        assert await sandbox.run(Command.shell("echo 2 > /logs/verifier/kept", user="nobody")) != 0
        assert await sandbox.download_file("/logs/verifier/reward.txt") == b"1\n"
        with pytest.raises(SandboxError):
            await sandbox.give_folder("/logs/verifier", "nosuchuser")

    async def test_stdin_is_empty(self, sandbox: Sandbox) -> None:
        assert await sandbox.run(Command(argv=("cat",), timeout=60)) == 0

    async def test_command_streams_and_then_raises(self, sandbox: Sandbox) -> None:
        pieces: list[str] = []
        with pytest.raises(SandboxCommandError) as caught:
            async for piece in sandbox.command("echo early; exit 42", env_vars={"X": "1"}):
                pieces.append(piece)
        assert "".join(pieces) == "early\n"
        assert caught.value.exit_code == 42

    async def test_much_output_streams_in_little_memory(self, sandbox: Sandbox) -> None:
        before = peak = _resident_bytes()
        total = 0
        async for piece in sandbox.command("head -c 50000000 /dev/zero | tr '\\0' x"):
            total += len(piece)
            peak = max(peak, _resident_bytes())
        assert total == 50_000_000
        assert peak - before < 32 << 20

    async def test_a_background_child_holding_stdout_does_not_hang(self, sandbox: Sandbox) -> None:
        async with asyncio.timeout(60):
            result = await sandbox.exec("sleep 60 & echo started")
        assert (result.exit_code, result.output) == (0, "started\n")

    async def test_a_background_child_may_go_on_writing(self, sandbox: Sandbox) -> None:
        script = "sh -c 'sleep 0.5; echo late; echo late >&2; " + HEARTBEAT.replace("'", "") + "' &"
        assert await sandbox.run(Command.shell(script)) == 0
        await wait_for_beats(sandbox)

    async def test_background_processes_live_between_commands(self, sandbox: Sandbox) -> None:
        await output_of(sandbox, f"mkdir -p /app; sh -c '{HEARTBEAT}' > /dev/null 2>&1 &")
        await wait_for_beats(sandbox)
        await output_of(sandbox, "true")
        await wait_for_beats(sandbox)

    async def test_timeout_is_124_and_ends_the_tree(self, sandbox: Sandbox) -> None:
        script = f"mkdir -p /app; setsid sh -c '{HEARTBEAT}' > /dev/null 2>&1 & echo early; sleep 600"
        for seconds in (0.5, 5.0, 50.0):  # a busy machine may take long to begin
            captured = Capture()
            assert await sandbox.run(Command.shell(script, timeout=seconds), captured) == 124
            if captured.stdout:
                break
        assert captured.stdout == "early\n"
        await assert_no_beats(sandbox)
        assert (await sandbox.exec("sleep 60", timeout=0.1)).exit_code == 124
        assert await output_of(sandbox, "echo usable") == "usable\n"

    async def test_a_timeout_spares_what_other_commands_left(self, sandbox: Sandbox) -> None:
        await output_of(sandbox, f"mkdir -p /app; sh -c '{HEARTBEAT}' > /dev/null 2>&1 &")
        assert await sandbox.run(Command.shell("sleep 60", timeout=0.1)) == 124
        await wait_for_beats(sandbox)

    async def test_cancelling_a_run_ends_its_tree(self, sandbox: Sandbox) -> None:
        script = f"mkdir -p /app; setsid sh -c '{HEARTBEAT}' > /dev/null 2>&1 & sleep 60"
        task: asyncio.Task[object] = asyncio.create_task(sandbox.run(Command.shell(script)))
        await wait_for_beats(sandbox)
        await cancelled(task)
        await assert_no_beats(sandbox)

    async def test_leaving_a_stream_ends_the_command(self, sandbox: Sandbox) -> None:
        await output_of(sandbox, "mkdir -p /app")
        stream = cast("AsyncGenerator[str, None]", sandbox.command(f"echo started; {HEARTBEAT}"))
        assert await anext(stream) == "started\n"
        await wait_for_beats(sandbox)
        await stream.aclose()
        await assert_no_beats(sandbox)

    async def test_kill_all_leaves_the_sandbox_usable(self, sandbox: Sandbox) -> None:
        await sandbox.upload_file("/app/kept", b"kept")
        await output_of(sandbox, f"setsid sh -c '{HEARTBEAT}' > /dev/null 2>&1 &")
        await wait_for_beats(sandbox)
        await sandbox.kill_all()
        await assert_no_beats(sandbox)
        assert await output_of(sandbox, "cat /app/kept") == "kept"

    async def test_killing_everything_inside_leaves_the_sandbox_usable(self, sandbox: Sandbox) -> None:
        self.needs("isolates_processes")
        await sandbox.run(Command.shell("kill -9 -1; exit 0"))
        assert await output_of(sandbox, "echo usable") == "usable\n"

    async def test_processes_outside_are_out_of_sight(self, sandbox: Sandbox) -> None:
        self.needs("isolates_processes")
        assert await sandbox.run(Command.shell(f"kill -0 {os.getpid()}")) != 0

    async def test_many_commands_at_once(self, sandbox: Sandbox) -> None:
        outputs = await asyncio.gather(*(output_of(sandbox, f"echo {number}") for number in range(10)))
        assert outputs == [f"{number}\n" for number in range(10)]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Contract: limits hold, and the network is what was asked for.


class LimitContract(ContractBase):
    """What an agent cannot take."""

    async def test_too_much_memory_is_137(self, provider: SandboxProvider) -> None:
        self.needs("executes", "limits_memory")
        sandbox = await provider.create_sandbox(self.request(limits=SandboxLimits(memory_mb=64)))
        try:
            # It keeps the last lines, and this one never ends.
            assert await sandbox.run(Command(argv=("tail", "/dev/zero"), timeout=60)) == 137
            assert await output_of(sandbox, "echo usable") == "usable\n"
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_too_many_processes_are_refused(self, provider: SandboxProvider) -> None:
        self.needs("executes", "limits_processes")
        sandbox = await provider.create_sandbox(self.request(limits=SandboxLimits(pids=24)))
        try:
            script = "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i+1)); done"
            assert await sandbox.run(Command.shell(script, timeout=5)) != 0
            await sandbox.kill_all()
            assert await output_of(sandbox, "echo usable") == "usable\n"
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_a_full_disk_is_the_sandboxs_own(self, provider: SandboxProvider) -> None:
        self.needs("executes", "limits_disk")
        sandbox = await provider.create_sandbox(self.request(limits=SandboxLimits(disk_mb=16)))
        try:
            captured = Capture()
            command = Command.shell("mkdir -p /app; head -c 64000000 /dev/zero > /app/big", timeout=60)
            assert await sandbox.run(command, captured) != 0
            assert "space" in captured.stderr
            with pytest.raises(SandboxError):
                await sandbox.upload_file("/app/more", b"x" * 64_000_000)
            await sandbox.remove("/app/big")
            await sandbox.upload_file("/app/small", b"fits")
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_a_full_disk_leaves_room_in_separate_folders(self, provider: SandboxProvider) -> None:
        self.needs("executes", "limits_disk")
        request = self.request(limits=SandboxLimits(disk_mb=16), separate_folders=("/tests",))
        sandbox = await provider.create_sandbox(request)
        try:
            fill = "mkdir -p /app; for f in /app /tests; do head -c 64000000 /dev/zero > $f/big; done"
            assert await sandbox.run(Command.shell(fill, timeout=60)) != 0
            await sandbox.clear_folder("/tests")
            await sandbox.upload_file("/tests/small", b"fits")
            assert await sandbox.run(Command.shell("cat /tests/small > /tests/copy")) == 0
            with pytest.raises(SandboxError):
                await sandbox.upload_file("/app/more", b"x" * 1_000_000)
        finally:
            await provider.delete_sandbox(sandbox.id)

    async def test_without_network_nothing_is_reached(self, provider: SandboxProvider) -> None:
        self.needs("executes", "isolates_network")
        reached = asyncio.Event()

        async def note(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.set()
            writer.close()

        server = await asyncio.start_server(note, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        sandbox = await provider.create_sandbox(self.request(network="none"))
        try:
            for address in (f"127.0.0.1/{port}", "1.1.1.1/53"):
                script = f"exec 3<>/dev/tcp/{address}"
                assert await sandbox.run(Command.bash(script, timeout=60)) not in (0, 124, 127)
            assert not reached.is_set()
        finally:
            await provider.delete_sandbox(sandbox.id)
            server.close()
            await server.wait_closed()


# The whole contract in one class.


class ProviderContract(
    LifecycleContract, FileContract, CommandContract, LimitContract, MountContract, WorkContract
):
    """Subclass it, give a `provider` fixture, and declare what does not hold (see `ContractBase`)."""
