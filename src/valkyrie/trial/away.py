"""What an attempt leaves, put where people and executors on other machines find it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from valkyrie.errors import UnknownError
from valkyrie.keeping.keys import attempt_prefix, task_prefix
from valkyrie.keeping.protocol import ArtifactStore, LogKeeper, LogName
from valkyrie.store.layout import encode_task_id
from valkyrie.store.leases import Leased

LOG = "attempt.log"
ARTIFACTS = "artifacts/"
FINAL = "agent_output.tar.gz"


@dataclass(frozen=True, slots=True)
class Away:
    """Where one run's attempts put what they leave, besides this machine's folder."""

    artifacts: ArtifactStore | None = None
    logs: LogKeeper | None = None

    def follow(self, leased: Leased, log: Path) -> None:
        """An attempt begins; its log is taken on as it grows."""
        if self.logs:
            self.logs.follow(_name(leased), log)

    def ended(self, leased: Leased) -> None:
        """Nothing more comes in its log."""
        if self.logs:
            self.logs.ended(_name(leased))

    def put(self, leased: Leased, kept: Path, log: Path | None = None) -> None:
        """Put an attempt's files away; returns when they are safe."""
        if self.artifacts is None:
            return
        prefix = attempt_prefix(leased.run_id, encode_task_id(leased.task_id), leased.k, leased.number)
        if log and log.exists():
            self.artifacts.put(prefix + LOG, log)
        for path in sorted(kept.rglob("*")) if kept.exists() else ():
            if path.is_file() and not path.is_symlink():
                name = path.relative_to(kept).as_posix()
                self.artifacts.put(prefix + name, path)
                if leased.k == 0 and (plain := _plain_name(name)):
                    own = task_prefix(leased.run_id, encode_task_id(leased.task_id))
                    self.artifacts.copy(prefix + name, own + plain)

    def fetch(self, leased: Leased, number: int, kept: Path) -> None:
        """Bring back what an earlier attempt put away, if another machine's executor ran it."""
        if self.artifacts is None or kept.exists():
            return
        prefix = attempt_prefix(leased.run_id, encode_task_id(leased.task_id), leased.k, number)
        for found in list(self.artifacts.list(prefix)):
            name = found.key.removeprefix(prefix)
            if name != LOG and ".." not in Path(name).parts:
                target = kept / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(UnknownError):
                    self.artifacts.get(found.key, target)


def _plain_name(name: str) -> str | None:
    """Where the file stands in the layout people know, if it is one of the agent's outputs."""
    if name == FINAL:
        return FINAL
    plain = name.removeprefix(ARTIFACTS)
    return plain if plain != name and plain.partition("/")[0] != "attempts" else None


def _name(leased: Leased) -> LogName:
    return LogName(leased.run_id, leased.task_id, leased.k, leased.number, leased.started_at)
