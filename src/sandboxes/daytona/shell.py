"""A person's shell in a Daytona sandbox, on this terminal: `python -m sandboxes.daytona.shell`."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from sandboxes.daytona.provider import DaytonaSandboxProvider
from sandboxes.errors import SandboxError
from sandboxes.types import DaytonaProviderConfig

if TYPE_CHECKING:
    from daytona.handle.async_pty_handle import AsyncPtyHandle

KEY = "DAYTONA_API_KEY"
_READ_BYTES = 4096


async def attach(config: DaytonaProviderConfig, sandbox_id: str, cwd: str) -> int:
    """Join this terminal with a shell in the sandbox until one of them ends; the shell's exit code."""
    async with DaytonaSandboxProvider(config) as provider:
        sandbox = await provider.get_sandbox(sandbox_id)

        async def connect() -> AsyncPtyHandle:
            handle: AsyncPtyHandle = await sandbox.process.create_pty_session(
                f"shell-{token_hex(8)}", _show, cwd=cwd, envs={"TERM": "xterm"}, pty_size=_size()
            )
            await handle.wait_for_connection()
            return handle

        handle = await sandbox.call(connect, "open a shell", repeat=False)
        with _raw_terminal():
            try:
                return await _converse(handle)
            finally:
                await handle.disconnect()


async def _converse(handle: AsyncPtyHandle) -> int:
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    stdin = sys.stdin.fileno()
    loop.add_reader(stdin, lambda: typed.put_nowait(os.read(stdin, _READ_BYTES)))
    sizes = asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, sizes.set)
    ended = asyncio.ensure_future(handle.wait())
    helpers = [asyncio.ensure_future(_type(handle, typed)), asyncio.ensure_future(_resize(handle, sizes))]
    try:
        await asyncio.wait((ended, helpers[0]), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            return 0
        return ended.result().exit_code or 0
    finally:
        loop.remove_reader(stdin)
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in (ended, *helpers):
            task.cancel()
        await asyncio.gather(ended, *helpers, return_exceptions=True)


async def _type(handle: AsyncPtyHandle, typed: asyncio.Queue[bytes]) -> None:
    while data := await typed.get():
        await handle.send_input(data)


async def _resize(handle: AsyncPtyHandle, sizes: asyncio.Event) -> None:
    while True:
        await sizes.wait()
        sizes.clear()
        await handle.resize(_size())


def _show(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _size() -> Any:
    from daytona.common.pty import PtySize

    columns, rows = shutil.get_terminal_size()
    return PtySize(rows=rows, cols=columns)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setraw(fd, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def main() -> None:
    """Open the shell named by the arguments."""
    sandbox_id, cwd, url, target = sys.argv[1:]
    key = os.environ.get(KEY)
    if not key:
        sys.exit(f"Set {KEY} to the key of {url} first.")
    config = DaytonaProviderConfig(DAYTONA_API_KEY=key, DAYTONA_API_URL=url, DAYTONA_TARGET=target)
    try:
        sys.exit(asyncio.run(attach(config, sandbox_id, cwd)))
    except SandboxError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
