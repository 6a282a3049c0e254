"""Everything the protocol asks about paths and folders, done by scripts that run inside."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from sandboxes.errors import SandboxError
from sandboxes.protocol import RunnableSandbox
from sandboxes.scripted import folders
from sandboxes.scripted.listing import Pattern
from sandboxes.scripted.paths import CLEAR, IS_FOLDER, REMOVE
from sandboxes.types import CopyLimits, CopyReport


class ScriptedSandbox(RunnableSandbox):
    """A sandbox whose second primitive is `helper`; paths and folders follow from it."""

    __slots__ = ()

    @abstractmethod
    async def helper(self, script: str, *arguments: str, what: str) -> tuple[int, str]:
        """One of our own scripts, with its arguments: exit code and output. It may be run twice."""

    @property
    def place(self) -> str:
        """How error messages call it."""
        return f"sandbox {self.id}"

    async def must(self, script: str, *arguments: str, what: str) -> None:
        """Run a script that has to succeed."""
        code, output = await self.helper(script, *arguments, what=what)
        if code != 0:
            raise SandboxError(f"cannot {what} in {self.place}: {output.strip()[-300:] or f'exit {code}'}")

    async def upload_folder(self, source: Path, path: str) -> None:
        await folders.upload(self, source, path)

    async def download_folder(
        self, path: str, destination: Path, limits: CopyLimits | None = None
    ) -> CopyReport:
        return await folders.download(self, path, destination, limits or CopyLimits())

    async def list_files(self, pattern: str) -> list[str]:
        search = Pattern(pattern)
        code, output = await self.helper(search.script, *search.arguments, what=f"list {pattern}")
        return search.matches(output) if code == 0 else []

    async def is_folder(self, path: str) -> bool:
        _, output = await self.helper(IS_FOLDER, path, what=f"look at {path}")
        return output.strip() == "yes"

    async def remove(self, path: str) -> None:
        await self.must(REMOVE, path, what=f"remove {path}")

    async def clear_folder(self, path: str) -> None:
        await self.must(CLEAR, path, what=f"clear {path}")
