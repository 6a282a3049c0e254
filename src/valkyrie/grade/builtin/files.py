"""Files the agent left in the workspace."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from valkyrie.grade.base import BuiltIn, clipped
from valkyrie.grade.config import Config
from valkyrie.grade.globs import TooManyFilesError, WorkspaceGlob
from valkyrie.grade.protocol import Given, GraderResult, Need
from valkyrie.grade.seeking import sought_by, wanted_by
from valkyrie.grade.workspace_files import UnreadableError, is_file, read_text, workspace_of

_SHOWN = 5
MOST_BYTES_IN_ALL = 256 * 1024 * 1024
"""Of all files that one grader looks into."""


class _FileGrader(BuiltIn):
    needs = frozenset({Need.WORKSPACE})

    def read(self, config: Config) -> None:
        self.glob = WorkspaceGlob(config.text("path"))
        self.wanted = wanted_by(config, self.spec.type)

    async def look(self, given: Given) -> GraderResult:
        root = workspace_of(given.workspace).resolve()
        try:
            if self.glob.plain:
                return self.search(root, given.unseen)
            return await asyncio.to_thread(self.search, root, given.unseen)
        except TooManyFilesError as error:
            return self.failed(f"cannot tell: {error}")

    def search(self, root: Path, unseen: Collection[str]) -> GraderResult:
        raise NotImplementedError

    def nothing(self) -> str:
        why = " (it leads out of the workspace)" if self.glob.leaves else ""
        return f"no file matches {self.glob.pattern}{why}"


class FileExistsGrader(_FileGrader):
    """`file-exists`, `file-not-exists`: something in the workspace has this path."""

    def search(self, root: Path, unseen: Collection[str]) -> GraderResult:
        path = next(self.glob.find(root, unseen), None)
        if path is None:
            return self.found(not self.wanted, self.nothing())
        return self.found(self.wanted, f"there is {path.relative_to(root)}")


class FileTextGrader(_FileGrader):
    """`file-contains`, `file-matches` and their `-not-` forms: any file with this path has it."""

    def read(self, config: Config) -> None:
        super().read(config)
        self.sought = sought_by(config, self.spec.type, case_sensitive=True)

    def search(self, root: Path, unseen: Collection[str]) -> GraderResult:
        read, unreadable = list[str](), list[str]()
        left = MOST_BYTES_IN_ALL
        for path in self.glob.find(root, unseen):
            if not is_file(path):
                continue
            name = str(path.relative_to(root))
            try:
                text = read_text(path, most=left)
            except UnreadableError as error:
                unreadable.append(f"{name}: {error}")
                continue
            left -= len(text)
            place = self.sought.where(text)
            if place is not None:
                return self.found(self.wanted, f"{name} has {self.sought.name}: {place}")
            read.append(name)
        if unreadable:
            return self.failed(f"cannot tell: {'; '.join(unreadable[:_SHOWN])}")
        if not read:
            return self.found(not self.wanted, self.nothing())
        names = clipped(", ".join(read[:_SHOWN]), 300) + (" …" if len(read) > _SHOWN else "")
        return self.found(not self.wanted, f"{self.sought.name} is not in {names}")
