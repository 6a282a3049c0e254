"""One container, behind the protocol every provider speaks."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from sandboxes.docker import files
from sandboxes.docker.container_config import IMAGE_DEFAULTS, KILL_PROGRAM, LABELS, NAME, uses_programs
from sandboxes.docker.engine import EngineClient
from sandboxes.docker.execution import BytesSink, Execution, run_entrypoint, run_program
from sandboxes.docker.work import ContainerWork
from sandboxes.errors import (
    SandboxDiedError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
)
from sandboxes.protocol import CarryRules, ChangedPath, ImageDefaults, PackedWork, Sandbox, WorkLimits
from sandboxes.scripted_sandbox import KILL_MARKED, MARK, ScriptedSandbox
from sandboxes.types import KILLED_EXIT_CODE, Command, CopyLimits, CopyReport, OutputSink, StreamName

HELPER_SECONDS = 300.0
"""How long one of our own little scripts may take."""
KILL_SECONDS = 10.0
"""How long killing may take inside before the container is ended from outside."""
_LOOKS = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Between looks whether killed processes are gone."""
_HELPER_CHARS = 32 << 20

_MAKE_FOLDER = 'if [ -L "$1" ] || [ ! -d "$1" ]; then rm -rf -- "$1"; fi; mkdir -p -- "$1"'


class ContainerOwner(Protocol):
    """What a sandbox asks of the provider that made it."""

    @property
    def work(self) -> ContainerWork:
        """What carries the work of containers."""

    async def restart(self, sandbox: DockerSandbox) -> None:
        """End every process of a container and start it anew on the files it has."""

    async def find_obstacle(self, name: str, *, reading: bool = False) -> str:
        """Return what in a container's files keeps the engine from running anything in it, if anything, or
        from `reading` its files."""

    async def check_alive(self, name: str) -> None:
        """Raise SandboxDiedError when a container has ended that nobody asked to end."""


