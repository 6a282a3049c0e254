"""`python -m valkyrie.executor DATA_FOLDER [--detach READY_FD]`: what the CLI starts."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    """Be the executor of a data folder until there is nothing left to do.

    `--detach` leaves the caller at once: nobody has to wait for the executor's end. The caller reads
    `ready` from the other end of READY_FD, or its end when the executor could not start.
    """
    folder, *rest = arguments
    ready_fd: int | None = None
    if rest[:1] == ["--detach"]:
        ready_fd = int(rest[1])
        if os.fork():
            os._exit(0)
    return _serve(folder, ready_fd)


def _serve(folder: str, ready_fd: int | None) -> int:
    import asyncio
    import time
    from pathlib import Path

    from valkyrie.errors import ValkyrieError
    from valkyrie.executor.host import ExecutorHost, only_one
    from valkyrie.store.layout import DataFolder

    def tell_ready() -> bool:
        if ready_fd is None:
            return True
        try:
            os.write(ready_fd, b"ready\n")
        except BrokenPipeError:
            return False
        finally:
            os.close(ready_fd)
        return True

    data = DataFolder(Path(folder)).make()
    code = 0
    with only_one(data) as ours:
        if not ours:
            tell_ready()
            return 0
        try:
            asyncio.run(ExecutorHost(data).serve(tell_ready))
        except* ValkyrieError as group:
            code = 1
            for message in dict.fromkeys(map(str, _leaves(group))):
                sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
    return code


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors themselves, out of whatever groups they came in."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
