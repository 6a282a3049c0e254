"""Our own static programs in a container, mounted read-only: the first process, and what runs after an agent
was there. None of them needs a file of the image."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, get_args

from sandboxes.docker import files
from sandboxes.docker.client import EngineClient
from sandboxes.docker.engine import Engine
from sandboxes.docker.requests import GUARD, KIND, LABELS, PROGRAMS
from sandboxes.errors import SandboxError
from sandboxes.machine_code import PROCESSORS, ProgramName, assemble

INIT: Final = f"{PROGRAMS}/init"
KILL: Final = f"{PROGRAMS}/kill"
REMOVE: Final = f"{PROGRAMS}/remove"


class Programs:
    """The programs for one engine: files of this machine where the engine sees them, else a volume."""

    def __init__(self, client: EngineClient, engine: Engine, state_dir: Path) -> None:
        self._client = client
        self._state_dir = state_dir
        cpu = PROCESSORS.get(str(engine.info.get("Architecture", "")))
        self._content: dict[ProgramName, bytes] = (
            {} if cpu is None else {name: assemble(name, cpu) for name in get_args(ProgramName)}
        )
        digest = hashlib.sha256(b"".join(self._content.values())).hexdigest()[:12]
        self._name = f"valkyrie-programs-{digest}"
        self._binds = engine.is_local
        self._filling = asyncio.Lock()
        self._volume: str | None = None

    async def mount(self, image: str) -> dict[str, Any] | None:
        """Return the mount that brings them, or None for a processor they are not written for."""
        if not self._content:
            return None
        if self._binds:
            folder = await asyncio.to_thread(self._write)
            return {"Type": "bind", "Source": str(folder), "Target": PROGRAMS, "ReadOnly": True}
        async with self._filling:
            self._volume = self._volume or await self._fill(image)
        options = {"NoCopy": True}
        return {
            "Type": "volume",
            "Source": self._volume,
            "Target": PROGRAMS,
            "ReadOnly": True,
            "VolumeOptions": options,
        }

    def cannot_bind(self, error: SandboxError) -> bool:
        """Whether the engine does not see our files (it runs in a virtual machine, say); it gets a volume
        from now on."""
        text = str(error).lower()
        missing = self._binds and self._name in text and ("bind" in text or "mount" in text)
        if missing:
            self._binds = False
        return missing

    def _write(self) -> Path:
        folder = (self._state_dir / self._name).absolute()
        if folder.is_dir():
            return folder
        draft = folder.with_name(f"{folder.name}.{token_hex(6)}")
        draft.mkdir(parents=True)
        for name, content in self._content.items():
            (draft / name).write_bytes(content)
            (draft / name).chmod(0o555)
        draft.chmod(0o755)
        try:
            draft.rename(folder)
        except OSError:  # another process was first
            for name in self._content:
                (draft / name).unlink()
            draft.rmdir()
        return folder

    async def _fill(self, image: str) -> str:
        """Make the volume; it stays on the engine for later runs. No container runs for that."""
        what = "put the programs of sandboxes on the engine"
        body = {"Name": self._name, "Labels": {KIND: "programs"}}
        await self._client.call("POST", "volumes/create", what=what, body=body)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, content in self._content.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o555
                tar.addfile(member, io.BytesIO(content))
        packed.seek(0)
        keeper = f"valkyrie-programs-{token_hex(8)}"
        container = {
            "Image": image,
            "Entrypoint": [INIT],
            "Labels": {KIND: GUARD, LABELS: "{}"},
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [{"Type": "volume", "Source": self._name, "Target": PROGRAMS}],
            },
        }
        try:
            await self._client.call(
                "POST", "containers/create", what=what, query={"name": keeper}, body=container
            )
            await files.put(self._client, keeper, PROGRAMS, packed, what=what)
        finally:
            await self._client.remove_container(keeper)
        return self._name


def uses_them(found: Mapping[str, Any]) -> bool:
    """Whether a container's first process is ours, which nothing inside can trace, kill or replace."""
    return list(found["Config"].get("Entrypoint") or ()) == [INIT]