class DockerSandbox(ScriptedSandbox):
    """A container of ours. Its id is the container's name."""

    image_defaults: ImageDefaults

    def __init__(
        self, client: EngineClient, found: Mapping[str, Any], deleted: set[str], owner: ContainerOwner
    ) -> None:
        self._client = client
        self._deleted = deleted
        self._owner = owner
        self._has_programs = uses_programs(found)
        self.nano_cpus = int(found["HostConfig"].get("NanoCpus") or 0)
        self._id = str(found["Name"]).lstrip("/")
        own: Mapping[str, str] = found["Config"]["Labels"]
        self.own_labels = own
        user, *entrypoint = json.loads(own.get(IMAGE_DEFAULTS, "[null]"))
        workdir = str(found["Config"].get("WorkingDir") or "/")
        self.image_defaults = ImageDefaults(workdir, user, tuple(entrypoint))
        self.labels = json.loads(own.get(LABELS, "{}"))
        self.created_at = moment(str(found["Created"]))

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return self.own_labels.get(NAME) or self._id

    @property
    def state(self) -> str:
        """`started`, or `deleted` as far as is known here."""
        return "deleted" if self._id in self._deleted else "started"

    async def run(self, command: Command, sink: OutputSink | None = None) -> int:
        code = await self._execution().run(command, sink)
        if code == KILLED_EXIT_CODE:
            self._check()
        return code

    async def start_entrypoint(self, env: Mapping[str, str], sink: OutputSink | None = None) -> None:
        self._check()
        if self.image_defaults.entrypoint:
            await run_entrypoint(self._client, self._id, self.image_defaults, env, sink)

    async def upload_file(self, path: str, content: bytes) -> None:
        self._check()
        await files.write_whole(self._client, self._id, path, content)

    async def upload_stream(self, path: str, chunks: AsyncIterator[bytes], *, mode: int = 0o644) -> None:
        self._check()
        await files.write_file(self._client, self._id, path, chunks, mode)

    async def download_file(self, path: str) -> bytes:
        return b"".join([chunk async for chunk in self.stream_download(path)])

    async def stream_download(self, path: str) -> AsyncIterator[bytes]:
        self._check()
        if reason := await self._owner.find_obstacle(self._id, reading=True):
            # The engine looks up users for each archive it makes, and would answer nothing more.
            raise SandboxFileNotFoundError(f"cannot read {path} in {self._id}: {reason}")
        async for piece in files.read_file(self._client, self._id, path):
            yield piece

    async def upload_folder(self, source: Path, path: str) -> None:
        await self.must(_MAKE_FOLDER, path, what=f"make {path}")
        await files.write_folder(self._client, self._id, source, path)

    async def download_folder(
        self, path: str, destination: Path, limits: CopyLimits | None = None
    ) -> CopyReport:
        async def run(argv: tuple[str, ...], sink: BytesSink, timeout: float) -> int:
            return await self._execution().run_bytes(Command(argv=argv, timeout=timeout), sink)

        return await files.download_as_archive(run, path, destination, limits or CopyLimits())

    async def is_folder(self, path: str) -> bool:
        self._check()
        found = await files.stat_path(self._client, self._id, path)
        return found is not None and found.is_folder

    async def changes(self, rules: CarryRules | None = None) -> list[ChangedPath]:
        self._check()
        return await self._owner.work.changes(self._id, rules)

    async def pack_work(
        self, rules: CarryRules, archive: Path, limits: WorkLimits | None = None
    ) -> PackedWork:
        self._check()
        return await self._owner.work.pack(self._id, rules, archive, limits or WorkLimits())

    async def unpack_work(self, archive: Path, rules: CarryRules, removed: Sequence[str] = ()) -> None:
        self._check()
        await self._owner.work.unpack(self._id, archive, rules, removed)

    async def put_back(self, paths: Sequence[str], pristine: Sandbox) -> None:
        self._check()
        if not isinstance(pristine, DockerSandbox):
            raise SandboxUnsupportedError(f"{pristine.id} is no container: files cannot be put back from it")
        await self._owner.work.put_back(self._id, paths, pristine.id)

    async def kill_all(self) -> None:
        # Sent to all at once by the kernel: not even what is forking gets away. The program is our own and
        # the engine looks from outside whether it worked. What is left all the same, or so many that no
        # further process can start, ends with the container; its files stay.
        self._check()
        killed = False
        try:
            async with asyncio.timeout(KILL_SECONDS):
                if self._has_programs and not await self._owner.find_obstacle(self._id):
                    killed = (
                        await run_program(self._client, self._id, [KILL_PROGRAM]) == 0
                        and await self._is_quiet()
                    )
        except SandboxNotFoundError:
            await self._owner.check_alive(self._id)
            raise
        except (SandboxError, TimeoutError):
            killed = False
        if not killed:
            await self._owner.restart(self)

    async def kill_marked(self, mark: str, user: str | None) -> None:
        """End the processes of one command."""
        killed = True
        try:
            for someone in {user, None}:
                # Even root may not look into what belongs to others here.
                code, _ = await self._script(
                    KILL_MARKED, f"{MARK}={mark}", user=someone, timeout=KILL_SECONDS
                )
                killed = killed and code == 0
        except SandboxNotFoundError:
            raise
        except (SandboxError, TimeoutError):
            killed = False
        if not killed:
            # It takes every process there may be, or makes more of them than one can count.
            await self.kill_all()

    async def helper(self, script: str, *arguments: str, what: str) -> tuple[int, str]:
        """One of our own scripts: exit code and output."""
        _ = what
        return await self._script(script, *arguments, user=None, timeout=HELPER_SECONDS)

    async def _script(
        self, script: str, *arguments: str, user: str | None, timeout: float
    ) -> tuple[int, str]:
        pieces: list[str] = []
        room = _HELPER_CHARS

        def keep(_stream: StreamName, text: str) -> None:
            nonlocal room
            pieces.append(text[: max(room, 0)])
            room -= len(text)

        argv = ("/bin/sh", "-c", script, "sh", *arguments)
        async with asyncio.timeout(timeout):
            code = await self._execution(kill=False).run(Command(argv=argv, user=user), keep)
        return code, "".join(pieces)

    def shell_argv(self, cwd: str = "/") -> list[str]:
        self._check()
        program = shutil.which("docker") or shutil.which("podman")
        if program is None:
            raise SandboxUnsupportedError("a shell in a container needs the `docker` or `podman` program")
        address = ["-H", self._client.url] if program.endswith("docker") else ["--url", self._client.url]
        enter = 'cd -- "$1" 2>/dev/null; command -v bash >/dev/null && exec bash; exec sh'
        return [program, *address, "exec", "-it", "-u", "0", self._id, "/bin/sh", "-c", enter, "sh", cwd]

    def _execution(self, *, kill: bool = True) -> Execution:
        self._check()
        marked = self.kill_marked if kill else _leave_alone
        workdir = self.image_defaults.workdir
        return Execution(self._client, self._id, marked, self._alive, self._has_users, workdir)

    async def _alive(self) -> None:
        await self._owner.check_alive(self._id)

    async def _has_users(self) -> None:
        if reason := await self._owner.find_obstacle(self._id):
            raise SandboxDiedError(f"nothing can be run in sandbox {self._id} any more: {reason}")

    async def _is_quiet(self) -> bool:
        """Return whether only the first process is left, as the engine sees it from outside."""
        path, what = f"containers/{self._id}/top", f"look at the processes of {self._id}"
        for delay in _LOOKS:
            await asyncio.sleep(delay)
            found = await self._client.call("GET", path, what=what, query={"ps_args": "-eo pid,args"})
            if len(found["Processes"]) <= 1:
                return True
        return False

    def _check(self) -> None:
        if self._id in self._deleted:
            raise SandboxNotFoundError(f"sandbox {self._id} was deleted")


async def _leave_alone(_mark: str, _user: str | None) -> None:
    """Our own scripts end by themselves, or with everything else."""


def moment(text: str) -> datetime:
    """An engine's time, which counts nanoseconds."""
    head, _, rest = text.partition(".")
    zone = "+00:00"
    for sign in ("+", "-"):
        if sign in rest:
            zone = sign + rest.partition(sign)[2]
    value = datetime.fromisoformat(head.rstrip("Z") + zone) if rest or text.endswith("Z") else None
    return value or datetime.fromisoformat(text).astimezone(UTC)
