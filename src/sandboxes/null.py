"""A provider that does nothing, at once: for tests, and to measure everything around it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path

from sandboxes.errors import SandboxError, SandboxFileNotFoundError, SandboxNotFoundError
from sandboxes.protocol import Sandbox, SandboxProvider
from sandboxes.types import (
    Capabilities,
    Command,
    CopyLimits,
    CopyReport,
    ExecResult,
    OutputSink,
    SandboxCreateRequest,
    SandboxQuery,
)

_CAPABILITIES = Capabilities(
    provider="null",
    isolation="nothing runs: every command succeeds without being started",
    images=True,
    writable_system=True,
    users=True,
    networks=frozenset({"none", "public", "allowlist"}),
    enforcement=dict.fromkeys(("cpus", "memory", "disk", "pids"), "nothing runs"),
)


class NullSandbox(Sandbox):
    """Commands succeed and print nothing; files are kept in memory."""

    __slots__ = ("_alive", "_files", "_id", "_name", "created_at", "labels")

    def __init__(self, sandbox_id: str, name: str, labels: Mapping[str, str]) -> None:
        self._id = sandbox_id
        self._name = name
        self._files: dict[str, bytes] = {}
        self._alive = True
        self.labels = labels
        self.created_at = datetime.now(UTC)

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return self._name

    @property
    def state(self) -> str:
        return "started" if self._alive else "deleted"

    def end(self) -> None:
        """Forget everything; from here on the handle is stale."""
        self._alive = False
        self._files = {}

    def _check(self) -> None:
        if not self._alive:
            raise SandboxNotFoundError(f"sandbox {self._id} was deleted")

    async def run(self, command: Command, sink: OutputSink | None = None) -> int:  # noqa: ARG002
        self._check()
        return 0

    async def exec(
        self,
        command: str,  # noqa: ARG002
        *,
        cwd: str | None = None,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ARG002
    ) -> ExecResult:
        self._check()
        return ExecResult(0)

    async def command(
        self,
        command: str,  # noqa: ARG002
        *,
        cwd: str | None = None,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ARG002
        env_vars: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> AsyncIterator[str]:
        self._check()
        return
        yield ""

    async def upload_file(self, path: str, content: bytes) -> None:
        self._check()
        self._files[_normal(path)] = content

    async def download_file(self, path: str) -> bytes:
        self._check()
        try:
            return self._files[_normal(path)]
        except KeyError:
            raise SandboxFileNotFoundError(f"no file {path} in sandbox {self._id}") from None

    async def upload_folder(self, source: Path, path: str) -> None:
        self._check()
        top = os.path.realpath(source)
        for folder, folders, names in os.walk(top):
            for name in folders + names:
                origin = Path(folder, name)
                if origin.is_symlink() and not origin.resolve().is_relative_to(top):
                    raise SandboxError(f"cannot upload {origin}: the link leaves the folder")
            for name in names:
                inner = os.path.relpath(Path(folder, name), top)
                self._files[_normal(f"{path}/{inner}")] = Path(folder, name).read_bytes()

    async def download_folder(
        self, path: str, destination: Path, limits: CopyLimits | None = None
    ) -> CopyReport:
        self._check()
        if not await self.is_folder(path):
            raise SandboxFileNotFoundError(f"no folder {path} in sandbox {self._id}")
        limits = limits or CopyLimits()
        report = CopyReport()
        prefix = _normal(path).rstrip("/") + "/"
        inside = {name[len(prefix) :]: data for name, data in self._files.items() if name.startswith(prefix)}
        destination.mkdir(parents=True, exist_ok=True)
        for number, (name, data) in enumerate(inside.items()):
            if number >= limits.max_entries:
                report.skip(name, f"more than {limits.max_entries} entries; the rest was not looked at")
                break
            if len(data) > min(limits.max_file_bytes, limits.max_bytes - report.bytes):
                report.skip(name, f"{len(data)} bytes, over the limits")
                continue
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            (destination / name).write_bytes(data)
            report.files += 1
            report.bytes += len(data)
        return report

    async def list_files(self, pattern: str) -> list[str]:
        self._check()
        parts = _normal(pattern).split("/")
        return sorted(name for name in self._files if _matches(name.split("/"), parts))

    async def is_folder(self, path: str) -> bool:
        self._check()
        prefix = _normal(path).rstrip("/") + "/"
        return any(name.startswith(prefix) for name in self._files)

    async def remove(self, path: str) -> None:
        self._check()
        whole = _normal(path)
        for name in [name for name in self._files if name == whole or name.startswith(whole + "/")]:
            del self._files[name]

    async def give_folder(self, path: str, user: str) -> None:  # noqa: ARG002
        return

    async def clear_folder(self, path: str) -> None:
        await self.remove(path)

    async def kill_all(self) -> None:
        self._check()


class NullProvider(SandboxProvider):
    """Makes null sandboxes; they live as long as this object."""

    def __init__(self, state_dir: Path | None = None) -> None:
        _ = state_dir
        self._sandboxes: dict[str, NullSandbox] = {}
        self._numbers = count(1)

    async def create_sandbox(self, request: SandboxCreateRequest) -> NullSandbox:
        sandbox_id = f"null-{next(self._numbers)}"
        sandbox = NullSandbox(sandbox_id, request.name or sandbox_id, request.labels)
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    async def get_sandbox(self, sandbox_id: str) -> NullSandbox:
        try:
            return self._sandboxes[sandbox_id]
        except KeyError:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id}") from None

    async def delete_sandbox(self, sandbox_id: str) -> None:
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            sandbox.end()

    async def list_sandboxes(self, query: SandboxQuery | None = None) -> AsyncIterator[NullSandbox]:
        wanted = query.labels.items() if query else ()
        latest = query.created_at_lte if query else None
        for sandbox in list(self._sandboxes.values()):
            labels = sandbox.labels or {}
            if all(labels.get(key) == value for key, value in wanted) and (
                latest is None or sandbox.created_at is None or sandbox.created_at <= latest
            ):
                yield sandbox

    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    async def close(self) -> None:
        for sandbox_id in list(self._sandboxes):
            await self.delete_sandbox(sandbox_id)


def _normal(path: str) -> str:
    return posixpath.normpath(path if path.startswith("/") else f"/{path}")


def _matches(name: list[str], pattern: list[str]) -> bool:
    return len(name) == len(pattern) and all(map(fnmatchcase, name, pattern))
