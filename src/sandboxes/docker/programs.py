"""Our own static programs in a container, mounted read-only: the first process, and what runs after an agent
was there. None of them needs a file of the image."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, get_args

from sandboxes.docker.engine import Engine
from sandboxes.docker.requests import PROGRAMS
from sandboxes.machine_code import PROCESSORS, ProgramName, assemble

INIT: Final = f"{PROGRAMS}/init"
KILL: Final = f"{PROGRAMS}/kill"
REMOVE: Final = f"{PROGRAMS}/remove"


class Programs:
    """The programs for one engine, as a folder of this machine that is shown to its containers."""

    def __init__(self, engine: Engine, state_dir: Path) -> None:
        self._state_dir = state_dir
        cpu = PROCESSORS.get(str(engine.info.get("Architecture", "")))
        self._content: dict[ProgramName, bytes] = (
            {} if cpu is None else {name: assemble(name, cpu) for name in get_args(ProgramName)}
        )
        digest = hashlib.sha256(b"".join(self._content.values())).hexdigest()[:12]
        self._name = f"valkyrie-programs-{digest}"

    async def folder(self) -> Path | None:
        """Return where they are, or None for a processor they are not written for."""
        return await asyncio.to_thread(self._write) if self._content else None

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


def uses_them(found: Mapping[str, Any]) -> bool:
    """Whether a container's first process is ours, which nothing inside can trace, kill or replace."""
    return list(found["Config"].get("Entrypoint") or ()) == [INIT]
