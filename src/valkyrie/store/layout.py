"""Where a run's files stand on disk."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

_PRIVATE = ("agents", "cache", "orgs", "runs")
UNFINISHED_AFTER_S = 3600.0
"""What another process began and did not finish after so long, it never will."""


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
    def bundles(self) -> Path:
        """Agents unpacked, by digest."""
        return self.cache / "bundles"

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

    def sweep_runs(
        self, known: Collection[str], before: float, bound: Mapping[str, bool] | None = None
    ) -> None:
        """Remove what killed processes left: folders of runs that were never stored and are older than
        `before`, and the drafts of lost attempts. Only for an executor that holds the lock.

        `bound`: runs of another executor, and whether it lives. One that lives sees to its drafts; those of
        one that does not are removed when they are old as well: it may be just beginning again.
        """
        bound = bound or {}
        for folder in self.runs.iterdir() if self.runs.exists() else ():
            if bound.get(folder.name):
                continue
            drafts = RunFolder(folder).drafts
            # A run may be deleted meanwhile, and one that is not known yet may be under way elsewhere.
            with contextlib.suppress(FileNotFoundError):
                if folder.name not in known:
                    if folder.stat().st_mtime < before:
                        shutil.rmtree(folder, ignore_errors=True)
                elif folder.name not in bound or drafts.stat().st_mtime < before:
                    shutil.rmtree(drafts, ignore_errors=True)

    def sweep_cache(self) -> None:
        """Remove what killed processes were unpacking, fetching or taking in."""
        places = [self.bundles, self.cache / "benchmarks", self.agents, *self.cache.glob("agents*/")]
        oldest = time.time() - UNFINISHED_AFTER_S
        for place in places:
            for part in (*place.glob(".unpack-*"), *place.glob(".push-*"), *place.glob(".fetch-*")):
                with contextlib.suppress(FileNotFoundError):
                    if place == self.bundles or part.stat().st_mtime < oldest:  # a server's may be under way
                        shutil.rmtree(part, ignore_errors=True)

    def make(self) -> DataFolder:
        """Make it, private to the user; where it was there and is open to others, what is in it is not."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in _PRIVATE:
            (self.root / name).mkdir(exist_ok=True, mode=0o700)
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

    @property
    def transcripts(self) -> Path:
        """What agents told of their attempts in few words, all in one file (`artifact_store.logs`)."""
        return self.root / "transcripts.jsonl"

    def regrade_tests(self, digest: str) -> Path:
        """Tests that kept work was graded again with, frozen."""
        return self.root / "regrades" / f"{digest}.zip"

    @property
    def drafts(self) -> Path:
        """What attempts under way put together; nothing of it outlives its executor."""
        return self.root / "drafts"

    def draft(self, trial_id: int, number: int) -> Path:
        """Return where an attempt's folder is put together before it appears under its own name."""
        return self.drafts / f"{trial_id}-{number}"

    def log(self, task_id: str, k: int, number: int) -> Path:
        return log_of(self.attempt(task_id, k, number))


def log_of(attempt: Path) -> Path:
    return attempt.with_name(attempt.name + ".log")
