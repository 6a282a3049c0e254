"""Commands and files of a compose service, through a stand-in for docker in a process sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from sandboxes.compose import ComposeSandbox
from sandboxes.errors import SandboxCommandError, SandboxError, SandboxFileNotFoundError
from sandboxes.process import ProcessProvider
from sandboxes.protocol import Sandbox
from sandboxes.testing.base import HEARTBEAT, Capture, assert_no_beats, cancelled, output_of, wait_for_beats
from sandboxes.types import Command, SandboxCreateRequest

DOCKER = """#!/bin/sh
# docker compose [-p NAME] exec -T [-w DIR] [-u USER] [-e NAME[=VALUE]]... SERVICE ARGV...
printf '%s\\n' "$*" >> "$VALKYRIE_ROOT/app/calls"
[ "$1" = compose ] || exit 64
shift
if [ "$1" = -p ]; then shift 2; fi
[ "$1 $2" = "exec -T" ] || exit 64
shift 2
settings="PATH=$PATH VALKYRIE_ROOT=$VALKYRIE_ROOT"
while :; do
  case "$1" in
    -w) cd "$2" || exit 1; shift 2;;
    -u) shift 2;;
    -e)
      case "$2" in *=*) setting=$2;; *) eval "setting=$2=\\$$2";; esac
      settings="$settings $setting"; shift 2;;
    *) break;;
  esac
done
[ "$1" = web ] || { echo "no such service: $1" >&2; exit 1; }
shift
# A container's processes are no children of the command that asked for them.
exec setsid env -i $settings "$@"
"""


@pytest.fixture
async def outer(tmp_path: Path) -> AsyncIterator[Sandbox]:
    provider = ProcessProvider(tmp_path / "state")
    path = "/app/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    sandbox = await provider.create_sandbox(
        SandboxCreateRequest(labels={"Id": "run-1"}, env_vars={"PATH": path})
    )

    async def script() -> AsyncIterator[bytes]:
        yield DOCKER.encode()

    await sandbox.upload_stream("/app/bin/docker", script(), mode=0o755)
    yield sandbox
    await provider.reap({})


@pytest.fixture
def service(outer: Sandbox) -> ComposeSandbox:
    return ComposeSandbox(outer, service="web", staging="/tmp")


async def calls(outer: Sandbox) -> str:
    return (await outer.download_file("/app/calls")).decode()


async def test_it_is_the_outer_sandbox_to_everyone_else(outer: Sandbox, service: ComposeSandbox) -> None:
    assert (service.id, service.name, service.state) == (outer.id, outer.name, "started")
    assert service.labels == {"Id": "run-1"}
    assert service.created_at == outer.created_at


async def test_commands_run_in_the_service(outer: Sandbox, service: ComposeSandbox) -> None:
    result = await service.exec("echo out; echo err >&2; exit 5", cwd="/tests")
    assert (result.exit_code, sorted(result.output.split())) == (5, ["err", "out"])
    assert "compose exec -T -w" in await calls(outer)
    assert "web sh -lc echo out" in await calls(outer)
    captured = Capture()
    assert await service.run(Command(argv=("printf", "%s", "a  b")), captured) == 0
    assert captured.stdout == "a  b"


async def test_the_projects_own_command_line_is_kept(outer: Sandbox) -> None:
    service = ComposeSandbox(outer, service="web", compose_command="docker compose -p other")
    assert (await service.exec("echo here")).output == "here\n"
    assert "compose -p other exec -T" in await calls(outer)


async def test_values_of_variables_stay_out_of_the_command_line(
    outer: Sandbox, service: ComposeSandbox
) -> None:
    pieces = [piece async for piece in service.command('echo "$TOKEN"', env_vars={"TOKEN": "very-secret"})]
    assert "".join(pieces) == "very-secret\n"
    assert "-e TOKEN " in await calls(outer)
    assert "very-secret" not in await calls(outer)


@pytest.mark.parametrize("name", ["LANG", "TERM", "A B", "1A", "A=B", ""])
async def test_some_names_are_refused(service: ComposeSandbox, name: str) -> None:
    with pytest.raises(SandboxError):
        async for _ in service.command("true", env_vars={name: "x"}):
            pass


async def test_a_failing_stream_raises_after_its_output(service: ComposeSandbox) -> None:
    pieces: list[str] = []
    with pytest.raises(SandboxCommandError) as caught:
        async for piece in service.command("echo early; exit 42"):
            pieces.append(piece)
    assert ("".join(pieces), caught.value.exit_code) == ("early\n", 42)


async def test_an_unknown_service_says_so(outer: Sandbox) -> None:
    service = ComposeSandbox(outer, service="none", staging="/tmp")
    assert "no such service" in (await service.exec("true")).output
    with pytest.raises(SandboxError, match="no such service"):
        await service.upload_file("/app/x", b"x")


async def test_files_round_trip(outer: Sandbox, service: ComposeSandbox) -> None:
    content = bytes(range(256))
    await service.upload_file("/app/deep/er/data", content)
    assert await service.download_file("/app/deep/er/data") == content
    await service.upload_file("/app/empty", b"")
    assert await service.download_file("/app/empty") == b""
    for path in ("/app/none", "/app/deep"):
        with pytest.raises(SandboxFileNotFoundError):
            await service.download_file(path)
    assert await outer.list_files("/tmp/.valkyrie*") == []


async def test_folders_round_trip(service: ComposeSandbox, tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/file").write_text("x")
    await service.upload_folder(tmp_path / "in", "/app/copy")
    assert await service.list_files("/app/copy/**") == ["/app/copy/sub/file"]
    assert await service.is_folder("/app/copy/sub")
    assert (await service.download_folder("/app/copy", tmp_path / "out")).files == 1
    assert (tmp_path / "out/sub/file").read_text() == "x"
    await service.clear_folder("/app/copy")
    assert await service.list_files("/app/copy/**") == []
    await service.remove("/app/copy")
    assert not await service.is_folder("/app/copy")


async def apart(outer: Sandbox) -> None:
    """A process which, like a container's, does not end with the command that asked for it."""
    waiting = "while ! [ -s /app/mark ]; do sleep 0.02; done; export VALKYRIE_COMMAND_ID=$(cat /app/mark)"
    await output_of(outer, f"sh -c '{waiting}; exec sh -c \"{HEARTBEAT}\"' > /dev/null 2>&1 &")


