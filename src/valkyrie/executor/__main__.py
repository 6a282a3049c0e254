"""`python -m valkyrie.executor DATA_FOLDER [--detach READY_FD | --stay]`: what the CLI and servers start."""

from __future__ import annotations

import os
import sys
import time


def main(arguments: list[str]) -> int:
    """Be the executor of a data folder until there is nothing left to do.

    `--detach` leaves the caller at once: nobody has to wait for the executor's end. The caller reads
    `ready` from the other end of READY_FD, or its end when the executor could not start. `--stay` is the
    executor of a server: it does not leave for want of work, and opens what was sealed in the store.
    """
    folder, *rest = arguments
    ready_fd: int | None = None
    if rest[:1] == ["--detach"]:
        ready_fd = int(rest[1])
        if os.fork():
            os._exit(0)
    from valkyrie.executor.host import work_on  # after the fork: whoever started us need not wait for it

    failures = work_on(folder, lambda: _tell_ready(ready_fd), server=rest == ["--stay"])
    for message in dict.fromkeys(map(str, failures)):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
    return 1 if failures else 0


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
