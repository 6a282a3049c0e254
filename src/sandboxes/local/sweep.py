"""Ending what processes that are gone left behind, and looking at what others still hold.

A record or cgroup belongs to a keeper. While exactly that process lives, its sandboxes are its own.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

from sandboxes.cgroups import Cgroup
from sandboxes.errors import SandboxError
from sandboxes.local import records, wire
from sandboxes.local.marks import ProcessMark, boot_id

_PATIENCE_SECONDS = 10.0
_MARKED = re.compile(r"(\d+)-(\d+)-")


def marked(mark: ProcessMark, name: str) -> str:
    """A name that says which process it belongs to."""
    return f"{mark.pid}-{mark.start}-{name}"


def sweep(state_dir: Path, cgroup_prefix: str) -> list[records.Record]:
    """End every sandbox whose keeper is gone, and tidy up after it; the records there were."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    left = [record for record in records.load(state_dir) if not record.keeper.alive()]
    for record in left:
        _end(record)
    for name in Cgroup.find(cgroup_prefix):
        if _is_orphan(name.removeprefix(cgroup_prefix)):
            with suppress(SandboxError):  # its processes take their time to die; the next sweep looks again
                Cgroup.reopen(name).remove()
    for record in left:
        (state_dir / f"{record.id}{records.SUFFIX}").unlink(missing_ok=True)
    _remove_leftover_folders(state_dir)
    return left


def foreign(state_dir: Path, own_keeper: int | None) -> list[records.Record]:
    """Records of sandboxes that another live process holds."""
    held = [record for record in records.load(state_dir) if record.keeper.pid != own_keeper]
    return [record for record in held if record.first is not None and record.keeper.alive()]


def end_foreign(state_dir: Path, record: records.Record) -> None:
    """End a sandbox another process holds, and wait until that one has tidied up."""
    path = state_dir / f"{record.id}{records.SUFFIX}"
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.write(fd, wire.ENDED_LINE)
        os.close(fd)
    _end(record)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while path.exists() and record.keeper.alive() and time.monotonic() < deadline:
        time.sleep(0.005)


def _end(record: records.Record) -> None:
    pidfd = record.first.open() if record.first is not None else None
    if pidfd is None:
        return
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(int(_PATIENCE_SECONDS * 1000))
    except ProcessLookupError:
        pass
    finally:
        os.close(pidfd)


def _is_orphan(name: str) -> bool:
    found = _MARKED.match(name)
    if found is None:
        return False
    mark = ProcessMark(int(found[1]), int(found[2]), boot_id())
    return not mark.alive()


def _remove_leftover_folders(state_dir: Path) -> None:
    for path in state_dir.iterdir():
        if path.is_dir() and _is_orphan(path.name):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        elif path.suffix == records.SUFFIX and records.read(path) is None:
            path.unlink(missing_ok=True)
