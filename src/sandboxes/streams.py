"""Move output and files between processes, threads and asyncio, and bring work to its end when its caller is
cancelled."""

from __future__ import annotations

import asyncio
import codecs
import os
import subprocess
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar, runtime_checkable

from sandboxes.types import TIMEOUT_EXIT_CODE, Command, OutputSink, StreamName

if TYPE_CHECKING:
    from sandboxes.protocol import Sandbox


T = TypeVar("T")


async def pieces_from(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what a blocking generator reads, each piece read in a thread."""
    try:
        while (piece := await uninterrupted(asyncio.to_thread(next, pieces, None))) is not None:
            yield piece
    finally:
        if isinstance(pieces, Generator):
            pieces.close()


async def file_pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the rest of an open file in pieces of a mebibyte, each read in a thread."""
    while piece := await asyncio.to_thread(file.read, 1 << 20):
        yield piece


async def feed(chunks: AsyncIterator[bytes], write: Callable[[Iterable[bytes]], None]) -> None:
    """Run the blocking `write` in a thread on what `chunks` yields here; its error is `write`'s input's."""
    loop = asyncio.get_running_loop()
    awaited: Future[bytes | None] | None = None
    stopped = False

    async def following() -> bytes | None:
        return await anext(chunks, None)

    def pulled() -> Iterator[bytes]:
        nonlocal awaited
        while not stopped:
            awaited = asyncio.run_coroutine_threadsafe(following(), loop)
            if stopped:  # since the check above: `stop` has cancelled an earlier one
                awaited.cancel()
            chunk = awaited.result()
            if chunk is None:
                return
            yield chunk
        raise InterruptedError("the upload was cancelled")

    def stop() -> None:
        nonlocal stopped
        stopped = True
        if awaited is not None:
            awaited.cancel()

    await uninterrupted(asyncio.to_thread(write, pulled()), stop)


async def uninterrupted(work: Awaitable[T], stop: Callable[[], None] | None = None) -> T:
    """Await work that goes on in a thread; when cancelled, do not return before it has ended."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()
        raise


# Work that must come to its end even when the one who waits for it is cancelled.


async def to_the_end(work: Awaitable[T]) -> T:
    """Await `work`; a cancellation takes effect only once it is done, and then wins over its outcome."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


# Output of running commands: decoded without splitting characters, and never waited for in vain.
#
# A command's pipes may outlive it, because a process it left in the background holds them open. So the exit
# is what ends a run; end-of-file on the pipes is not waited for beyond a short grace.

CHUNK_BYTES = 1 << 16
GRACE_SECONDS = 0.1
"""How long output may still come after the exit while something else holds a pipe."""
KILL_SECONDS = 10.0
"""How long a killed process may take to go before it is given up."""

_STREAMS: tuple[StreamName, StreamName] = ("stdout", "stderr")
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")

Killer = Callable[[], Awaitable[None]]


@runtime_checkable
class PacedSink(Protocol):
    """A sink that asks the reading side to wait while it is full."""

    full: bool

    async def room(self) -> None: ...


def utf8_decoder() -> codecs.IncrementalDecoder:
    """A decoder for one stream: holds back an incomplete character, replaces what is not UTF-8."""
    return _Utf8Decoder("replace")


def exit_code(returncode: int) -> int:
    """A shell's view of a return code: death by signal n is 128 + n."""
    return 128 - returncode if returncode < 0 else returncode


async def pump(
    process: subprocess.Popen[bytes] | asyncio.subprocess.Process,
    sink: OutputSink | None = None,
    *,
    timeout: float | None = None,
    kill: Killer | None = None,
    grace: float = GRACE_SECONDS,
) -> int:
    """Feed `sink` from the process's pipes until it exits; return its exit code as a shell sees it.

    On a timeout the answer is 124, after `kill` (the process alone, if not given) and a last look into
    the pipes. `kill` is also awaited when the caller is cancelled or `sink` raises. `Popen` (made with
    bufsize=0) is the cheap kind: asyncio's own subprocesses cost a thread each before Python 3.12.
    """
    sources: list[_Source] = []
    exited: asyncio.Future[int]
    if isinstance(process, subprocess.Popen):
        exited = exit_of(process)
        for name, pipe in zip(_STREAMS, (process.stdout, process.stderr), strict=True):
            if pipe is not None:
                # The pipe may live longer than the Popen object, so it gets a descriptor of its own.
                sources.append(_PipeSource(os.dup(pipe.fileno()), name, sink))
                pipe.close()
    else:
        exited = asyncio.ensure_future(_asyncio_exit(process))
        for name, reader in zip(_STREAMS, (process.stdout, process.stderr), strict=True):
            if reader is not None:
                sources.append(_ReaderSource(reader, name, sink))

    async def kill_alone() -> None:
        if not exited.done():
            process.kill()

    return exit_code(await _settle_run(exited, sources, timeout, kill or kill_alone, grace))


async def pump_fds(
    fds: Mapping[StreamName, int],
    exited: asyncio.Future[int],
    sink: OutputSink | None = None,
    *,
    timeout: float | None = None,
    kill: Killer,
    grace: float = GRACE_SECONDS,
) -> int:
    """`pump` for a process started elsewhere: its pipes as descriptors (taken over), its exit as a future."""
    sources = [_PipeSource(fd, name, sink) for name, fd in fds.items()]
    return exit_code(await _settle_run(exited, sources, timeout, kill, grace))


def exit_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """The return code to come; the process is reaped when it does."""
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:  # Linux before 5.3, or out of descriptors
        return asyncio.ensure_future(asyncio.to_thread(process.wait))
    exited: asyncio.Future[int] = loop.create_future()

    def reap() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        code = process.wait()
        if not exited.done():
            exited.set_result(code)

    loop.add_reader(pidfd, reap)
    return exited


async def _asyncio_exit(process: asyncio.subprocess.Process) -> int:
    # Process.wait() is no use: it waits for the pipes to close as well.
    delay = 0.005
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        pass
    else:
        try:
            await _readable(pidfd)
        finally:
            os.close(pidfd)
        delay = 0.0005
    while process.returncode is None:  # noqa: ASYNC110 - asyncio tells nobody of the exit alone
        await asyncio.sleep(delay)
    return process.returncode


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _settle_run(
    exited: asyncio.Future[int], sources: Sequence[_Source], timeout: float | None, kill: Killer, grace: float
) -> int:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for source in sources:
        source.start(failed)
    try:
        await asyncio.wait((exited, failed), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        timed_out = not exited.done()
        if timed_out:
            await kill()
            await asyncio.wait((exited,), timeout=KILL_SECONDS)
        for source in sources:
            source.drain()
        held = [source.ended for source in sources if not source.ended.done()]
        if held and grace > 0:
            await asyncio.wait(held, timeout=grace)
        for source in sources:
            source.finish()
        if failed.done():
            failed.result()
        return TIMEOUT_EXIT_CODE if timed_out else exited.result()
    except BaseException:
        for source in sources:
            source.finish(discard=True)
        await kill()
        await asyncio.wait((exited,), timeout=KILL_SECONDS)
        raise


class _Source(Protocol):
    """One stream of a running command."""

    ended: asyncio.Future[None]

    def start(self, failed: asyncio.Future[None]) -> None:
        """Begin reading; an error of the sink goes into `failed`."""

    def drain(self) -> None:
        """Read what is there without waiting."""

    def finish(self, *, discard: bool = False) -> None:
        """Flush the decoder and stop feeding the sink.

        A pipe that is still held is read on into nothing, so that a background process which writes to
        it neither blocks nor dies of SIGPIPE.
        """


class _Feed:
    """Decodes one stream into the sink."""

    __slots__ = ("_decode", "_failed", "_name", "_sink")

    def __init__(self, name: StreamName, sink: OutputSink | None) -> None:
        self._name = name
        self._sink = sink
        self._decode = utf8_decoder().decode
        self._failed: asyncio.Future[None] | None = None

    def _feed(self, data: bytes, final: bool = False) -> None:
        if self._sink is None:
            return
        text = self._decode(data, final)
        if not text:
            return
        try:
            self._sink(self._name, text)
        except Exception as error:  # noqa: BLE001 - the caller's own code; its error is raised by pump
            self._sink = None
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)


class _PipeSource(_Feed):
    """A pipe by descriptor, read straight from the event loop."""

    __slots__ = ("_fd", "_loop", "ended")

    def __init__(self, fd: int, name: StreamName, sink: OutputSink | None) -> None:
        super().__init__(name, sink)
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self, failed: asyncio.Future[None]) -> None:
        self._failed = failed
        os.set_blocking(self._fd, False)
        self._loop.add_reader(self._fd, self._on_readable)

    def drain(self) -> None:
        # What the command wrote is in the pipe already. The bound is a pipe's largest size: whatever
        # comes beyond it is a background process still talking.
        for _ in range((1 << 20) // CHUNK_BYTES):
            if self.ended.done() or not self._read():
                return

    def finish(self, *, discard: bool = False) -> None:
        if not discard:
            self._feed(b"", final=True)
        self._sink = None
        if not self.ended.done():
            self._loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        self._read()
        sink = self._sink
        if isinstance(sink, _Pieces) and sink.full and not self.ended.done():
            self._loop.remove_reader(self._fd)
            sink.resume.append(self._resume)

    def _resume(self) -> None:
        if not self.ended.done():
            self._loop.add_reader(self._fd, self._on_readable)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._feed(data)
            return True
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self.ended.set_result(None)
        return False


class _ReaderSource(_Feed):
    """A pipe of an asyncio subprocess."""

    __slots__ = ("_paced", "_reader", "ended")

    def __init__(self, reader: asyncio.StreamReader, name: StreamName, sink: OutputSink | None) -> None:
        super().__init__(name, sink)
        self._reader = reader
        self._paced = isinstance(sink, _Pieces)

    def start(self, failed: asyncio.Future[None]) -> None:
        self._failed = failed
        self.ended: asyncio.Future[None] = asyncio.ensure_future(self._copy())

    def drain(self) -> None:
        self._paced = False
        if isinstance(self._sink, _Pieces):
            self._sink.release()

    def finish(self, *, discard: bool = False) -> None:
        if not discard:
            self._feed(b"", final=True)
        self._sink = None

    async def _copy(self) -> None:
        while data := await self._reader.read(CHUNK_BYTES):
            self._feed(data)
            sink = self._sink
            if self._paced and isinstance(sink, _Pieces) and sink.full:
                await sink.room()


class _Pieces:
    """A sink that holds output for a consumer, and asks the reading side to pause when it is full."""

    __slots__ = ("_held", "_pieces", "_waiter", "full", "resume")

    HIGH = 1 << 20
    LOW = 1 << 18

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._held = 0
        self._waiter: asyncio.Future[None] | None = None
        self.full = False
        self.resume: list[Callable[[], None]] = []

    def __call__(self, _stream: StreamName, text: str) -> None:
        self._pieces.append(text)
        self._held += len(text)
        if self._held > self.HIGH:
            self.full = True
        self.wake()

    def wake(self, _done: object = None) -> None:
        if self._waiter is not None:
            _resolve(self._waiter)

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def room(self) -> None:
        freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.resume.append(partial(_resolve, freed))
        await freed

    def pop(self) -> str | None:
        if not self._pieces:
            return None
        piece = self._pieces.popleft()
        self._held -= len(piece)
        if self.full and self._held < self.LOW:
            self.release()
        return piece

    def release(self) -> None:
        self.full = False
        resume, self.resume = self.resume, []
        for call in resume:
            call()


async def stream_output(sandbox: Sandbox, command: Command) -> AsyncGenerator[str | int, None]:
    """Yield the command's output piece by piece, then its exit code.

    A slow consumer slows the command down instead of filling memory; one that goes away (`aclose`,
    cancellation) ends the command.
    """
    pieces = _Pieces()
    run = asyncio.ensure_future(sandbox.run(command, pieces))
    run.add_done_callback(pieces.wake)
    try:
        while True:
            piece = pieces.pop()
            if piece is not None:
                yield piece
            elif run.done():
                break
            else:
                await pieces.wait()
        yield run.result()
    finally:
        if not run.done():
            run.cancel()
            pieces.release()
            await asyncio.wait((run,))
        if not run.cancelled():
            run.exception()
