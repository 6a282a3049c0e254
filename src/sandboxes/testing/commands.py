"""Contract: running commands, and ending them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from sandboxes.errors import SandboxCommandError, SandboxError
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
from sandboxes.types import Command


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
