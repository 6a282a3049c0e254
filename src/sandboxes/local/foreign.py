"""A sandbox another process of ours holds: it can be seen, entered by a person and ended, nothing else."""

# ruff: noqa: ARG002
from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime

from sandboxes.errors import SandboxConnectionError, SandboxNotFoundError
from sandboxes.local import records, shell
from sandboxes.protocol import Sandbox
from sandboxes.types import ExecResult


class ForeignSandbox(Sandbox):
    """Known by its record alone."""

    def __init__(self, record: records.Record, mode: str, groups: list[str]) -> None:
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
