"""What an attempt leaves, put where people and executors on other machines find it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from valkyrie.errors import UnknownError
from valkyrie.keeping.keys import attempt_prefix, task_prefix
from valkyrie.keeping.protocol import ArtifactStore, LogKeeper, LogName
from valkyrie.store.layout import encode_task_id
from valkyrie.store.leases import Leased

LOG = "attempt.log"
ARTIFACTS = "artifacts/"
FINAL = "agent_output.tar.gz"
Carry = Callable[[Callable[[], None]], Awaitable[None]]
"""Does blocking work somewhere else."""


async def in_a_thread(work: Callable[[], None]) -> None:
    """Do it in one of the loop's own threads."""
    await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class Away:
    """Where one run's attempts put what they leave, besides this machine's folder."""

    artifacts: ArtifactStore | None = None
    logs: LogKeeper | None = None
    carry: Carry = in_a_thread

    def follow(self, leased: Leased, log: Path) -> None:
        """An attempt begins; its log is taken on as it grows."""
        if self.logs:
            self.logs.follow(_name(leased), log)

    def ended(self, leased: Leased) -> None:
        """Nothing more comes in its log."""
        if self.logs:
            self.logs.ended(_name(leased))

    async def put(self, leased: Leased, kept: Path, log: Path | None = None) -> None:
        """Put an attempt's files away; returns when they are safe."""
        if self.artifacts is not None:
            await self.carry(partial(self._put, self.artifacts, leased, kept, log))

    def _put(self, artifacts: ArtifactStore, leased: Leased, kept: Path, log: Path | None) -> None:
        prefix = attempt_prefix(leased.run_id, encode_task_id(leased.task_id), leased.k, leased.number)
        if log and log.exists():
            artifacts.put(prefix + LOG, log)
        for path in sorted(kept.rglob("*")) if kept.exists() else ():
            if path.is_file() and not path.is_symlink():
                name = path.relative_to(kept).as_posix()
                artifacts.put(prefix + name, path)
                if leased.k == 0 and (plain := _plain_name(name)):
                    own = task_prefix(leased.run_id, encode_task_id(leased.task_id))
                    artifacts.copy(prefix + name, own + plain)

    async def fetch(self, leased: Leased, number: int, kept: Path) -> None:
        """Bring back what an earlier attempt put away, if another machine's executor ran it."""
        if self.artifacts is not None and not kept.exists():
            await self.carry(partial(self._fetch, self.artifacts, leased, number, kept))

    async def put_once(self, key: str, file: Path) -> None:
        """Put one file away under a key, unless there is one already."""
        if (artifacts := self.artifacts) is not None:

            def put() -> None:
                if artifacts.find(key) is None:
                    artifacts.put(key, file)

            await self.carry(put)

    async def get(self, key: str, file: Path) -> None:
        """Fetch one file, if it is not here and there is one of that key."""
        if (artifacts := self.artifacts) is not None and not file.exists():

            def get() -> None:
                file.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(UnknownError):
                    artifacts.get(key, file)

            await self.carry(get)

    def _fetch(self, artifacts: ArtifactStore, leased: Leased, number: int, kept: Path) -> None:
        prefix = attempt_prefix(leased.run_id, encode_task_id(leased.task_id), leased.k, number)
        for found in list(artifacts.list(prefix)):
            name = found.key.removeprefix(prefix)
            if name != LOG and ".." not in Path(name).parts:
                target = kept / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(UnknownError):
                    artifacts.get(found.key, target)


def _plain_name(name: str) -> str | None:
    """Where the file stands in the layout people know, if it is one of the agent's outputs."""
    if name == FINAL:
        return FINAL
    plain = name.removeprefix(ARTIFACTS)
    return plain if plain != name and plain.partition("/")[0] != "attempts" else None


def _name(leased: Leased) -> LogName:
    return LogName(leased.run_id, leased.task_id, leased.k, leased.number, leased.started_at)
