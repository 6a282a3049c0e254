"""Crash rounds: a run of sixty trials in real sandboxes, and what must be true when it is over."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

from sandboxes.cgroups import Cgroup
from sandboxes.local.provider import LocalProvider
from tests.live_folders import files_below
from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder
from valkyrie.store.schema import attempt, trial
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, RunView

TRIALS_PER_TASK = 5
"""× 12 tasks of quickstart = 60 trials."""


@dataclass
class Home:
    """One data folder under fire."""

    root: Path

    @property
    def data(self) -> DataFolder:
        return DataFolder(self.root)

    @property
    def executor(self) -> ExecutorClient:
        return ExecutorClient(self.data)

    def tracker(self) -> LocalTracker:
        return LocalTracker(self.root)

    def request(self) -> RunRequest:
        return RunRequest(agent="oracle", benchmark="quickstart", trials=TRIALS_PER_TASK, concurrency=6)

    def finish(self, run_id: str, timeout: float = 200) -> RunView:
        """Let the run end undisturbed."""
        tracker = self.tracker()
        try:
            tracker.resume(run_id)
            return tracker.wait(run_id, timeout=timeout)
        finally:
            tracker.close()

    def end_executor(self) -> None:
        """Ask the executor to leave, and see it gone."""
        self.executor.ask("end")
        deadline = time.monotonic() + 300
        while self.executor.status() is not None or self.processes():
            assert time.monotonic() < deadline, f"still there: {self.processes()}"
            time.sleep(0.05)

    def processes(self) -> list[str]:
        """Every process that names this data folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if str(self.root) in words:
                    found.append(f"{entry.name} {words}")
        return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    if not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed; scripts/setup-system installs it")
    monkeypatch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "60")
    made = Home(tmp_path / "home")
    yield made
    made.end_executor()


def assert_nothing_lost(home: Home, run: RunView) -> None:
    """Every trial graded exactly once, none run again after its grade, the score that of a quiet run."""
    assert run.state == "FINISHED", (run.state, run.error, run.counts)
    assert run.counts["FINISHED"] == run.total
    assert run.score.final_score == run.score.score_graded == 1.0
    tracker = home.tracker()
    with tracker.store.reading() as connection:
        rows = connection.execute(
            select(trial.c.id, trial.c.task_id, trial.c.k, attempt.c.number, attempt.c.outcome)
            .join(attempt, attempt.c.trial_id == trial.c.id)
            .where(trial.c.run_id == run.id)
            .order_by(trial.c.id, attempt.c.number)
        ).all()
    tracker.close()
    outcomes: dict[int, list[str | None]] = {}
    for row in rows:
        outcomes.setdefault(row.id, []).append(row.outcome)
    assert len(outcomes) == run.total
    for found in outcomes.values():
        assert found[-1] == "graded"
        assert set(found[:-1]) <= {"lost"}, found


def assert_nothing_left(home: Home) -> None:
    """No sandbox, mount, cgroup or process survives."""
    home.end_executor()
    assert home.processes() == []
    assert str(home.root) not in Path("/proc/self/mountinfo").read_text()
    records = home.data.sandboxes("local")
    # What was found out about the machine is kept for plans; nothing else is.
    assert {path.name for path in files_below(records)} <= {"capabilities.json"}
    assert Cgroup.find(LocalProvider(records)._cgroup_prefix) == []
