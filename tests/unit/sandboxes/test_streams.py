import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.protocol import RunnableSandbox
from sandboxes.streams import exit_code, pump, pump_fds, stream_output, utf8_decoder
from sandboxes.types import Command, OutputSink, StreamName

Starter = Callable[[str], Awaitable[subprocess.Popen[bytes] | asyncio.subprocess.Process]]


async def start_plain(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


async def start_asyncio(script: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        script,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.fixture(params=[start_plain, start_asyncio])
async def start(request: pytest.FixtureRequest) -> AsyncIterator[Starter]:
    """Starts processes either way, and ends their sessions afterwards."""
    started: list[subprocess.Popen[bytes] | asyncio.subprocess.Process] = []

    async def starting(script: str) -> subprocess.Popen[bytes] | asyncio.subprocess.Process:
        process: subprocess.Popen[bytes] | asyncio.subprocess.Process = await request.param(script)
        started.append(process)
        return process

    yield starting
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if isinstance(process, asyncio.subprocess.Process):
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]
    await asyncio.sleep(0)  # the pipes close on the loop


def session_killer(pid: int) -> Callable[[], Awaitable[None]]:
    async def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    return kill


class ShellSandbox(RunnableSandbox):
    """Just enough of a sandbox to stream from."""

    id = name = state = "shell"
    pid = 0

    async def run(self, command: Command, sink: OutputSink | None = None) -> int:
        process = await start_plain(command.argv[-1])
        self.pid = process.pid
        return await pump(process, sink, timeout=command.timeout, kill=session_killer(process.pid))

    async def upload_file(self, path: str, content: bytes) -> None:
        raise NotImplementedError

    async def download_file(self, path: str) -> bytes:
        raise NotImplementedError


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_decoding_is_the_same_however_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    decoder = utf8_decoder()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [decoder.decode(data[start:end]) for start, end in pairwise(edges)]
    assert "".join(pieces) + decoder.decode(b"", True) == data.decode("utf-8", "replace")


@given(st.text(max_size=30), st.integers(0, 120))
def test_valid_text_is_never_replaced(text: str, cut: int) -> None:
    data = text.encode()
    decoder = utf8_decoder()
    assert decoder.decode(data[:cut]) + decoder.decode(data[cut:]) == text


def test_exit_codes() -> None:
    assert [exit_code(code) for code in (0, 42, -9, -15)] == [0, 42, 137, 143]


async def test_streams_apart(start: Starter) -> None:
    got: list[tuple[StreamName, str]] = []
    code = await pump(await start("echo out; echo err >&2; exit 7"), lambda *item: got.append(item))
    assert code == 7
    assert sorted(got) == [("stderr", "err\n"), ("stdout", "out\n")]


async def test_everything_written_before_the_exit_arrives(start: Starter) -> None:
    total = 0

    def count(_stream: StreamName, text: str) -> None:
        nonlocal total
        total += len(text)

    assert await pump(await start("head -c 3000000 /dev/zero; sleep 30 &"), count) == 0
    assert total == 3_000_000


async def test_a_held_pipe_is_not_waited_for(start: Starter) -> None:
    async with asyncio.timeout(60):
        assert await pump(await start("sleep 300 & echo x"), lambda *_: None) == 0


async def test_timeout_kills_and_keeps_what_was_said(start: Starter) -> None:
    got: list[str] = []
    for seconds in (0.2, 2.0, 20.0):  # a busy machine may take long to begin
        process = await start("echo early; sleep 300")
        code = await pump(
            process, lambda _, text: got.append(text), timeout=seconds, kill=session_killer(process.pid)
        )
        if got:
            break
    assert (code, got) == (124, ["early\n"])


async def test_cancellation_kills(start: Starter) -> None:
    process = await start("sleep 30")
    task = asyncio.create_task(pump(process, kill=session_killer(process.pid)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert process.returncode == -9


async def test_an_error_of_the_sink_is_raised_and_kills(start: Starter) -> None:
    def broken(_stream: StreamName, _text: str) -> None:
        raise ZeroDivisionError

    process = await start("echo x; sleep 30")
    with pytest.raises(ZeroDivisionError):
        await pump(process, broken, kill=session_killer(process.pid))
    assert process.returncode == -9


async def test_no_descriptor_is_left_open() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    await pump(await start_plain("echo warm"))
    before = descriptors()
    for _ in range(5):
        await pump(await start_plain("echo x; echo y >&2"), lambda *_: None)
        await pump(await start_plain("exec sleep 5"), timeout=0.01)
    assert descriptors() == before


async def test_descriptors_from_elsewhere() -> None:
    read_end, write_end = os.pipe()
    exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    got: list[str] = []

    async def kill() -> None:
        exited.set_result(-9)

    def hear(_stream: StreamName, text: str) -> None:
        got.append(text)
        exited.set_result(5)

    os.write(write_end, "€".encode())
    code = await pump_fds({"stdout": read_end}, exited, hear, kill=kill, grace=0)
    assert (code, got) == (5, ["€"])
    os.close(write_end)
    await asyncio.sleep(0.01)


async def test_streaming_ends_with_the_exit_code() -> None:
    items = [item async for item in stream_output(ShellSandbox(), Command.shell("echo a; exit 3"))]
    assert items == ["a\n", 3]


async def test_a_slow_reader_slows_the_command_down() -> None:
    sandbox = ShellSandbox()
    total = 0
    async with contextlib.aclosing(stream_output(sandbox, Command.shell("yes"))) as items:
        async for item in items:
            assert isinstance(item, str)
            total += len(item)
            await asyncio.sleep(0.05)
            written = _bytes_written(sandbox.pid)
            assert written - total < 4 << 20
            if total > 500_000:
                break
    assert not alive(sandbox.pid)


async def test_all_of_a_paused_stream_arrives_in_the_end() -> None:
    total = 0
    async for item in stream_output(ShellSandbox(), Command.shell("head -c 5000000 /dev/zero")):
        if isinstance(item, str):
            total += len(item)
            await asyncio.sleep(0.0005)
    assert total == 5_000_000


def _bytes_written(session: int) -> int:
    def written() -> Iterator[int]:
        for pid in (session, *map(int, _read(f"/proc/{session}/task/{session}/children").split())):
            for line in _read(f"/proc/{pid}/io").splitlines():
                if line.startswith("wchar:"):
                    yield int(line.split()[1])

    return sum(written())


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
