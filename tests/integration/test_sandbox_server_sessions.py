"""Sessions and terminals through the real Daytona SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from daytona import DaytonaConflictError, DaytonaError, DaytonaNotFoundError, SessionExecuteRequest
from daytona.common.pty import PtySize

from tests.integration.sandbox_serving import Serving, serving, until


@pytest.fixture(params=["process", "local"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(request.param, tmp_path / "state") as served:
        yield served


@pytest.fixture
async def sandbox(served: Serving) -> Any:
    return await served.sandbox()


async def run(sandbox: Any, command: str, session: str = "s") -> Any:
    return await sandbox.process.execute_session_command(session, SessionExecuteRequest(command=command))


async def begin(sandbox: Any, command: str, session: str = "s") -> str:
    request = SessionExecuteRequest(command=command, run_async=True)
    return str((await sandbox.process.execute_session_command(session, request)).cmd_id)


async def follow(sandbox: Any, command_id: str) -> dict[str, str]:
    heard = {"stdout": "", "stderr": ""}

    def on(stream: str) -> Any:
        def hear(text: str) -> None:
            heard[stream] += text

        return hear

    await sandbox.process.get_session_command_logs_async("s", command_id, on("stdout"), on("stderr"))
    return heard


async def test_commands_of_a_session_share_their_shell(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    first = await run(
        sandbox, "cd /tmp; X=5; export Y=6; f() { echo called; }; echo out; echo err >&2; (exit 4)"
    )
    assert (first.exit_code, first.stdout, first.stderr) == (4, "out\n", "err\n")
    second = await run(sandbox, "pwd; echo $X $Y; f; printf 'no newline'")
    assert second.exit_code == 0
    assert second.stdout.split("\n")[1:] == ["5 6", "called", "no newline"]
    assert second.stdout.split("\n")[0].endswith("/tmp")
    assert (await run(sandbox, "sleep 60 & P=$!")).exit_code == 0
    assert (await run(sandbox, "kill $P && wait $P")).exit_code == 143
    session = await sandbox.process.get_session("s")
    assert [command.exit_code for command in session.commands] == [4, 0, 0, 143]
    assert [s.session_id for s in await sandbox.process.list_sessions()] == ["s"]


async def test_output_is_followed_as_it_comes_and_streams_stay_apart(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    command = await begin(
        sandbox, "echo one; echo bad >&2; until [ -e go ]; do sleep 0.02; done; echo two; echo ü; exit 7"
    )
    heard: list[str] = []
    first = asyncio.Event()

    def on_stdout(text: str) -> None:
        heard.append(text)
        first.set()

    errors: list[str] = []
    following = asyncio.ensure_future(
        sandbox.process.get_session_command_logs_async("s", command, on_stdout, errors.append)
    )
    await first.wait()
    assert heard == ["one\n"]
    assert (await sandbox.process.get_session_command("s", command)).exit_code is None
    await sandbox.fs.upload_file(b"", "go")
    await following
    assert "".join(heard) == "one\ntwo\nü\n"
    assert "".join(errors) == "bad\n"
    assert (await sandbox.process.get_session_command("s", command)).exit_code == 7
    logs = await sandbox.process.get_session_command_logs("s", command)
    assert (logs.stdout, logs.stderr) == ("one\ntwo\nü\n", "bad\n")
    assert await follow(sandbox, command) == {"stdout": "one\ntwo\nü\n", "stderr": "bad\n"}


async def test_much_output_comes_whole(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    command = await begin(sandbox, "seq 1 200000; seq 1 1000 >&2")
    heard = await follow(sandbox, command)
    assert heard["stdout"].split() == [str(n) for n in range(1, 200001)]
    assert heard["stderr"].split() == [str(n) for n in range(1, 1001)]


async def test_commands_wait_for_each_other(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    ids = [await begin(sandbox, f"sleep 0.1; echo {n} >> order; echo {n}") for n in range(5)]
    assert [(await follow(sandbox, each))["stdout"] for each in ids] == [f"{n}\n" for n in range(5)]
    assert (await sandbox.fs.download_file("order")).split() == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_long_command_and_a_broken_one(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    long = await run(sandbox, f"X={'x' * 300_000}; echo ${{#X}}")
    assert (long.exit_code, long.stdout) == (0, "300000\n")
    broken = await run(sandbox, "if then (")
    assert broken.exit_code != 0
    assert "syntax error" in broken.stderr.lower()


async def test_a_command_that_ends_the_shell(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    ended = await run(sandbox, "echo last; exit 5")
    assert (ended.exit_code, ended.stdout) == (5, "last\n")
    with pytest.raises(DaytonaError, match="exit code 5; create another session"):
        await run(sandbox, "true")


async def test_a_command_that_redirects_its_shell(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    assert (await run(sandbox, "exec >/dev/null 2>&1; echo lost; cat")).exit_code == 0
    assert (await run(sandbox, "echo back")).stdout == "back\n"


async def test_deleting_a_session_kills_what_it_started(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    await run(sandbox, "sleep 7654 &")
    command = await begin(sandbox, "sleep 7654")
    following = asyncio.ensure_future(follow(sandbox, command))

    async def gone() -> bool:
        result = await sandbox.process.exec("ps ax | grep '[s]leep 7654' | grep -v defunct")
        return bool(result.exit_code == 1)

    async def both_run() -> bool:
        return len((await sandbox.process.exec("ps ax | grep '[s]leep 7654'")).result.splitlines()) == 2

    await until(both_run)
    await sandbox.process.delete_session("s")
    await following
    await until(gone)
    with pytest.raises(DaytonaNotFoundError):
        await sandbox.process.get_session("s")


async def test_one_follower_that_leaves_disturbs_no_one(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    command = await begin(sandbox, "echo one; until [ -e go ]; do sleep 0.02; done; echo two")
    leaving = asyncio.ensure_future(follow(sandbox, command))
    staying = asyncio.ensure_future(follow(sandbox, command))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait((leaving,))
    await sandbox.fs.upload_file(b"", "go")
    assert (await staying)["stdout"] == "one\ntwo\n"


async def test_names_of_sessions(sandbox: Any) -> None:
    await sandbox.process.create_session("a/../b c")
    with pytest.raises(DaytonaConflictError):
        await sandbox.process.create_session("a/../b c")
    with pytest.raises(DaytonaNotFoundError):
        await sandbox.process.get_session("other")
    with pytest.raises(DaytonaNotFoundError):
        await run(sandbox, "true", session="other")


async def test_input_for_a_command_is_refused_with_the_way_out(sandbox: Any) -> None:
    await sandbox.process.create_session("s")
    command = await begin(sandbox, "cat")
    with pytest.raises(DaytonaError, match="pty"):
        await sandbox.process.send_session_command_input("s", command, "text")


async def test_deleting_the_sandbox_ends_its_streams(served: Serving) -> None:
    sandbox = await served.sandbox()
    await sandbox.process.create_session("s")
    command = await begin(sandbox, "echo up; sleep 60")
    following = asyncio.ensure_future(follow(sandbox, command))
    await served.provider.delete_sandbox(sandbox.id)
    await asyncio.wait((following,), timeout=30)
    assert following.done()
    with pytest.raises(DaytonaNotFoundError):
        await sandbox.process.get_session_command("s", command)


async def test_a_terminal(sandbox: Any) -> None:
    seen = bytearray()
    terminal = await sandbox.process.create_pty_session(
        "t", seen.extend, cwd="/tmp", envs={"WORD": "it's"}, pty_size=PtySize(rows=30, cols=100)
    )
    await terminal.send_input("stty -echo; echo said $WORD; pwd; stty size\n")
    await until(lambda: _has(seen, b"30 100"))
    assert b"said it's" in seen
    assert b"/tmp\r\n" in seen
    await terminal.resize(PtySize(rows=10, cols=50))
    await terminal.send_input("stty size\n")
    await until(lambda: _has(seen, b"10 50"))
    info = await sandbox.process.get_pty_session_info("t")
    assert (info.active, info.rows, info.cols) == (True, 10, 50)
    await terminal.send_input("exit 7\n")
    assert (await terminal.wait()).exit_code == 7
    assert not (await sandbox.process.get_pty_session_info("t")).active


async def _has(seen: bytearray, wanted: bytes) -> bool:
    return wanted in seen


async def test_a_terminal_outlives_its_client_until_it_is_killed(sandbox: Any) -> None:
    seen = bytearray()
    terminal = await sandbox.process.create_pty_session("t", seen.extend)
    await terminal.send_input("X=kept\n")
    await terminal.disconnect()
    with pytest.raises(DaytonaConflictError):
        await sandbox.process.create_pty_session("t", seen.extend)
    again = await sandbox.process.connect_pty_session("t", seen.extend)
    await again.send_input("echo is-$X\n")
    await until(lambda: _has(seen, b"is-kept"))
    await again.send_input("sleep 5432\n")

    async def sleeps() -> bool:
        result = await sandbox.process.exec("ps ax | grep '[s]leep 5432' | grep -v defunct")
        return bool(result.exit_code == 0)

    async def gone() -> bool:
        return not await sleeps()

    # Before it has the terminal, it would not be told that this hung up.
    await until(sleeps)
    await again.kill()
    assert (await again.wait()).exit_code == 137
    assert [t.id for t in await sandbox.process.list_pty_sessions()] == []
    await until(gone)