SHOW_MARK = "echo $VALKYRIE_COMMAND_ID > /app/mark; sleep 60"


async def test_a_timeout_ends_what_runs_in_the_service(outer: Sandbox, service: ComposeSandbox) -> None:
    await apart(outer)
    assert (await service.exec(SHOW_MARK, timeout=2)).exit_code == 124
    await assert_no_beats(outer)
    assert await output_of(service, "echo usable") == "usable\n"


async def test_cancelling_ends_what_runs_in_the_service(outer: Sandbox, service: ComposeSandbox) -> None:
    await apart(outer)
    task: asyncio.Task[object] = asyncio.create_task(service.run(Command.shell(SHOW_MARK)))
    await wait_for_beats(outer)
    await cancelled(task)
    await assert_no_beats(outer)


async def test_leaving_a_stream_ends_what_runs_in_the_service(
    outer: Sandbox, service: ComposeSandbox
) -> None:
    await apart(outer)
    stream = cast("AsyncGenerator[str, None]", service.command(f"echo started; {SHOW_MARK}"))
    assert await anext(stream) == "started\n"
    await wait_for_beats(outer)
    await stream.aclose()
    await assert_no_beats(outer)


async def test_kill_all_ends_every_command_of_the_service(outer: Sandbox, service: ComposeSandbox) -> None:
    await apart(outer)
    await output_of(service, "echo $VALKYRIE_COMMAND_ID > /app/mark")
    await wait_for_beats(outer)
    await service.kill_all()
    await assert_no_beats(outer)
