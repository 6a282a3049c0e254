"""Where a run's files stand on disk."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote


def encode_task_id(task_id: str) -> str:
    """A task id as one safe, readable, unique path component; any printable character is allowed in ids."""
    name = quote(task_id, safe=" +,=@()[]")
    if name in {".", ".."} or name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > 180:
        name = f"{name[:140]}-{hashlib.sha256(task_id.encode()).hexdigest()[:24]}"
    return name


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The state of embedded mode, below one folder."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "valkyrie.db"

    @property
    def agents(self) -> Path:
        return self.root / "agents"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def executor_lock(self) -> Path:
        return self.root / "executor.lock"

    @property
    def executor_log(self) -> Path:
        return self.root / "executor.log"

    def sandboxes(self, provider: str) -> Path:
        return self.root / "sandboxes" / provider

    def run(self, run_id: str) -> RunFolder:
        return RunFolder(self.runs / run_id)

    def sweep_runs(self, known: Collection[str], before: float) -> None:
        """Remove folders of runs that were never stored and are older than `before`."""
        if self.runs.exists():
            for folder in self.runs.iterdir():
                if folder.name not in known and folder.stat().st_mtime < before:
                    shutil.rmtree(folder, ignore_errors=True)

    def make(self) -> DataFolder:
        """Make it, private to the user."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self


@dataclass(frozen=True, slots=True)
class RunFolder:
    """What one run keeps: the frozen agent, and per attempt a log and a folder."""

    root: Path

    @property
    def agent(self) -> Path:
        return self.root / "agent"

    def attempt(self, task_id: str, k: int, number: int) -> Path:
        """The finished folder of an attempt; it appears whole or not at all."""
        return self.root.joinpath("trials", encode_task_id(task_id), str(k), f"attempt-{number}")

    def log(self, task_id: str, k: int, number: int) -> Path:
        return log_of(self.attempt(task_id, k, number))


def log_of(attempt: Path) -> Path:
    """The log beside an attempt's folder."""
    return attempt.with_name(attempt.name + ".log")


def draft_of(attempt: Path) -> Path:
    """Where an attempt's folder is put together before it appears under its own name."""
    return attempt.with_name(attempt.name + ".partial")
