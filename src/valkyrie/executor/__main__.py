"""`python -m valkyrie.executor DATA_FOLDER [--detach READY_FD | --stay]`: what the CLI and servers start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def main(arguments: list[str]) -> int:
    """Be the executor of a data folder until there is nothing left to do.

    `--detach` leaves the caller at once: nobody has to wait for the executor's end. The caller reads
    `ready` from the other end of READY_FD, or its end when the executor could not start. `--stay` is the
    executor of a server: it does not leave for want of work, and opens what was sealed in the store.
    """
    import time

    folder, *rest = arguments
    ready_fd: int | None = None
    if rest[:1] == ["--detach"]:
        ready_fd = int(rest[1])
        if os.fork():
            os._exit(0)
    failures = _work(folder, lambda: _tell_ready(ready_fd), server=rest == ["--stay"])
    for message in dict.fromkeys(map(str, failures)):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
    return 1 if failures else 0


def serve(folder: str, announce: Callable[[], None]) -> None:
    """Be an executor of a server in this process; `announce` is called once it is at work."""

    def ready() -> bool:
        announce()
        return True

    if failures := _work(folder, ready, server=True):
        raise failures[0]


def _work(folder: str, ready: Callable[[], bool], *, server: bool) -> list[BaseException]:
    """Return why it ended, if not because it was done."""
    import asyncio
    from pathlib import Path

    from valkyrie.errors import ValkyrieError
    from valkyrie.executor.client import PARENT_PIPE, only_one
    from valkyrie.executor.host import ExecutorHost
    from valkyrie.store.layout import DataFolder

    data = DataFolder(Path(folder)).make()
    failures: list[BaseException] = []
    with only_one(data, server=server) as ours:
        if not ours:
            if server and PARENT_PIPE not in os.environ:
                sys.stderr.write(f"An executor is at work on {folder} already; it goes on.\n")
            elif not server:
                ready()
            return []
        try:
            asyncio.run(ExecutorHost(data, server=server).serve(ready))
        except* ValkyrieError as group:
            failures = _leaves(group)
    return failures


def _tell_ready(ready_fd: int | None) -> bool:
    if ready_fd is None:
        return True
    try:
        os.write(ready_fd, b"ready\n")
    except BrokenPipeError:
        return False
    finally:
        os.close(ready_fd)
    return True


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors themselves, out of whatever groups they came in."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
