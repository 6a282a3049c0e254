"""A tracker on a data folder of its own, and the executor it starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.local import LocalTracker

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTracker]:
    home = tmp_path / "home"
    monkeypatch.setenv("VALKYRIE_HOME", str(home))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "30")
    monkeypatch.chdir(tmp_path)
    made = LocalTracker(home)
    yield made
    made.close()
    end_executor(home)


def end_executor(home: Path) -> None:
    client = ExecutorClient(DataFolder(home))
    status = None
    while status is None and client.lives():
        status = client.ask("end")
    until(lambda: not client.lives(), timeout=300)
    if status:
        until(lambda: not alive(status["pid"]), timeout=300)


def alive(pid: int) -> bool:
    """Whether a process is there, and not only waiting for whoever collects the dead."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def until(condition: Callable[[], Any], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
