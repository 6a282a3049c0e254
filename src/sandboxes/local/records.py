"""Records of sandboxes on disk, by which a later process sees, enters or ends what others hold or left
behind."""

# ruff: noqa: ARG002
from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sandboxes.cgroups import Cgroup
from sandboxes.errors import SandboxConnectionError, SandboxError, SandboxNotFoundError
from sandboxes.local import processes, shell
from sandboxes.local.processes import ProcessIdentity, boot_id
from sandboxes.protocol import Sandbox
from sandboxes.types import ExecResult

RECORD_SUFFIX = ".sandbox"


@dataclass(frozen=True)
class SandboxRecord:
    """What the lines of one record say."""

    id: str
    name: str
    labels: dict[str, str]
    created_at: float
    cgroup: str
    keeper: ProcessIdentity
    first: ProcessIdentity | None = None
    ended: bool = False
    """Another process of ours ends it."""

    def opening(self) -> str:
        """The line written before the start."""
        keeper = {"pid": self.keeper.pid, "start": self.keeper.start, "boot": self.keeper.boot}
        fields = {
            "id": self.id,
            "name": self.name,
            "labels": self.labels,
            "created_at": self.created_at,
            "cgroup": self.cgroup,
            "keeper": keeper,
        }
        return json.dumps(fields) + "\n"


def load_records(folder: Path) -> list[SandboxRecord]:
    """Return every record that can be read; one whose first line is torn never started anything."""
    found = [read_record(path) for path in sorted(folder.glob(f"*{RECORD_SUFFIX}"))]
    return [record for record in found if record is not None]


def read_record(path: Path) -> SandboxRecord | None:
    """One record, or None when it is gone or its first line is torn."""
    fields: dict[str, Any] = {}
    try:
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                fields.update(json.loads(line))
    except (FileNotFoundError, ValueError):
        return None
    if "id" not in fields:
        return None
    for role in ("keeper", "first"):
        if role in fields:
            fields[role] = ProcessIdentity(**fields[role])
    return SandboxRecord(**fields)


# Ending what processes that are gone left behind, and looking at what others still hold.
#
# A record or cgroup belongs to a keeper. While exactly that process lives, its sandboxes are its own.

_PATIENCE_SECONDS = 10.0
_MARKED = re.compile(r"(\d+)-(\d+)-")


def marked_name(mark: ProcessIdentity, name: str) -> str:
    """A name that says which process it belongs to."""
    return f"{mark.pid}-{mark.start}-{name}"


def end_orphans(state_dir: Path, cgroup_prefix: str) -> list[SandboxRecord]:
    """End every sandbox whose keeper is gone, and tidy up after it; the records there were."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    left = [record for record in load_records(state_dir) if not record.keeper.alive()]
    for record in left:
        _end(record)
    for name in Cgroup.find(cgroup_prefix):
        if _is_orphan(name.removeprefix(cgroup_prefix)):
            with suppress(SandboxError):  # its processes take their time to die; the next sweep looks again
                Cgroup.reopen(name).remove()
    for record in left:
        (state_dir / f"{record.id}{RECORD_SUFFIX}").unlink(missing_ok=True)
    _remove_leftover_folders(state_dir)
    return left


def foreign_records(state_dir: Path, own_keeper: int | None) -> list[SandboxRecord]:
    """Records of sandboxes that another live process holds."""
    held = [record for record in load_records(state_dir) if record.keeper.pid != own_keeper]
    return [record for record in held if record.first is not None and record.keeper.alive()]


def end_foreign(state_dir: Path, record: SandboxRecord) -> None:
    """End a sandbox another process holds, and wait until that one has tidied up."""
    path = state_dir / f"{record.id}{RECORD_SUFFIX}"
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.write(fd, processes.ENDED_LINE)
        os.close(fd)
    _end(record)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while path.exists() and record.keeper.alive() and time.monotonic() < deadline:
        time.sleep(0.005)


def _end(record: SandboxRecord) -> None:
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
    mark = ProcessIdentity(int(found[1]), int(found[2]), boot_id())
    return not mark.alive()


def _remove_leftover_folders(state_dir: Path) -> None:
    for path in state_dir.iterdir():
        if path.is_dir() and _is_orphan(path.name):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        elif path.suffix == RECORD_SUFFIX and read_record(path) is None:
            path.unlink(missing_ok=True)


# A sandbox another process of ours holds: it can be seen, entered by a person and ended, nothing else.


class ForeignSandbox(Sandbox):
    """Known by its record alone."""

    def __init__(self, record: SandboxRecord, mode: str, groups: list[str]) -> None:
        self._record = record
        self._mode = mode
        self._groups = groups
        self.labels = record.labels
        self.created_at = datetime.fromtimestamp(record.created_at, UTC)

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def state(self) -> str:
        first = self._record.first
        return "started" if first is not None and first.alive() else "deleted"

    async def exec(self, command: str, *, cwd: str | None = None, timeout: float | None = None) -> ExecResult:
        raise self._out_of_reach()

    async def command(
        self,
        command: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> AsyncIterator[str]:
        raise self._out_of_reach()
        yield ""

    async def upload_file(self, path: str, content: bytes) -> None:
        raise self._out_of_reach()

    async def download_file(self, path: str) -> bytes:
        raise self._out_of_reach()

    def shell_argv(self, cwd: str = "/") -> list[str]:
        first = self._record.first
        if first is None or not first.alive():
            raise SandboxNotFoundError(f"sandbox {self.id} is gone")
        env = {"HOME": "/root", "LANG": "C.UTF-8", "PWD": cwd}
        return shell.argv(first.pid, self._groups, self._mode, env)

    def _out_of_reach(self) -> SandboxConnectionError:
        return SandboxConnectionError(
            f"sandbox {self.id} is held by process {self._record.keeper.pid}; only that one can use it"
        )
